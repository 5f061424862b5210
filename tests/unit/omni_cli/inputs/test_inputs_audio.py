import io
import struct
import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_cli.errors import InputError
from omni_cli.inputs.decode import decode
from omni_cli.inputs.limits import InputLimits
from omni_cli.inputs.sniff import AAC, sniff
from tests.unit.omni_cli.inputs.media_samples import clip, peak_hz, sound, tone


@pytest.mark.parametrize(
    ("container", "subtype", "rate", "channels"),
    [
        ("WAV", "PCM_16", 16_000, 1),
        ("WAV", "PCM_U8", 8_000, 1),
        ("WAV", "PCM_24", 96_000, 2),
        ("WAV", "FLOAT", 44_100, 6),
        ("WAV", "DOUBLE", 22_050, 1),
        ("WAV", "ULAW", 8_000, 1),
        ("WAVEX", "PCM_16", 48_000, 2),
        ("RF64", "PCM_16", 48_000, 2),
        ("AIFF", "PCM_16", 44_100, 2),
        ("FLAC", "PCM_16", 44_100, 2),
        ("OGG", "VORBIS", 44_100, 2),
        ("OGG", "OPUS", 48_000, 1),
        ("MP3", "MPEG_LAYER_III", 44_100, 2),
        ("MP3", "MPEG_LAYER_III", 24_000, 1),
    ],
)
def test_any_rate_and_channel_count_becomes_16_khz_mono(container: str, subtype: str, rate: int, channels: int) -> None:
    stereo = np.repeat(tone(1.0, rate)[:, None], channels, axis=1)
    decoded = decode("audio", sound(stereo, rate, container, subtype), label="messages[0].content[0]")
    assert decoded.array.dtype == np.float32
    assert decoded.array.shape == (16_000,)
    assert peak_hz(decoded.array, 16_000) == pytest.approx(440, abs=2)
    assert np.abs(decoded.array).max() == pytest.approx(0.5, abs=0.06)
    assert (f"resampled {rate} -> 16000 Hz" in decoded.notes) == (rate != 16_000)
    assert (f"mixed down from {channels} channels" in decoded.notes) == (channels > 1)


def test_block_by_block_resampling_equals_one_call() -> None:
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, 200_003).astype(np.float32)
    decoded = decode("audio", sound(samples, 44_100, "WAV", "FLOAT"))
    np.testing.assert_array_equal(decoded.array, soxr.resample(samples, 44_100, 16_000))


def test_16_khz_float_passes_through_unchanged() -> None:
    samples = tone(0.3, 16_000, level=3.0)
    decoded = decode("audio", sound(samples, 16_000, "WAV", "FLOAT"))
    np.testing.assert_array_equal(decoded.array, samples)
    assert decoded.notes == ()


def test_channels_are_averaged() -> None:
    left, right = np.full(800, 0.5, np.float32), np.full(800, -0.25, np.float32)
    decoded = decode("audio", sound(np.stack([left, right], axis=1), 16_000, "WAV", "FLOAT"))
    np.testing.assert_allclose(decoded.array, 0.125)


def test_ten_milliseconds() -> None:
    assert decode("audio", sound(tone(0.01, 16_000), 16_000)).array.shape == (160,)


def test_facts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a b.wav"
    path.write_bytes(sound(tone(0.1, 16_000), 16_000))
    decoded = decode("audio", path)
    assert decoded.label == f"audio file {path}"
    assert len(decoded.sha256) == 64


