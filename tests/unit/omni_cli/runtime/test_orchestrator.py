import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_cli.runtime.events import LeaseDropped, OutputFinished, RequestFailed, StageSubmitted
from omni_cli.runtime.replicas import FIRST_PAUSE_S
from stages.events import MessagePut, StepReport
from stages.lease import Lease
from stages.messages import StreamMessage
from stages.payload import Payload, Tensor

from .simulation import DIAMOND, DIAMOND_OUTPUTS, SimStage, World

IMAGE = Payload(tensors=(Tensor(name="media0", dtype="uint8", shape=(3,), data=memoryview(b"rgb")),))


def kinds(world: World, kind: type) -> list:
    return [event for _, event in world.events if isinstance(event, kind)]


def test_a_request_passes_all_stages_and_leaves_nothing():
    world = World()
    world.admit(1)
    world.run()
    assert world.outcome(1) == "finished"
    assert [c.modality for _, c in world.chunks] == ["text", "audio"]
    assert world.orchestrator.idle
    assert not any(stage.held or stage.jobs for stage in world.stages.values())


def test_text_only_never_submits_the_later_stages():
    world = World()
    world.admit(1, outputs=("text",))
    world.run()
    assert world.outcome(1) == "finished"
    assert [e.stage for e in kinds(world, StageSubmitted)] == ["thinker"]
    assert not kinds(world, MessagePut)


def test_text_alone_does_not_end_a_request_with_audio():
    world = World()
    world.admit(1)
    while world.act("thinker.0"):
        pass
    assert [c.modality for _, c in world.chunks] == ["text"]
    assert world.ends == []


def test_a_fan_in_is_submitted_once_and_waits_for_all():
    world = World(DIAMOND, DIAMOND_OUTPUTS)
    world.admit(1, outputs=("sum",))
    world.run()
    assert world.outcome(1) == "finished"
    submitted = {e.stage: e.waits_for for e in kinds(world, StageSubmitted)}
    assert submitted == {"a": (), "b": ("a",), "c": ("a",), "d": ("a", "b", "c")}


def test_a_failing_stage_fails_its_request_and_spares_the_other():
    world = World()
    world.admit(1)
    world.act("thinker.0")  # reads the submission of 1
    world.stages["thinker.0"].fail_next = True
    world.act("thinker.0")
    world.admit(2)
    world.run()
    assert world.outcome(1) == "failed"
    assert world.outcome(2) == "finished"
    (failed,) = kinds(world, RequestFailed)
    assert (failed.error.stage, failed.error.kind) == ("thinker", "Boom")
    assert {(e.modality, e.outcome) for e in kinds(world, OutputFinished) if e.uid == 1} == {
        ("text", "failed"),
        ("audio", "failed"),
    }


def test_a_dead_process_fails_its_requests_and_later_ones_at_once():
    world = World()
    world.admit(1)
    world.kill("thinker.0")
    assert world.outcome(1) == "failed"
    world.admit(2)
    assert world.outcome(2) == "failed"
    assert world.orchestrator.idle


def test_a_lost_replica_fails_only_its_own_requests():
    world = World(replicas=2)
    world.admit(1)
    world.admit(2)
    world.kill("thinker.0")
    world.run()
    assert sorted([world.outcome(1), world.outcome(2)]) == ["failed", "finished"]


def test_a_replica_is_started_again_at_once_then_after_a_while_up_to_its_limit():
    world = World(restarts=2)
    world.kill("talker.0")
    assert [(order.process, order.generation) for order in world.starts] == [("talker.0", 1)]
    world.admit(1)
    world.start()
    world.run()
    assert world.outcome(1) == "finished"
    world.kill("talker.0")
    assert world.starts == []
    assert 0.9 < ((world.orchestrator.replicas.next_due_ns() or 0) - world.now) / 1e9 <= FIRST_PAUSE_S
    world.now += round(FIRST_PAUSE_S * 1e9)
    world.deliver()
    world.start(well=False)
    assert [replica.word for replica in world.orchestrator.replicas.all()] == ["ready", "dead", "ready"]
    world.admit(2)
    world.run()
    (failed,) = kinds(world, RequestFailed)
    assert "stage talker has no live process (talker.0: no room)" in failed.error.message


