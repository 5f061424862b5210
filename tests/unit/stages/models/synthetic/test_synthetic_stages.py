"""The synthetic families through real workers: what comes out is what the request alone determines."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.errors import RequestRefused
from stages.messages import Sampling
from stages.models.synthetic.options import (
    AT_LOAD,
    DagFail,
    DagOptions,
    Fail,
    StageDelays,
    SyntheticOptions,
)
from stages.models.synthetic.thinker import echo
from stages.models.synthetic.tokens import TOKEN_WIDTH, pack, tokenize
from stages.models.synthetic.waves import FRAME_SAMPLES
from stages.payload import Tensor
from tests.synthetic_answers import expected_audio, expected_mix
from tests.unit.stages.models.synthetic.pipeline import Pipeline

MODES = ("complete", "incremental")
FOREIGN = "李明说：“你好”🙂🙂🏽 \n\n  e\u0301 👨‍👩‍👧 مرحبا x" + "y" * 20 + " \t"


def options(**knobs):
    return SyntheticOptions(**knobs)


@given(st.text())
def test_tokens_are_the_text_in_pieces(text):
    tokens = tokenize(text)
    assert "".join(tokens) == text
    assert all(0 < len(token) <= TOKEN_WIDTH for token in tokens)
    assert len(pack(tokens)) == 32 * len(tokens)


def test_eight_words_are_eight_tokens():
    assert len(tokenize("one two three four five six seven eight")) == 8


@pytest.mark.parametrize("mode", MODES)
def test_text_is_the_prompt_and_audio_is_determined_by_text_seed_and_frame(mode):
    line = Pipeline("synthetic", mode)
    line.submit(1, FOREIGN, seed=5)
    line.submit(2, "one", seed=2**64 - 1, options=options(frames=200))
    line.run()
    assert line.texts[1, "text"] == FOREIGN
    assert line.sound(1) == expected_audio(FOREIGN, 5)
    assert len(line.sound(1)) == 3 * len(tokenize(FOREIGN)) * FRAME_SAMPLES
    assert line.sound(2) == expected_audio("one", 2**64 - 1, 200)
    assert line.reasons == dict.fromkeys(line.reasons, "stop")
    assert line.is_empty()


def test_streaming_streams_and_waiting_waits():
    streamed, whole = Pipeline("synthetic", "incremental"), Pipeline("synthetic", "complete")
    for line in (streamed, whole):
        line.submit(1, "a b c", options=options(frames=100))
        line.run()
    assert streamed.chunks[1, "audio"] == 100
    assert whole.chunks[1, "audio"] == 2, "64 frames a row"
    assert [len(w["talker"].sizes) for w in (streamed.writers["thinker"], whole.writers["thinker"])] == [3, 1]
    assert streamed.sound(1) == whole.sound(1)


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.text(min_size=1, max_size=20), st.integers(0, 2**63), st.none() | st.integers(0, 70)),
        min_size=1, max_size=6,
    ),
    modes=st.dictionaries(
        st.tuples(st.sampled_from(["thinker", "talker", "singer"]), st.sampled_from(["mixer", "talker", "code2wav"])),
        st.sampled_from(MODES),
    ),
)  # fmt: skip
def test_the_dag_answers_alike_whatever_the_modes_and_whoever_shares_the_batch(requests, modes):
    line = Pipeline("synthetic_dag", lambda p, c: modes.get((p, c), "incremental"), max_batch=3)
    for uid, (text, seed, frames) in enumerate(requests):
        line.submit(uid, text, seed=seed, options=DagOptions(frames=frames))
        if uid % 2:
            line.run(steps=2)
    line.run()
    assert not line.failed
    for uid, (text, seed, frames) in enumerate(requests):
        assert line.texts[uid, "text"] == text
        assert line.sound(uid) == expected_audio(text, seed, frames)
        assert line.sound(uid, "audio_mix") == expected_mix(text, seed, frames)
        assert line.reasons[uid, "audio_mix"] == line.reasons[uid, "audio"] == ("empty" if frames == 0 else "stop")
    assert line.is_empty()


def test_every_ingredient_shows_in_the_audio():
    base = expected_audio("hello you", 1, 4)
    others = [
        expected_audio("hello me", 1, 4),
        expected_audio("hello you", 2, 4),
        expected_audio("hello you", 1, 4, choice=1),
        expected_mix("hello you", 1, 4),
    ]
    frames = [base[n : n + FRAME_SAMPLES] for n in range(0, len(base), FRAME_SAMPLES)]
    assert len({frame.tobytes() for frame in frames}) == 4, "frames differ from one another"
    for other in others:
        assert other[-FRAME_SAMPLES:] != base[-FRAME_SAMPLES:]
    assert max(map(abs, base)) == pytest.approx(0.5)


@pytest.mark.parametrize("mode", MODES)
def test_the_mix_goes_on_with_the_longer_voice(mode):
    line = Pipeline("synthetic_dag", mode)
    line.submit(1, "a b c d", options=DagOptions(frames=10), sampling={"singer": Sampling(max_tokens=4)})
    line.run()
    mix, full = np.array(line.sound(1, "audio_mix")), np.array(expected_mix("a b c d", 0, 10))
    assert len(mix) == 10 * FRAME_SAMPLES
    np.testing.assert_array_equal(mix[: 4 * FRAME_SAMPLES], full[: 4 * FRAME_SAMPLES])
    rest = mix[4 * FRAME_SAMPLES :].reshape(6, 4, 480)
    assert not rest[:, 1::2].any()
    np.testing.assert_array_equal(rest[:, ::2], full[4 * FRAME_SAMPLES :].reshape(6, 4, 480)[:, ::2])


@pytest.mark.parametrize("mode", MODES)
def test_limits_cut_text_and_audio_and_say_so(mode):
    line = Pipeline("synthetic", mode)
    sampling = {"thinker": Sampling(max_tokens=2), "talker": Sampling(max_tokens=4, seed=9)}
    line.submit(1, "one two three", seed=1, sampling=sampling)
    line.run()
    assert (line.texts[1, "text"], line.reasons[1, "text"]) == ("one two", "length")
    assert line.sound(1) == expected_audio("one two", 9, 4)
    assert line.finished[1]["talker"] == line.reasons[1, "audio"] == "length"


@pytest.mark.parametrize("mode", MODES)
def test_no_frames_is_empty(mode):
    line = Pipeline("synthetic", mode)
    line.submit(1, options=options(frames=0))
    line.run()
    assert (line.reasons[1, "audio"], line.sounds[1, "audio"]) == ("empty", [])
    assert line.finished[1]["talker"] == "empty"


def test_text_alone_leaves_the_other_stages_out():
    line = Pipeline("synthetic", "incremental")
    line.submit(1, want=("text",))
    line.run()
    assert list(line.steps) == ["thinker"]
    assert line.texts[1, "text"] == "hello there"


def test_media_show_in_the_text():
    def medium(kind, *values):
        return kind, Tensor(name=f"m{len(values)}", dtype="uint8", shape=(len(values),), data=memoryview(bytes(values)))

    line = Pipeline("synthetic")
    line.submit(1, "see", media={"m2": medium("image", 1, 2), "m3": medium("audio", 1, 2, 3)})
    line.submit(2, "see", media={"m2": medium("image", 1, 3)})
    line.submit(3, "see", media={"m1": medium("image", 7), "gone": medium("video", 1, 2, 3, 4)})
    line.run()
    assert line.texts[1, "text"] == "see[image:b6cc4292][audio:55bc801d]"
    assert line.texts[2, "text"].startswith("see[image:")
    assert line.texts[2, "text"] != line.texts[1, "text"][: len(line.texts[2, "text"])]
    assert line.sound(1) == expected_audio(line.texts[1, "text"], 0)
    assert "'gone'" in line.failed[3, "thinker"].message


# what the last stage hands over


def handed_over(**knobs):
    line = Pipeline("synthetic", "incremental")
    line.submit(1, "a", options=options(frames=5, **knobs))
    line.run()
    return [(p.tensor("audio"), p.scalar("sample_rate_hz")) for p in line.sounds[1, "audio"]]


@pytest.mark.parametrize("rate_hz", [16_000, 22_050, 24_000, 44_100, 44_101])
def test_a_sine_is_one_kilohertz_at_any_rate_across_frames(rate_hz):
    found = handed_over(wave="sine_1k", sample_rate_hz=rate_hz)
    assert {rate for _, rate in found} == {rate_hz}
    sound = np.concatenate([np.frombuffer(tensor.data, np.float32) for tensor, _ in found])
    expected = 0.5 * np.sin(2 * np.pi * 1000 * np.arange(5 * FRAME_SAMPLES) / rate_hz)
    np.testing.assert_allclose(sound, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "expected"), [("n", (1920,)), ("1xn", (1, 1920)), ("1x1xn", (1, 1, 1920)), ("nx1", (1920, 1))]
)
def test_shapes(shape, expected):
    assert {tensor.shape for tensor, _ in handed_over(shape=shape)} == {expected}


def test_types_hold_the_same_sound():
    reference = np.frombuffer(handed_over()[0][0].data, np.float32)
    half, brain = handed_over(dtype="float16")[0][0], handed_over(dtype="bfloat16")[0][0]
    assert (half.dtype, brain.dtype) == ("float16", "bfloat16")
    np.testing.assert_allclose(np.frombuffer(half.data, np.float16), reference, rtol=1e-3, atol=1e-7)
    widened = (np.frombuffer(brain.data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(widened, reference, rtol=2**-8)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_eleventh_sample_is_not_a_number(dtype):
    tensors = [tensor for tensor, _ in handed_over(wave="nan", dtype=dtype)]
    if dtype == "bfloat16":
        sounds = [(np.frombuffer(t.data, np.uint16).astype(np.uint32) << 16).view(np.float32) for t in tensors]
    else:
        sounds = [np.frombuffer(tensor.data, dtype) for tensor in tensors]
    assert np.flatnonzero(np.isnan(np.concatenate(sounds))).tolist() == [10]


def test_loud_and_empty():
    loud = np.frombuffer(handed_over(wave="loud")[0][0].data, np.float32)
    assert np.abs(loud).max() == pytest.approx(2.0)
    assert {tensor.shape for tensor, _ in handed_over(wave="empty", shape="nx1")} == {(0, 1)}


# ballast, time, failures


@pytest.mark.parametrize("mode", MODES)
def test_ballast_is_in_every_message_once_and_is_checked(mode):
    line = Pipeline("synthetic_dag", mode)
    line.submit(1, "a b c", options=DagOptions(frames=2, payload_bytes=5000))
    line.run()
    assert not line.failed
    for producer, consumer in (("thinker", "talker"), ("talker", "code2wav"), ("singer", "mixer")):
        sizes = line.writers[producer][consumer].sizes
        assert all(5000 <= size < 5200 for size in sizes)
        assert len(sizes) == (1 if mode == "complete" else 3 if producer == "thinker" else 2)
    line.submit(2, "a b c", options=DagOptions(payload_bytes=10))
    line.runners["talker"]._states[2].options = DagOptions(payload_bytes=11)
    line.run()
    assert "not its own" in line.failed[2, "talker"].message


def test_a_step_takes_the_longest_delay_of_its_rows_and_loading_its_own():
    line = Pipeline("synthetic", "complete", SyntheticOptions(init_delay_s=StageDelays(talker=2.5)))
    assert line.slept == [0.0], "of the last stage that was loaded"
    talker = line.runners["talker"]
    slept = []
    talker._faults._sleep = slept.append
    talker.load()
    deployed = SyntheticOptions(init_delay_s=StageDelays(talker=2.5))
    for uid, delay_ms in ((1, 20.0), (2, 30.0), (3, 0.0)):
        line.submit(uid, "a", options=replace(deployed, frames=1, delay_ms=StageDelays(talker=delay_ms)))
    line.run()
    assert slept == [2.5, 0.03]
    assert not line.failed


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("stage", "at"), [("thinker", 0), ("thinker", 2), ("talker", 0), ("talker", 5), ("code2wav", 3)]
)
def test_a_failure_comes_where_it_shall_and_only_to_its_request(mode, stage, at):
    line = Pipeline("synthetic", mode)
    line.submit(1, "a b c", options=options(fail=Fail(stage=stage, at=at)))
    line.submit(2, "a b c")
    line.run()
    assert list(line.failed) == [(1, stage)]
    error = line.failed[1, stage]
    assert (error.kind, error.fault) == ("RuntimeError", "server")
    assert f"unit {at}" in error.message
    assert line.sound(2) == expected_audio("a b c", 0)
    line.cancel(1)
    assert line.is_empty()


def test_a_failure_happens_so_many_times_in_a_process():
    line = Pipeline("synthetic", "complete", options(fail=Fail(stage="code2wav", at=1, kind="oom", times=2)))
    for uid in range(4):
        line.submit(uid, "a")
    line.run()
    assert {key: error.kind for key, error in line.failed.items()} == {
        (0, "code2wav"): "MemoryError",
        (1, "code2wav"): "MemoryError",
    }


def test_a_unit_that_is_never_reached_fails_nothing():
    line = Pipeline("synthetic", "complete", options(fail=Fail(stage="code2wav", at=3)))
    line.submit(1, "a")
    line.run()
    assert not line.failed


def test_loading_fails_on_purpose():
    with pytest.raises(RuntimeError, match="talker"):
        Pipeline("synthetic", "complete", options(fail=Fail(stage="talker", at=AT_LOAD)))
    with pytest.raises(MemoryError, match="mixer"):
        Pipeline("synthetic_dag", "complete", DagOptions(fail=DagFail(stage="mixer", at=AT_LOAD, kind="oom")))


@pytest.mark.parametrize("knobs", [{"init_delay_s": StageDelays(talker=1)}, {"fail": Fail(stage="talker", at=AT_LOAD)}])
def test_a_request_cannot_change_how_a_stage_loads(knobs):
    line = Pipeline("synthetic")
    line.submit(1, options=options(**knobs))
    assert {error.fault for error in line.failed.values()} == {"client"}


def test_exit_and_hang(monkeypatch):
    line = Pipeline("synthetic")

    class Left(BaseException):
        pass

    def leave(*args):
        raise Left(*args)

    monkeypatch.setattr("stages.models.synthetic.faults.os._exit", leave)
    line.submit(1, options=options(fail=Fail(stage="thinker", kind="exit")))
    with pytest.raises(Left, match="3"):
        line.run()
    line = Pipeline("synthetic")
    line.submit(1, options=options(fail=Fail(stage="thinker", kind="hang")))
    line.runners["thinker"]._faults._sleep = leave
    with pytest.raises(Left, match="3600"):
        line.run()


def test_never_ending_goes_on_at_its_pace_until_cancelled():
    line = Pipeline("synthetic", "incremental")
    line.submit(1, "a", options=options(frames=2, never_end=True), sampling={"talker": Sampling(max_tokens=1)})
    line.submit(2, "a")
    line.slept.clear()
    line.run(steps=50)
    assert line.reasons.keys() == {(1, "text"), (2, "text"), (2, "audio")}
    assert set(line.slept) <= {0.01}
    sleeps = []
    line.runners["talker"]._sleep = sleeps.append
    line.run(steps=10)
    assert sleeps == [0.01] * 10
    assert math.isclose(line.chunks[1, "audio"], 58, abs_tol=3)
    line.cancel(1)
    line.run()
    assert line.is_empty()


def test_a_conversation_without_user_turn_is_refused():
    with pytest.raises(RequestRefused, match="user turn"):
        echo((), {})
