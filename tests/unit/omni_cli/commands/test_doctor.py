"""What the doctor says of a sound machine and of one that is not."""

import resource
import sys
from dataclasses import dataclass

import pytest
from typer.testing import CliRunner

from omni_cli.commands import doctor
from omni_cli.commands.doctor import Finding


def test_a_missing_and_an_old_package_would_stop_a_run() -> None:
    required = ["torch>=2.11", "numpy>=2.0", "pillow>=11", 'pytest>=8; extra == "dev"']
    found = {"torch": "2.9.0", "numpy": "2.4.6"}
    torch, numpy, pillow = doctor.packages(required, found.get)
    assert (torch.state, numpy.state, pillow.state) == ("stop", "ok", "stop")
    assert torch.remedy == 'pip install "torch>=2.11"'
    assert "is not installed" in str(pillow)


def test_a_local_or_early_build_within_the_range_is_well() -> None:
    (torch,) = doctor.packages(["torch>=2.11"], {"torch": "2.12.0a0+cu130"}.get)
    assert torch.state == "ok"


def test_the_requirements_are_omnis_own() -> None:
    assert any(line.startswith("torch") for line in doctor.requirements())


@pytest.mark.parametrize(("free", "state"), [(24 << 30, "ok"), (60 << 20, "warn"), (0, "stop")])
def test_shared_memory(free: int, state: str) -> None:
    finding = doctor.shared_memory(64 << 30, free)
    assert finding.state == state
    assert ("--shm-size" in finding.remedy) == (state != "ok")


@pytest.mark.parametrize(
    ("limit", "state"), [(resource.RLIM_INFINITY, "ok"), (1 << 20, "ok"), (256, "warn"), (64, "stop")]
)
def test_open_files(limit: int, state: str) -> None:
    assert doctor.open_files(limit).state == state


def test_an_old_python_would_stop_a_run() -> None:
    assert doctor.python((3, 10, 4)).state == "stop"
    assert doctor.python(sys.version_info[:3]).state == "ok"


@dataclass
class Memory:
    free: int = 100 << 30
    total: int = 140 << 30


class TwoGpus:
    """NVML with two GPUs, of which 1 cannot read from 0."""

    NVML_P2P_CAPS_INDEX_READ = (0,)  # as in the binding
    NVML_P2P_STATUS_OK = 0
    NVMLError = OSError

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "H200"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Memory:
        return Memory()

    def nvmlDeviceGetP2PStatus(self, a: int, b: int, capability: int) -> int:
        assert capability == 0  # ctypes takes no tuple
        return int((a, b) == (1, 0))


def test_gpus_with_memory_peer_access_and_a_build_that_can_use_them() -> None:
    first, second, peers, build = doctor.gpus(TwoGpus(), "2.13.0+cpu")
    assert str(first).split() == ["ok", "gpu", "0", "H200,", "100.0", "of", "140.0", "GiB", "free"]
    assert second.name == "gpu 1"
    assert (peers.state, peers.text) == ("warn", "not for 1->0")
    assert build.state == "warn"
    assert len(list(doctor.gpus(TwoGpus(), "2.13.0+cu130"))) == 3


def test_a_machine_without_gpus_is_well_unless_it_has_their_device_files() -> None:
    assert doctor.no_driver("NVML Shared Library Not Found", device_files=False).state == "ok"
    assert doctor.no_driver("NVML Shared Library Not Found", device_files=True).state == "warn"


def test_leftovers_are_named_and_cleaned_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = ["omni-1-thinker"]

    def stale(*, remove: bool = False) -> list[str]:
        found = list(segments)
        if remove:
            segments.clear()
        return found

    monkeypatch.setattr(doctor, "stale_segments", stale)
    invoke = CliRunner().invoke
    assert "1 segments of dead runs: omni-1-thinker" in invoke(doctor.app, []).output
    assert "removed omni-1-thinker" in invoke(doctor.app, ["--clean"]).output
    assert "nothing to remove" in invoke(doctor.app, ["--clean"]).output


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("warn", 0), ("stop", 1)])
def test_the_exit_code_says_whether_a_run_would_start(monkeypatch: pytest.MonkeyPatch, state: str, code: int) -> None:
    finding = Finding(name="disk", state=state, text="full", remedy="empty it")  # type: ignore[arg-type]
    monkeypatch.setattr(doctor, "findings", lambda clean: iter([finding]))
    result = CliRunner().invoke(doctor.app, [])
    assert result.exit_code == code
    assert "-> empty it" in result.output
