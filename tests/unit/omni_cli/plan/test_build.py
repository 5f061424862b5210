import subprocess
import sys

import pytest

from omni_cli.config.load import load_config
from omni_cli.config.schema import RequestConfig
from omni_cli.errors import PlanError
from omni_cli.plan.admission import request_problems
from omni_cli.plan.build import build_plan
from omni_cli.plan.explain import explain
from stages.errors import CheckpointError
from tests.unit.omni_cli.plan.fakes import load, machine, plan, plan_weights


def refusal(*words, **kwargs) -> str:
    with pytest.raises(PlanError) as caught:
        plan_weights(*words, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize(
    ("words", "outputs", "stages"),
    [
        ((), None, ["thinker", "talker", "code2wav"]),
        (("deploy.outputs=[text]",), None, ["thinker"]),
        (("deploy.outputs=[audio]",), None, ["thinker", "talker", "code2wav"]),
        ((), ("text",), ["thinker"]),
        (("deploy.outputs=[text,audio]",), ("text",), ["thinker", "talker", "code2wav"]),
    ],
)
def test_only_what_the_deployed_outputs_need_is_in_the_plan(words, outputs, stages):
    found = plan(*words, outputs=outputs)
    assert [stage.name for stage in found.stages] == stages
    assert all(edge.consumer in (*stages, "request") for stage in found.stages for edge in stage.consumers)


def test_the_branches_of_a_dag_are_pruned_one_by_one():
    words = ["recipe=synthetic_dag"]
    loaded = load()
    assert loaded.recipe == "synthetic"
    dag = load_config(words)
    names = [stage.name for stage in build_plan(dag, machine(0), ("audio",)).stages]
    assert names == ["thinker", "talker", "code2wav"]
    names = [stage.name for stage in build_plan(dag, machine(0), ("audio_mix",)).stages]
    assert names == ["thinker", "talker", "singer", "mixer"]


@pytest.mark.parametrize("key", ["deploy.outputs", "request.modalities"])
def test_an_output_that_no_stage_produces_is_refused(key):
    message = refusal(f"{key}=[image]")
    assert message.startswith(f"{key} (command line): no stage of pipeline `synthetic` produces `image`")
    assert "it gives text, audio" in message
    assert "is empty" in refusal(f"{key}=[]")


def test_a_request_for_what_is_not_deployed_is_refused():
    found = plan(outputs=("text",))
    (problem,) = request_problems(found, RequestConfig(modalities=("text", "audio")))
    assert str(problem) == "modalities: audio is not available in this deployment, which gives text (deploy.outputs)"


def test_an_unknown_voice_is_refused_with_the_list():
    message = refusal("request.voice=Etan")
    assert (
        "request.voice (command line): there is no speaker 'Etan'; did you mean ethan; there are ethan, chelsie"
        in message
    )
    assert plan_weights("request.voice=Ethan").voices == ("ethan", "chelsie")
    with pytest.raises(PlanError, match="has no voices"):
        plan("request.voice=Ethan")


def test_the_checkpoint_folder_is_checked_by_the_contract(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = []

    def check(path, load_format):
        asked.append((path, load_format))
        return (f"model.path: {path}: no such folder", f"{path}/b.json: no such file")

    message = refusal("model.path=./a b", "model.load_format=dummy", check_model=check)
    assert asked == [(str(tmp_path / "a b"), "dummy")]
    assert f"model.path (command line): {tmp_path}/a b: no such folder" in message
    assert f"model.path (command line): {tmp_path}/a b/b.json: no such file" in message


def test_the_embedded_default_is_asked_for_only_without_a_path():
    assert plan_weights().model.path == "/models/default"

    def broken():
        raise CheckpointError("no room")

    assert plan_weights("model.path=/x", embedded={"tiny": broken}).model.path == "/x"
    assert "the embedded checkpoint `tiny` cannot be made: no room; it is made in" in refusal(embedded={"tiny": broken})
    assert "has no embedded default" in refusal(embedded={})


def test_an_embedded_checkpoint_has_a_name_and_a_folder_of_that_name_has_a_dot(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert plan_weights("model.path=other").model.path == "/models/other"
    assert plan_weights("model.path=./other").model.path == str(tmp_path / "other")
    assert f"there is no folder {tmp_path}/othr; embedded checkpoints" in refusal("model.path=othr")
    assert "are `default`, `other`" in refusal("model.path=othr")


def test_weights_for_a_family_without_weights_are_refused():
    with pytest.raises(PlanError, match=r"model\.path .*has no weights"):
        plan("model.path=/x")


def test_a_setting_without_effect_is_refused():
    assert "deploy.stages.talker.output (command line): has no effect" in refusal("deploy.stages.talker.output.slots=3")


def test_a_retry_of_what_is_gone_when_it_is_needed_is_refused_and_no_default():
    def retries(*words: str) -> dict[str, int]:
        words = ("recipe=synthetic_dag", "pipeline.stages.talker.inputs.thinker=incremental", *words)
        return {stage.name: stage.retry for stage in build_plan(load_config(words), machine(0)).stages}

    assert retries() == {"thinker": 1, "talker": 0, "singer": 1, "code2wav": 1, "mixer": 0}
    assert retries("deploy.stages.talker.retry=0", "deploy.stages.singer.retry=3") == retries() | {"singer": 3}
    with pytest.raises(PlanError) as caught:
        retries("deploy.stages.talker.retry=1", "deploy.stages.mixer.retry=2")
    _, first, second = str(caught.value).splitlines()
    assert "deploy.stages.talker.retry (command line): is 1, but no request can be run again there" in first
    assert "its input from thinker came piece by piece" in first
    assert "from talker and singer and thinker have gone back to their rings" in second


def test_everything_that_is_wrong_is_said_at_once_with_its_place():
    message = refusal(
        "pipeline.stages.talker.execution_type=diffusion",
        "deploy.stages.thinker.devices=[[3]]",
        "deploy.stages.code2wav.max_batch=99",
        "request.modalities=[smell]",
        "deploy.outputs=[text,taste]",
        check_model=lambda path, load_format: ("config.json: no such file",),
    )
    lines = message.splitlines()
    assert lines[0] == "6 problems in the plan:"
    assert [line.split()[0].rstrip(":") for line in lines[1:]] == [
        "pipeline.stages.talker.execution_type", "deploy.outputs", "request.modalities",
        "deploy.stages.thinker.devices", "deploy.stages.code2wav.max_batch", "model.path",
    ]  # fmt: skip


def test_the_same_words_give_the_same_digest_and_any_difference_another():
    assert plan().digest == plan().digest
    words = [
        "deploy.stages.talker.threads=2",
        "synthetic.frames=3",
        "deploy.outputs=[text]",
        "deploy.drain_timeout_s=3",
    ]
    assert len({plan().digest, *(plan(word).digest for word in words)}) == 1 + len(words)


def test_the_document_is_json_with_the_digest():
    import json

    found = plan("synthetic.fail={stage: talker, at: 3}")
    document = json.loads(json.dumps(found.document()))
    assert document["digest"] == found.digest
    assert document["options"]["fail"]["stage"] == "talker"


def test_every_key_is_explained_with_its_origin():
    alien = "deploy.stages.code2wav.chunk_frames=null"  # of the file, and nothing to this family
    words = ("deploy=qwen3_omni/gpu2", alien, "request.seed=3", "deploy.stages.talker.threads=2")
    loaded = load(*words)
    lines = {line.key: (line.value, line.origin) for line in explain(loaded, build_plan(loaded, machine(2)))}
    assert set(lines) == set(loaded.keys.valid())
    assert lines["request.seed"] == (3, "command line")
    assert lines["deploy.stages.talker.threads"] == (2, "command line")
    assert lines["deploy.stages.talker.max_batch"] == (32, "conf/deploy/qwen3_omni/gpu2.yaml:4")
    assert lines["request.modalities"] == (("text", "audio"), "conf/request/speech.yaml:2")
    assert lines["deploy.stages.talker.startup_timeout_s"] == (300.0, "schema default")
    assert lines["deploy.stages.talker.inputs.thinker.connector"] == ("shm", "planner")
    assert lines["deploy.outputs"] == (["text", "audio"], "planner")
    assert lines["deploy.stages.talker.retry"] == (1, "planner")


def test_a_plan_takes_a_second_at_most_and_no_torch():
    code = (
        "import sys, time\n"
        "from omni_cli.config.load import load_config\n"
        "from omni_cli.plan.build import build_plan\n"
        "from omni_cli.plan.devices import visible_devices\n"
        "build_plan(load_config(['recipe=synthetic']), visible_devices())\n"
        "assert not {'torch', 'transformers', 'numpy', 'typer'} & set(sys.modules)\n"
        "print(time.process_time())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 3  # of the processor, and three times the aim: neighbours cost, too
