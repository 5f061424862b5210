"""The one loop of a stage process: commands in, a step of the scheduler and the runner, a report out.

A request that fails, for whatever reason, fails alone; only a breach of the protocol between parent and worker ends
the process. The loop knows no model, no tensor and no policy of scheduling.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stages.config import StageSpec
from stages.connectors.base import ConnectorReader, ConnectorWriter
from stages.errors import ErrorInfo, RequestRefused, StageError, describe
from stages.events import (
    FinishReason,
    InputReady,
    ProcessReady,
    Scheduled,
    StageCancelled,
    StageEvent,
    StageFailed,
    StageFinished,
    StageIdle,
    StepDone,
    StepReport,
    StepRow,
)
from stages.messages import (
    Attach,
    Cancel,
    Deliver,
    Detach,
    Reclaim,
    StageRequest,
    Stop,
    StreamMessage,
    Submit,
    Turn,
)
from stages.runners.base import ModelRunner, RowResult
from stages.schedulers.base import KV_BLOCKS, Row, RowProgress, Scheduler
from stages.worker.channel import Inbox, Outbox
from stages.worker.inputs import InputStreams
from stages.worker.outputs import OutputStreams

log = logging.getLogger("omni.worker")


class ParentGone(Exception):
    """The other end of a pipe is closed: nobody is left to work for."""


@dataclass(slots=True)
class _Active:
    """A request in this process. `begun` is between the runner's `begin` and `end`; `ending` awaits the last puts."""

    begun: bool = False
    scheduled: bool = False
    units: int = 0
    ending: FinishReason | None = None


