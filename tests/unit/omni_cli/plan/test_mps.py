"""Which devices get an MPS daemon, and what `deploy.mps=on` is refused for."""

import dataclasses

import pytest

from omni_cli.errors import PlanError
from omni_cli.plan.build import build_plan
from tests.unit.omni_cli.plan.fakes import family, load, machine

SHARED = "deploy.stages={thinker: {devices: [[1]]}, talker: {devices: [[0]]}, code2wav: {devices: [[0]]}}"


def served(*words: str, gpus: int, hindered: str = "") -> tuple[int, ...]:
    loaded = load(*words, contracts=lambda name: family())
    return build_plan(loaded, dataclasses.replace(machine(gpus), no_mps=hindered)).mps_devices


def test_shared_devices_are_served_where_a_daemon_can_be_started():
    assert served(gpus=1) == (0,)
    assert served(SHARED, gpus=2) == (0,)
    assert served("deploy.mps=on", gpus=1) == (0,)
    assert served("deploy.mps=off", gpus=1) == ()
    assert served(gpus=1, hindered="it is broken") == ()
    assert served(gpus=3) == ()
    assert served(gpus=0) == ()


@pytest.mark.parametrize(
    ("gpus", "hindered", "expected"), [(1, "it is broken", "is on, but it is broken"), (0, "", "has no effect")]
)
def test_on_says_why_not(gpus: int, hindered: str, expected: str):
    with pytest.raises(PlanError, match=expected) as caught:
        served("deploy.mps=on", gpus=gpus, hindered=hindered)
    assert "deploy.mps" in str(caught.value)
