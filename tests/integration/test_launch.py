"""The launcher with real processes: how they start, what they say, and that nothing of them remains."""

import logging
import os
import resource
import signal
import uuid
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from omni_cli.errors import LaunchError
from omni_cli.launch.launcher import LocalLauncher
from omni_cli.launch.process import StageProcess
from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.events import ProcessDead, ProcessStarted
from stages.config import StageSpec
from stages.events import ProcessReady, StepReport
from stages.messages import Cancel, LogLine, Turn
from stages.payload import Payload, Tensor
from tests.integration.launch_fakes import DEAF, ECHO, FLOOD, LOG, PUT_AND_KEEP, STAGES, Behaviour, fake_specs, run_fake
from tests.integration.launch_plans import Heard, Traces, fake_plan, traces


@pytest.fixture
def run_id() -> str:
    return uuid.uuid4().hex[:12]


@pytest.fixture(autouse=True)
def before(run_id: str) -> Iterator[Traces]:
    """After every test, whatever became of its run: no segment, child or descriptor more than before."""
    resource_tracker.ensure_running()  # the standard library's own process, one a parent, for good
    found = traces(run_id)
    yield found
    assert traces(run_id) == found


def launcher(
    specs: tuple[StageSpec, ...], plan: ExecutionPlan | None = None, heard: Heard | None = None, **more: object
) -> LocalLauncher:
    return LocalLauncher(plan or fake_plan(), specs, listener=heard or Heard(), run_stage=run_fake, **more)


def tell(process: StageProcess, uid: int) -> None:
    process.send(Turn(commands=(Cancel(uid=uid),), sent_ns=0))


def test_all_replicas_start_and_stop(run_id: str) -> None:
    heard = Heard()
    with launcher(fake_specs(run_id), heard=heard).start() as running:
        assert [process.process for process in running.replicas] == ["thinker.0", "talker.0", "code2wav.0"]
        for process in running.replicas:
            tell(process, ECHO)
            assert isinstance(process.receive(), StepReport)
        running.stop()
        assert running.live_slots == 0
    started, ready, dead = heard.of(ProcessStarted), heard.of(ProcessReady), heard.of(ProcessDead)
    assert [event.process for event in started] == [f"{stage}.0" for stage in STAGES]
    assert {event.pid for event in ready} == {event.pid for event in started}
    assert [(event.process, event.expected, event.cause) for event in dead] == [
        (f"{stage}.0", True, "exit code 0") for stage in STAGES
    ]


