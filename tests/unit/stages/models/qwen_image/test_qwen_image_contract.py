"""What is known of a checkpoint folder before it is loaded, and what loading holds it to."""

import json
import shutil
from random import Random

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils.flop_counter import FlopCounterMode

from stages.config import ModelSpec
from stages.errors import CheckpointError
from stages.messages import ImageParams
from stages.models import random_weights
from stages.models.pipeline_folder import DEFAULTS_FILE
from stages.models.qwen_image import tiny
from stages.models.qwen_image.contract import CONTRACTS, check_model, image
from stages.models.qwen_image.measured import sized, step_flops
from stages.models.qwen_image.stepper import QwenImageStepper
from stages.models.registry import RequestSize
from tests.unit.stages.models.qwen_image.studio import Asked, Studio


@pytest.fixture
def copied(tiny_folder, tmp_path):
    return shutil.copytree(tiny_folder, tmp_path / "copy")


def rewrite(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_whole_folder_has_no_problems(tiny_folder):
    assert check_model(str(tiny_folder), "auto") == ()


@pytest.mark.parametrize("name", ["model_index.json", "vae/config.json", "tokenizer/tokenizer_config.json"])
def test_a_missing_file_is_named(copied, name):
    (copied / name).unlink()
    (problem,) = check_model(str(copied), "dummy")
    assert problem == f"{copied / name}: no such file"


def test_another_pipeline_and_a_cut_shard_are_named(copied):
    with (copied / "vae" / "diffusion_pytorch_model.safetensors").open("r+b") as file:
        file.truncate(5000)
    (problem,) = check_model(str(copied), "auto")
    assert "vae/diffusion_pytorch_model.safetensors: truncated" in problem
    assert check_model(str(copied), "dummy") == ()
    rewrite(copied / "transformer" / "config.json", guidance_embeds=True)
    assert "distilled" in check_model(str(copied), "dummy")[0]
    rewrite(copied / "model_index.json", _class_name="FluxPipeline")
    (problem,) = check_model(str(copied), "dummy")
    assert "'FluxPipeline', not 'QwenImagePipeline'" in problem
    assert check_model(str(copied / "absent"), "auto") == (f"model.path: {copied / 'absent'}: no such folder",)


def test_defaults_are_the_pipeline_s_own_unless_the_folder_has_others(copied):
    assert (image(str(copied)).width, image(str(copied)).steps) == (128, 8)
    (copied / DEFAULTS_FILE).unlink()
    rewrite(copied / "scheduler" / "scheduler_config.json", shift_terminal=0.02)
    found = image(str(copied))
    assert (found.width, found.height, found.steps, found.true_cfg_scale) == (1024, 1024, 50, 4.0)
    assert (found.multiple, found.least_steps, found.most_side) == (16, 2, 32768)


def test_the_embedded_default_is_built_once_and_from_values_alone(tiny_folder, tmp_path, monkeypatch):
    again = tmp_path / "again"
    tiny.write(again)
    for path in tiny_folder.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (again / path.relative_to(tiny_folder)).read_bytes(), path
    monkeypatch.setattr(random_weights.sys, "executable", "false")
    monkeypatch.setenv("OMNI_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="exit code 1"):
        CONTRACTS["qwen_image"].embedded["tiny"]()
    assert list((tmp_path / "checkpoints").iterdir()) == []


def load(folder, load_format="auto"):
    return QwenImageStepper(ModelSpec(path=str(folder), load_format=load_format, dtype="float32")).load(
        [torch.device("cpu")], torch.float32
    )


def test_what_a_stage_will_hold_is_what_it_holds(tiny_folder, studio):
    known = CONTRACTS["qwen_image"].stage_memory
    assert str(known(str(tiny_folder), "painter", "float32").weight_bytes) == studio.facts["weight_bytes"]
    split = [known(str(tiny_folder), stage, "bfloat16").weight_bytes for stage in ("text_encoder", "denoiser", "vae")]
    assert sum(split) - split[2] == int(studio.facts["weight_bytes"]) / 2


def test_a_noise_scheduler_that_nobody_knows_is_named(copied):
    rewrite(copied / "scheduler" / "scheduler_config.json", _class_name="ImagePipelineOutput")
    with pytest.raises(CheckpointError, match=r"scheduler_config\.json: _class_name names no noise scheduler"):
        load(copied)


@pytest.mark.parametrize("part", ["vae", "transformer"])
def test_a_missing_and_an_unexpected_tensor_are_named(copied, part):
    path = copied / part / "diffusion_pytorch_model.safetensors"
    tensors = load_file(path)
    name, value = tensors.popitem()
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=f"missing.*{name}"):
        load(copied)
    save_file({**tensors, name: value, "spare": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="not have: spare"):
        load(copied)


def test_random_weights_need_no_files(copied):
    for path in copied.rglob("*.safetensors"):
        path.unlink()
    model = ModelSpec(path=str(copied), load_format="dummy", dtype="float32")
    drawn = Studio(copied, stepper=QwenImageStepper(model)).draw(Asked(negative="bad", steps=2)).drawn[0]
    assert drawn.pixels.shape == (64, 64, 3)


def test_the_published_schedule_with_its_end_stretched_is_the_pipeline_s(copied):
    from diffusers import QwenImagePipeline

    from tests.unit.stages.models.qwen_image.test_qwen_image_parity import assert_equal

    rewrite(copied / "scheduler" / "scheduler_config.json", shift_terminal=0.02)
    reference = QwenImagePipeline.from_pretrained(copied)
    reference.set_progress_bar_config(disable=True)
    studio, asked = Studio(copied), Asked(steps=5)
    assert_equal(studio.draw(asked).drawn[0], reference, asked)
    assert "not finite after 1 steps" in studio.draw(Asked(steps=1)).drawn[0].error


@pytest.mark.parametrize(("size", "tokens"), [((64, 64), 60), ((128, 32), 99)])
def test_the_operations_of_a_step_are_those_that_torch_counts(reference, tiny_folder, size, tokens):
    width, height = size
    config, count = reference.transformer.config, FlopCounterMode(display=False)
    with torch.device("meta"), torch.no_grad():
        transformer = type(reference.transformer).from_config(config)
        with count:
            transformer(
                hidden_states=torch.zeros(1, width * height // 256, config.in_channels),
                timestep=torch.zeros(1),
                encoder_hidden_states=torch.zeros(1, tokens - 34, config.joint_attention_dim),
                encoder_hidden_states_mask=None,
                img_shapes=[[(1, height // 16, width // 16)]],
            )
    plain = ImageParams(width=width, height=height, steps=1)
    guided = ImageParams(width=width, height=height, steps=1, negative_prompt="", true_cfg_scale=4.0)
    found = [step_flops(str(tiny_folder), image, tokens) for image in (plain, guided)]
    assert found == [count.get_total_flops(), 2 * count.get_total_flops()]


def test_a_request_for_measuring_has_as_many_tokens_as_it_says(reference):
    size = RequestSize(prompt_tokens=77, text_tokens=1, frames=1)
    prompt = sized(size, Random(1))["prompt"]
    assert len(reference.tokenizer(reference.prompt_template_encode.format(prompt)).input_ids) == 77
