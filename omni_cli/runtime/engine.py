"""The asyncio shell around the orchestrator: threads to the workers, timers, one async stream of chunks per request.

`omni run`, `omni bench` and the server drive this class. It decides nothing about requests itself.
"""

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack

from omni_cli.errors import InputError
from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.chunk_stream import ChunkStream
from omni_cli.runtime.events import Listener
from omni_cli.runtime.heap import settled_heap
from omni_cli.runtime.heartbeat import HeartbeatWatch
from omni_cli.runtime.leases import LeaseLedger
from omni_cli.runtime.lifecycle import Lifecycle
from omni_cli.runtime.media_gate import MediaGate
from omni_cli.runtime.orchestrator import Orchestrator
from omni_cli.runtime.processes import Processes, StageHandle
from omni_cli.runtime.replicas import Replica
from omni_cli.runtime.request import OmniRequest, OutputChunk, RequestEnd, RequestError
from omni_cli.runtime.stage_client import Received, StageClient
from omni_cli.runtime.supervisor import Supervisor
from stages.errors import describe
from stages.events import StepReport
from stages.messages import ProcessFailed

log = logging.getLogger("omni.runtime")

ANSWER_S = 1.0  # for a stage to let go of requests that have ended for their callers: nothing is gained by more


class OmniEngine:
    """Serves requests over started stage processes. Use as an async context manager, in one event loop.

    `listener` hears every event; `fanout` makes one of many. `clock` is CLOCK_MONOTONIC in ns, the clock of every
    stamp in a trace.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        processes: Processes,
        *,
        listener: Listener,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._streams: dict[int, ChunkStream] = {}
        self._uids: dict[str, int] = {}
        self._next_uid = itertools.count(1)
        self._received: deque[tuple[StageClient, Received]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_ns: int | None = None  # what the timer is set to
        self._closing = False
        self.failure: Exception | None = None  # of the runtime, after which no request is taken on any more
        self._orchestrator = Orchestrator(
            plan,
            clock=clock,
            listener=listener,
            media=MediaGate(processes.media_ports),
            output_ports=processes.output_ports,
            on_chunk=lambda uid, chunk: self._streams[uid].put(chunk),
            on_end=lambda uid, end: self._streams[uid].put(end),
        )
        self._supervisor = Supervisor(
            processes,
            clock=clock,
            on_receive=self._on_receive,
            started=self._on_started,
            not_started=self._on_not_started,
            failed=self._break,
        )

    async def __aenter__(self) -> "OmniEngine":
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self._idle.set()
        self._woken = False
        self._open = ExitStack()
        self._open.enter_context(settled_heap())
        self._supervisor.start()
        if self._plan.heartbeat_s is not None:
            watch = HeartbeatWatch(self._plan.heartbeat_s)
            self._open.callback(watch.stop)
            watch.start(self._ready_handles)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Cancels what is still in flight, waits for the stages to let go of it, and ends the writer threads.

        Waits `deploy.drain_timeout_s` if something was in flight, else `ANSWER_S` at most; a process that has not
        answered by then is given up. The processes are the launcher's to stop, after this.
        """
        limit_s = self._plan.drain_timeout_s if self._streams else min(ANSWER_S, self._plan.drain_timeout_s)
        for uid in tuple(self._streams):
            self._give_up(uid, "the engine is closing")
        if self.failure is None:
            self._turn()  # now: it also finds out whether anything is left to wait for
        try:
            await asyncio.wait_for(self._idle.wait(), limit_s)
        except TimeoutError:
            for process in sorted(self._orchestrator.unanswered()):
                log.warning("%s has not let go of its requests for %g s and is given up", process, limit_s)
                self._supervisor.clients[process].handle.give_up()
        self._closing = True
        await self._supervisor.close()
        for replica in self.replicas:
            if replica.word == "starting":  # it would load first, and then hear that it shall stop
                self._supervisor.clients[replica.process].handle.give_up()
        if self._timer is not None:
            self._timer.cancel()
        for client in self._supervisor.clients.values():
            client.close()
        self._open.close()
        await asyncio.to_thread(self._join_writers)

    def _join_writers(self) -> None:
        """What a stage was told last, it hears before it is told to stop: it takes back its slots."""
        due_ns = self._clock() + int(ANSWER_S * 1e9)
        for client in self._supervisor.clients.values():
            if not client.join_writer(max(0.0, (due_ns - self._clock()) / 1e9)):
                client.handle.give_up()

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """Every replica, as it is now."""
        return self._orchestrator.replicas.all()

    @property
    def dead(self) -> dict[str, str]:
        """How the replicas died that are not started again."""
        return {replica.process: replica.cause for replica in self.replicas if replica.hopeless}

    @property
    def state(self) -> tuple[Lifecycle, LeaseLedger]:
        """Where every request and every slot is, to be read between two turns of the loop."""
        return self._orchestrator.lifecycle, self._orchestrator.ledger

    def check(self, request: OmniRequest) -> None:
        """InputError for what this deployment cannot do; nothing has been taken on then."""
        for modality in request.outputs:
            if modality not in self._plan.outputs:
                raise InputError(
                    f"request {request.request_id}: {modality} is not available in this deployment, "
                    f"which gives {', '.join(sorted(self._plan.outputs))} (deploy.outputs)",
                    param="modalities",
                )
        if not request.outputs:
            raise InputError(f"request {request.request_id}: modalities is empty", param="modalities")
        if request.request_id in self._uids:
            raise InputError(f"request id {request.request_id!r} is in flight already", param="id")

    async def generate(self, request: OmniRequest) -> AsyncGenerator[OutputChunk, None]:
        """All pieces of all outputs of a request, as they come. Leaving the iterator early cancels the request.

        Raises InputError before anything is scheduled, RequestError if the request fails or is cancelled.
        """
        self.check(request)
        uid = self._admit(request)
        stream = self._streams[uid]
        try:
            while True:
                for item in await stream.take():
                    if isinstance(item, OutputChunk):
                        yield item
                    elif item.outcome == "finished":
                        return
                    else:
                        raise RequestError(request.request_id, item)
        finally:
            self._give_up(uid, "the caller left")
            del self._streams[uid]
            del self._uids[request.request_id]

    def cancel(self, request_id: str, reason: str = "cancelled by the caller") -> bool:
        """Cancels a request in flight; its `generate` raises RequestError. False if it is not in flight."""
        uid = self._uids.get(request_id)
        if uid is None:
            return False
        self._give_up(uid, reason)
        return True

    def _give_up(self, uid: int, reason: str) -> None:
        if self.failure is None:
            self._orchestrator.cancel(uid, reason)
            self._turn_soon()

    def _admit(self, request: OmniRequest) -> int:
        if self.failure is not None:
            raise self.failure
        uid = next(self._next_uid)
        self._streams[uid] = ChunkStream(self._loop)
        self._uids[request.request_id] = uid
        try:
            self._orchestrator.admit(uid, request)
            self._turn_soon()
        except Exception as error:
            self._break(error)
        return uid

    def _ready_handles(self) -> list[StageHandle]:
        """One that loads does not beat yet; `startup_timeout_s` is for that."""
        serving = {replica.process for replica in self.replicas if replica.serving}
        return [client.handle for client in self._supervisor.clients.values() if client.process in serving]

    def _on_receive(self, client: StageClient, message: Received) -> None:
        """In a reader thread: one wake-up of the loop for all that has come since the last one."""
        self._received.append((client, message))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._turn)
            except RuntimeError:  # the loop is closed: nobody is left to be told
                log.debug("%s: a message after the end was not taken in", client.process)

    def _turn_soon(self) -> None:
        """Callers that come and go together share the next turn."""
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """One turn of the loop: take in everything that has come, then answer each worker at most once."""
        self._woken = False
        if self.failure is not None:
            return
        try:
            while self._received:
                self._take_in(*self._received.popleft())
            self._flush()
        except Exception as error:
            self._break(error)

    def _take_in(self, client: StageClient, message: Received) -> None:
        if isinstance(message, StepReport):
            self._orchestrator.report(message)
        elif isinstance(message, ProcessFailed):
            log.error("%s failed: %s\n%s", message.process, message.error.message, message.error.trace)
        elif not self._closing:
            cause = client.handle.death()
            log.error("stage process %s is dead: %s", client.process, cause)
            self._orchestrator.died(client.process, cause)

    def _on_started(self, process: str, generation: int) -> None:
        self._orchestrator.replicas.started(process, generation)
        self._turn_soon()

    def _on_not_started(self, process: str, generation: int, cause: str, final: bool) -> None:
        self._orchestrator.not_started(process, generation, cause, final=final)
        self._turn_soon()

    def _break(self, error: Exception) -> None:
        """A fault of the runtime itself: no request is left hanging, and no new one is taken on."""
        log.critical("the orchestrator failed", exc_info=error)
        self.failure = error
        end = RequestEnd(outcome="failed", error=describe(error, ""))
        for stream in self._streams.values():
            stream.put(end)
        self._idle.set()

    def _flush(self) -> None:
        for process, turn in self._orchestrator.take_turns().items():
            self._supervisor.clients[process].send(turn)
        self._supervisor.carry_out(self._orchestrator.replicas.take_orders())
        if self._orchestrator.idle:
            self._idle.set()
        else:
            self._idle.clear()
        self._set_timer()

    def _set_timer(self) -> None:
        due = (self._orchestrator.deadlines.next_ns(), self._orchestrator.replicas.next_due_ns())
        deadline_ns = min((at for at in due if at is not None), default=None)
        if deadline_ns == self._deadline_ns:
            return
        self._deadline_ns = deadline_ns
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline_ns is not None and not self._closing:
            self._timer = self._loop.call_later(max(0.0, (deadline_ns - self._clock()) / 1e9), self._expire)

    def _expire(self) -> None:
        self._deadline_ns = None  # the timer has run out, be it a little early
        try:
            self._orchestrator.expire()
            self._flush()
        except Exception as error:
            self._break(error)
