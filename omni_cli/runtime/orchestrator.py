"""Moves requests along the edges: takes in the stages' events, answers with commands. One synchronous state machine.

It has no threads, no loop and no clock of its own, so that a replay can drive it. It never touches a tensor: payloads
pass as references, only final outputs and input media go through the two ports that the launcher holds.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime import events
from omni_cli.runtime.books import Books
from omni_cli.runtime.deadlines import Deadlines
from omni_cli.runtime.dispatcher import Dispatcher
from omni_cli.runtime.flight import Flight
from omni_cli.runtime.lifecycle import (
    OUTPUT_ENDED,
    REQUEST_ENDED,
    STAGE_ENDED,
    IllegalTransition,
    Lease,
    Output,
)
from omni_cli.runtime.media_gate import MediaGate
from omni_cli.runtime.processes import OutputPort
from omni_cli.runtime.request import OmniRequest, OutputChunk, RequestEnd
from omni_cli.runtime.retry import Retries
from omni_cli.runtime.router import Router
from stages.errors import ErrorInfo
from stages.events import (
    LeaseReleased,
    MessagePut,
    OutputProduced,
    ProcessReady,
    StageCancelled,
    StageFailed,
    StageFinished,
    StepReport,
)
from stages.messages import Cancel, Reclaim, Turn
from stages.payload import Payload, PayloadRef, view

log = logging.getLogger("omni.runtime")


class Orchestrator:
    """One request after the other, from admission to its end.

    `clock` gives CLOCK_MONOTONIC in ns. `on_chunk(uid, chunk)` and `on_end(uid, end)` hear what the caller of the
    request shall hear. After any call, `take_turns()` has the commands, and `replicas.take_orders()` what is to be done
    with processes. `deadlines` and `replicas` know when it is time for `expire`, and for further orders.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        *,
        clock: Callable[[], int],
        listener: events.Listener,
        media: MediaGate,
        output_ports: Mapping[str, OutputPort],
        on_chunk: Callable[[int, OutputChunk], None],
        on_end: Callable[[int, RequestEnd], None],
    ) -> None:
        self._clock = clock
        self._output_ports = output_ports
        self._on_chunk = on_chunk
        self._on_end = on_end
        self._router = Router(plan)
        self._books = Books(plan, clock=clock, listener=listener, media=media)
        self.lifecycle, self.ledger, self.replicas = self._books.lifecycle, self._books.ledger, self._books.replicas
        self._emit, self._say, self._drop = self._books.enter, self._books.say, self._books.drop
        self._flights: dict[int, Flight] = {}
        self.deadlines = Deadlines()
        self._retries = Retries(plan, self._books, self._flights)
        self._dispatcher = Dispatcher(self._books, self._flights, media, self._retries, self._fail)

    # what the engine asks

    @property
    def idle(self) -> bool:
        """Nothing is left of any request, neither here nor in a stage."""
        return not self._flights and not len(self.ledger)

    def unanswered(self) -> frozenset[str]:
        """The processes that something of a request is still left in."""
        working = {
            stage.process
            for record in self.lifecycle.requests.values()
            for stage in record.stages.values()
            if stage.state not in STAGE_ENDED
        }
        reading = {holding.reader for holding in self.ledger.live() if holding.reader}
        return frozenset(process for process in working | reading if self.replicas.lives(process))

    def take_turns(self, enter: bool = True) -> dict[str, Turn]:
        """Lets in who is waiting, unless not to; then says what each worker has to be told since the last call, in
        order."""
        if enter:
            self._dispatcher.enter_waiting()
        return self._books.take_turns()

    # what happens

    def admit(self, uid: int, request: OmniRequest) -> None:
        """Takes a valid request on; it enters its first stages with the next turns. `uid` is never used twice."""
        media, now = bool(request.media.tensors), self._clock()
        route = self._router.route(frozenset(request.outputs), media)
        self._flights[uid] = Flight(request=request, route=route)
        self._emit(
            events.RequestAdmitted(
                t_ns=now,
                uid=uid,
                request_id=request.request_id,
                seed=request.seed,
                outputs=request.outputs,
                stages=tuple(route.stages),
                timeout_s=request.timeout_s,
                media=media,
                traceparent=request.traceparent,
            )
        )
        if request.timeout_s is not None:
            self.deadlines.set(uid, now + round(request.timeout_s * 1e9))
        self._dispatcher.admit(uid)

    def report(self, report: StepReport) -> None:
        """Takes in all that a worker has to tell. This is the one place where the word of a dead process ends."""
        if not self.replicas.speaks(report.process, report.generation):
            log.warning("%s: %d events of generation %d came too late and are ignored", report.process,
                        len(report.events), report.generation)  # fmt: skip
            return
        for event in report.events:
            self.hear(report.process, event)

    def hear(self, process: str, event: events.Event) -> None:
        """One event of a worker that `replicas.speaks`."""
        try:
            self._emit(event, process)
        except IllegalTransition as error:
            self._on_illegal(error, process, event)
            return
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, process, event)

    def died(self, process: str, cause: str) -> None:
        """A worker has died: its requests are run again or fail, what it was reading comes back, the others go on."""
        stage, now = process.rpartition(".")[0], self._clock()
        self._books.forget_words(process)
        lost = [
            uid
            for uid, record in self.lifecycle.requests.items()
            if any(s.process == process and s.state not in STAGE_ENDED for s in record.stages.values())
        ]
        lent = self.ledger.read_by(process)
        self._emit(events.ProcessDead(t_ns=now, process=process, expected=False, cause=cause))
        for holding in self.ledger.read_by(process):
            self._drop(holding.uid, holding.lease)
        self.replicas.died(process, cause, now)
        for uid in lost:
            self._lose(uid, stage, f"{process}: {cause}")
        for holding in lent:
            if self.ledger.is_held(holding.lease) and not self._retries.parks(holding.uid, stage):
                self._drop(holding.uid, holding.lease)
        self._dispatcher.unpark(stage)

    def _lose(self, uid: int, stage: str, cause: str) -> None:
        """The stage's replica has died with the request."""
        if self.lifecycle.requests[uid].state not in REQUEST_ENDED:
            obstacle = self._retries.obstacle(uid, stage, cause)
            if obstacle is None:
                self._dispatcher.run_again(uid, stage)
                return
            message = f"{cause} (not run again: {obstacle})" if obstacle else cause
            self._fail(uid, ErrorInfo(kind="ProcessDied", message=message, fault="server", stage=stage))
        self._close_if_over(uid)

    def not_started(self, process: str, generation: int, cause: str, *, final: bool) -> None:
        """The next life of a dead worker could not begin; `final`: nor will that of any other."""
        now = self._clock()
        self._emit(events.ProcessNotStarted(t_ns=now, process=process, generation=generation, cause=cause, final=final))
        self.replicas.not_started(process, generation, cause, now, final=final)
        for stage in self.replicas.pools if final else (process.rpartition(".")[0],):
            self._dispatcher.unpark(stage)

    def cancel(self, uid: int, reason: str) -> None:
        """The caller gives the request up. One that has ended already stays as it ended."""
        if uid in self._flights and self.lifecycle.requests[uid].state not in REQUEST_ENDED:
            self._end_outputs(uid, "cancelled")
            self._emit(events.RequestCancelled(t_ns=self._clock(), uid=uid, reason=reason))
            self._on_end(uid, RequestEnd(outcome="cancelled"))
            self._wind_down(uid)

    def expire(self) -> None:
        """Fails every request whose time is up."""
        for uid in self.deadlines.take_due(self._clock()):
            stages = self.lifecycle.requests[uid].stages
            flight = self._flights[uid]
            places = [f"{s.process} {s.state}" for s in stages.values() if s.state not in STAGE_ENDED]
            places += [
                f"waits for a place in {stage}" if self.replicas.pools[stage].alive else f"no {stage} is alive"
                for stage in flight.parked
            ]
            where = ", ".join(places) or "in no stage"
            message = f"not done after timeout_s={flight.request.timeout_s:g} ({where})"
            stage = next((name for name, s in stages.items() if s.state not in STAGE_ENDED), "")
            self._fail(uid, ErrorInfo(kind="DeadlineExceeded", message=message, fault="server", stage=stage))

    # events of the stages

    def _message_put(self, process: str, event: MessagePut) -> None:
        message = event.message
        record = self.lifecycle.requests[event.uid]
        consumer = record.stages.get(message.consumer)
        self._retries.let_go(event.uid, message.producer)
        over = consumer is not None and consumer.state in STAGE_ENDED
        if record.state in REQUEST_ENDED or (over and message.consumer not in self._flights[event.uid].parked):
            if message.lease is not None:
                self._drop(event.uid, message.lease)
            return
        self._dispatcher.pass_on(event.uid, message)

    def _process_ready(self, process: str, event: ProcessReady) -> None:
        self.replicas.ready(process)
        self._dispatcher.unpark(process.rpartition(".")[0])

    def _lease_released(self, process: str, event: LeaseReleased) -> None:
        if not self.ledger.is_held(event.lease):
            self._books.reclaim(event.lease)
        elif not self._retries.needs(event.uid, process.rpartition(".")[0]):
            self._drop(event.uid, event.lease)
        self._close_if_over(event.uid)

    def _output_produced(self, process: str, event: OutputProduced) -> None:
        uid = event.uid
        wanted = self.lifecycle.requests[uid].state not in REQUEST_ENDED
        self._retries.let_go(uid, process.rpartition(".")[0])
        payload = self._read_output(process, event.ref) if wanted and event.ref is not None else None
        if event.lease is not None:
            self._emit(events.LeaseRead(t_ns=self._clock(), uid=uid, lease=event.lease))
            self._books.reclaim(event.lease)
        if not wanted:
            return
        self._on_chunk(
            uid,
            OutputChunk(
                modality=event.modality,
                seq=event.seq,
                units=event.units,
                eos=event.eos,
                text=event.text,
                payload=payload,
                reason=event.reason,
            ),
        )
        if event.eos:
            self._finish_output(uid, event.modality, "empty" if event.reason == "empty" else "finished")

    def _read_output(self, process: str, ref: PayloadRef) -> Payload:
        """The payload with bytes of its own: a slot goes back at once."""
        if ref.inline is not None:
            return view(ref.tensors, ref.meta, memoryview(ref.inline))
        payload = self._output_ports[process].get(ref)
        tensors = tuple(replace(t, data=memoryview(bytes(t.data))) for t in payload.tensors)
        return Payload(tensors=tensors, meta=payload.meta)

    def _stage_finished(self, process: str, event: StageFinished | StageCancelled) -> None:
        self._leave_stage(event.uid, process)

    def _stage_failed(self, process: str, event: StageFailed) -> None:
        self._leave_stage(event.uid, process, close=False)
        self._fail(event.uid, event.error)
        self._close_if_over(event.uid)

    # steps of a request

    def _finish_output(self, uid: int, modality: str, outcome: str) -> None:
        record = self.lifecycle.requests[uid]
        output = record.outputs[modality]
        self._emit(
            events.OutputFinished(
                t_ns=self._clock(),
                uid=uid,
                modality=modality,
                outcome=outcome,  # type: ignore[arg-type]
                units=output.units,
                chunks=output.chunks,
            )
        )
        if all(o.state in (Output.FINISHED, Output.EMPTY) for o in record.outputs.values()):
            self.deadlines.clear(uid)
            self._emit(events.RequestFinished(t_ns=self._clock(), uid=uid))
            self._on_end(uid, RequestEnd(outcome="finished"))

    def _fail(self, uid: int, error: ErrorInfo) -> None:
        """The request fails, unless it has ended already; what is left of it in other stages is cancelled."""
        if self.lifecycle.requests[uid].state in REQUEST_ENDED:
            return
        self._end_outputs(uid, "failed")
        self._emit(events.RequestFailed(t_ns=self._clock(), uid=uid, error=error))
        self._on_end(uid, RequestEnd(outcome="failed", error=error))
        self._wind_down(uid)

    def _end_outputs(self, uid: int, outcome: str) -> None:
        for modality, output in self.lifecycle.requests[uid].outputs.items():
            if output.state not in OUTPUT_ENDED:
                self._finish_output(uid, modality, outcome)

    def _wind_down(self, uid: int) -> None:
        self.deadlines.clear(uid)
        for stage in self._flights[uid].parked:
            self.replicas.pools[stage].release(uid)
        self._flights[uid].parked.clear()
        for stage in tuple(self._flights[uid].given):
            self._retries.take(uid, stage)
        for holding in self.ledger.live():
            if holding.uid == uid and holding.state is Lease.HELD:
                self._drop(uid, holding.lease)
        for stage, record in self.lifecycle.requests[uid].stages.items():
            if record.state not in STAGE_ENDED:
                self._emit(events.StageCancelling(t_ns=self._clock(), uid=uid, stage=stage))
                self._say(record.process, Cancel(uid=uid))
        self._close_if_over(uid)

    def _leave_stage(self, uid: int, process: str, close: bool = True) -> None:
        stage = process.rpartition(".")[0]
        if self.lifecycle.requests[uid].stages[stage].state in STAGE_ENDED:
            self.replicas.pools[stage].release(uid)
            self._retries.let_go(uid, stage)
            if close:
                self._close_if_over(uid)
            self._dispatcher.freed.add(stage)

    def _close_if_over(self, uid: int) -> None:
        """Forgets a request once it has ended for its caller and in every stage."""
        record = self.lifecycle.requests.get(uid)
        if record is not None and record.over:
            self.lifecycle.forget(uid)
            del self._flights[uid]
            for stage in record.stages:
                self.replicas.pools[stage].release(uid)

    # leases and words

    def _on_illegal(self, error: IllegalTransition, process: str, event: events.Event) -> None:
        """A stage broke the protocol: its request fails, the run goes on. A slot that came with it goes back unread."""
        log.error("%s: %s", process, error)
        lease = event.message.lease if isinstance(event, MessagePut) else getattr(event, "lease", None)
        if lease is not None and lease.owner == process:
            self._say(process, Reclaim(leases=(lease,)))
        if error.uid in self._flights:
            stage = process.rpartition(".")[0]
            self._fail(error.uid, ErrorInfo(kind="ProtocolError", message=str(error), fault="server", stage=stage))


_HANDLERS: Mapping[type, Callable[..., None]] = {
    ProcessReady: Orchestrator._process_ready,
    MessagePut: Orchestrator._message_put,
    LeaseReleased: Orchestrator._lease_released,
    OutputProduced: Orchestrator._output_produced,
    StageFinished: Orchestrator._stage_finished,
    StageCancelled: Orchestrator._stage_finished,
    StageFailed: Orchestrator._stage_failed,
}
