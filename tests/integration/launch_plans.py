"""What the launcher's tests share in the parent: a plan for the fake stages, and what a run must leave as it was."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omni_cli.plan.model import ExecutionPlan, ModelPlan, ReplicaPlan, StagePlan
from omni_cli.runtime.events import Event
from stages.connectors.ring import SHM_DIR
from tests.integration.launch_fakes import STAGES


def fake_plan(
    *, stages: Sequence[str] = STAGES, startup_timeout_s: float = 60.0, drain_timeout_s: float = 20.0
) -> ExecutionPlan:
    return ExecutionPlan(
        recipe="fake",
        pipeline="fake",
        family="fake",
        model=ModelPlan(path="", load_format="dummy", dtype="float32"),
        stages=tuple(
            StagePlan(
                name=stage,
                execution_type="llm_ar",
                replicas=(ReplicaPlan(index=0, devices=()),),
                max_batch=1,
                memory_fraction=0.5,
                startup_timeout_s=startup_timeout_s,
                threads=1,
                inputs=(),
                consumers=(),
                outputs=(),
            )
            for stage in stages
        ),
        outputs={},
        media=(),
        voices=(),
        physical_devices=(),
        drain_timeout_s=drain_timeout_s,
    )


@dataclass
class Heard:
    """A listener that remembers."""

    events: list[tuple[str, Event]] = field(default_factory=list)

    def __call__(self, source: str, event: Event) -> None:
        self.events.append((source, event))

    def of(self, kind: type) -> list[Event]:
        return [event for _, event in self.events if isinstance(event, kind)]


@dataclass(frozen=True)
class Traces:
    """What could be left behind: a run's segments, mappings of shared memory, child processes, open descriptors."""

    segments: frozenset[str]
    mappings: int
    children: frozenset[str]
    descriptors: int


def traces(run_id: str) -> Traces:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return Traces(
        segments=frozenset(name for name in os.listdir(SHM_DIR) if run_id in name),
        mappings=Path("/proc/self/maps").read_text().count("/dev/shm/"),
        children=frozenset(children),
        descriptors=len(os.listdir("/proc/self/fd")),
    )
