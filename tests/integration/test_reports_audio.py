"""Reports about what becomes of a stage's samples: their rate, their shape and type, and samples that are no sound."""

import json

import numpy as np
import pytest
import soundfile

from omni_cli.artifacts.audio import to_pcm16
from stages.models.synthetic.waves import FRAME_SAMPLES
from tests.integration.cli import Ended, batch, check_trace, leaves_nothing
from tests.synthetic_answers import expected_audio
from tests.unit.omni_cli.inputs.media_samples import peak_hz

RATES_HZ = (24_000, 44_100, 16_000)
SHAPES = ("n", "1xn", "1x1xn", "nx1")
DTYPES = ("float32", "float16", "bfloat16")
FRAMES = 12
SEED = 3


def asking(name: str, **options: object) -> dict:
    return {"id": name, "prompt": "a b c", "seed": SEED, "synthetic": {"frames": FRAMES, **options}}


LINES = [
    *(asking(f"rate-{rate}", wave="sine_1k", sample_rate_hz=rate) for rate in RATES_HZ),
    *(asking(f"{shape}-{dtype}", shape=shape, dtype=dtype) for shape in SHAPES for dtype in DTYPES),
    *(asking(f"nan-{dtype}", wave="nan", dtype=dtype) for dtype in DTYPES),
    asking("loud", wave="loud"),
    asking("no-samples", wave="empty"),
    asking("no-frames", frames=0),
    {**asking("only-audio", frames=0), "modalities": ["audio"]},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Ended:
    with leaves_nothing():
        return batch(tmp_path_factory.mktemp("audio"), LINES, "recipe=synthetic")


@pytest.mark.parametrize("rate_hz", RATES_HZ)
def test_r28_the_file_has_the_rate_that_the_stage_declares(run, rate_hz):
    samples, header_hz = run.audio(f"rate-{rate_hz}")
    assert (header_hz, samples.shape) == (rate_hz, (FRAMES * FRAME_SAMPLES,))
    assert peak_hz(samples, header_hz) == pytest.approx(1000, abs=5)
    (record,) = [a for a in run.results[f"rate-{rate_hz}"]["artifacts"] if a["output"] == "audio"]
    assert (record["rate_hz"], record["frames"]) == (rate_hz, FRAMES * FRAME_SAMPLES)
    assert record["duration_s"] == pytest.approx(FRAMES * FRAME_SAMPLES / rate_hz)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_r29_every_shape_and_type_becomes_mono_samples(run, shape, dtype):
    info = soundfile.info(run.run / f"{shape}-{dtype}" / "audio.wav")
    assert (info.channels, info.samplerate, info.frames, info.subtype) == (1, 24_000, FRAMES * FRAME_SAMPLES, "PCM_16")
    samples, _ = run.audio(f"{shape}-{dtype}")
    exact = np.frombuffer(expected_audio("a b c", SEED, frames=FRAMES), np.float32)
    error = {"float32": 0.5, "float16": 8.5, "bfloat16": 64.5}[dtype]  # of a 16-bit step: half of the type's last bit
    assert np.abs(samples * 32768 - exact * 32768).max() <= error
    if dtype == "float32":
        assert np.array_equal(samples * 32768, to_pcm16(exact))


@pytest.mark.parametrize("dtype", DTYPES)
def test_r29_a_sample_that_is_no_number_fails_the_request_and_leaves_no_file(run, dtype):
    assert run.code == 1
    result = run.results[f"nan-{dtype}"]
    assert (result["status"], result["error"]["fault"], result["error"]["stage"]) == ("failed", "server", "code2wav")
    assert "not finite numbers (the first is sample 10)" in result["error"]["message"]
    assert run.err.count(result["error"]["message"]) == 1
    assert [path.name for path in (run.run / f"nan-{dtype}").iterdir()] == ["text.txt"]


def test_r29_what_is_too_loud_is_clipped_with_a_warning(run):
    samples, _ = run.audio("loud")
    assert (samples.min(), samples.max()) == (-1, 32767 / 32768)
    (line,) = [line for line in run.err.splitlines() if "were clipped" in line]
    assert line.startswith("warning: ")
    assert "stage code2wav" in line
    assert "(peak 2)" in line
    assert run.results["loud"]["status"] == "finished"


@pytest.mark.parametrize("name", ["no-samples", "no-frames", "only-audio"])
def test_r29_no_sound_is_said_and_is_no_file(run, name):
    result = run.results[name]
    assert result["status"] == "finished"
    assert {a["output"]: a["state"] for a in result["artifacts"]}["audio"] == "empty"
    assert not (run.run / name / "audio.wav").exists()
    manifest = json.loads((run.run / "manifest.json").read_bytes())
    (entry,) = [request for request in manifest["requests"] if request["request_id"] == name]
    assert entry["artifacts"] == result["artifacts"]
    assert run.err.count(f"request {name} has no audio") == 1


def test_r29_the_others_are_not_touched(run):
    failed = {name for name, result in run.results.items() if result["status"] != "finished"}
    assert failed == {f"nan-{dtype}" for dtype in DTYPES}
    check_trace(run.run)
