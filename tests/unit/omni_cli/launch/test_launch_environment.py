"""What a stage's environment differs in, and that the parent's is left alone."""

import os
import signal
import sys

import pytest

from omni_cli.launch.environment import stage_environment, starting
from stages.config import ModelSpec, StageSpec


def spec(devices: tuple[str, ...] = (), threads: int = 1) -> StageSpec:
    return StageSpec(
        run_id="r",
        family="fake",
        stage="talker",
        replica=0,
        generation=0,
        execution_type="llm_ar",
        model=ModelSpec(path="", load_format="dummy", dtype="float32"),
        devices=devices,
        max_batch=1,
        memory_fraction=0.5,
        threads=threads,
        inputs=(),
        consumers=(),
        outputs=(),
    )


def test_devices_and_threads_are_the_specs() -> None:
    changes, notes = stage_environment(spec(devices=("2", "GPU-7f"), threads=3), {"OMP_NUM_THREADS": "64"})
    assert changes["CUDA_VISIBLE_DEVICES"] == "2,GPU-7f"
    assert {changes[f"{name}_NUM_THREADS"] for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")} == {"3"}
    assert notes == ()


def test_a_stage_on_the_cpu_sees_no_gpu_and_no_stage_the_network() -> None:
    changes, _ = stage_environment(spec(), {})
    assert changes["CUDA_VISIBLE_DEVICES"] == ""
    assert changes["HF_HUB_OFFLINE"] == changes["TRANSFORMERS_OFFLINE"] == "1"
    assert changes["TOKENIZERS_PARALLELISM"] == "false"


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("expandable_segments:True", None),
        (" expandable_segments : true ,max_split_size_mb:64", "max_split_size_mb:64"),
        (
            "roundup_power2_divisions:[256:1,512:2],expandable_segments:True",
            "roundup_power2_divisions:[256:1,512:2]",
        ),
    ],
)
def test_expandable_segments_are_removed_and_said(name: str, given: str, kept: str | None) -> None:
    changes, notes = stage_environment(spec(), {name: given})
    assert changes[name] == kept
    assert len(notes) == 1
    assert name in notes[0]


@pytest.mark.parametrize("given", ["expandable_segments:False", "max_split_size_mb:64", ""])
def test_other_allocator_settings_stay(given: str) -> None:
    changes, notes = stage_environment(spec(), {"PYTORCH_CUDA_ALLOC_CONF": given})
    assert "PYTORCH_CUDA_ALLOC_CONF" not in changes
    assert notes == ()


def test_starting_changes_the_parent_for_its_own_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "before")
    monkeypatch.setenv("REMOVED", "before")
    main = sys.modules["__main__"]
    environment, module, mask = dict(os.environ), dict(vars(main)), signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def start() -> None:
        with starting({"KEPT": "inside", "REMOVED": None, "ADDED": "inside"}):
            look()
            raise KeyError

    def look() -> None:
        assert os.environ["KEPT"] == os.environ["ADDED"] == "inside"
        assert "REMOVED" not in os.environ
        assert main.__spec__ is None
        assert not hasattr(main, "__file__")
        assert {signal.SIGINT, signal.SIGTERM} <= signal.pthread_sigmask(signal.SIG_BLOCK, ())

    with pytest.raises(KeyError):
        start()
    assert dict(os.environ) == environment
    assert vars(main) == module
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