class StageWorker:
    """One thread: `run` returns after `Stop`. `clock` gives CLOCK_MONOTONIC in ns."""

    def __init__(
        self,
        spec: StageSpec,
        runner: ModelRunner,
        scheduler: Scheduler,
        readers: Mapping[str, ConnectorReader],
        writers: Mapping[str, ConnectorWriter],
        clock: Callable[[], int],
    ) -> None:
        self._stage = spec.stage
        self._process = spec.process
        self._generation = spec.generation
        self._modes = {edge.producer: edge.mode for edge in spec.inputs}
        self._runner = runner
        self._scheduler = scheduler
        self._clock = clock
        self._events: list[StageEvent] = []
        self._inputs = InputStreams(readers, runner, clock, self._emit)
        self._outputs = OutputStreams(spec.stage, spec.consumers, writers, clock, self._emit)
        self._requests: dict[int, _Active] = {}
        self._idle = True
        self._preempted: tuple[int, ...] = ()
        self._steps = 0
        self._reports = 0
        self._stopped = False
        self.rounds = 0  # what a heartbeat tells: see `Beat`
        self.working = True

    def ready(self, pid: int, facts: tuple[tuple[str, str], ...]) -> None:
        """Makes `ProcessReady` the first event of the first report."""
        self._emit(ProcessReady(t_ns=self._clock(), pid=pid, facts=facts))

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        """Works until `Stop`. Raises ParentGone, or ValueError if the parent broke the protocol."""
        self._report(outbox)
        busy = False
        while not self._stopped:
            self._listen(inbox, wait=not busy)
            busy = not self._stopped and self.step()
            self._report(outbox)
            self.rounds += 1
        if self._requests:
            log.warning("stopped with requests %s in flight", sorted(self._requests))

    def _listen(self, inbox: Inbox, wait: bool) -> None:
        """Applies all turns that have come; if there is nothing to do, waits for one."""
        try:
            while wait or not inbox.empty():
                self.working = not wait
                wait = False
                turn = inbox.get()
                self.working = True
                self.apply(turn)
                self.rounds += 1
        except (EOFError, OSError) as error:
            raise ParentGone(f"{self._process}: the parent is gone") from error

    def _report(self, outbox: Outbox) -> None:
        if not (self._idle or self._requests):
            self._idle = True
            self._emit(StageIdle(t_ns=self._clock(), gauges=self._scheduler.gauges()))
        report = self.take_report()
        if report is not None:
            try:
                outbox.put(report)
            except OSError as error:
                raise ParentGone(f"{self._process}: the parent is gone") from error

    def take_report(self) -> StepReport | None:
        """All events since the last one, or None if there are none."""
        if not self._events:
            return None
        report = StepReport(
            process=self._process, seq=self._reports, events=tuple(self._events), generation=self._generation
        )
        self._events.clear()
        self._reports += 1
        return report

    def apply(self, turn: Turn) -> None:
        """Does what the parent says, in order. Raises ValueError for what it cannot mean."""
        for command in turn.commands:
            match command:
                case Deliver(message=message):
                    self._deliver(message)
                case Submit(request=request):
                    self._submit(request)
                case Reclaim(leases=leases):
                    for lease in leases:
                        self._outputs.reclaim(lease)
                    for uid in self._outputs.retry(self._fail):
                        self._finish_if_ended(uid)
                case Cancel(uid=uid):
                    self._cancel(uid)
                case Attach(producer=producer, ring=ring):
                    self._inputs.attach(producer, ring)
                case Detach(producer=producer, segment=segment):
                    self._inputs.detach(producer, segment)
                case Stop():
                    self._stopped = True

    def step(self) -> bool:
        """Schedules, executes and hands on; False if nothing can run."""
        output = self._scheduler.schedule(self._outputs.credits(), self._outputs.held())
        if output is None:
            return False
        if output.preempted:
            self._runner.preempt(output.preempted)
            self._preempted += output.preempted
        for refusal in output.refused:
            self._fail(refusal.uid, RequestRefused(refusal.message))
        if output.rows:
            self._run_rows(output.rows)
        return True

    def _run_rows(self, rows: tuple[Row, ...]) -> None:
        start, kv_blocks = self._clock(), dict(self._scheduler.gauges()).get(KV_BLOCKS, 0)
        for row in rows:
            active = self._requests[row.uid]
            if not active.scheduled:
                active.scheduled = True
                self._emit(Scheduled(uid=row.uid, t_ns=start))
        results = self._execute(rows)
        self._emit(
            StepDone(
                index=self._steps,
                t_ns=start,
                end_ns=self._clock(),
                rows=tuple(_step_row(row, result) for row, result in zip(rows, results, strict=True)),
                kv_blocks=kv_blocks,
                preempted=self._preempted,
                counters=self._runner.counters(),
            )
        )
        self._preempted = ()
        self._steps += 1
        self._scheduler.update(
            tuple(
                RowProgress(uid=r.uid, units=r.units, tokens=r.tokens, finished=r.finished, failed=r.error is not None)
                for r in results
            )
        )
        for result in results:
            self._hand_on(result)

    def _execute(self, rows: tuple[Row, ...]) -> tuple[RowResult, ...]:
        """What the runner made of the rows. If it raises, each of them has failed."""
        try:
            results = self._runner.execute(rows)
            if [result.uid for result in results] != [row.uid for row in rows]:
                raise StageError(f"the runner answered {[r.uid for r in results]} to rows {[r.uid for r in rows]}")
            if any(result.units > row.units for result, row in zip(results, rows, strict=True)):
                raise StageError("the runner did more units than the scheduler gave it")
            if any(_miscounted(result, row) for result, row in zip(results, rows, strict=True)):
                raise StageError("the runner computed other tokens than the scheduler gave it")
        except Exception as error:
            info = describe(error, self._stage)
            return tuple(RowResult(uid=row.uid, units=0, error=info) for row in rows)
        return results

    def _hand_on(self, result: RowResult) -> None:
        if result.error is not None:
            self._fail_with(result.uid, result.error)
            return
        active = self._requests[result.uid]
        active.units += result.units
        try:
            all_put = self._outputs.push(result)
        except Exception as error:
            self._fail(result.uid, error)
            return
        if result.finished is not None:
            active.ending = result.finished
            self._end_computing(result.uid, active)
            if all_put:
                self._finish_if_ended(result.uid)

    def _submit(self, request: StageRequest) -> None:
        uid = request.uid
        if uid in self._requests:
            raise ValueError(f"request {uid} was submitted to {self._process} twice")
        active = self._requests[uid] = _Active()
        self._idle = False
        try:
            self._inputs.open(request)
            self._outputs.open(request)
            self._runner.begin(request)
            active.begun = True
            if self._scheduler.add(request, self._modes):
                self._ready(uid)
        except Exception as error:
            self._fail(uid, error)

    def _deliver(self, message: StreamMessage) -> None:
        uid = message.uid
        try:
            if self._inputs.deliver(message) and self._scheduler.extend(
                uid, message.producer, message.units, message.eos
            ):
                self._ready(uid)
        except Exception as error:
            self._fail(uid, error)

    def _ready(self, uid: int) -> None:
        """The input contract is satisfied. Raises RequestRefused if the prompt can never run here."""
        prompt_tokens = self._runner.prompt_tokens(uid)
        self._scheduler.size(uid, prompt_tokens)
        self._emit(InputReady(uid=uid, t_ns=self._clock(), prompt_tokens=prompt_tokens))

    def _cancel(self, uid: int) -> None:
        if uid in self._requests:
            self._drop(uid)
        self._emit(StageCancelled(uid=uid, t_ns=self._clock()))

    def _finish_if_ended(self, uid: int) -> None:
        """The end of a request here, once all that it handed on has been put."""
        active = self._requests[uid]
        if active.ending is not None:
            self._drop(uid)
            self._emit(StageFinished(uid=uid, t_ns=self._clock(), reason=active.ending, units=active.units))

    def _fail(self, uid: int, error: Exception) -> None:
        self._fail_with(uid, describe(error, self._stage))

    def _fail_with(self, uid: int, error: ErrorInfo) -> None:
        self._drop(uid)
        self._emit(StageFailed(uid=uid, t_ns=self._clock(), error=error))

    def _drop(self, uid: int) -> None:
        """Nothing is left of the request in this process."""
        self._end_computing(uid, self._requests.pop(uid))
        self._outputs.close(uid)

    def _end_computing(self, uid: int, active: _Active) -> None:
        """The model is done with the request; what still comes for it is given back unread."""
        self._inputs.close(uid)
        if uid in self._scheduler:
            self._scheduler.abort(uid)
        if active.begun:
            active.begun = False
            try:
                self._runner.end(uid)
            except Exception:
                log.exception("the runner could not drop request %d", uid)

    def _emit(self, event: StageEvent) -> None:
        self._events.append(event)


def _step_row(row: Row, result: RowResult) -> StepRow:
    tokens = result.tokens
    if tokens is None:
        tokens = row.tokens if result.units == row.units and result.error is None else 0
    return StepRow(
        uid=row.uid, phase=row.phase, position=row.position, units=result.units, start=row.start, tokens=tokens
    )


def _miscounted(result: RowResult, row: Row) -> bool:
    """A unit comes of all tokens of its row."""
    tokens = result.tokens
    return tokens is not None and (tokens > row.tokens or (result.units > 0 and tokens < row.tokens))
