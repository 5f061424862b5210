"""What became of a request, into the run folder: its finished outputs as files, its end as a line of the results."""

from collections.abc import Mapping

from omni_cli.artifacts.records import ArtifactRecord, ErrorRecord, ResultRecord, Status
from omni_cli.artifacts.waveform import AudioCollector
from omni_cli.artifacts.writer import ArtifactWriter
from omni_cli.batch.task import Task
from omni_cli.errors import ArtifactError, OmniError, StageFailure
from omni_cli.runtime.outputs import OmniOutput
from omni_cli.runtime.request import RequestError


class Delivery:
    """`stages` says which stage each output comes from, for messages."""

    def __init__(self, writer: ArtifactWriter, stages: Mapping[str, str]) -> None:
        self._writer = writer
        self._stages = stages

    def deliver(
        self,
        task: Task,
        outputs: Mapping[str, OmniOutput],
        *,
        error: OmniError | None,
        status: Status,
        seed: int | None,
        metrics: Mapping[str, float],
    ) -> ResultRecord:
        """Writes the outputs that have ended. One that cannot be written fails the request, and is named."""
        artifacts: list[ArtifactRecord] = []
        for output in outputs.values():
            if output.reason is None:
                continue
            try:
                artifacts.append(self._write(task.request_id, output))
            except (ArtifactError, StageFailure) as failure:
                error, status = failure, "failed"
        return self._writer.end_request(
            task.request_id,
            status,
            artifacts=tuple(artifacts),
            error=_record(error) if error is not None else None,
            seed=seed,
            digest=task.digest or None,
            metrics=metrics,
            warnings=task.notes,
        )

    def _write(self, request_id: str, output: OmniOutput) -> ArtifactRecord:
        if not output.payloads:
            if output.modality == "text":
                return self._writer.text(request_id, output.text)
            return ArtifactRecord(output=output.modality, state="empty")
        collector = AudioCollector(stage=self._stages[output.modality], request_id=request_id)
        for payload in output.payloads:
            (tensor,) = payload.tensors
            rate_hz = payload.scalar("sample_rate_hz")
            collector.append(tensor.data, rate_hz=int(rate_hz), dtype=tensor.dtype, shape=tensor.shape)
        return self._writer.audio(request_id, collector.finish(), output=output.modality)


def _record(error: OmniError) -> ErrorRecord:
    stage = error.stage if isinstance(error, StageFailure) else None
    cause = error.end.error if isinstance(error, RequestError) else None
    kind = cause.kind if cause is not None else type(error).__name__
    return ErrorRecord(message=str(error), fault=error.fault, stage=stage, kind=kind)
