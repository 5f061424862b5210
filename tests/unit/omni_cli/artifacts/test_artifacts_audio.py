import io

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from omni_cli.artifacts.audio import AudioFormat, encode, to_pcm16
from omni_cli.artifacts.waveform import Waveform
from omni_cli.errors import ArtifactError


def tone(rate_hz: int, hz: float = 1000.0, seconds: float = 1.0) -> Waveform:
    samples = 0.5 * np.sin(2 * np.pi * hz * np.arange(round(rate_hz * seconds)) / rate_hz)
    return Waveform(samples=samples.astype(np.float32), rate_hz=rate_hz)


def peak_hz(data: bytes) -> float:
    samples, rate_hz = soundfile.read(io.BytesIO(data))
    assert samples.ndim == 1
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum) * rate_hz / len(samples))


@pytest.mark.parametrize("rate_hz", [16_000, 24_000, 44_100])
@pytest.mark.parametrize("audio_format", ["wav", "wav_float", "flac", "vorbis", "mp3"])
def test_the_header_holds_the_declared_rate(rate_hz: int, audio_format: AudioFormat) -> None:
    encoded = encode(tone(rate_hz), audio_format)
    assert soundfile.info(io.BytesIO(encoded.data)).samplerate == encoded.rate_hz == rate_hz
    assert peak_hz(encoded.data) == pytest.approx(1000, abs=5)
    assert (encoded.frames, encoded.duration_s, encoded.warnings) == (rate_hz, 1.0, ())


@pytest.mark.parametrize(
    ("audio_format", "rate_hz", "written_hz"),
    [("opus", 24_000, 24_000), ("opus", 44_100, 48_000), ("opus", 96_000, 48_000), ("mp3", 20_000, 22_050)],
)
def test_a_rate_that_a_format_cannot_hold_is_resampled_with_a_warning(
    audio_format: AudioFormat, rate_hz: int, written_hz: int
) -> None:
    encoded = encode(tone(rate_hz), audio_format)
    assert peak_hz(encoded.data) == pytest.approx(1000, abs=5)
    assert encoded.rate_hz == written_hz
    assert encoded.duration_s == pytest.approx(1.0, abs=0.001)
    expected = (f"{audio_format} cannot hold {rate_hz} Hz: resampled to {written_hz} Hz",)
    assert encoded.warnings == (expected if rate_hz != written_hz else ())


def test_wav_float_holds_every_bit_and_no_clock() -> None:
    samples = np.random.default_rng(0).uniform(-1, 1, 5001).astype(np.float32)
    waveform = Waveform(samples=samples, rate_hz=24_000)
    first = encode(waveform, "wav_float")
    read, rate_hz = soundfile.read(io.BytesIO(first.data), dtype="float32")
    np.testing.assert_array_equal(read, samples)
    assert rate_hz == 24_000
    stamp = first.data.index(b"PEAK") + 12
    assert first.data[stamp : stamp + 4] == bytes(4)


@pytest.mark.parametrize("audio_format", ["wav", "flac", "pcm"])
@given(words=nps.arrays(np.int16, st.integers(1, 300)))
def test_sixteen_bits_come_back_unchanged(audio_format: AudioFormat, words: np.ndarray) -> None:
    waveform = Waveform(samples=words.astype(np.float32) / 32768, rate_hz=24_000)
    data = encode(waveform, audio_format).data
    if audio_format == "pcm":
        read = np.frombuffer(data, "<i2")
    else:
        read, _ = soundfile.read(io.BytesIO(data), dtype="int16")
    np.testing.assert_array_equal(read, words)


def test_full_scale_does_not_wrap_around() -> None:
    assert to_pcm16(np.array([1.0, -1.0, 0.0, 0.99999], np.float32)).tolist() == [32767, -32768, 0, 32767]


@pytest.mark.parametrize("audio_format", ["wav", "wav_float", "flac", "pcm"])
def test_the_same_samples_are_the_same_bytes(audio_format: AudioFormat) -> None:
    assert encode(tone(24_000), audio_format).data == encode(tone(24_000), audio_format).data


def test_one_sample() -> None:
    one = Waveform(samples=np.array([0.5], np.float32), rate_hz=24_000)
    assert soundfile.info(io.BytesIO(encode(one).data)).frames == 1


def test_refusals() -> None:
    with pytest.raises(ArtifactError, match="an empty waveform cannot be encoded as wav"):
        encode(Waveform(samples=np.zeros(0, np.float32), rate_hz=24_000))
    with pytest.raises(ArtifactError, match="audio format 'aac' is not known; choose wav"):
        encode(tone(24_000), "aac")  # type: ignore[arg-type]
    with pytest.raises(ArtifactError, match="768000 Hz mono cannot be encoded as flac"):
        encode(tone(768_000, seconds=0.01), "flac")


def test_warnings_of_the_waveform_travel_along() -> None:
    samples = np.array([0.5], np.float32)
    assert encode(Waveform(samples=samples, rate_hz=8_000, warnings=("clipped",))).warnings == ("clipped",)
