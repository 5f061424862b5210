"""Writes what requests produce into the folder of a run, as they end, and says what was written."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_cli.artifacts.atomic import make_folder, remove_temporaries, write_bytes, write_text
from omni_cli.artifacts.audio import AudioFormat
from omni_cli.artifacts.audio import encode as encode_audio
from omni_cli.artifacts.encoded import Encoded
from omni_cli.artifacts.manifest import Manifest, write_manifest
from omni_cli.artifacts.names import safe_name
from omni_cli.artifacts.records import ArtifactRecord, ErrorRecord, ResultRecord, Status
from omni_cli.artifacts.results import ResultsLog
from omni_cli.artifacts.run_folder import RunFolder
from omni_cli.artifacts.waveform import Waveform

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omni_cli.artifacts.image import ImageFormat


class ArtifactWriter:
    """The only writer of a run's artifacts, results and manifest; every method raises ArtifactError.

    `output` is the final output's name in the pipeline ("text", "audio", "audio_mix"); files are called after it.
    """

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self._results = ResultsLog(run.results)  # first: its lock says that nobody else writes here
        remove_temporaries(run.path)

    def text(self, request_id: str, text: str) -> ArtifactRecord:
        """Writes `text.txt` in UTF-8; an empty answer is an empty file."""
        path = self._path(request_id, "text", "txt")
        data = write_text(path, text)
        return self._record(path, "text", data, media_type="text/plain; charset=utf-8")

    def audio(
        self,
        request_id: str,
        waveform: Waveform,
        *,
        output: str = "audio",
        audio_format: AudioFormat = "wav",
    ) -> ArtifactRecord:
        """Writes `audio.wav`; an empty waveform gives the record `empty` and no file."""
        if waveform.empty:
            return ArtifactRecord(output=output, state="empty", warnings=waveform.warnings)
        return self._write(request_id, output, encode_audio(waveform, audio_format))

    def lines(self, request_id: str, rows: Sequence[Mapping[str, Any]], *, output: str) -> ArtifactRecord:
        """Writes `<output>.jsonl`, one object a line."""
        data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        return self._write(request_id, output, Encoded(data=data, extension="jsonl", media_type="application/jsonl"))

    def image(
        self,
        request_id: str,
        pixels: "NDArray[Any]",
        *,
        output: str = "image",
        index: int | None = None,
        image_format: "ImageFormat" = "png",
        metadata: Mapping[str, str] | None = None,
    ) -> ArtifactRecord:
        """Writes `image.png`, or `image-<index>.png` for one of several."""
        from omni_cli.artifacts.image import encode

        return self._write(request_id, output, encode(pixels, image_format, metadata=metadata), index)

    def video(
        self,
        request_id: str,
        frames: "NDArray[Any]",
        *,
        fps: float,
        output: str = "video",
        index: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ArtifactRecord:
        """Writes `video.mp4`, or `video-<index>.mp4` for one of several."""
        from omni_cli.artifacts.video import encode

        return self._write(request_id, output, encode(frames, fps=fps, metadata=metadata), index)

    def end_request(
        self,
        request_id: str,
        status: Status,
        *,
        artifacts: tuple[ArtifactRecord, ...] = (),
        error: ErrorRecord | None = None,
        seed: int | None = None,
        digest: str | None = None,
        metrics: Mapping[str, float] | None = None,
        warnings: tuple[str, ...] = (),
    ) -> ResultRecord:
        """Appends the request's line to `results.jsonl`; its artifacts must have been written before."""
        record = ResultRecord(
            request_id=request_id,
            folder=safe_name(request_id),
            status=status,
            artifacts=artifacts,
            error=error,
            seed=seed,
            digest=digest,
            metrics=dict(metrics or {}),
            warnings=warnings,
        )
        self._results.append(record)
        return record

    def manifest(self, manifest: Manifest) -> None:
        """Writes `manifest.json`, over that of an earlier state of the run."""
        write_manifest(self.run.manifest, manifest)

    def close(self) -> None:
        self._results.close()

    def __enter__(self) -> "ArtifactWriter":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _write(self, request_id: str, output: str, encoded: Encoded, index: int | None = None) -> ArtifactRecord:
        path = self._path(request_id, output, encoded.extension, index)
        write_bytes(path, encoded.data)
        told = [field.name for field in fields(encoded) if field.name not in ("data", "extension")]
        return self._record(path, output, encoded.data, **{name: getattr(encoded, name) for name in told})

    def _path(self, request_id: str, output: str, extension: str, index: int | None = None) -> Path:
        folder = self.run.request_folder(request_id)
        make_folder(folder)
        number = "" if index is None else f"-{index}"
        return folder / f"{safe_name(output)}{number}.{extension}"

    def _record(self, path: Path, output: str, data: bytes, **facts: Any) -> ArtifactRecord:
        return ArtifactRecord(
            output=output,
            path=path.relative_to(self.run.path).as_posix(),
            size_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            **facts,
        )
