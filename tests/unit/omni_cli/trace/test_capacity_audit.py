"""Steps against capacity, tokens against what is computed, and what an idle process may hold."""

import pytest

from omni_cli.runtime.events import CONTROL, ProcessStarted, StageSubmitted
from omni_cli.trace.capacity_audit import CapacityAudit
from omni_cli.trace.codec import TraceEvent
from stages.events import ProcessReady, StageFinished, StageIdle, StepDone, StepRow

FACTS = (("max_batch", "2"), ("step_tokens", "8"), ("kv_blocks", "4"), ("kv_block_tokens", "4"), ("load_s", "0.1"))


class Trial:
    def __init__(self):
        self.audit = CapacityAudit()
        self.steps = 0
        self.say(CONTROL, ProcessStarted(t_ns=0, process="talker.0", generation=0, pid=1))
        self.say("talker.0", ProcessReady(t_ns=0, pid=1, facts=FACTS))

    def say(self, source, event):
        return list(self.audit.see(TraceEvent(source=source, ordinal=0, event=event)))

    def give(self, *uids):
        for uid in uids:
            assert not self.say(
                CONTROL, StageSubmitted(t_ns=0, uid=uid, stage="talker", process="talker.0", waits_for=())
            )

    def step(self, *rows, kv_blocks=4, preempted=()):
        """Rows as (uid, start, tokens)."""
        rows = tuple(
            StepRow(uid=uid, phase="prefill", position=0, units=0, start=start, tokens=tokens)
            for uid, start, tokens in rows
        )
        return self.say(
            "talker.0", StepDone(index=0, t_ns=0, end_ns=0, rows=rows, kv_blocks=kv_blocks, preempted=preempted)
        )

    def finish(self, uid):
        return self.say("talker.0", StageFinished(uid=uid, t_ns=0, reason="stop", units=0))

    def idle(self, **gauges):
        return self.say("talker.0", StageIdle(t_ns=0, gauges=tuple(gauges.items())))


def test_tokens_are_computed_once_and_again_after_a_preemption():
    trial = Trial()
    trial.give(1, 2)
    assert trial.step((1, 0, 5)) == []
    assert trial.step((1, 5, 1), (2, 0, 3)) == []
    assert trial.step((1, 0, 6), preempted=(1,)) == []
    assert "from token 5, but 6 of it are computed" in trial.step((1, 5, 1))[0]


@pytest.mark.parametrize(
    ("rows", "kv_blocks", "text"),
    [
        (((1, 0, 1), (2, 0, 1), (3, 0, 1)), 3, "has 3, more than max_batch=2"),
        (((1, 0, 9),), 4, "has 9, more than step_tokens=8"),
        (((1, 0, 1),), 5, "has 5, more than kv_blocks=4"),
        (((1, 0, 5), (2, 0, 1)), 2, "works on 3 KV blocks of 2"),
    ],
)
def test_a_step_stays_within_what_the_process_has(rows, kv_blocks, text):
    trial = Trial()
    trial.give(1, 2, 3)
    (finding,) = trial.step(*rows, kv_blocks=kv_blocks)
    assert text in finding


@pytest.mark.parametrize(("phase", "most"), [("prefill", 1), ("decode", 1), ("denoise", 1), ("forward", 9)])
def test_a_token_or_denoising_step_is_a_row_of_its_own(phase, most):
    trial = Trial()
    trial.give(1)
    for units in (1, most, 9):
        row = StepRow(uid=1, phase=phase, position=0, units=units)
        found = trial.say("talker.0", StepDone(index=3, t_ns=0, end_ns=0, rows=(row,)))
        said = f"step 3 of talker.0 does {units} units of request 1 at once, in a {phase} row"
        assert found == ([said] if units > most else [])


def test_an_idle_process_holds_nothing_and_says_so_at_once():
    trial = Trial()
    trial.give(1)
    trial.step((1, 0, 1))
    assert "it has requests 1" in trial.idle()[0]
    trial.finish(1)
    assert trial.idle(requests=0, kv_blocks=1) == ["talker.0 is idle, but kv_blocks is 1"]
    assert "had nothing to do" in trial.idle()[0]
    trial.give(2)
    trial.finish(2)
    assert "without having said that it was idle" in trial.step((3, 0, 1))[0]