def test_requests_wait_for_a_stage_whose_only_replica_is_being_started_and_no_longer_than_they_may():
    world = World(restarts=1)
    world.admit(1)
    while world.act("thinker.0"):
        pass
    world.kill("talker.0")
    world.kill("thinker.0")
    world.admit(2)
    world.admit(3, timeout_s=1e-6)
    world.now += 2000
    world.orchestrator.expire()
    world.deliver()
    assert world.outcome(3) == "failed"
    world.run()
    assert (world.outcome(1), world.outcome(2)) == ("failed", "finished")


def test_what_a_dead_producer_has_written_is_read_to_the_end_and_then_given_back():
    world = World(restarts=1)
    world.kill("talker.0")
    world.admit(1)
    while world.act("thinker.0"):
        pass
    world.kill("thinker.0")
    assert world.retired == {("talker.0", 0)}, "a message of thinker.0 waits for talker.0"
    world.run()
    assert world.outcome(1) == "finished"
    assert world.retired == {("talker.0", 0), ("thinker.0", 0)}


@pytest.mark.parametrize(("acts", "lost"), [(1, True), (2, True), (3, True), (4, False)])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_request_is_run_again_from_its_input_until_something_is_handed_on(replicas, acts, lost):
    """The talker reads the submission, reads its input, is scheduled, steps, and hands on."""
    world = World(replicas=replicas, restarts=1, retry=1)
    world.admit(1)
    while world.act("thinker.0"):
        pass
    for _ in range(acts + 1):
        world.act("talker.0")
    world.kill("talker.0")
    assert (world.ends == []) == lost
    world.run()
    assert world.outcome(1) == ("finished" if lost else "failed")
    assert [e.stage for e in kinds(world, StageSubmitted)].count("talker") == 1 + lost
    if not lost:
        (failed,) = kinds(world, RequestFailed)
        assert failed.error.message.endswith("(not run again: it has handed a message to code2wav)")
    assert not any(stage.held for stage in world.stages.values())


@pytest.mark.parametrize(("nbytes", "kept"), [(0, 4), (1 << 18, 2)])
def test_no_more_than_half_of_a_ring_is_kept_and_what_has_no_room_is_not_run_again(monkeypatch, nbytes, kept):
    """The ring of thinker.0 has 8 slots and 1 MiB; once all have ended, all of it is free again."""
    monkeypatch.setattr(SimStage, "nbytes", nbytes)
    world = World(restarts=2, retry=1)
    for uids in (range(1, 7), range(7, 13)):
        for number, uid in enumerate(uids, 1):
            world.admit(uid)
            while world.act("thinker.0"):
                pass
            while world.stages["talker.0"].inbox:
                world.act("talker.0", -1)  # reads, and works on none of them
            while world.act("thinker.0"):
                pass
            assert len(world.stages["thinker.0"].held) == min(number, kept)
        world.kill("talker.0")
        world.run()
        assert [world.outcome(uid) for uid in uids] == ["finished"] * kept + ["failed"] * (6 - kept)
    for failed in kinds(world, RequestFailed):
        assert failed.error.message.endswith(
            "(not run again: its ring had no room to keep its input: raise k.ring_bytes, or slots)"
        )
    assert not any(stage.held for stage in world.stages.values())


@pytest.mark.parametrize("media", [False, True])
def test_a_first_stage_gets_its_media_once_more_and_no_second_time(media):
    world = World(media=media, restarts=2, retry=1)
    world.admit(1, media=IMAGE if media else None)
    world.act("thinker.0")
    world.kill("thinker.0")
    world.start()
    while len(kinds(world, StageSubmitted)) < 2:
        world.act("thinker.0")
    world.kill("thinker.0")
    (failed,) = kinds(world, RequestFailed)
    assert "killed by SIGKILL (not run again: deploy.stages.thinker.retry is 1)" in failed.error.message
    world.run()
    assert not any(port.held for port in world.ports.values())


