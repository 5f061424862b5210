import dataclasses

import pytest

from omni_cli.errors import PlanError
from tests.unit.omni_cli.plan.fakes import family, plan, plan_weights


def devices(found):
    return {stage.name: [replica.devices for replica in stage.replicas] for stage in found.stages}


def fractions(found):
    return {stage.name: stage.memory_fraction for stage in found.stages}


def test_without_a_gpu_everything_is_on_the_cpu():
    found = plan_weights()
    assert devices(found) == {"thinker": [()], "talker": [()], "code2wav": [()]}
    assert set(fractions(found).values()) == {0.0}
    assert found.model.dtype == "float32"


def test_without_weights_a_gpu_is_left_alone():
    assert devices(plan(gpus=2)) == {"thinker": [()], "talker": [()], "code2wav": [()]}


def test_on_one_gpu_the_stages_share_it_by_need():
    found = plan_weights(gpus=1)
    assert devices(found) == {"thinker": [(0,)], "talker": [(0,)], "code2wav": [(0,)]}
    assert sum(fractions(found).values()) < 1
    assert fractions(found)["thinker"] == pytest.approx(6 * fractions(found)["talker"], rel=0.05)
    assert found.model.dtype == "bfloat16"


def test_on_two_gpus_the_largest_stage_is_alone():
    found = plan_weights(gpus=2)
    assert devices(found) == {"thinker": [(0,)], "talker": [(1,)], "code2wav": [(1,)]}
    assert fractions(found)["talker"] + fractions(found)["code2wav"] < 1


def test_on_many_gpus_each_stage_has_its_own():
    assert devices(plan_weights(gpus=8)) == {"thinker": [(0,)], "talker": [(1,)], "code2wav": [(2,)]}


def test_what_is_left_open_goes_round_what_is_given():
    found = plan_weights("deploy.stages.thinker={devices: [[1]], memory_fraction: 0.6}", gpus=2)
    assert devices(found)["talker"] == [(0,)]
    found = plan_weights("deploy.stages.thinker={devices: [[0]], memory_fraction: 0.6}", gpus=1)
    assert fractions(found)["talker"] + fractions(found)["code2wav"] == pytest.approx(0.3, abs=0.01)


def test_a_list_for_each_replica():
    found = plan_weights("deploy.stages.talker={devices: [[0],[1]], memory_fraction: 0.2}", gpus=2)
    assert [(r.index, r.devices) for r in found.stage("talker").replicas] == [(0, (0,)), (1, (1,))]


def test_a_number_of_replicas():
    assert devices(plan("deploy.stages.talker.replicas=2"))["talker"] == [(), ()]
    assert devices(plan_weights("deploy.stages.talker={replicas: 2, devices: [[0]]}", gpus=1))["talker"] == [(0,), (0,)]
    assert devices(plan_weights("deploy.stages.talker={replicas: 2, devices: cpu}", gpus=1))["talker"] == [(), ()]
    found = plan_weights("deploy.stages.talker.replicas=2", gpus=2)
    assert devices(found) == {"thinker": [(0,)], "talker": [(1,), (1,)], "code2wav": [(1,)]}
    assert 2 * fractions(found)["talker"] + fractions(found)["code2wav"] < 1
    with pytest.raises(
        PlanError, match=r"talker\.replicas.*is 3, but deploy\.stages\.talker\.devices lists 2 replicas"
    ):
        plan("deploy.stages.talker={replicas: 3, devices: [[],[]]}")


def test_cpu_is_a_placement():
    found = plan_weights("deploy.stages.code2wav.devices=cpu", "deploy.stages.talker.devices=[[],[]]", gpus=1)
    assert devices(found) == {"thinker": [(0,)], "talker": [(), ()], "code2wav": [()]}
    assert found.model.dtype == "float32"  # one type for all, and it must run on the CPU


@pytest.mark.parametrize(
    ("words", "gpus", "message"),
    [
        ("deploy.stages.talker.devices=[[2]]", 2, "there is no device 2; visible are 0 to 1 (test)"),
        ("deploy.stages.talker.devices=[[0]]", 0, "there is no device 0; no GPU is visible"),
        ("deploy.stages.talker.devices=[]", 1, "has no replica"),
        ("deploy.stages.talker.devices=[[0],[]]", 1, "mixes replicas"),
        ("deploy.stages.talker.devices=[[0,0]]", 1, "names a device twice"),
        ("deploy.stages.talker.devices=[[0,1]]", 2, "offers no tensor parallelism; [[0],[1]] is 2 replicas"),
        ("deploy.stages.code2wav.max_batch=17", 0, "takes at most 16"),
    ],
)
def test_what_cannot_be_placed_is_refused_with_its_key(words, gpus, message):
    with pytest.raises(PlanError) as caught:
        plan_weights(words, gpus=gpus)
    assert message in str(caught.value)
    assert f"{words.partition('=')[0]} (command line)" in str(caught.value)


def test_two_devices_for_one_replica_once_the_family_offers_it():
    stages = dict(family().stages)
    stages["thinker"] = type(stages["thinker"])(execution_type="llm_ar", outputs=("text",), tensor_parallel=True)
    found = plan_weights("deploy.stages.thinker.devices=[[0,1]]", gpus=2, stages=stages)
    assert devices(found)["thinker"] == [(0, 1)]


def test_a_second_device_for_negative_prompts_and_no_third():
    stages = {**family().stages}
    stages["thinker"] = dataclasses.replace(stages["thinker"], guidance_parallel=True)
    found = plan_weights("deploy.stages.thinker={devices: [[0,1]], memory_fraction: 0.5}", gpus=2, stages=stages)
    assert devices(found) == {"thinker": [(0, 1)], "talker": [(0,)], "code2wav": [(1,)]}
    with pytest.raises(PlanError, match=r"over 3 devices.* offers a second device, for negative prompts, and no more"):
        plan_weights("deploy.stages.thinker.devices=[[0,1,2]]", gpus=3, stages=stages)


def test_fractions_over_one_are_refused_with_a_table_of_all_stages():
    with pytest.raises(PlanError) as caught:
        plan("deploy=qwen3_omni/gpu2", "deploy.stages.code2wav.memory_fraction=0.5", gpus=2)
    text = str(caught.value)
    assert "on device 1 add up to 1.050" in text
    assert "conf/deploy/qwen3_omni/gpu2.yaml:4" in text
    assert "talker.0       0.550" in text
    assert "code2wav.0     0.500" in text


def test_replicas_of_one_stage_on_one_device_add_up():
    with pytest.raises(PlanError, match=r"add up to 1\.200"):
        plan_weights("deploy.stages.talker={devices: [[0],[0]], memory_fraction: 0.6}", gpus=1)


def test_nothing_left_for_an_open_fraction_is_refused():
    with pytest.raises(PlanError, match=r"deploy\.stages\.talker\.memory_fraction.*left to the planner"):
        plan_weights("deploy.stages.thinker={devices: [[0]], memory_fraction: 0.95}", gpus=1)
