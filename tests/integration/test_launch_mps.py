"""The life of an MPS daemon beside its stages, with a stand-in for NVIDIA's binary."""

import contextlib
import os
from pathlib import Path

import pytest

from omni_cli.errors import LaunchError
from omni_cli.launch import launcher
from omni_cli.launch.launcher import LocalLauncher
from omni_cli.plan.devices import MPS_CONTROL
from stages.events import ProcessReady
from tests.integration.launch_fakes import fake_specs, run_fake
from tests.integration.launch_plans import Heard, fake_plan

# The daemon has a server as its child, and takes commands through another call of the binary.
DAEMON = """#!/bin/sh
cd "$CUDA_MPS_PIPE_DIRECTORY" || exit 1
case "$1" in
-f) echo "$CUDA_VISIBLE_DEVICES" > devices; mkfifo control; sleep 600 & read -r word < control; kill $!;;
*) cat > control;;
esac
"""
PLAN = fake_plan().model_copy(update={"physical_devices": ("4", "5"), "mps_devices": (1,)})


@pytest.fixture
def binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / MPS_CONTROL
    found.write_text(DAEMON)
    found.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(launcher, "device_uuid", lambda device: f"GPU-{device}")
    return found


def clients(folder: Path) -> set[str]:
    """Processes whose environment names a folder below: the daemon, its server, the stages."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"CUDA_MPS_PIPE_DIRECTORY={folder}".encode() in (process / "environ").read_bytes():
                found.add(process.name)
    return found


def environments(heard: Heard) -> list[dict[str, str]]:
    return [dict(event.facts) for event in heard.of(ProcessReady) if isinstance(event, ProcessReady)]


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_the_daemon_ends_after_its_stages(binary: Path, ending: str) -> None:
    heard = Heard()
    (binary.parent / "omni-mps-killed").mkdir()  # of a run that is no more
    specs = fake_specs("mps", devices=("5",))
    with LocalLauncher(PLAN, specs, listener=heard, run_stage=run_fake).start() as running:
        (folder,) = binary.parent.glob("omni-mps-*")
        assert (folder / "devices").read_text() == "GPU-5\n"
        for environment in environments(heard):
            assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-5"
            assert environment["CUDA_MPS_PIPE_DIRECTORY"] == str(folder)
        assert len(clients(folder)) == 2 + len(specs)
        if ending == "kill":
            running.abandon()
    assert clients(folder) == set()
    assert not folder.exists()


def test_stages_elsewhere_have_none(binary: Path) -> None:
    heard = Heard()
    specs = fake_specs("mps", devices=("4",))
    with LocalLauncher(PLAN, specs, listener=heard, run_stage=run_fake).start():
        assert not list(binary.parent.glob("omni-mps-*"))
    assert all("CUDA_MPS_PIPE_DIRECTORY" not in environment for environment in environments(heard))


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 1\n", None], ids=["that ends at once", "that is no program"])
def test_a_daemon_that_does_not_start_is_an_error_of_the_start(binary: Path, script: str | None) -> None:
    if script is None:
        binary.write_text("")
        binary.chmod(0o644)
    else:
        binary.write_text(script)
    launch = LocalLauncher(PLAN, fake_specs("mps", devices=("5",)), listener=Heard(), run_stage=run_fake)
    with pytest.raises(LaunchError, match=f"{MPS_CONTROL}.*deploy.mps=off does without it"):
        launch.start()
    assert clients(binary.parent) == set()
    assert not list(binary.parent.glob("omni-mps-*"))
