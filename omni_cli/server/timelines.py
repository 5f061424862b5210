"""When each stage of a request waited and worked, while it does: the events of a run, folded per request, for the page.

The listener is called in the event loop's thread and returns at once. Of what has ended it keeps the latest only; it
decides nothing, and `omni trace show` has the whole.
"""

from dataclasses import dataclass, field
from typing import Any

from omni_cli.runtime.events import (
    Event,
    RequestAdmitted,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    StageSubmitted,
)
from omni_cli.server.metrics import stage_of
from stages.events import Scheduled, StageCancelled, StageFailed, StageFinished, StepDone

_OUTCOMES = {RequestFinished: "finished", RequestFailed: "failed", RequestCancelled: "cancelled"}


@dataclass(slots=True)
class Lane:
    """A request in one stage; ns of the trace's clock. `busy_ns` is its steps', whoever shared them."""

    submitted_ns: int | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    busy_ns: int = 0
    units: int = 0


@dataclass(slots=True)
class Timeline:
    """A request from its admission on; `lanes` are all stages that it will pass."""

    uid: int
    admitted_ns: int
    lanes: dict[str, Lane]
    status: str = "running"
    ended_ns: int | None = None

    def view(self, now_ns: int) -> dict[str, Any]:
        """In ms since the admission."""

        def ms(ns: int | None) -> float | None:
            return None if ns is None else round((ns - self.admitted_ns) / 1e6, 3)

        return {
            "status": self.status,
            "elapsed_ms": ms(self.ended_ns or now_ns),
            "stages": [
                {
                    "stage": stage, "submitted_ms": ms(lane.submitted_ns), "started_ms": ms(lane.started_ns),
                    "ended_ms": ms(lane.ended_ns), "busy_ms": round(lane.busy_ns / 1e6, 3), "units": lane.units,
                }
                for stage, lane in self.lanes.items()
            ],
        }  # fmt: skip


@dataclass(slots=True)
class Timelines:
    """Of all requests that run, and of those that have ended as many as make `keep` with them; by their ids."""

    keep: int = 256
    _by_id: dict[str, Timeline] = field(default_factory=dict)
    _by_uid: dict[int, Timeline] = field(default_factory=dict)

    def __call__(self, source: str, event: Event) -> None:
        if isinstance(event, StepDone):
            self._step(source, event)
        elif isinstance(event, RequestAdmitted):
            self._admit(event)
        elif (timeline := self._by_uid.get(getattr(event, "uid", 0))) is None:
            return
        elif isinstance(event, StageSubmitted):
            timeline.lanes[event.stage].submitted_ns = event.t_ns
        elif isinstance(event, Scheduled):
            timeline.lanes[stage_of(source)].started_ns = event.t_ns
        elif isinstance(event, StageFinished | StageFailed | StageCancelled):
            timeline.lanes[stage_of(source)].ended_ns = event.t_ns
        elif isinstance(event, RequestFinished | RequestFailed | RequestCancelled):
            timeline.status, timeline.ended_ns = _OUTCOMES[type(event)], event.t_ns

    def of(self, request_id: str) -> Timeline | None:
        return self._by_id.get(request_id)

    def _admit(self, event: RequestAdmitted) -> None:
        timeline = Timeline(event.uid, event.t_ns, {stage: Lane() for stage in event.stages})
        self._by_id[event.request_id] = self._by_uid[event.uid] = timeline
        ended = [name for name, timeline in self._by_id.items() if timeline.ended_ns is not None]
        for oldest in ended[: max(0, len(self._by_id) - self.keep)]:
            self._by_uid.pop(self._by_id.pop(oldest).uid)

    def _step(self, source: str, event: StepDone) -> None:
        for row in event.rows:
            if (timeline := self._by_uid.get(row.uid)) is not None:
                lane = timeline.lanes[stage_of(source)]
                lane.busy_ns += event.end_ns - event.t_ns
                lane.units += row.units
