"""Requests through the engine over real stage processes, the whole trace kept and judged as `omni trace check` does.

Something can be done at the moment at which an event is heard: cancel a request in whatever phase it is.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from omni_cli.config.load import load_config
from omni_cli.launch.launcher import LocalLauncher
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import Inventory
from omni_cli.plan.model import ExecutionPlan
from omni_cli.plan.spec import stage_specs
from omni_cli.runtime.engine import OmniEngine
from omni_cli.runtime.events import CONTROL, Event, ProcessDead, RequestAdmitted, RunFinished
from omni_cli.runtime.outputs import OmniOutput, OutputAssembler
from omni_cli.runtime.request import OmniRequest, RequestError
from omni_cli.trace.check import Checked
from omni_cli.trace.codec import TraceEvent
from omni_cli.trace.frame import run_started
from omni_cli.trace.replay import Replay
from stages.events import StageIdle, StepDone

Moment = Callable[[str, Event, int], bool]  # (source, event, uid of the request) -> is this it?


def plan_of(*words: str) -> ExecutionPlan:
    return build_plan(load_config(words), Inventory())


@dataclass
class Recording:
    """The events in the order in which they were heard; outputs or the error by request."""

    plan: ExecutionPlan
    events: list[tuple[str, Event]] = field(default_factory=list)
    outputs: dict[str, dict[str, OmniOutput]] = field(default_factory=dict)
    errors: dict[str, RequestError] = field(default_factory=dict)
    uids: dict[str, int] = field(default_factory=dict)
    watches: list[Callable[[str, Event], bool]] = field(default_factory=list)  # True: done with watching
    live_slots: int = -1

    def hear(self, source: str, event: Event) -> None:
        self.events.append((source, event))
        if isinstance(event, RequestAdmitted):
            self.uids[event.request_id] = event.uid
        self.watches[:] = [watch for watch in self.watches if not watch(source, event)]

    def of(self, kind: type, process: str = "") -> Iterator[tuple[int, str, Event]]:
        """(place, source, event) of one kind."""
        for place, (source, event) in enumerate(self.events):
            if isinstance(event, kind) and (not process or source == process):
                yield place, source, event

    def steps(self, process: str, request: str) -> list[tuple[int, StepDone]]:
        """The steps of a process with a row of the request, each with its place."""
        uid = self.uids[request]
        return [(place, e) for place, _, e in self.of(StepDone, process) if uid in {row.uid for row in e.rows}]

    def trace(self) -> list[TraceEvent]:
        """As the recorder would have written it."""
        last = RunFinished(t_ns=self.events[-1][1].t_ns + 1, live_slots=self.live_slots, events=len(self.events))
        lines = [*self.events, (CONTROL, last)]
        return [TraceEvent(source=source, ordinal=n, event=event) for n, (source, event) in enumerate(lines)]

    def findings(self) -> list[str]:
        """What `omni trace replay` would say, and `omni trace check` with it."""
        checked = Checked(self.trace())
        divergences = Replay(self.plan, checked).run()
        return [*(finding.text for finding in checked.findings), *map(str, divergences)]

    def check_ended_well(self) -> None:
        """The trace is clean, no slot is in use, and the last word of every process is that it holds nothing."""
        assert self.findings() == []
        assert self.live_slots == 0
        for _, _, dead in list(self.of(ProcessDead)):
            own = [event for source, event in self.events if source == dead.process]
            assert isinstance(own[-1], StageIdle), own[-1]
            assert all(value == 0 for _, value in own[-1].gauges)
            assert dict(own[-1].gauges)["requests"] == 0


class Session:
    """What a test does with a running engine."""

    def __init__(self, engine: OmniEngine, recording: Recording) -> None:
        self.recording = recording
        self._engine = engine

    async def all_of(self, requests: Sequence[OmniRequest]) -> None:
        """All at once, each to its end."""
        await asyncio.gather(*(self.one(request) for request in requests))

    async def one(self, request: OmniRequest) -> None:
        assembler = OutputAssembler(request.outputs)
        try:
            async for chunk in self._engine.generate(request):
                assembler.add(chunk)
            self.recording.outputs[request.request_id] = assembler.outputs
        except RequestError as error:
            self.recording.errors[request.request_id] = error

    async def in_turn(self, requests: Sequence[OmniRequest], process: str = "thinker.0") -> None:
        """Each comes while all those before it decode in one step of the process."""
        started = [asyncio.ensure_future(self.one(requests[0]))]

        def follow(source: str, event: Event) -> bool:
            at = [row.position for row in event.rows] if isinstance(event, StepDone) and source == process else []
            if len(started) < len(requests) and len(at) == len(started) and min(at) >= 1:
                started.append(asyncio.ensure_future(self.one(requests[len(started)])))
            return len(started) == len(requests)

        self.recording.watches.append(follow)
        await started[0]
        assert len(started) == len(requests), "the first has ended before the last came"
        await asyncio.gather(*started)

    def cancel_at(self, request: str, moment: Moment) -> None:
        """Cancels the request when an event is heard that is the moment."""
        loop = asyncio.get_running_loop()

        def watch(source: str, event: Event) -> bool:
            uid = self.recording.uids.get(request)
            if uid is None or not moment(source, event, uid):
                return False
            loop.call_soon(self._engine.cancel, request)
            return True

        self.recording.watches.append(watch)


def record(plan: ExecutionPlan, act: Callable[[Session], object], *, media_bytes: int = 0) -> Recording:
    """Starts the plan, lets `act` (a coroutine function) work with it, stops it. `media_bytes`: as in `stage_specs`."""
    recording, run_id = Recording(plan), secrets.token_hex(4)
    recording.hear(CONTROL, run_started(plan, run_id, datetime.now(UTC)))
    running = LocalLauncher(plan, stage_specs(plan, run_id, media_bytes=media_bytes), listener=recording.hear).start()

    async def drive() -> None:
        async with OmniEngine(plan, running, listener=recording.hear) as engine:
            await act(Session(engine, recording))

    try:
        asyncio.run(drive())
    finally:
        running.stop()
        recording.live_slots = running.live_slots
    return recording