def test_a_stage_starts_in_its_own_environment_and_without_our_modules(
    run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:64")
    environment = dict(os.environ)
    heard = Heard()
    with launcher(fake_specs(run_id, stages=["talker"], devices=("3", "5")), heard=heard).start():
        assert dict(os.environ) == environment
    (ready,) = heard.of(ProcessReady)
    facts = dict(ready.facts)
    assert facts["comm"] == "omni:talker.0"
    assert facts["CUDA_VISIBLE_DEVICES"] == "3,5"
    assert facts["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"
    assert facts["MKL_NUM_THREADS"] == "1"
    packages = {name.partition(".")[0] for name in facts["modules"].split()}
    assert "stages" in packages
    assert not packages & {"omni_cli", "pytest", "_pytest", "hydra", "typer", "rich", "pydantic", "torch", "numpy"}


@pytest.mark.parametrize("slow", ["thinker", "code2wav"])
def test_no_start_up_message_is_lost_whoever_is_slow(run_id: str, slow: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    lines: list[str] = []

    def on_progress(line: str) -> None:
        lines.append(line)
        if sum("is ready" in line for line in lines) == 2 and gate.exists():  # the others are: let the slow one go on
            gate.write_text("go")
            gate.unlink()

    behaviours = {slow: Behaviour(load="wait", gate=str(gate))}
    with launcher(fake_specs(run_id, behaviours), on_progress=on_progress).start():
        assert lines[-1].startswith(f"{slow}.0 is ready")


def test_a_log_line_of_a_stage_is_logged_once_under_its_name(run_id: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with launcher(fake_specs(run_id, stages=["talker"])).start() as running:
        tell(running.replicas[0], LOG)
        line = running.replicas[0].receive()
        assert isinstance(line, LogLine)
    assert [record.message for record in caplog.records if record.name == "omni.stage.talker.0"] == ["loaded talker"]


@pytest.mark.parametrize(
    ("load", "told"),
    [
        ("raise", "talker.0 failed while it was starting: RuntimeError: the weights are made of cheese"),
        ("exit", "talker.0 died while it was starting: exit code 3"),
        ("abort", "talker.0 died while it was starting: killed by SIGABRT"),
    ],
)
def test_what_fails_while_starting_ends_the_start_with_its_own_error(
    run_id: str, load: str, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    heard = Heard()
    behaviours = {
        "thinker": Behaviour(load="hang"),
        "talker": Behaviour(load=load),  # type: ignore[arg-type]
    }
    with pytest.raises(LaunchError) as caught:
        launcher(fake_specs(run_id, behaviours), heard=heard).start()
    message = str(caught.value)
    assert message.startswith(told)
    assert message.count("Traceback") == (1 if load == "raise" else 0)
    assert "Traceback" not in capfd.readouterr().err
    dead = {event.process: event for event in heard.of(ProcessDead)}
    assert len(dead) == 3
    assert [name for name, event in dead.items() if not event.expected] == ["talker.0"]
    assert dead["thinker.0"].cause == "killed by SIGKILL"
    assert ("made of cheese" in dead["talker.0"].cause) == (load == "raise")


def test_the_limit_of_a_start_is_the_limit(run_id: str) -> None:
    lines: list[str] = []
    specs = fake_specs(run_id, {"talker": Behaviour(load="hang")})
    with pytest.raises(LaunchError, match=r"(\w+)\.0 .* 2 s.*deploy\.stages\.\1\.startup_timeout_s"):
        launcher(specs, fake_plan(startup_timeout_s=2.0), on_progress=lines.append).start()
    assert lines[0] == "starting thinker.0, talker.0, code2wav.0"


def test_rings_that_do_not_fit_are_refused_with_size_and_key(run_id: str) -> None:
    with pytest.raises(LaunchError) as caught:
        launcher(fake_specs(run_id, data_bytes=1 << 44)).start()
    for word in ("16777216.00 MiB", "are free", "deploy.stages.talker.inputs.thinker.ring_bytes"):
        assert word in str(caught.value)


def test_a_killed_stage_reads_as_the_end(run_id: str) -> None:
    heard = Heard()
    with launcher(fake_specs(run_id), heard=heard).start() as running:
        talker = running.replicas[1]
        os.kill(talker.pid, signal.SIGKILL)
        with pytest.raises(EOFError):
            talker.receive()
        assert talker.death() == "killed by SIGKILL"
        with pytest.raises(OSError, match="pipe"):
            tell(talker, ECHO)
    assert [event.process for event in heard.of(ProcessDead)] == ["thinker.0", "code2wav.0"]  # that one was told to us


def test_a_stage_killed_in_the_middle_of_a_message_reads_as_the_end(run_id: str) -> None:
    with launcher(fake_specs(run_id, stages=["talker"])).start() as running:
        talker = running.replicas[0]
        tell(talker, FLOOD)
        assert talker.reader.poll(None)  # the pipe holds 64 KiB of a message of 1 MB
        os.kill(talker.pid, signal.SIGKILL)
        with pytest.raises((EOFError, OSError)):
            talker.receive()


def test_what_a_dead_stage_has_said_is_still_read(run_id: str) -> None:
    with launcher(fake_specs(run_id, stages=["talker"])).start() as running:
        talker = running.replicas[0]
        tell(talker, ECHO)
        assert talker.reader.poll(None)
        os.kill(talker.pid, signal.SIGKILL)
        assert talker.join(5)
        assert isinstance(talker.receive(), StepReport)
        with pytest.raises(EOFError):
            talker.receive()


@pytest.mark.parametrize(
    ("stop", "cause"), [("ignore", "killed by SIGTERM"), ("ignore terminate", "killed by SIGKILL")]
)
def test_a_stage_that_does_not_stop_is_terminated_then_killed(
    run_id: str, stop: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_cli.launch.running.TERMINATE_S", 0.2)
    heard = Heard()
    specs = fake_specs(run_id, {"talker": Behaviour(stop=stop)}, stages=["talker"])  # type: ignore[arg-type]
    launcher(specs, fake_plan(drain_timeout_s=0.2), heard).start().stop()
    assert [(event.cause, event.expected) for event in heard.of(ProcessDead)] == [(cause, True)]


def test_a_stage_that_was_given_up_is_terminated_without_being_waited_for(run_id: str) -> None:
    heard = Heard()
    specs = fake_specs(run_id, {"talker": Behaviour(stop="ignore")})  # type: ignore[arg-type]
    running = launcher(specs, fake_plan(drain_timeout_s=3600), heard).start()
    next(replica for replica in running.replicas if replica.stage == "talker").give_up()
    running.stop()
    assert [event.cause for event in heard.of(ProcessDead)] == ["exit code 0", "killed by SIGTERM", "exit code 0"]


@pytest.mark.parametrize("how", ["stopped", "deaf"])
def test_a_stage_that_no_longer_reads_cannot_hold_up_the_stop(
    run_id: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_cli.launch.running.TERMINATE_S", 0.2)
    heard = Heard()
    running = launcher(fake_specs(run_id, stages=["talker"]), fake_plan(drain_timeout_s=0.2), heard).start()
    if how == "stopped":
        os.kill(running.replicas[0].pid, signal.SIGSTOP)
    else:
        tell(running.replicas[0], DEAF)
    running.stop()
    assert [event.cause for event in heard.of(ProcessDead)] == [
        "killed by SIGKILL" if how == "stopped" else "killed by SIGTERM"
    ]


def test_slots_that_are_still_held_are_counted_in_the_rings(run_id: str) -> None:
    running = launcher(fake_specs(run_id)).start()
    tell(running.replicas[0], PUT_AND_KEEP)
    assert isinstance(running.replicas[0].receive(), StepReport)
    for _ in range(2):
        running.stop()
        assert running.live_slots == 1


def test_the_parent_holds_one_port_in_and_one_out(run_id: str) -> None:
    with launcher(fake_specs(run_id)).start() as running:
        assert list(running.media_ports) == ["thinker"]
        assert list(running.output_ports) == ["code2wav.0"]
        sound = Payload(tensors=(Tensor(name="audio", dtype="uint8", shape=(2,), data=memoryview(b"hi")),))
        put = running.media_ports["thinker"].put((sound,))
        assert put is not None
        _, lease = put
        assert lease is not None
        assert lease.owner == "request.thinker"
        running.media_ports["thinker"].reclaim(lease)


def test_a_listener_hears_of_every_death_when_the_start_is_interrupted(run_id: str) -> None:
    heard = Heard()

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launcher(fake_specs(run_id), heard=heard, on_progress=interrupt).start()
    assert len(heard.of(ProcessDead)) == len(heard.of(ProcessStarted)) == 3


def test_a_start_that_finds_no_descriptor_says_which_limit_to_raise(run_id: str) -> None:
    """Wherever they run out: rings, pipes, the processes' own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    for free in range(0, 40, 3):
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + free, hard))
        said = ""
        try:
            with launcher(fake_specs(run_id)).start():
                break
        except LaunchError as error:
            said = str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert "Too many open files: this process may have no more files open; raise `ulimit -n`" in said
        assert traces(run_id).segments == frozenset()
    assert free > 0
