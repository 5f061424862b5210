"""Weights and KV cache by formula, against what a device gives."""

import pytest

from omni_cli.errors import PlanError
from stages.config import StageTuning
from stages.models.registry import StageContract, StageMemory
from tests.unit.omni_cli.plan.fakes import family, plan_weights

TUNING = StageTuning(step_tokens=100, kv_block_tokens=16, kv_blocks=0)
STAGES = {**family().stages, "thinker": StageContract(execution_type="llm_ar", outputs=("text",), tuning=TUNING)}
# A token of the thinker takes 1 MiB, its weights 60 GiB of the 80 that a device has.
THINKER = StageMemory(weight_bytes=60 << 30, kv_token_bytes=1 << 20, context_tokens=4000)
SIZES = {"thinker": THINKER, "talker": StageMemory(weight_bytes=1 << 30), "code2wav": StageMemory(weight_bytes=1 << 30)}


def planned(*words, gpus=1, sizes=SIZES):
    return plan_weights(*words, gpus=gpus, stages=STAGES, stage_memory=lambda path, stage, dtype: sizes[stage])


def test_the_cache_takes_what_weights_and_work_leave():
    thinker = planned("deploy.stages.thinker.memory_fraction=0.8").stage("thinker")
    assert thinker.weight_bytes == 60 << 30
    assert thinker.kv.tokens == 3 << 10, "64 GiB less 60 and 1"
    assert thinker.kv.block_tokens == 16
    assert planned("deploy.stages.thinker.memory_fraction=0.8").stage("talker").kv is None


def test_the_cache_is_no_larger_than_the_batch_can_use():
    words = ("deploy.stages.thinker.memory_fraction=0.8", "deploy.stages.thinker.max_batch=2")
    small = {**SIZES, "thinker": StageMemory(weight_bytes=1 << 30, kv_token_bytes=1 << 10, context_tokens=4000)}
    assert planned(*words, sizes=small).stage("thinker").kv.tokens == 8000
    assert planned(*words, gpus=0, sizes=small).stage("thinker").kv.tokens == 8000


def test_given_blocks_stand():
    words = ("deploy.stages.thinker.memory_fraction=0.8", "deploy.stages.thinker.kv_blocks=7")
    assert planned(*words).stage("thinker").kv.blocks == 7


@pytest.mark.parametrize(
    ("word", "key", "texts"),
    [
        (
            "memory_fraction=0.5",
            "deploy.stages.thinker.memory_fraction",
            ("0.5 of device 0 is 40 GiB", "weights take 60 GiB"),
        ),
        ("kv_blocks=1000", "deploy.stages.thinker.kv_blocks", ("1000 KV blocks 15.6 GiB", "a step's own work 1 GiB")),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(word, key, texts):
    share = () if word.startswith("memory") else ("deploy.stages.thinker.memory_fraction=0.8",)
    with pytest.raises(PlanError) as caught:
        planned(f"deploy.stages.thinker.{word}", *share)
    message = str(caught.value)
    assert f"{key} (command line)" in message
    assert all(text in message for text in texts)


def test_a_second_device_needs_what_it_holds():
    thinker = StageContract(execution_type="llm_ar", outputs=("text",), guidance_parallel=True)
    sizes = {**SIZES, "thinker": StageMemory(weight_bytes=60 << 30, further_bytes=30 << 30)}
    words = ("deploy.stages.thinker.devices=[[0,1]]", "deploy.stages.thinker.memory_fraction=0.5")
    with pytest.raises(PlanError) as caught:
        plan_weights(
            *words, gpus=2, stages={**STAGES, "thinker": thinker}, stage_memory=lambda path, stage, dtype: sizes[stage]
        )
    assert "0.5 of device 0 is 40 GiB" in str(caught.value)
    assert "of device 1" not in str(caught.value)


def test_without_a_formula_or_a_field_that_it_needs_nothing_is_said():
    def lacks(path, stage, dtype):
        raise KeyError("head_dim")

    found = plan_weights(gpus=1, stages=STAGES, stage_memory=lacks).stage("thinker")
    assert (found.weight_bytes, found.kv) == (0, None)
