import dataclasses

import pytest

from omni_cli.errors import PlanError
from omni_cli.plan.spec import stage_spec
from stages.config import StageTuning
from stages.models.registry import StageContract
from tests.unit.omni_cli.plan.fakes import family, plan_weights

LANGUAGE = StageTuning(step_tokens=100, kv_block_tokens=16, graphs=True, compile="blocks", step_cache="none")
CODEC = StageTuning(first_chunk_frames=4, chunk_frames=25, decode="exact", graphs=True)
STAGES = {
    **family().stages,
    "thinker": StageContract(execution_type="llm_ar", outputs=("text",), tuning=LANGUAGE),
    "code2wav": dataclasses.replace(family().stages["code2wav"], max_units_a_row=300, tuning=CODEC),
}


def planned(*words, gpus=0):
    return plan_weights(*words, gpus=gpus, stages=STAGES)


def refusal(*words, gpus=0) -> str:
    with pytest.raises(PlanError) as caught:
        planned(*words, gpus=gpus)
    return str(caught.value)


def test_the_contract_gives_the_defaults_and_the_deployment_changes_them():
    found = planned("deploy.stages.thinker={step_tokens: 50}", gpus=1)
    expected = dataclasses.replace(LANGUAGE, step_tokens=50)
    assert found.stage("thinker").tuning == expected
    assert stage_spec(found, "thinker", 0, "r").tuning == expected
    assert found.stage("talker").tuning == StageTuning()


@pytest.mark.parametrize(("key", "on", "off"), [("graphs", True, False), ("compile", "blocks", "none")])
def test_there_are_no_graphs_and_no_compiled_blocks_on_the_cpu(key, on, off):
    word = f"deploy.stages.thinker.{key}={on}".lower()
    assert getattr(planned().stage("thinker").tuning, key) == off
    assert f"is {on}, but `thinker` runs on the CPU".lower() in refusal(word).lower()
    assert getattr(planned(word, gpus=1).stage("thinker").tuning, key) == on


@pytest.mark.parametrize("word", ["step_tokens=9", "kv_block_tokens=8", "first_chunk_frames=1", "decode=exact"])
def test_a_key_without_effect_is_refused_with_those_that_have_one(word):
    key = f"deploy.stages.talker.{word.partition('=')[0]}"
    message = refusal(f"deploy.stages.talker.{word}")
    assert key in message
    assert "no use for it (it takes none of its kind)" in message
    assert "it takes step_tokens, kv_block_tokens, graphs, compile, step_cache" in refusal(
        "deploy.stages.thinker.chunk_frames=3"
    )


def test_a_step_has_a_token_for_each_request():
    assert "less than max_batch=9" in refusal("deploy.stages.thinker={step_tokens: 8, max_batch: 9}")
    assert "less than max_batch=8" in refusal("deploy.stages.thinker.step_tokens=7")
    assert planned("deploy.stages.thinker.max_batch=200").stage("thinker").tuning.step_tokens == 200


def test_transformers_decoding_has_chunks_of_its_own():
    assert planned().stage("code2wav").tuning == dataclasses.replace(CODEC, graphs=False)
    found = planned("deploy.stages.code2wav.decode=transformers").stage("code2wav").tuning
    assert found == StageTuning(decode="transformers")
    for key, value in (("first_chunk_frames", "2"), ("graphs", "true")):
        message = refusal(f"deploy.stages.code2wav={{decode: transformers, {key}: {value}}}", gpus=1)
        assert f"deploy.stages.code2wav.{key}" in message
        assert "has no effect with decode=transformers" in message


def test_a_step_cache_leaves_nothing_to_graphs():
    word = "deploy.stages.thinker={step_cache: first_block, graphs: true}"
    message = refusal(word, gpus=1)
    assert "deploy.stages.thinker.graphs" in message
    assert "has no effect with step_cache=first_block" in message
    assert planned(word.replace(", graphs: true", ""), gpus=1).stage("thinker").tuning.graphs is None


@pytest.mark.parametrize("key", ["first_chunk_frames", "chunk_frames"])
def test_a_chunk_is_decoded_at_once(key):
    message = refusal(f"deploy.stages.code2wav.{key}=301")
    assert f"deploy.stages.code2wav.{key}" in message
    assert "at most 300 are decoded at once" in message
    assert getattr(planned(f"deploy.stages.code2wav.{key}=300").stage("code2wav").tuning, key) == 300