@pytest.mark.parametrize("stage", ["thinker", "talker"])
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_request_that_is_to_run_again_waits_for_a_place_in_a_full_stage(stage, restarts, caplog):
    world = World(replicas=2, restarts=restarts, retry=1, max_batch=1, max_queue=1)
    for uid in (1, 2, 3, 4):
        world.admit(uid)
    while stage == "talker" and (world.act("thinker.0") or world.act("thinker.1")):
        pass
    world.kill(f"{stage}.0")
    assert "is run again" not in caplog.text
    world.run()
    assert [world.outcome(uid) for uid in (1, 2, 3, 4)] == ["finished"] * 4
    assert caplog.text.count(f"is run again in stage {stage}: {stage}.0: killed by SIGKILL") == 2
    assert not any(stage.held for stage in world.stages.values())


@pytest.mark.parametrize("stage", ["thinker", "talker"])
def test_the_limit_holds_for_who_comes_while_no_replica_lives_and_not_at_its_return(stage):
    world = World(restarts=1, max_batch=1, max_queue=1)
    world.kill(f"{stage}.0")
    for uid in (1, 2):
        world.admit(uid)
    while stage == "talker" and world.act("thinker.0"):
        pass
    world.admit(3)
    while stage == "talker" and not kinds(world, RequestFailed):
        world.act("thinker.0")
    (failed,) = kinds(world, RequestFailed)
    assert (failed.uid, failed.error.kind, failed.error.stage) == (3, "QueueFull", stage)
    assert f"raise deploy.stages.{stage}.max_queue" in failed.error.message
    world.run()
    assert [world.outcome(uid) for uid in (1, 2)] == ["finished"] * 2


def test_a_request_that_waits_for_one_first_stage_lets_those_of_another_by():
    world = World({"left": (), "right": ()}, {"text": "left", "sum": "right"}, restarts=1)
    world.kill("left.0")
    world.admit(1, outputs=("text", "sum"))
    world.admit(2, outputs=("sum",))
    while world.act("right.0"):
        pass
    assert world.ends[0][0] == 2
    world.run()
    assert [uid for uid, _ in world.ends] == [2, 1]


def test_a_replica_that_does_not_become_ready_is_killed():
    world = World(restarts=1)
    world.kill("talker.0")
    world.start()
    world.now += 60_000_000_000
    world.deliver()
    assert "talker.0" not in world.stages
    assert world.orchestrator.replicas.all()[1].word == "dead"


def test_a_message_that_nobody_can_read_any_more_is_dropped_and_its_slot_comes_back():
    world = World()
    world.admit(1)
    for _ in range(4):  # read, scheduled, step, text; the put comes next
        world.act("thinker.0")
    world.cancel(1)
    while world.act("thinker.0"):
        pass
    world.run()
    assert world.outcome(1) == "cancelled"
    assert len(kinds(world, LeaseDropped)) == 1
    assert world.stages["thinker.0"].held == set()


def test_the_deadline_runs_from_the_admission_and_frees_every_stage():
    world = World()
    world.admit(1, timeout_s=1e-6)  # 1000 ns; the clock counts calls
    world.act("thinker.0")
    world.orchestrator.expire()
    assert world.ends == []
    world.now += 2000
    world.orchestrator.expire()
    world.deliver()
    world.run()
    (failed,) = kinds(world, RequestFailed)
    assert failed.error.kind == "DeadlineExceeded"
    assert "thinker.0" in failed.error.message
    assert world.orchestrator.idle


