"""The launcher with the worker and the synthetic family: who is slow, how long one may be, and what the start costs."""

import os
import secrets
from pathlib import Path

import pytest

from omni_cli.config.load import load_config
from omni_cli.errors import LaunchError
from omni_cli.launch.launcher import LocalLauncher
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import Inventory
from omni_cli.plan.spec import stage_specs
from omni_cli.runtime.events import ProcessDead, ProcessStarted
from stages.events import ProcessReady
from tests.integration.launch_plans import Heard, traces

SOAK = bool(os.environ.get("OMNI_SOAK"))
STARTS, DELAY_S = (20, 15.0) if SOAK else (1, 0.3)


def launcher(heard: Heard, lines: list[str], *words: str) -> LocalLauncher:
    plan = build_plan(load_config(["recipe=synthetic", *words]), Inventory())
    run_id = secrets.token_hex(6)
    return LocalLauncher(plan, stage_specs(plan, run_id), listener=heard, on_progress=lines.append)


@pytest.mark.parametrize("slow", ["thinker", "code2wav"])
def test_no_start_up_message_is_lost_whoever_is_slow(slow: str) -> None:
    for _ in range(STARTS):
        heard, lines = Heard(), []
        start = launcher(heard, lines, f"synthetic.init_delay_s.{slow}={DELAY_S}").start
        with start() as running:
            assert lines[-1].startswith(f"{slow}.0 is ready")
            running.stop()
            assert running.live_slots == 0
        assert len(heard.of(ProcessReady)) == 3
        assert [event.cause for event in heard.of(ProcessDead)] == ["exit code 0"] * 3


def test_the_configured_limit_ends_a_start_that_hangs() -> None:
    heard = Heard()
    words = ("synthetic.init_delay_s.talker=600", "deploy.stages.talker.startup_timeout_s=1")
    with pytest.raises(LaunchError, match=r"after 1 s.*deploy\.stages\.talker\.startup_timeout_s"):
        launcher(heard, [], *words).start()
    killed = {event.process: event for event in heard.of(ProcessDead)}
    assert killed["talker.0"].cause == "killed by SIGKILL"
    assert killed["talker.0"].t_ns - heard.of(ProcessStarted)[0].t_ns < 60e9


def test_a_checkpoint_that_cannot_be_read_ends_the_start_with_the_stages_own_words(tmp_path: Path) -> None:
    """Found by the stage, since the plan was made while the files were there."""
    plan = build_plan(load_config(["recipe=qwen3_omni", "model.path=tiny", "deploy.outputs=[text]"]), Inventory())
    moved = plan.model_copy(update={"model": plan.model.model_copy(update={"path": str(tmp_path / "gone")})})
    specs = stage_specs(moved, secrets.token_hex(6))
    before = traces(specs[0].run_id)
    with pytest.raises(LaunchError) as caught:
        LocalLauncher(moved, specs, listener=Heard(), on_progress=print).start()
    assert str(caught.value).startswith("thinker.0 failed while it was starting: ")
    assert str(caught.value).count("--- stage traceback of thinker.0") == 1
    assert str(tmp_path / "gone") in str(caught.value)
    assert traces(specs[0].run_id).segments == before.segments == frozenset()
