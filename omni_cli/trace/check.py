"""Judges a trace: folds it through the tables and the ledger of the live run, and holds it against itself.

The tables alone would bless whatever the runtime wrote, so each audit derives from one part of the trace what another
part must say. A finding names the line; a later finding about the same request may be a consequence of the first.
docs/traces.md says what each audit holds, and what only the ordinals can show.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from omni_cli.runtime.events import (
    Event,
    ProcessDead,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    RunFinished,
)
from omni_cli.runtime.leases import LeaseLedger
from omni_cli.runtime.lifecycle import STAGE_ENDED, IllegalTransition, Lifecycle
from omni_cli.trace.audit import Audit
from omni_cli.trace.capacity_audit import CapacityAudit
from omni_cli.trace.codec import KINDS, TraceEvent
from omni_cli.trace.frame_audit import FrameAudit
from omni_cli.trace.input_audit import InputAudit
from omni_cli.trace.process_audit import ProcessAudit
from omni_cli.trace.stage_audit import StageAudit
from omni_cli.trace.stream_audit import StreamAudit
from stages.events import StageCancelled, StageFailed, StageFinished, StepDone
from stages.lease import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that cannot be right. `line` counts from 1; it is the last one for what is missing at the end.
    `truncated`: all that is wrong is that nothing follows."""

    line: int
    text: str
    truncated: bool = False


class Checked:
    """The events of a trace, passed on one by one; `findings` has what cannot be right in those passed so far.

    In the order of their lines, complete after the last one; none for a sound trace of a run that was brought to its
    end. A trace that stops before `run_finished` gets the finding `truncated at ...` in place of all that is missing.
    """

    def __init__(self, events: Iterable[TraceEvent]) -> None:
        self._events = events
        self.findings: list[Finding] = []

    def __iter__(self) -> Iterator[TraceEvent]:
        trial = _Trial()
        line, last = 0, None
        for line, last in enumerate(self._events, start=1):
            for text in trial.see(last):
                self.findings.append(Finding(line=line, text=text))
            yield last
        if last is None:
            self.findings.append(Finding(line=0, text="truncated at the start: the trace is empty", truncated=True))
        elif isinstance(last.event, RunFinished):
            self.findings += [Finding(line=line, text=text) for text in trial.end()]
        else:
            self.findings.append(Finding(line=line, text=f"truncated at {name_of(last)}", truncated=True))


def check(events: Iterable[TraceEvent]) -> list[Finding]:
    """All findings of a trace."""
    checked = Checked(events)
    for _ in checked:
        pass
    return checked.findings


def name_of(line: TraceEvent) -> str:
    """The event in a few words."""
    uid = getattr(line.event, "uid", None)
    if isinstance(line.event, StepDone):
        uid = ", ".join(str(row.uid) for row in line.event.rows)
    return f"{KINDS[type(line.event)]}{'' if uid is None else f' of request {uid}'} from {line.source}"


_ENDS = frozenset(
    (ProcessDead, StageFinished, StageFailed, StageCancelled, RequestFinished, RequestFailed, RequestCancelled)
)


class _Trial:
    """The state of a check between two lines. The audits see each event before the tables move."""

    def __init__(self) -> None:
        self._lifecycle = Lifecycle()
        self._ledger = LeaseLedger()
        self._killed: set[tuple[int, str]] = set()  # request, process
        self._in_its_hands: set[Lease] = set()  # of those requests, when it was killed
        self._audits: tuple[Audit, ...] = (
            FrameAudit(),
            ProcessAudit(),
            StageAudit(self._lifecycle),
            InputAudit(),
            StreamAudit(self._lifecycle),
            CapacityAudit(),
        )
        self._see = tuple(audit.see for audit in self._audits)

    def see(self, line: TraceEvent) -> Iterator[str]:
        event = line.event
        for see in self._see:
            yield from see(line)
        if isinstance(event, ProcessDead) and event.expected:
            self._note_killed(event.process)
        try:
            self._lifecycle.apply(line.source, event)
            self._ledger.apply(line.source, event)
        except IllegalTransition as error:
            yield f"{name_of(line)}: {error}"
        if type(event) in _ENDS:
            for uid in self._may_be_over(event):
                if self._lifecycle.requests[uid].over:
                    self._lifecycle.forget(uid)
                    for audit in self._audits:
                        audit.forget(uid)

    def _note_killed(self, process: str) -> None:
        """Of a request that was still being cancelled, the slots in the hands of a killed process stay as they are."""
        for uid, record in self._lifecycle.requests.items():
            self._killed.update(
                (uid, process) for s in record.stages.values() if s.process == process and s.state not in STAGE_ENDED
            )
        read = self._ledger.read_by(process)
        self._in_its_hands.update(holding.lease for holding in read if (holding.uid, process) in self._killed)

    def _may_be_over(self, event: Event) -> tuple[int, ...]:
        if isinstance(event, ProcessDead):
            return tuple(self._lifecycle.requests)
        uid: int = event.uid  # type: ignore[union-attr]
        return (uid,) if uid in self._lifecycle.requests else ()

    def end(self) -> Iterator[str]:
        for uid, record in self._lifecycle.requests.items():
            open_stages = [f"{s.process} is {s.state}" for s in record.stages.values() if s.state not in STAGE_ENDED]
            if not record.over:
                yield f"request {uid} never ended: it is {record.state}, {', '.join(open_stages) or 'in no stage'}"
        for holding in self._ledger.live():
            if holding.lease not in self._in_its_hands and (holding.uid, holding.lease.owner) not in self._killed:
                lease = f"lease {holding.lease.owner}#{holding.lease.number} of request {holding.uid}"
                yield f"{lease} leaked: it is {holding.state} at the end"
        for audit in self._audits:
            yield from audit.end()
