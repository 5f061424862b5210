"""The knobs: what pydantic makes of plain dataclasses, and what it refuses."""

import math
import pickle
import subprocess
import sys

import pytest
from pydantic import TypeAdapter, ValidationError

from stages.models.registry import contract
from stages.models.synthetic.options import DagOptions, SyntheticOptions

SYNTHETIC = TypeAdapter(SyntheticOptions)
DAG = TypeAdapter(DagOptions)


@pytest.mark.parametrize(
    ("knobs", "where"),
    [
        ({"frame": 3}, "frame"),
        ({"frames": -1}, "frames"),
        ({"frames": 1.5}, "frames"),
        ({"delay_ms": {"mixer": 1}}, "mixer"),
        ({"delay_ms": {"talker": math.nan}}, "talker"),
        ({"delay_ms": {"talker": math.inf}}, "talker"),
        ({"fail": {"stage": "singer"}}, "stage"),
        ({"fail": {"stage": "talker", "at": -2}}, "at"),
        ({"fail": {"stage": "talker", "times": 0}}, "times"),
        ({"sample_rate_hz": 0}, "sample_rate_hz"),
        ({"wave": "square"}, "wave"),
    ],
)
def test_a_wrong_knob_is_refused_by_name(knobs, where):
    with pytest.raises(ValidationError) as caught:
        SYNTHETIC.validate_python(knobs)
    assert where in [part for error in caught.value.errors() for part in error["loc"]]


def test_the_dag_has_knobs_for_its_own_stages_as_well():
    options = DAG.validate_python({"delay_ms": {"mixer": 2, "talker": 1}, "fail": {"stage": "singer", "at": -1}})
    assert (options.delay_ms.mixer, options.delay_ms.talker, options.fail.stage) == (2.0, 1.0, "singer")
    with pytest.raises(ValidationError):
        DAG.validate_python({"delay_ms": {"singr": 2}})


def test_options_cross_spawn_unchanged():
    options = SYNTHETIC.validate_python({"frames": 3, "init_delay_s": {"talker": 2}})
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize("family", ["synthetic", "synthetic_dag"])
def test_the_contract_is_closed_and_offers_both_modes_on_every_edge(family):
    found = contract(family)
    assert found.name == family
    for stage in found.stages.values():
        assert stage.inputs.keys() <= found.stages.keys()
        assert all(set(edge.modes) == {"complete", "incremental"} for edge in stage.inputs.values())
    delays = found.options().delay_ms
    assert set(found.stages) == {name for name in dir(delays) if not name.startswith("_")}


def test_the_contract_imports_no_heavy_package():
    code = (
        "import sys, stages.models.synthetic.contract\n"
        "print(sorted({'torch', 'numpy', 'pydantic', 'transformers', 'typing_extensions'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
