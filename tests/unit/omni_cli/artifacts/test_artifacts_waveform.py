from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from omni_cli.artifacts.waveform import AudioCollector
from omni_cli.errors import StageFailure

SHAPES = {"(N,)": lambda n: (n,), "(1,N)": lambda n: (1, n), "(1,1,N)": lambda n: (1, 1, n), "(N,1)": lambda n: (n, 1)}


def as_wire(samples: np.ndarray, dtype: str) -> bytes:
    if dtype == "bfloat16":  # exact for the values used here
        return (samples.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    if dtype == "int16":
        return np.rint(samples * 32768).astype("<i2").tobytes()
    return samples.astype({"float32": "<f4", "float16": "<f2"}[dtype]).tobytes()


def whole(data: Any, dtype: str, shape: tuple[int, ...], rate_hz: int = 24_000) -> Any:
    collector = AudioCollector(stage="code2wav", request_id="r1")
    collector.append(data, rate_hz=rate_hz, dtype=dtype, shape=shape)
    return collector.finish()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_dtype_and_shape_becomes_float32_mono(dtype: str, shape: str) -> None:
    samples = np.array([0.0, 0.5, -0.25, -1.0, 0.75], np.float32)
    waveform = whole(as_wire(samples, dtype), dtype, SHAPES[shape](5))
    assert waveform.samples.dtype == np.float32
    np.testing.assert_array_equal(waveform.samples, samples)
    assert (waveform.rate_hz, waveform.warnings, waveform.empty) == (24_000, (), False)
    assert waveform.duration_s == 5 / 24_000


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_bytes_of_any_kind_and_the_result_owns_its_memory(wrap: Any) -> None:
    slot = bytearray(as_wire(np.array([0.5, 0.25]), "float32"))
    waveform = whole(wrap(slot), "float32", (2,))
    slot[:] = bytes(8)
    np.testing.assert_array_equal(waveform.samples, [0.5, 0.25])


@pytest.mark.parametrize("shape", [(2, 2), (2, 1, 2), (1, 2, 2), (4, 1, 1), (1, 1, 1, 4), ()])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(StageFailure, match=r"stage code2wav of request r1: gave audio of shape"):
        whole(bytes(16), "float32", shape)


@pytest.mark.parametrize("dtype", ["float64", "int32", "uint8", ""])
def test_other_dtypes_are_refused(dtype: str) -> None:
    with pytest.raises(StageFailure, match=r"gave audio of dtype"):
        whole(bytes(16), dtype, (2,))


@pytest.mark.parametrize("rate", [0, -1, 24_000.0, True, None, "24000", 10**7])
def test_a_rate_is_a_whole_positive_number(rate: Any) -> None:
    with pytest.raises(StageFailure, match=r"declared a sample rate of"):
        whole(bytes(4), "float32", (1,), rate_hz=rate)


@pytest.mark.parametrize(
    ("data", "shape", "reason"),
    [
        (bytes(12), (4,), "declared 4 samples and gave 3"),
        (bytes(13), (3,), "no whole samples"),
    ],
)
def test_data_must_be_what_is_declared(data: Any, shape: tuple[int, ...], reason: str) -> None:
    with pytest.raises(StageFailure, match=reason):
        whole(data, "float32", shape)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_sample_that_is_no_number_names_stage_request_and_place(dtype: str, bad: float) -> None:
    samples = np.zeros(24, np.float32)
    samples[10] = bad
    with pytest.raises(StageFailure) as failure:
        whole(as_wire(samples, dtype), dtype, (24,))
    assert str(failure.value) == (
        "stage code2wav of request r1: gave samples that are not finite numbers (the first is sample 10)"
    )
    assert (failure.value.stage, failure.value.request_id) == ("code2wav", "r1")
    assert (failure.value.fault, failure.value.exit_code) == ("server", 1)


def test_what_is_too_loud_is_clipped_with_a_warning() -> None:
    waveform = whole(as_wire(np.array([2.0, 0.5, -2.0, 1.0]), "float32"), "float32", (4,))
    assert waveform.samples.tolist() == [1.0, 0.5, -1.0, 1.0]
    assert waveform.warnings == ("stage code2wav: 2 of 4 samples lay outside [-1, 1] (peak 2) and were clipped",)


@pytest.mark.parametrize("shape", [(0,), (1, 0), (1, 1, 0), (0, 1)])
def test_no_samples_is_an_empty_waveform(shape: tuple[int, ...]) -> None:
    waveform = whole(b"", "float32", shape)
    assert waveform.empty
    assert (waveform.duration_s, waveform.rate_hz) == (0.0, 24_000)


def test_no_piece_at_all_is_an_empty_waveform_without_a_rate() -> None:
    waveform = AudioCollector(stage="code2wav").finish()
    assert waveform.empty
    assert (waveform.rate_hz, waveform.duration_s) == (None, 0.0)


def test_pieces_must_keep_their_rate() -> None:
    collector = AudioCollector(stage="code2wav", request_id="r1")
    collector.append(bytes(8), rate_hz=24_000, dtype="float32", shape=(2,))
    with pytest.raises(StageFailure, match="changed its sample rate from 24000 to 44100 Hz"):
        collector.append(bytes(8), rate_hz=44_100, dtype="float32", shape=(2,))
    assert collector.frames == 2


def test_a_refused_piece_leaves_the_collector_as_it_was() -> None:
    collector = AudioCollector(stage="code2wav")
    with pytest.raises(StageFailure):
        collector.append(as_wire(np.array([np.nan]), "float32"), rate_hz=24_000, dtype="float32", shape=(1,))
    collector.append(as_wire(np.array([0.5]), "float32"), rate_hz=16_000, dtype="float32", shape=(1,))
    assert collector.finish().samples.tolist() == [0.5]


FINITE = nps.arrays(np.float32, st.integers(0, 200), elements=st.floats(-4, 4, width=32))


@given(FINITE, st.sampled_from(sorted(SHAPES)), st.lists(st.integers(0, 200), max_size=5))
def test_any_cut_into_pieces_gives_the_same_waveform(samples: np.ndarray, shape: str, cuts: list[int]) -> None:
    collector = AudioCollector(stage="code2wav")
    edges = [0, *sorted(min(cut, len(samples)) for cut in cuts), len(samples)]
    for start, stop in pairwise(edges):
        piece = samples[start:stop]
        given_back = collector.append(piece.tobytes(), rate_hz=24_000, dtype="float32", shape=SHAPES[shape](len(piece)))
        np.testing.assert_array_equal(given_back, np.clip(piece, -1, 1))
    waveform = collector.finish()
    np.testing.assert_array_equal(waveform.samples, np.clip(samples, -1, 1))
    assert bool(waveform.warnings) == bool((np.abs(samples) > 1).any())


@given(nps.arrays(np.uint16, st.integers(0, 200)), st.sampled_from(["float16", "bfloat16", "int16"]))
def test_any_sixteen_bits_are_sound_or_refused(words: np.ndarray, dtype: str) -> None:
    try:
        waveform = whole(words.tobytes(), dtype, (len(words),))
    except StageFailure:
        assert dtype != "int16"
        return
    assert np.abs(waveform.samples).max(initial=0) <= 1
    assert np.isfinite(waveform.samples).all()
    if dtype == "int16":
        np.testing.assert_array_equal(waveform.samples * 32768, words.view(np.int16))