WAV = sound(tone(1.0, 24_000), 24_000)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"just some words", "holds plain text, not audio"),
        (b"", "is empty (0 bytes)"),
        (WAV[:44], "is cut short"),
        (sound(np.zeros(0, np.float32), 24_000), "holds no samples"),
        (WAV[:12], "cannot be decoded as WAV"),
        (WAV[: len(WAV) // 2], "is cut short: its header declares 48000 bytes of samples, 23978 are there"),
        (sound(tone(1, 24_000), 24_000, "AIFF")[:9000], "is cut short"),
        (sound(tone(1, 24_000), 24_000, "FLAC")[:9000], "cut short"),
        (sound(tone(1, 24_000), 24_000, "OGG")[:4500], "is cut short"),
        (sound(tone(30, 24_000), 24_000, "OGG", "OPUS")[:-20], "is cut short"),
        (sound(tone(5, 24_000), 24_000, "MP3")[:4000], "is cut short"),
        (bytes(range(1, 200)), "is in no known format (it starts with 01 02 03"),
    ],
)
def test_what_is_not_the_recording_it_claims_to_be(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "speech.wav"
    path.write_bytes(data)
    with pytest.raises(InputError) as failure:
        decode("audio", path)
    assert reason in str(failure.value)
    assert str(failure.value).startswith(f"audio file {path}: ")
    assert (failure.value.fault, failure.value.exit_code) == ("client", 2)
    with pytest.raises(InputError) as failure:
        decode("audio", data, label="messages[0].content[2]")
    assert str(failure.value).startswith("messages[0].content[2]: ")
    assert failure.value.param == "messages[0].content[2]"
    assert "BytesIO" not in str(failure.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_samples_are_refused_with_their_place(bad: float) -> None:
    samples = tone(1.0, 16_000)
    samples[8_000] = bad
    with pytest.raises(InputError, match=r"not finite numbers \(at 0\.500 s\)"):
        decode("audio", sound(samples, 16_000, "WAV", "FLOAT"))


def test_samples_that_overflow_while_mixed_down_are_refused() -> None:
    samples = np.full((1000, 2), 3e38, np.float32)
    with pytest.raises(InputError, match="not finite"):
        decode("audio", sound(samples, 16_000, "WAV", "FLOAT"))


@pytest.mark.parametrize("placeholder", [0xFFFFFFFF, 0x7FFFF000, 0x80000000])
def test_a_wav_written_to_a_pipe_leaves_its_length_open(placeholder: int) -> None:
    streamed = WAV[:40] + struct.pack("<I", placeholder) + WAV[44:]
    decoded = decode("audio", streamed)
    assert len(decoded.array) == 16_000
    assert "its header leaves the length open: read to the end" in decoded.notes


def test_chunks_before_and_after_the_samples() -> None:
    junk = b"LIST" + struct.pack("<I", 5) + b"hello\0"
    chunked = WAV[:36] + junk + WAV[36:] + junk
    assert len(decode("audio", chunked).array) == 16_000


def test_an_ogg_stream_without_its_last_page_is_noted() -> None:
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 480_000)
    ogg = sound(noise, 48_000, "OGG", "OPUS")
    cut = decode("audio", ogg[: ogg.rindex(b"OggS")])
    assert 8 * 16_000 < len(cut.array) < 10 * 16_000
    assert "its last page is not marked as the last: it may be cut short" in cut.notes


def test_flac_of_unknown_length_is_read_to_the_end() -> None:
    flac = bytearray(sound(tone(1.0, 24_000), 24_000, "FLAC"))
    flac[21] &= 0xF0
    flac[22:26] = bytes(4)
    assert len(decode("audio", bytes(flac)).array) == 16_000


def test_too_long_is_refused_from_the_header() -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8_000)
        out.writeframes(bytes(2 * 8_000 * 11))
    with pytest.raises(InputError, match=r"at least 11\.0 s long, over the limit of 10 s"):
        decode("audio", file.getvalue(), limits=InputLimits(max_audio_s=10))


def test_too_long_is_refused_while_decoding_where_no_header_says_so() -> None:
    aac = clip("adts", None, audio_codec="aac", audio=tone(5, 24_000), rate=24_000)
    with pytest.raises(InputError, match=r"over the limit of 2 s"):
        decode("audio", aac, limits=InputLimits(max_audio_s=2))


@pytest.mark.parametrize("rate", [1, 999, 2**31 - 1])
def test_a_rate_that_no_sound_has(rate: int) -> None:
    with pytest.raises(InputError, match=f"declares {rate} Hz"):
        decode("audio", sound(tone(0.1, 16_000), rate))


def test_too_many_channels() -> None:
    with pytest.raises(InputError, match="has 9 channels; 1 to 8"):
        decode("audio", sound(np.zeros((10, 9)), 16_000), limits=InputLimits(max_audio_channels=8))


def test_one_sample_at_44_khz_is_too_short() -> None:
    with pytest.raises(InputError, match="too short"):
        decode("audio", sound(np.zeros(1), 44_100))


