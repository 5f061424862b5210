"""Drives a deployment through its rounds, and looks after each at what must hold: in /dev/shm, in the rings' own
headers and in /proc, not in what the runtime believes.

A round is a number of requests at once with something done to them: each ends once; who was left alone answers as if
nothing had happened; nothing stays.
"""

import asyncio
import os
import secrets
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing import resource_tracker
from pathlib import Path

from omni_cli.launch.launcher import LocalLauncher
from omni_cli.plan.spec import stage_specs
from omni_cli.runtime.engine import OmniEngine
from omni_cli.runtime.events import (
    CONTROL,
    Event,
    Listener,
    ProcessDead,
    ProcessStarted,
    RequestAdmitted,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    StageSubmitted,
)
from omni_cli.runtime.fanout import fanout
from omni_cli.runtime.outputs import OmniOutput, OutputAssembler
from omni_cli.runtime.request import RequestError
from omni_cli.trace.frame import run_started
from stages.connectors.ring import SHM_DIR, live_slots
from stages.events import StageIdle
from tests.chaos.drawn import CANCEL, KILL, LEAVE, MEDIA_BYTES, RAISE, SLOW, STOP, Act, Round, draw, moments
from tests.chaos.ground import SIZES, Ground, place_of
from tests.integration.recorded import Recording

QUIET_S = 30.0  # for everything to come to rest: far more than it takes


class Violation(AssertionError):
    """Something that must hold did not."""


@dataclass
class Tally:
    """What has happened in all rounds: (action, phase) pairs, and how requests ended."""

    rounds: int = 0
    acts: Counter[tuple[str, str]] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)


