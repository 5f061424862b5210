"""Who holds what at a point of a replay: requests, stages, leases, slots. Reads the orchestrator's own state."""

from collections.abc import Iterator
from dataclasses import dataclass

from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.leases import Holding
from omni_cli.runtime.lifecycle import STAGE_ENDED, RequestRecord, Stage, StageRecord, Stream, StreamRecord
from omni_cli.trace.replay import Replay
from omni_cli.trace.why import Moment
from stages.messages import REQUEST


@dataclass(frozen=True, slots=True, kw_only=True)
class InputState:
    """A stream into a stage: messages put and read, and whether the last one was put."""

    producer: str
    put: int
    got: int
    ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StageState:
    process: str
    state: str
    position: int
    inputs: tuple[InputState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseState:
    """A slot in use: `reader` is the process that has been let to read it."""

    owner: str
    number: int
    slot: int
    state: str
    reader: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputState:
    modality: str
    state: str
    units: int
    pieces: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestState:
    """A request that is not over. `stages` it has been given to; `to_come` are the others on its way. `why` is what
    `omni trace why` says of it."""

    request: str
    why: str
    state: str
    age_ns: int
    stages: tuple[StageState, ...]
    to_come: tuple[str, ...]
    outputs: tuple[OutputState, ...]
    leases: tuple[LeaseState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """The requests in a process, by their state there."""

    process: str
    alive: bool
    max_batch: int
    running: tuple[str, ...]
    ready: tuple[str, ...]
    waiting: tuple[str, ...]
    cancelling: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RingState:
    """The slots of a ring. Its producer's credit is `slots` less those in use, whose requests are `held_by`."""

    owner: str
    consumer: str
    slots: int
    held_by: tuple[str, ...]

    @property
    def free(self) -> int:
        return self.slots - len(self.held_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayState:
    """Everything at `now_ns`, after `line` lines. `entering` are admitted requests that no stage has yet."""

    line: int
    now_ns: int
    requests: tuple[RequestState, ...]
    entering: tuple[str, ...]
    processes: tuple[ProcessState, ...]
    rings: tuple[RingState, ...]


def state_of(replay: Replay, plan: ExecutionPlan) -> ReplayState:
    return _Look(replay, plan).state()


class _Look:
    def __init__(self, replay: Replay, plan: ExecutionPlan) -> None:
        self._replay = replay
        self._plan = plan
        self._records = replay.orchestrator.lifecycle.requests
        ledger = replay.orchestrator.ledger
        self._live = ledger.live()
        self._moment = (
            None
            if replay.started is None
            else Moment(
                run=replay.started,
                lifecycle=replay.orchestrator.lifecycle,
                ledger=ledger,
                heard=replay.heard,
                now_ns=replay.now_ns,
            )
        )

    def state(self) -> ReplayState:
        replay = self._replay
        return ReplayState(
            line=replay.script.line,
            now_ns=replay.now_ns,
            requests=tuple(self._request(uid, record) for uid, record in self._records.items()),
            entering=tuple(map(self._name, replay.entering)),
            processes=tuple(self._processes()),
            rings=tuple(self._rings()),
        )

    def _name(self, uid: int) -> str:
        return self._replay.names.get(uid, f"#{uid}")

    def _request(self, uid: int, record: RequestRecord) -> RequestState:
        return RequestState(
            request=record.admitted.request_id,
            why=self._moment.why(record) if self._moment is not None else "",
            state=record.state,
            age_ns=self._replay.now_ns - record.admitted.t_ns,
            stages=tuple(self._stage(name, stage, record) for name, stage in record.stages.items()),
            to_come=tuple(name for name in record.admitted.stages if name not in record.stages),
            outputs=tuple(
                OutputState(modality=name, state=output.state, units=output.units, pieces=output.chunks)
                for name, output in record.outputs.items()
            ),
            leases=tuple(
                LeaseState(
                    owner=h.lease.owner, number=h.lease.number, slot=h.lease.slot, state=h.state, reader=h.reader
                )
                for h in self._live
                if h.uid == uid
            ),
        )

    def _stage(self, name: str, stage: StageRecord, record: RequestRecord) -> StageState:
        streams = ((p, record.streams.get((p, name), StreamRecord())) for p in stage.waits_for)
        return StageState(
            process=stage.process,
            state=stage.state,
            position=stage.position,
            inputs=tuple(
                InputState(producer=p, put=1, got=s.got, ended=True)  # media: one message, put before the submission
                if p == REQUEST
                else InputState(producer=p, put=s.put, got=s.got, ended=s.state is Stream.ENDED)
                for p, s in streams
            ),
        )

    def _processes(self) -> Iterator[ProcessState]:
        for stage in self._plan.stages:
            for replica in stage.replicas:
                process = f"{stage.name}.{replica.index}"
                places = [
                    (self._name(uid), record.places[process].state)
                    for uid, record in self._records.items()
                    if process in record.places and record.places[process].state not in STAGE_ENDED
                ]
                words = {
                    state.value: tuple(name for name, at in places if at is state)
                    for state in (Stage.RUNNING, Stage.READY, Stage.WAITING, Stage.CANCELLING)
                }
                alive = process not in self._replay.dead
                yield ProcessState(process=process, alive=alive, max_batch=stage.max_batch, **words)

    def _rings(self) -> Iterator[RingState]:
        used: dict[tuple[str, str], list[str]] = {}
        for holding in self._live:
            used.setdefault((holding.lease.owner, self._consumer(holding)), []).append(self._name(holding.uid))
        for stage in self._plan.stages:
            for edge in (edge for edge in stage.inputs if edge.slots):
                if edge.producer == REQUEST:
                    owners = [f"{REQUEST}.{stage.name}"]
                else:
                    owners = [f"{edge.producer}.{r.index}" for r in self._plan.stage(edge.producer).replicas]
                for owner in owners:
                    held = tuple(used.get((owner, edge.consumer), ()))
                    yield RingState(owner=owner, consumer=edge.consumer, slots=edge.slots, held_by=held)

    def _consumer(self, holding: Holding) -> str:
        lease = holding.lease
        owner, _, stage = lease.owner.partition(".")
        return stage if owner == REQUEST else self._replay.consumers.get((lease.owner, lease.number), "")
