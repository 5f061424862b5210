"""What a run has become so far: the results, and what its manifest, its summary and its exit code are made of."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from omni_cli.artifacts.manifest import Manifest, RunStatus, installed_versions
from omni_cli.artifacts.records import ResultRecord
from omni_cli.artifacts.run_folder import RunFolder
from omni_cli.batch.task import Task
from omni_cli.plan.model import ExecutionPlan

EXIT_FAILED = 1


@dataclass(slots=True, kw_only=True)
class RunState:
    """`results` by request id, those of a resumed run's earlier attempts included. `dead` has processes that died
    before they were told to stop, and why; `unshown` why the answer could not be shown on stdout. `resumable`: whoever
    asked for the run can ask for the rest of it. `said` are the notes that were shown before the run."""

    plan: ExecutionPlan
    folder: RunFolder
    started_at: datetime
    tasks: Sequence[Task]
    resumable: bool = True
    status: RunStatus = "running"
    results: dict[str, ResultRecord] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    dead: dict[str, str] = field(default_factory=dict)
    unshown: OSError | None = None
    said: tuple[str, ...] = ()

    def add(self, record: ResultRecord) -> None:
        self.results[record.request_id] = record

    @property
    def failed(self) -> list[ResultRecord]:
        return [record for record in self.results.values() if record.status != "finished"]

    @property
    def exit_code(self) -> int:
        """Of a run that came to its own end."""
        return EXIT_FAILED if self.failed or self.dead or self.unshown else 0

    def manifest(self) -> Manifest:
        return Manifest(
            recipe=self.plan.recipe,
            status=self.status,
            started_at=self.started_at,
            finished_at=None if self.status == "running" else datetime.now().astimezone(),
            versions=installed_versions(),
            digests={"plan": self.plan.digest},
            requests=tuple(self.results.values()),
            warnings=tuple(self.warnings),
        )
