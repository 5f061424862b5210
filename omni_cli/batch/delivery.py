"""What became of a request, into the run folder: its finished outputs as files, its end as a line of the results."""

from dataclasses import replace
from typing import Any

import numpy as np

from omni_cli.artifacts.records import ArtifactRecord, ErrorRecord, ResultRecord
from omni_cli.artifacts.waveform import AudioCollector
from omni_cli.artifacts.writer import ArtifactWriter
from omni_cli.batch.attempt import Attempt
from omni_cli.errors import ArtifactError, OmniError, StageFailure
from omni_cli.plan.drawing import drawn_after, generation, warnings_of
from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.outputs import OmniOutput
from omni_cli.runtime.request import RequestError
from omni_cli.runtime.token_logs import TokenLog, token_logs
from stages.payload import Payload


class Delivery:
    """Into one run's folder, what the stages of `plan` have made."""

    def __init__(self, writer: ArtifactWriter, plan: ExecutionPlan) -> None:
        self._writer = writer
        self._plan = plan

    def deliver(self, attempt: Attempt) -> ResultRecord:
        """Writes the outputs that have ended. One that cannot be written fails the request, and is named."""
        task = attempt.task
        artifacts: list[ArtifactRecord] = []
        for output in attempt.outputs.values():
            if output.reason is None:
                continue
            try:
                written = self._write(attempt, output)
                for record in written:
                    reason = "empty" if record.state == "empty" else output.reason
                    artifacts.append(replace(record, finish_reason=reason))
            except (ArtifactError, StageFailure) as failure:
                attempt.fail(failure)
        return self._writer.end_request(
            task.request_id,
            attempt.status,
            artifacts=tuple(artifacts),
            error=_record(attempt.error) if attempt.error is not None else None,
            seed=attempt.seed,
            digest=task.digest or None,
            metrics=attempt.metrics,
            warnings=task.notes,
        )

    def _write(self, attempt: Attempt, output: OmniOutput) -> list[ArtifactRecord]:
        request_id = attempt.task.request_id
        if output.modality == "text":
            text = self._writer.text(request_id, output.text)
            logs = [_plain(log) for log in token_logs(output.payloads)]
            return [text, self._writer.lines(request_id, logs, output="logprobs")] if logs else [text]
        if not output.payloads:
            return [ArtifactRecord(output=output.modality, state="empty")]
        kind = output.modality.partition("_")[0]
        if kind == "video":
            return [self._video(attempt, output.modality, payload) for payload in output.payloads]
        if kind == "image":
            return [self._image(attempt, output.modality, payload) for payload in output.payloads]
        collector = AudioCollector(stage=self._plan.outputs[output.modality], request_id=request_id)
        for payload in output.payloads:
            (tensor,) = payload.tensors
            rate_hz = payload.scalar("sample_rate_hz")
            collector.append(tensor.data, rate_hz=int(rate_hz), dtype=tensor.dtype, shape=tensor.shape)
        return [self._writer.audio(request_id, collector.finish(), output=output.modality)]

    def _image(self, attempt: Attempt, output: str, payload: Payload) -> ArtifactRecord:
        task, tensor = attempt.task, payload.tensor("image")
        record = self._writer.image(
            task.request_id,
            np.frombuffer(tensor.data, np.uint8).reshape(tensor.shape),
            output=output,
            index=drawn_after(payload),
            image_format=task.line.request.image.format if task.line is not None else "png",
            metadata=self._said(attempt, payload),
        )
        return replace(record, warnings=warnings_of(payload))

    def _said(self, attempt: Attempt, payload: Payload) -> dict[str, str] | None:
        task = attempt.task
        if task.image is None:
            return None
        return generation(task.image, task.prompt, attempt.seed, self._plan, drawn_after(payload))

    def _video(self, attempt: Attempt, output: str, payload: Payload) -> ArtifactRecord:
        tensor, fps = payload.tensor("video"), float(payload.scalar("fps"))
        frames = np.frombuffer(tensor.data, np.uint8).reshape(tensor.shape)
        record = self._writer.video(
            attempt.task.request_id,
            frames,
            fps=fps,
            output=output,
            index=drawn_after(payload),
            metadata=self._said(attempt, payload),
        )
        return replace(record, warnings=(*record.warnings, *warnings_of(payload)))


def _plain(log: TokenLog) -> dict[str, Any]:
    """`token` is its text; bytes that are only a part of a character stand beside it."""
    text = log.data.decode(errors="replace")
    plain: dict[str, Any] = {"id": log.token, "token": text, "logprob": log.logprob}
    if text.encode() != log.data:
        plain["bytes"] = list(log.data)
    return {**plain, "likely": [_plain(other) for other in log.likely]} if log.likely else plain


def _record(error: OmniError) -> ErrorRecord:
    stage = error.stage if isinstance(error, StageFailure) else None
    cause = error.end.error if isinstance(error, RequestError) else None
    kind = cause.kind if cause is not None else type(error).__name__
    return ErrorRecord(message=str(error), fault=error.fault, stage=stage, kind=kind)
