"""Audio of an answer, whole or as it comes: the engine's samples in the container that the client asked for."""

import base64
import struct
from typing import get_args

from omni_cli.artifacts.audio import AudioFormat, encode, to_pcm16
from omni_cli.artifacts.waveform import AudioCollector
from omni_cli.runtime.request import OutputChunk
from omni_cli.server.errors import ApiError, bad_request

# OpenAI's names, where they differ from ours.
_NAMES: dict[str, AudioFormat] = {"pcm16": "pcm"}
FORMATS = tuple(name for name in (*get_args(AudioFormat), *_NAMES) if name not in ("wav_float",))
STREAMED = ("pcm", "pcm16", "wav")
_UNKNOWN_BYTES = 0xFFFFFFFF


def audio_format(name: str, *, param: str, streamed: bool) -> AudioFormat:
    """Raises ApiError 400 for a format that does not exist or cannot be streamed."""
    if name not in FORMATS:
        raise bad_request(f"{param}: {name!r} is not one of {', '.join(FORMATS)}", param=param)
    if streamed and name not in STREAMED:
        raise bad_request(f"{param}: {name} cannot be streamed; {', '.join(STREAMED)} can", param=param)
    return _NAMES.get(name, name)  # type: ignore[arg-type]


class Sound:
    """Collects one answer's audio. `push` gives what a streaming client gets of a piece, `file` the whole."""

    def __init__(self, stage: str, request_id: str, form: AudioFormat) -> None:
        self._collector = AudioCollector(stage=stage, request_id=request_id)
        self._form = form
        self._stage = stage
        self._headed = False

    def push(self, chunk: OutputChunk) -> bytes:
        """The bytes of this piece: pcm16, before the first of them a WAV header if that is the format."""
        if chunk.payload is None:
            return b""
        (tensor,) = chunk.payload.tensors
        rate_hz = int(chunk.payload.scalar("sample_rate_hz"))
        values = self._collector.append(tensor.data, rate_hz=rate_hz, dtype=tensor.dtype, shape=tensor.shape)
        pcm = to_pcm16(values).tobytes()
        if self._form != "wav" or self._headed:
            return pcm
        self._headed = True
        return wav_header(rate_hz) + pcm

    def require(self) -> None:
        """Raises ApiError 500 `no_audio` if not a single sample has come."""
        if not self._collector.frames:
            stage = self._stage
            raise ApiError(500, f"stage {stage}: it finished without any audio for this answer", "no_audio")

    def file(self) -> tuple[bytes, str]:
        """The whole in its container, and its media type. Raises as `require` does."""
        self.require()
        encoded = encode(self._collector.finish(), self._form)
        return encoded.data, encoded.media_type


def wav_header(rate_hz: int) -> bytes:
    """44 bytes of RIFF/WAVE for mono PCM_16 of unknown length, as streaming encoders write it (sizes 0xFFFFFFFF)."""
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF", _UNKNOWN_BYTES, b"WAVE", b"fmt ", 16, 1, 1, rate_hz, 2 * rate_hz, 2, 16, b"data", _UNKNOWN_BYTES,
    )  # fmt: skip


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
