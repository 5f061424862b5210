"""The AR scheduler with a KV cache: budget, blocks and preemption, whatever happens and in any order."""

from collections import Counter
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import initialize, precondition, rule

from stages.errors import RequestRefused
from stages.messages import StageRequest
from stages.schedulers.ar import ARScheduler
from stages.schedulers.base import KV_BLOCKS, KVCapacity, RowProgress
from tests.unit.stages.schedulers.machine import CONSUMERS, MODES, PLENTY, Model, SchedulerMachine


@dataclass
class Sequence(Model):
    """A request with a prompt. `computed` of its tokens are in the blocks of `table`; `lost` were there in vain."""

    prompt: int = 1
    turn: int = -1
    computed: int = 0
    done: int = 0
    lost: int = 0
    table: list = field(default_factory=list)

    @property
    def left(self):
        return self.prompt + self.position - self.computed


class KVMachine(SchedulerMachine):
    """The model keeps block tables as a runner does, from what the rows say, and knows who may run."""

    @initialize(
        max_batch=st.integers(1, 4),
        spare=st.integers(0, 6),
        blocks=st.integers(1, 9),
        block_tokens=st.integers(1, 4),
    )
    def start(self, max_batch, spare, blocks, block_tokens):
        self.kv = KVCapacity(blocks=blocks, block_tokens=block_tokens)
        self.step_tokens = max_batch + spare
        self.turns = 0
        self.seen = Counter()
        super().start(max_batch)

    def make(self, max_batch):
        return ARScheduler(max_batch, step_tokens=self.step_tokens, kv=self.kv, stage="talker")

    @property
    def room(self):
        return self.kv.blocks * self.kv.block_tokens

    @rule(
        target=SchedulerMachine.uids,
        inputs=st.sets(st.sampled_from(sorted(MODES))),
        consumers=st.sets(st.sampled_from(CONSUMERS)),
        length=st.integers(0, 6),
        prompt=st.integers(1, 14),
    )
    def add(self, inputs, consumers, length, prompt):
        uid = len(self.live) + len(self.gone)
        model = Sequence(
            tuple(sorted(inputs)), tuple(sorted(consumers)), length, units=dict.fromkeys(inputs, 0), prompt=prompt
        )
        self.live[uid] = model
        request = StageRequest(uid=uid, seed=0, inputs=model.inputs, consumers=model.consumers, outputs=())
        self.told_ready(uid, self.scheduler.add(request, MODES))
        return uid

    def told_ready(self, uid, told):
        """As the worker does: who is ready says how long its prompt is."""
        super().told_ready(uid, told)
        if not told:
            return
        model = self.live[uid]
        model.turn, self.turns = self.turns, self.turns + 1
        if model.prompt > self.room:
            with pytest.raises(
                RequestRefused, match=rf"{model.prompt} tokens.*holds {self.room} .*deploy.stages.talker"
            ):
                self.scheduler.size(uid, model.prompt)
            self.scheduler.abort(uid)
            self.drop(uid)
        else:
            self.scheduler.size(uid, model.prompt)

    def take_back(self, output):
        for uid in output.preempted:
            model = self.live[uid]
            later = [m for m in self.live.values() if m.table and not m.in_flight and m.turn > model.turn]
            assert not later, "the latest goes first"
            model.lost += model.computed
            model.table, model.computed = [], 0
            self.seen["preempted"] += 1
        for refusal in output.refused:
            model = self.live[refusal.uid]
            assert model.prompt + model.position > self.room
            assert f"holds {self.room}" in refusal.message
            self.scheduler.abort(refusal.uid)
            self.drop(refusal.uid)
            self.seen["refused"] += 1
        gone = {*output.preempted, *(refusal.uid for refusal in output.refused)}
        assert not gone & {row.uid for row in output.rows}
        assert sum(row.tokens for row in output.rows) <= self.step_tokens
        assert gone or output.rows

    def emits(self, row):
        return row.units > 0

    def check_units(self, row, model):
        assert row.start == model.computed, "no token is left out, none computed twice"
        assert 0 < row.tokens <= model.left
        assert row.units == (row.tokens == model.left)
        assert row.phase == ("decode" if model.position and model.left == 1 else "prefill")
        model.table += row.blocks
        assert len(model.table) == -(-(model.prompt + model.position) // self.kv.block_tokens)
        taken = [block for other in self.live.values() for block in other.table]
        assert len(taken) == len(set(taken)), "nobody shares a block"
        assert all(0 <= block < self.kv.blocks for block in taken)

    def check_step(self, credits, held):
        free = not any(model.in_flight for model in self.live.values()) and not held and credits == PLENTY
        able = [uid for uid, m in self.live.items() if m.table and m.may_run()]
        decodes = [uid for uid in able if self.live[uid].left == 1 and self.live[uid].position]
        output = super().check_step(credits, held)
        if free and able:
            rows = {row.uid for row in output.rows}
            done = rows | set(output.preempted) | {refusal.uid for refusal in output.refused}
            assert set(decodes) <= done, "a decode is never put off"
            assert len(decodes) == len(able) or (set(able) - set(decodes)) & done, "and a prefill always goes on"
        return output

    @precondition(lambda self: self.steps)
    @rule(part=st.integers(0, 3))
    def update_in_part(self, part):
        """The runner computes less than it was given, and says so."""
        self.finish_step(part=part)

    def finish_step(self, fail=False, nothing=False, part=None):
        for row in self.steps[0]:
            model = self.live.get(row.uid)
            if model is not None and part is None and not (nothing and row.units):
                model.computed += row.tokens
                model.done += row.tokens
        if part is None:
            finished = {row.uid: self.live.get(row.uid) for row in self.steps[0]}
            super().finish_step(fail, nothing)
            for uid, model in finished.items():
                if model is not None and uid not in self.live and not fail:
                    assert model.done == model.prompt + model.position - 1 + model.lost, (
                        "it computed what it lost again"
                    )
            return
        progress = []
        for row in self.steps.pop(0):
            model, tokens = self.live.get(row.uid), min(part, row.tokens - 1)
            if model is not None:
                model.in_flight = False
                model.computed += tokens
                model.done += tokens
            progress.append(RowProgress(uid=row.uid, units=0, tokens=tokens))
        self.scheduler.update(tuple(progress))

    def is_done(self, model):
        return model.position >= max(model.length, 1)

    def teardown(self):
        super().teardown()
        if hasattr(self, "scheduler"):
            assert all(value == 0 for _, value in self.scheduler.gauges())
            assert dict(self.scheduler.gauges())[KV_BLOCKS] == 0
            assert self.scheduler._pool.free == self.kv.blocks


TestKV = KVMachine.TestCase
TestKV.settings = settings(max_examples=200, stateful_step_count=50, deadline=None, report_multiple_bugs=False)
