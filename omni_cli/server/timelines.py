"""When each stage of a request waited and worked, while it does: the events of a run, folded per request, for the page.

The listener is called in the event loop's thread and returns at once. Of what has ended it keeps the latest only; it
decides nothing, and `omni trace show` has the whole.
"""

from collections import deque
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
from stages.events import InputReady, Scheduled, StageCancelled, StageFailed, StageFinished, StepDone

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
    """A request from its admission on; `lanes` are all stages that it will pass, `prompt_tokens` what the first of them
    has counted, 0 until it has the whole prompt."""

    uid: int
    admitted_ns: int
    lanes: dict[str, Lane]
    status: str = "running"
    ended_ns: int | None = None
    prompt_tokens: int = 0

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
    """Of all requests whose callers are there, and of the latest `keep` that were left; by their ids. `entries` are the
    stages that read prompts."""

    entries: frozenset[str] = frozenset()
    keep: int = 256
    _by_id: dict[str, Timeline] = field(default_factory=dict)
    _by_uid: dict[int, Timeline] = field(default_factory=dict)
    _left: deque[str] = field(default_factory=deque)

    def __call__(self, source: str, event: Event) -> None:
        if isinstance(event, StepDone):
            self._step(source, event)
        elif isinstance(event, RequestAdmitted):
            new = Timeline(event.uid, event.t_ns, {stage: Lane() for stage in event.stages})
            self._by_id[event.request_id] = self._by_uid[event.uid] = new
        elif (timeline := self._by_uid.get(getattr(event, "uid", 0))) is None:
            return
        elif isinstance(event, StageSubmitted):
            timeline.lanes[event.stage].submitted_ns = event.t_ns
        elif isinstance(event, InputReady):
            if stage_of(source) in self.entries:
                timeline.prompt_tokens = max(event.prompt_tokens, timeline.prompt_tokens)
        elif isinstance(event, Scheduled):
            timeline.lanes[stage_of(source)].started_ns = event.t_ns
        elif isinstance(event, StageFinished | StageFailed | StageCancelled):
            timeline.lanes[stage_of(source)].ended_ns = event.t_ns
        elif isinstance(event, RequestFinished | RequestFailed | RequestCancelled):
            timeline.status, timeline.ended_ns = _OUTCOMES[type(event)], event.t_ns

    def of(self, request_id: str) -> Timeline | None:
        return self._by_id.get(request_id)

    def leave(self, request_id: str) -> None:
        """Its caller has all of it, or will not have more."""
        if request_id in self._by_id:
            self._left.append(request_id)
        if len(self._left) > self.keep:
            self._by_uid.pop(self._by_id.pop(self._left.popleft()).uid)

    def _step(self, source: str, event: StepDone) -> None:
        for row in event.rows:
            if (timeline := self._by_uid.get(row.uid)) is not None:
                lane = timeline.lanes[stage_of(source)]
                lane.busy_ns += event.end_ns - event.t_ns
                lane.units += row.units
