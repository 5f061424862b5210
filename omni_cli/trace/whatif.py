"""A deployment simulated event by event: the stages' own schedulers and pools, over steps and requests of a trace.

What it leaves out is `whatif_report.NOT_MODELLED`.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, count, cycle, islice
from random import Random

from omni_cli.plan.model import ExecutionPlan, StagePlan
from omni_cli.runtime.stage_pool import StagePool
from omni_cli.trace.whatif_workload import StageWork, Work, Workload
from stages.errors import RequestRefused
from stages.messages import REQUEST, StageRequest
from stages.models.registry import contract
from stages.schedulers.base import Denoising, KVCapacity, Row, RowProgress, Scheduler
from stages.schedulers.registry import create_scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """When requests come: `callers`, each of whom waits for an answer before the next; or at `arrivals_ns`."""

    name: str
    requests: int
    callers: int = 0
    arrivals_ns: tuple[int, ...] = ()

    @classmethod
    def of_callers(cls, callers: int, requests: int) -> "Demand":
        return cls(name=f"{callers} at once", requests=requests, callers=callers)

    @classmethod
    def of_rate(cls, rate: float, requests: int, seed: int) -> "Demand":
        """Poisson arrivals."""
        draw = Random(seed)
        arrivals = accumulate(draw.expovariate(rate) * 1e9 for _ in range(requests))
        return cls(name=f"{rate:g} a second", requests=requests, arrivals_ns=tuple(map(round, arrivals)))

    @classmethod
    def as_recorded(cls, work: Sequence[Work]) -> "Demand":
        first = work[0].admitted_ns
        return cls(name="as recorded", requests=len(work), arrivals_ns=tuple(w.admitted_ns - first for w in work))


@dataclass(slots=True)
class StageLoad:
    """What a stage did in a simulation; times are sums over its replicas."""

    replicas: int
    busy_ns: int = 0
    steps: int = 0
    rows: int = 0
    wait_ns: int = 0
    requests: int = 0


@dataclass(slots=True)
class Outcome:
    """ns of each request from admission to its end, and to the first piece by type of output."""

    demand: Demand
    span_ns: int = 0
    total_ns: list[int] = field(default_factory=list)
    first_ns: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    stages: dict[str, StageLoad] = field(default_factory=dict)
    refused: int = 0


def simulate(plan: ExecutionPlan, workload: Workload, demand: Demand, seed: int = 0) -> Outcome:
    """The recorded requests in their order, again and again, as the demand has it."""
    return _Simulation(plan, workload, demand, Random(seed)).run()


@dataclass(slots=True)
class _Flight:
    uid: int
    work: Work
    admitted_ns: int
    done: set[str] = field(default_factory=set)

    @property
    def answered(self) -> bool:
        """Whether every stage that makes an output has finished."""
        return all(name in self.done for name, stage in self.work.stages.items() if stage.outputs)


class _Simulation:
    def __init__(self, plan: ExecutionPlan, workload: Workload, demand: Demand, random: Random) -> None:
        self.random = random
        self.workload = workload
        self.now_ns = 0
        self.outcome = Outcome(demand=demand)
        self._demand = demand
        self._works = islice(cycle(workload.requests), demand.requests)
        self._uids = count(1)
        self._numbers = count()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self.flights: dict[int, _Flight] = {}
        self._pools = {s.name: StagePool(s.name, tuple(f"{s.name}.{r.index}" for r in s.replicas)) for s in plan.stages}
        self._replicas: dict[str, _Replica] = {}
        for stage in plan.stages:
            load = self.outcome.stages[stage.name] = StageLoad(len(stage.replicas))
            for replica in stage.replicas:
                name = f"{stage.name}.{replica.index}"
                self._replicas[name] = _Replica(self, plan.family, stage, name, load)

    def run(self) -> Outcome:
        if self._demand.callers:
            for _ in range(self._demand.callers):
                self._next_request()
        for arrival_ns in self._demand.arrivals_ns:
            self.at(arrival_ns, self._next_request)
        while self._events:
            self.now_ns, _, act = heapq.heappop(self._events)
            act()
        self.outcome.span_ns = self.now_ns
        return self.outcome

    def at(self, t_ns: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (t_ns, next(self._numbers), act))

    def draw(self, samples: Sequence[int]) -> int:
        return max(0, self.random.choice(samples)) if samples else 0

    def _next_request(self) -> None:
        work = next(self._works, None)
        if work is None:
            return
        uid = next(self._uids)
        self.flights[uid] = _Flight(uid, work, self.now_ns)
        delay_ns = self.draw(self.workload.entry_ns)
        for name, stage in work.stages.items():
            if set(stage.inputs) <= {REQUEST}:
                media = REQUEST if stage.inputs else ""
                self.replica(name, uid).send(delay_ns, uid, media, 1, True)

    def replica(self, stage: str, uid: int) -> "_Replica":
        return self._replicas[self._pools[stage].pick(uid)]

    def put(self, owner: "_Replica", uid: int, producer: str, consumer: str, units: int, eos: bool) -> None:
        """Hands a message over; its slot is the producer's again when it was read."""
        if consumer in self.flights[uid].done:
            owner.reclaim(consumer)
            return
        reader = self.replica(consumer, uid)
        found = self.workload.hand_off_ns
        samples = found.get((producer, consumer, reader.busy)) or found.get((producer, consumer, not reader.busy), ())
        reader.send(self.draw(samples), uid, producer, units, eos, owner)

    def left(self, uid: int, stage: str, work: StageWork) -> None:
        """The request has finished in a stage."""
        flight = self.flights[uid]
        self._pools[stage].release(uid)
        flight.done.add(stage)
        if work.outputs and flight.answered:
            self.at(self.now_ns + self.draw(self.workload.output_ns), lambda: self._ended(flight))
        if flight.done >= flight.work.stages.keys():
            del self.flights[uid]

    def refuse(self, uid: int) -> None:
        """A request that does not fit the KV cache ends in every stage at once; its caller asks for the next one."""
        self.outcome.refused += 1
        flight = self.flights.pop(uid)
        for stage in flight.work.stages:
            self._pools[stage].release(uid)
        for replica in self._replicas.values():
            replica.forget(uid)
        if self._demand.callers:
            self._next_request()

    def _ended(self, flight: _Flight) -> None:
        self.outcome.total_ns.append(self.now_ns - flight.admitted_ns)
        if self._demand.callers:
            self._next_request()

    def first(self, uid: int, kind: str) -> None:
        self.outcome.first_ns[kind].append(self.now_ns - self.flights[uid].admitted_ns)