@pytest.mark.parametrize(
    ("container", "codec", "rate"),
    [
        ("adts", "aac", 24_000),
        ("mp4", "aac", 44_100),
        ("ipod", "aac", 24_000),
        ("mov", "aac", 48_000),
        ("webm", "libopus", 48_000),
        ("matroska", "aac", 24_000),
        ("ipod", "alac", 44_100),
    ],
)
def test_containers_are_told_by_content_not_by_name(tmp_path: Path, container: str, codec: str, rate: int) -> None:
    path = tmp_path / "speech.wav"
    path.write_bytes(clip(container, None, audio_codec=codec, audio=tone(2, rate), rate=rate))
    decoded = decode("audio", path)
    assert decoded.array.dtype == np.float32
    # A lossy encoder pads its first and last frame.
    assert len(decoded.array) == pytest.approx(32_000, abs=2_500)
    assert peak_hz(decoded.array[4_000:20_000], 16_000) == pytest.approx(440, abs=2)
    assert (f"resampled {rate} -> 16000 Hz" in decoded.notes) == (rate != 16_000)


def test_aac_behind_an_id3_tag() -> None:
    aac = clip("adts", None, audio_codec="aac", audio=tone(1, 24_000), rate=24_000)
    tagged = b"ID3\x04\x00\x00\x00\x00\x01\x00" + bytes(128) + aac
    assert sniff(tagged) is AAC
    assert len(decode("audio", tagged).array)


@pytest.mark.parametrize(
    ("container", "codec", "rate"),
    [("ipod", "aac", 24_000), ("webm", "libopus", 48_000), ("adts", "aac", 24_000)],
)
@pytest.mark.parametrize("part", [0.3, 0.5, 0.8])
def test_a_container_that_was_cut_is_refused(container: str, codec: str, rate: int, part: float) -> None:
    whole = clip(container, None, audio_codec=codec, audio=tone(5, rate), rate=rate)
    with pytest.raises(InputError, match="cut short"):
        decode("audio", whole[: int(len(whole) * part)])


def test_the_sound_track_of_a_video() -> None:
    frames = np.zeros((10, 32, 32, 3), np.uint8)
    movie = clip("mp4", "mpeg4", frames, audio_codec="aac", audio=tone(1, 24_000), rate=24_000)
    decoded = decode("audio", movie)
    assert "the pictures of this video are not used" in decoded.notes
    assert peak_hz(decoded.array[2_000:14_000], 16_000) == pytest.approx(440, abs=2)


def test_a_silent_video_has_no_sound_to_give() -> None:
    with pytest.raises(InputError, match="is MP4 without a sound track"):
        decode("audio", clip("mp4", "mpeg4", np.zeros((10, 32, 32, 3), np.uint8)))


@settings(max_examples=40, deadline=None)
@given(
    frames=st.integers(1, 3_000),
    channels=st.integers(1, 4),
    rate=st.sampled_from([8_000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000]),
    subtype=st.sampled_from(["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT"]),
)
def test_length_and_level_hold_for_any_wav(frames: int, channels: int, rate: int, subtype: str) -> None:
    samples = np.random.default_rng(frames).uniform(-0.5, 0.5, (frames, channels))
    wav = sound(samples, rate, "WAV", subtype)
    if frames * 16_000 / rate < 0.5:
        with pytest.raises(InputError, match="too short"):
            decode("audio", wav)
        return
    decoded = decode("audio", wav)
    assert abs(len(decoded.array) - frames * 16_000 / rate) <= 1
    assert np.abs(decoded.array).max() <= 1.0


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(1, len(WAV) - 1), flip=st.integers(0, 60), value=st.integers(0, 255))
def test_damage_is_refused_or_decoded_never_an_exception_of_another_kind(cut: int, flip: int, value: int) -> None:
    damaged = bytearray(WAV)
    damaged[flip] = value
    for data in (bytes(damaged), WAV[:cut]):
        try:
            decoded = decode("audio", data)
        except InputError:
            continue
        assert np.isfinite(decoded.array).all()


def test_soundfile_has_the_formats_that_are_promised() -> None:
    assert {"WAV", "FLAC", "OGG", "MP3", "AIFF"} <= set(soundfile.available_formats())