class Launch:
    """Rounds over one start of a ground."""

    def __init__(self, ground: Ground, seed: int, tally: Tally, deadly: int) -> None:
        """One round in `deadly` kills a stage."""
        self.plan = ground.plan()
        self._ground = ground
        self._seed = seed
        self._tally = tally
        self._deadly = deadly
        self._place = place_of(self.plan)
        self._recording = Recording(self.plan)
        self._run_id = secrets.token_hex(4)
        self._pids: dict[str, int] = {}
        self._open: list[Act] = []
        self._numbers: dict[int, int] = {}  # request of this round by uid
        self._places: set[tuple[int, str]] = set()  # (request of this round, process)
        self._killed: set[str] = set()
        self._stopped: set[str] = set()
        self._dying: set[str] = set()
        self._ended: Counter[int] = Counter()
        self._unwell: list[str] = []
        self.number = -1  # of the round that runs
        self._undisturbed: dict[int, dict[str, OmniOutput]] = {}

    def run(self, numbers: Sequence[int]) -> None:
        """The rounds of these numbers, then the end of the run. Raises Violation."""
        resource_tracker.ensure_running()  # a process and a descriptor that stay, whoever starts it
        before = _left(self._run_id), _descriptors(), _children()
        hear = fanout(self._recording.hear, self._hear, self._listener_that_fails)
        hear(CONTROL, run_started(self.plan, self._run_id, datetime.now(UTC)))
        specs = stage_specs(self.plan, self._run_id, media_bytes=0 if self._ground.torch else 2 * MEDIA_BYTES)
        running = LocalLauncher(self.plan, specs, listener=hear, on_progress=lambda line: None).start()
        try:
            asyncio.run(self._rounds(running, hear, numbers))
        finally:
            for process in tuple(self._stopped):
                self._signal(process, signal.SIGCONT)
            running.stop()
        self._recording.live_slots = running.live_slots
        _hold("what is left behind", (_left(self._run_id), _descriptors(), _children()), before)
        _hold("slots that were held at the end", running.live_slots, 0)
        _hold("omni trace replay", self._recording.findings(), [])

    async def _rounds(self, running: object, hear: Listener, numbers: Sequence[int]) -> None:
        async with OmniEngine(self.plan, running, listener=hear) as engine:
            self._engine, self._loop = engine, asyncio.get_running_loop()
            await self._learn()
            held = self._held()
            for number in numbers:
                self.number = number
                self._drawn = draw(self._seed, number, self._place, deadly=number % self._deadly == self._deadly - 1)
                await self._round(self._drawn)
                self._tally.rounds += 1
                _hold("descriptors and rings", self._held(), held)

    async def _learn(self) -> None:
        """What a model answers undisturbed; of the others it can be computed. All that is opened once is open then."""
        for size in SIZES:
            assembler = OutputAssembler(self._place.outputs)
            async with aclosing(self._engine.generate(self._ground.undisturbed(size, self._place))) as chunks:
                async for chunk in chunks:
                    assembler.add(chunk)
            self._undisturbed[size] = assembler.outputs
        await self._rest()

    async def _round(self, drawn: Round) -> None:
        self._numbers.clear()
        self._places.clear()
        self._killed.clear()
        self._ended.clear()
        self._open = [act for act in drawn.acts if act.what in (CANCEL, LEAVE, STOP, KILL)]
        self._leaving = {n: asyncio.Event() for n in range(len(drawn.asks))}
        tasks = [asyncio.ensure_future(self._one(drawn, number)) for number in range(len(drawn.asks))]
        _, hanging = await asyncio.wait(tasks, timeout=QUIET_S)
        _hold("requests that never end", [n for n, task in enumerate(tasks) if task in hanging], [])
        self._open = []
        await self._rest()
        for number, (how, detail) in enumerate(task.result() for task in tasks):
            self._tally.ends[how] += 1
            self._judge(drawn, number, how, detail)
        _hold("how often each request has ended", set(self._ended.values()), {1})
        _hold("requests that have ended", len(self._ended), len(drawn.asks))
        _hold("gauges of idle stages", self._unwell, [])

    async def _one(self, drawn: Round, number: int) -> tuple[str, object]:
        ask = drawn.asks[number]
        raises = [act for act in drawn.acts if act.what == RAISE and act.request == number]
        at = (raises[0].stage, min(2, ask.words - 1)) if raises else None
        request = self._ground.request(f"{drawn.number}/{number}", ask, at)
        assembler = OutputAssembler(ask.outputs)
        self._tally.acts[SLOW, "all the time"] += ask.slow_s > 0
        self._tally.acts[RAISE, "in the middle"] += at is not None
        leaving = asyncio.ensure_future(self._leaving[number].wait())
        try:
            async with aclosing(self._engine.generate(request)) as chunks:
                while True:
                    coming = asyncio.ensure_future(anext(chunks))
                    await asyncio.wait((coming, leaving), return_when=asyncio.FIRST_COMPLETED)
                    if leaving.done() and not coming.done():
                        coming.cancel()
                        await asyncio.wait((coming,))
                        return "left", None
                    assembler.add(await coming)
                    if ask.slow_s:
                        await asyncio.sleep(ask.slow_s)  # a slow caller is what is tested
        except StopAsyncIteration:
            return "finished", assembler.outputs
        except RequestError as error:
            return error.end.outcome, error
        finally:
            leaving.cancel()

    def _judge(self, drawn: Round, number: int, how: str, detail: object) -> None:
        """Whether the end is one that what was done explains."""
        done = {act.what for act in drawn.acts if act.request == number}
        if how == "finished":
            wrong = self._ground.wrong(drawn.asks[number], detail, self._undisturbed)  # type: ignore[arg-type]
            _hold(f"request {number}", wrong, "")
        elif how == "failed":
            error = detail.end.error  # type: ignore[attr-defined]
            if error.kind == "ProcessDied":
                died = error.message.partition(":")[0]
                known = died in self._killed and (number, died) in self._places
                _hold(f"request {number} failed of {error.message}: it was there, and that was killed", known, True)
            else:
                _hold(f"request {number}, which failed of {error.kind} {error.message},: raises", RAISE in done, True)
        else:
            _hold(f"request {number}, which was {how},", CANCEL in done or LEAVE in done, True)

    async def _rest(self) -> None:
        """Until every request is over in every stage, and every slot free in the header of its ring."""
        end_s = time.monotonic() + QUIET_S
        lifecycle, ledger = self._engine.state
        while lifecycle.requests or len(ledger) or self._stopped or self._waiting() or self._slots():
            if time.monotonic() > end_s:
                runtime = f"requests {lifecycle.requests}, leases {ledger.live()}"
                raise Violation(f"not at rest: {runtime}, slots {self._slots()}, not ready: {self._waiting()}")
            await asyncio.sleep(0.0005)  # a ring's header has no event to wait on

    def _waiting(self) -> list[str]:
        """The processes that are dying, to be started again, or start."""
        return [*self._dying, *(replica.process for replica in self._engine.replicas if replica.word != "ready")]

    def _slots(self) -> dict[str, tuple[int, ...]]:
        """The written slots of each ring that there is."""
        found = {}
        for name in _left(self._run_id):
            with suppress(FileNotFoundError):  # a dead writer's, gone a moment ago
                found[name] = live_slots(name)
        return {name: slots for name, slots in found.items() if slots}

    def _held(self) -> tuple[int, dict[str, int], int]:
        """Descriptors of this process and of each stage, and how many rings there are."""
        stages = {name: _descriptors(pid) for name, pid in sorted(self._pids.items())}
        return _descriptors(), stages, len(_left(self._run_id))

    # what is heard, and done then

    def _hear(self, source: str, event: Event) -> None:
        if isinstance(event, ProcessStarted):
            self._pids[event.process] = event.pid
        elif isinstance(event, ProcessDead):
            self._pids.pop(event.process, None)
            self._dying.discard(event.process)
            self._stopped.discard(event.process)
        elif isinstance(event, RequestAdmitted):
            _, _, number = event.request_id.partition("/")
            if number:
                self._numbers[event.uid] = int(number)
        elif isinstance(event, StageSubmitted) and event.uid in self._numbers:
            self._places.add((self._numbers[event.uid], event.process))
        elif isinstance(event, RequestFinished | RequestFailed | RequestCancelled) and event.uid in self._numbers:
            self._ended[event.uid] += 1
        elif isinstance(event, StageIdle):
            self._unwell += [f"{source}: {name} {value}" for name, value in event.gauges if value]
        for phase, uid, stage in moments(source, event) if self._open else ():
            for act in tuple(self._open):
                if (act.phase, act.stage, act.request) == (phase, stage, self._numbers.get(uid)):
                    self._open.remove(act)
                    self._do(act)

    def _do(self, act: Act) -> None:
        replicas = sorted(process for process in self._pids if process.rpartition(".")[0] == act.stage)
        process = replicas[act.replica % len(replicas)] if replicas else ""
        self._tally.acts[act.what, act.phase] += 1
        if act.what == CANCEL:
            self._loop.call_soon(self._engine.cancel, f"{self._drawn.number}/{act.request}")
        elif act.what == LEAVE:
            self._leaving[act.request].set()
        elif act.what == KILL and process in self._pids:
            self._killed.add(process)
            self._dying.add(process)
            self._signal(process, signal.SIGKILL)
        elif act.what == STOP and process in self._pids and process not in self._stopped:
            self._stopped.add(process)
            self._signal(process, signal.SIGSTOP)
            self._loop.call_later(act.wait_s, self._go_on, process)

    def _go_on(self, process: str) -> None:
        self._signal(process, signal.SIGCONT)
        self._stopped.discard(process)

    def _signal(self, process: str, number: signal.Signals) -> None:
        with suppress(KeyError, ProcessLookupError):  # it has died, and that is not heard of yet
            os.kill(self._pids[process], number)

    def _listener_that_fails(self, source: str, event: Event) -> None:
        if isinstance(event, RequestFinished):
            raise RuntimeError("a listener fails on purpose")


def _hold(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise Violation(f"{what}: {found}, where {expected} must be")


def _left(run_id: str) -> frozenset[str]:
    return frozenset(name for name in os.listdir(SHM_DIR) if run_id in name)


def _descriptors(pid: int | str = "self") -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except FileNotFoundError:
        return 0


def _children() -> frozenset[str]:
    return frozenset(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