@dataclass(slots=True)
class _Here:
    """A request in a replica: how far its puts and outputs are."""

    work: StageWork
    ready_ns: int | None = None
    scheduled: bool = False
    position: int = 0
    put: int = 0
    told: set[str] = field(default_factory=set)


Message = tuple[int, str, int, bool, "_Replica | None"]


class _Replica:
    """A stage process: reads what has come, asks its scheduler, is busy for a step, hands on, pauses, and again."""

    def __init__(self, simulation: _Simulation, family: str, stage: StagePlan, name: str, load: StageLoad) -> None:
        self._sim = simulation
        self._stage = stage
        self._load = load
        self._modes = {edge.producer: edge.mode for edge in stage.inputs}
        self._model = simulation.workload.models.get(stage.name)
        self._pauses = simulation.workload.pause_ns.get(stage.name, ())
        self._here: dict[int, _Here] = {}
        self._inbox: deque[Message] = deque()
        self.busy = False
        self._awake_ns = 0
        self._slots = {
            edge.consumer: edge.slots
            for edge in stage.consumers
            if edge.mode == "incremental" and edge.slots and edge.consumer != REQUEST
        }
        self._decodes = contract(family).stages[stage.name].decodes
        self._earliest = _earliest(simulation.workload, stage)
        self._scheduler = self._made(family)

    def _made(self, family: str) -> Scheduler:
        stage, made = self._stage, contract(family).stages[self._stage.name]
        kv = stage.kv and KVCapacity(blocks=stage.kv.blocks, block_tokens=stage.kv.block_tokens)
        return create_scheduler(
            stage.execution_type,
            stage.max_batch,
            made.max_units_a_row,
            tuning=stage.tuning,
            kv=kv or None,
            stage=stage.name,
            lookahead={producer: found.lookahead_units for producer, found in made.inputs.items()},
            denoising=lambda uid: Denoising(steps=max(1, self._here[uid].work.units), tokens=1, shape=()),
            encodes=made.encodes,
            decodes=made.decodes,
        )

    def send(
        self, delay_ns: int, uid: int, producer: str, units: int, eos: bool, owner: "_Replica | None" = None
    ) -> None:
        """Sends a message (without a producer: the command to start). One that is on its way takes it along: the delay
        is mostly that of a process which wakes up, and then reads all that has come."""
        now_ns = self._sim.now_ns
        if self._awake_ns <= now_ns:
            self._awake_ns = now_ns + delay_ns
        self._sim.at(self._awake_ns, partial(self._inbox.append, (uid, producer, units, eos, owner)))
        self._sim.at(self._awake_ns, partial(self._sim.at, self._awake_ns, self._wake))

    def reclaim(self, consumer: str) -> None:
        if consumer in self._slots:
            self._slots[consumer] += 1
            self._sim.at(self._sim.now_ns, self._wake)

    def forget(self, uid: int) -> None:
        """The request has ended elsewhere; its place is another's."""
        if self._here.pop(uid, None) is not None:
            self._scheduler.abort(uid)
            self._sim.at(self._sim.now_ns, self._wake)

    def _wake(self) -> None:
        if self.busy:
            return
        while self._inbox:
            self._read(*self._inbox.popleft())
        while (output := self._scheduler.schedule(self._slots, frozenset())) is not None:
            for refusal in output.refused:
                self._sim.refuse(refusal.uid)
            if output.rows:
                self._begin(output.rows)
                return

    def _read(self, uid: int, producer: str, units: int, eos: bool, owner: "_Replica | None") -> None:
        if owner is not None:
            owner.reclaim(self._stage.name)
        flight = self._sim.flights.get(uid)
        if flight is None or self._stage.name in flight.done:
            return
        if uid not in self._here:
            work = flight.work.stages[self._stage.name]
            self._here[uid] = _Here(work)
            self._load.requests += 1
            consumers = tuple(dict.fromkeys(put.consumer for put in work.puts))
            request = StageRequest(uid=uid, seed=0, inputs=work.inputs, consumers=consumers, outputs=())
            if self._scheduler.add(request, self._modes):
                self._ready(uid)
        if producer and uid in self._scheduler and self._scheduler.extend(uid, producer, units, eos):
            self._ready(uid)

    def _ready(self, uid: int) -> None:
        here = self._here[uid]
        here.ready_ns = self._sim.now_ns
        try:
            self._scheduler.size(uid, here.work.prompt_tokens)
        except RequestRefused:
            self._sim.refuse(uid)

    def _begin(self, rows: tuple[Row, ...]) -> None:
        sim, load = self._sim, self._load
        self.busy = True
        ns = self._model.draw_ns(rows, sim.random) if self._model is not None else 0
        load.busy_ns += ns
        load.steps += 1
        load.rows += len(rows)
        for row in rows:
            here = self._here[row.uid]
            if not here.scheduled:
                here.scheduled = True
                load.wait_ns += sim.now_ns - (here.ready_ns if here.ready_ns is not None else sim.now_ns)
        sim.at(sim.now_ns + ns, lambda: self._end(rows))

    def _end(self, rows: tuple[Row, ...]) -> None:
        sim = self._sim
        rows = tuple(row for row in rows if row.uid in self._here)
        finished = {row.uid for row in rows if self._finishes(row)}
        self._scheduler.update(
            tuple(
                RowProgress(uid=row.uid, units=row.units, finished="stop" if row.uid in finished else None)
                for row in rows
            )
        )
        for row in rows:
            here = self._here[row.uid]
            here.position = row.position + row.units
            self._hand_on(row.uid, here, last=row.uid in finished)
            if row.uid in finished:
                del self._here[row.uid]
                sim.left(row.uid, self._stage.name, here.work)
        sim.at(sim.now_ns + sim.draw(self._pauses), self._free)

    def _free(self) -> None:
        self.busy = False
        self._wake()

    def _finishes(self, row: Row) -> bool:
        """Whether this row is the request's last one here, as far as the trace can tell."""
        done = row.position + row.units >= self._here[row.uid].work.units
        if self._stage.execution_type == "llm_ar":
            return done and row.units > 0
        if self._stage.execution_type == "diffusion":
            return done and row.phase == ("decode" if self._decodes else "denoise")
        return done

    def _hand_on(self, uid: int, here: _Here, *, last: bool) -> None:
        work = here.work
        while here.put < len(work.puts) and (last or work.puts[here.put].position <= here.position):
            put = work.puts[here.put]
            here.put += 1
            if put.consumer in self._slots:
                self._slots[put.consumer] -= 1
            self._sim.put(self, uid, self._stage.name, put.consumer, put.units, put.eos)
        for kind, position in work.first.items():
            if kind not in here.told and self._earliest.get(kind, position) <= here.position:
                here.told.add(kind)
                self._sim.first(uid, kind)


def _earliest(workload: Workload, stage: StagePlan) -> dict[str, int]:
    """By type of output, with how many units a forward call has given a first piece at the earliest. Where tokens come
    one by one, that depends on what they say, so that each request keeps its own."""
    found: dict[str, int] = {}
    if stage.execution_type == "llm_generation":
        for work in workload.requests:
            for kind, position in work.stages[stage.name].first.items() if stage.name in work.stages else ():
                found[kind] = min(position, found.get(kind, position))
    return found