def test_media_wait_for_room_in_the_input_ring_in_order():
    world = World(media=True)
    for uid in (1, 2, 3, 4, 5):
        world.admit(uid, media=IMAGE, timeout_s=1e-3 if uid == 3 else None)
    assert [e.uid for e in kinds(world, StageSubmitted)] == [1, 2]
    world.now += 2_000_000
    world.orchestrator.expire()  # also of one that has not got in yet
    assert world.outcome(3) == "failed"
    world.run()
    assert [world.outcome(uid) for uid in (1, 2, 4, 5)] == ["finished"] * 4
    assert world.ports["thinker"].held == set()


def test_a_stage_that_breaks_the_protocol_fails_the_request_and_not_the_run():
    world = World()
    world.admit(1)
    world.act("thinker.0")
    lease = Lease(owner="thinker.0", number=99, slot=0)
    message = StreamMessage(uid=1, producer="thinker", consumer="talker", seq=3, units=1, eos=True, lease=lease)
    world.act("thinker.0")
    world.act("thinker.0")
    world.orchestrator.report(
        StepReport(process="thinker.0", seq=9, events=(MessagePut(uid=1, t_ns=0, message=message),))
    )
    assert kinds(world, MessagePut)[-1].message is message, "the trace must show the line that broke the protocol"
    world.stages["thinker.0"].held.add(99)
    world.deliver()
    assert world.outcome(1) == "failed"
    (failed,) = kinds(world, RequestFailed)
    assert failed.error.kind == "ProtocolError"
    world.admit(2)
    world.run()
    assert world.outcome(2) == "finished"
    assert not world.stages["thinker.0"].held


ACTIONS = st.one_of(
    st.tuples(st.just("admit"), st.integers(0, 3)),
    st.tuples(st.just("act"), st.integers(0, 1000)),
    st.tuples(st.just("act"), st.integers(0, 1000)),
    st.tuples(st.just("act"), st.integers(0, 1000)),
    st.tuples(st.just("cancel"), st.integers(0, 10)),
    st.tuples(st.just("fail"), st.integers(0, 7)),
    st.tuples(st.just("expire"), st.just(0)),
    st.tuples(st.just("kill"), st.integers(0, 30)),
    st.tuples(st.just("start"), st.integers(0, 3)),
)
WANTED = (("text",), ("sum",), ("text", "left", "sum"), ("left",))


@settings(max_examples=300, deadline=None)
@given(
    actions=st.lists(ACTIONS, max_size=80),
    replicas=st.integers(1, 2),
    media=st.booleans(),
    restarts=st.integers(0, 3),
    retry=st.integers(0, 2),
    max_batch=st.integers(1, 2),
    max_queue=st.one_of(st.none(), st.integers(0, 2)),
)
def test_whatever_happens_every_request_ends_once_and_nothing_stays(actions, media, **more):
    world = World(DIAMOND, DIAMOND_OUTPUTS, media=media, **more)
    processes = tuple(world.stages)
    uid = 0
    for what, number in actions:
        if what == "admit":
            uid += 1
            world.admit(
                uid,
                outputs=WANTED[number],
                media=IMAGE if media and uid % 2 else None,
                timeout_s=1e-6 if number == 0 and uid % 3 == 0 else None,
            )
        elif what == "act":
            world.act(processes[number % len(processes)], number // len(processes))
        elif what == "cancel":
            world.cancel(number)
        elif what == "fail" and processes[number % len(processes)] in world.stages:
            world.stages[processes[number % len(processes)]].fail_next = True
        elif what == "expire":
            world.now += 500
            world.orchestrator.expire()
            world.deliver()
        elif what == "kill" and number < len(processes):
            world.kill(processes[number])
        elif what == "start":
            world.start(well=number > 1, final=number == 0)
    world.run()
    for number in range(1, uid + 1):
        world.outcome(number)
    assert world.orchestrator.idle
    assert not world.orchestrator.lifecycle.requests
    for stage in world.stages.values():
        assert not stage.held
        assert not stage.jobs
    for port in world.ports.values():
        assert not port.held
    assert world.retired == world.over
    for pool in world.orchestrator.replicas.pools.values():
        assert not pool.waiting
