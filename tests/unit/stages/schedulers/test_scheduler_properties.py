"""The schedulers without a KV cache, against the model of the contract."""

from hypothesis import settings

from stages.schedulers.ar import ARScheduler
from stages.schedulers.generation import GenerationScheduler
from tests.unit.stages.schedulers.machine import SchedulerMachine


class ARMachine(SchedulerMachine):
    def make(self, max_batch):
        self.places = set()
        return ARScheduler(max_batch)

    def check_units(self, row, model):
        assert row.units == 1
        assert row.phase == ("prefill" if model.position == 0 else "decode")
        self.places.add(row.uid)
        assert len(self.places & self.live.keys()) <= self.max_batch

    def is_done(self, model):
        return model.position >= model.length


class GenerationMachine(SchedulerMachine):
    MAX_UNITS = 3

    def make(self, max_batch):
        self.seen = {}
        self.idle = {}
        return GenerationScheduler(max_batch, self.MAX_UNITS)

    def check_units(self, row, model):
        assert row.phase == "forward"
        assert row.units <= self.MAX_UNITS
        if row.units == 0:
            assert model.over()
            assert model.position >= model.total()
        self.check_idle(row, model)

    def check_idle(self, row, model):
        grown = (dict(model.units), set(model.ended))
        if row.uid in self.idle:
            assert self.idle.pop(row.uid) != grown, "offered again though nothing has come"
        self.seen[row.uid] = grown

    def finish_step(self, fail=False, nothing=False):
        rows = self.steps[0]
        super().finish_step(fail, nothing)
        for row in rows:
            if nothing and row.uid in self.live:
                self.idle[row.uid] = self.seen[row.uid]

    def is_done(self, model):
        return model.over() and model.position >= model.total()

    def settle(self):
        super().settle()
        # a runner that did nothing with the last of its input has been told everything: only an abort ends that
        for uid in list(self.live):
            assert uid in self.idle
            self.scheduler.abort(uid)
            self.drop(uid)


TestARScheduler = ARMachine.TestCase
TestGenerationScheduler = GenerationMachine.TestCase
TestARScheduler.settings = TestGenerationScheduler.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
