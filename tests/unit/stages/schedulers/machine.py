"""What every scheduler must hold whatever happens to it, in any order: checked against a model of the contract."""

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from stages.messages import StageRequest
from stages.schedulers.base import RowProgress

MODES = {"a": "incremental", "b": "incremental", "c": "complete"}
CONSUMERS = ("x", "y")
PLENTY = dict.fromkeys(CONSUMERS, 1000)


@dataclass
class Model:
    """One request as the contract sees it. `length` is how many units an AR request runs before it stops."""

    inputs: tuple[str, ...]
    consumers: tuple[str, ...]
    length: int
    units: dict = field(default_factory=dict)
    ended: set = field(default_factory=set)
    position: int = 0
    in_flight: bool = False

    def over(self):
        return self.ended == set(self.inputs)

    def may_run(self):
        return all(
            producer in self.ended or (MODES[producer] == "incremental" and self.units[producer] > self.position)
            for producer in self.inputs
        )

    def total(self):
        return max(self.units.values(), default=0)


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, extends, schedules, updates and aborts in any order; at the end everything that is left must finish."""

    uids = Bundle("uids")

    @initialize(max_batch=st.integers(1, 4))
    def start(self, max_batch):
        self.max_batch = max_batch
        self.scheduler = self.make(max_batch)
        self.live = {}
        self.gone = set()
        self.ready = set()
        self.steps = []

    @rule(
        target=uids,
        inputs=st.sets(st.sampled_from(sorted(MODES))),
        consumers=st.sets(st.sampled_from(CONSUMERS)),
        length=st.integers(0, 6),
    )
    def add(self, inputs, consumers, length):
        uid = len(self.live) + len(self.gone)
        model = Model(tuple(sorted(inputs)), tuple(sorted(consumers)), length, units=dict.fromkeys(inputs, 0))
        request = StageRequest(uid=uid, seed=0, inputs=model.inputs, consumers=model.consumers, outputs=())
        self.live[uid] = model
        self.told_ready(uid, self.scheduler.add(request, MODES))
        return uid

    @rule(uid=uids, which=st.integers(0, 2), units=st.integers(0, 4), eos=st.booleans())
    def extend(self, uid, which, units, eos):
        open_ = [p for p in self.live[uid].inputs if p not in self.live[uid].ended] if uid in self.live else []
        if open_:
            self.grow(uid, open_[which % len(open_)], units, eos)

    def grow(self, uid, producer, units, eos):
        model = self.live[uid]
        model.units[producer] += units
        if eos:
            model.ended.add(producer)
        self.told_ready(uid, self.scheduler.extend(uid, producer, units, eos))

    def told_ready(self, uid, told):
        satisfied = self.live[uid].may_run() and uid not in self.ready
        if self.live[uid].position == 0:
            assert told == satisfied
        if told:
            assert uid not in self.ready
            self.ready.add(uid)

    @rule(
        credits=st.dictionaries(st.sampled_from(CONSUMERS), st.integers(0, 3)),
        held=st.sets(st.integers(0, 10)),
    )
    def schedule(self, credits, held):
        self.check_step(credits, frozenset(held))

    def check_step(self, credits, held):
        output = self.scheduler.schedule(credits, held)
        if output is None:
            return None
        self.take_back(output)
        assert len(output.rows) <= self.max_batch
        assert len({row.uid for row in output.rows}) == len(output.rows)
        for row in output.rows:
            model = self.live[row.uid]
            assert not model.in_flight
            assert row.uid not in held
            assert row.position == model.position
            assert model.may_run()
            self.check_units(row, model)
            model.in_flight = True
        for consumer, free in credits.items():
            assert sum(consumer in self.live[row.uid].consumers for row in output.rows if self.emits(row)) <= free
        if output.rows:
            self.steps.append(output.rows)
        return output

    def take_back(self, output):
        assert output.rows
        assert not output.preempted
        assert not output.refused

    def emits(self, row):
        return True

    @precondition(lambda self: self.steps)
    @rule(fail=st.booleans(), nothing=st.booleans())
    def update(self, fail, nothing):
        self.finish_step(fail, nothing)

    def finish_step(self, fail=False, nothing=False):
        progress = []
        for index, row in enumerate(self.steps.pop(0)):
            model = self.live.get(row.uid)
            if model is None:
                progress.append(RowProgress(uid=row.uid, units=1))  # aborted meanwhile
                continue
            model.in_flight = False
            units = 0 if nothing else row.units
            model.position += units
            done = "stop" if self.is_done(model) else None
            failed = fail and index == 0
            progress.append(RowProgress(uid=row.uid, units=units, finished=None if failed else done, failed=failed))
            if done or failed:
                self.drop(row.uid)
        self.scheduler.update(tuple(progress))

    def drop(self, uid):
        del self.live[uid]
        self.gone.add(uid)

    @rule(uid=consumes(uids))
    def abort(self, uid):
        if uid in self.live:
            self.scheduler.abort(uid)
            self.drop(uid)

    @invariant()
    def holds_exactly_the_live_ones(self):
        if hasattr(self, "scheduler"):
            assert len(self.scheduler) == len(self.live)
            assert all(uid in self.scheduler for uid in self.live)
            assert not any(uid in self.scheduler for uid in self.gone)

    def teardown(self):
        """No request is lost: with every input ended and credits for all, each one finishes, and nothing is left."""
        if not hasattr(self, "scheduler"):
            return
        while self.steps:
            self.finish_step()
        for uid in list(self.live):
            for producer in self.live[uid].inputs:
                if uid in self.live and producer not in self.live[uid].ended:
                    self.grow(uid, producer, 1, True)
        self.settle()
        assert not self.live
        leftovers = {k: v for k, v in vars(self.scheduler).items() if isinstance(v, dict | set | list)}
        assert not any(leftovers.values()), leftovers

    def settle(self):
        while self.check_step(PLENTY, frozenset()) is not None:
            if self.steps:
                self.finish_step()
