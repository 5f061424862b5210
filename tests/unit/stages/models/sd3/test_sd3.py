"""A third pipeline by the same runner: one request alone equals diffusers' StableDiffusion3Pipeline."""

import json
import os
import shutil

import numpy as np
import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"

from stages.config import ModelSpec
from stages.models.cache import built_once
from stages.models.sd3 import tiny
from stages.models.sd3.contract import CONTRACTS, check_model, image
from stages.models.sd3.stepper import SD3Stepper
from tests.unit.stages.models.qwen_image.studio import Asked, Studio

TOLERANCE = 5e-5  # each step multiplies by the scale, 7, what the rounding of another tensor shape leaves


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory):
    return built_once(tmp_path_factory.mktemp("omni_cache"), tiny.NAME, tiny.write)


@pytest.fixture(scope="module")
def reference(tiny_folder):
    from diffusers import StableDiffusion3Pipeline

    pipeline = StableDiffusion3Pipeline.from_pretrained(tiny_folder)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="module")
def studio(tiny_folder):
    return Studio(
        tiny_folder, stepper=SD3Stepper(ModelSpec(path=str(tiny_folder), load_format="auto", dtype="float32"))
    )


def expected(reference, asked: Asked, output: str):
    found = reference(
        asked.prompt,
        negative_prompt=asked.negative,
        guidance_scale=asked.scale,
        width=asked.size[0],
        height=asked.size[1],
        num_inference_steps=asked.image.steps,
        sigmas=list(asked.sigmas) or None,
        generator=torch.Generator().manual_seed(asked.seed),
        output_type=output,
    ).images
    return found if output == "latent" else found[0]


@pytest.mark.parametrize(
    "asked",
    [
        Asked(scale=1.0),
        Asked(scale=1.0, size=(96, 32), steps=7, prompt="two green fish", seed=8),
        Asked(scale=1.0, sigmas=(1.0, 0.6, 0.2)),
        Asked(scale=1.0, steps=1),
    ],
    ids=lambda asked: f"{asked.size}-{asked.image.steps}",
)
def test_without_guidance_it_is_the_pipeline_s_to_the_bit(studio, reference, asked):
    drawn = studio.draw(asked).drawn[0]
    assert torch.equal(drawn.latents, expected(reference, asked, "latent"))
    assert np.array_equal(drawn.pixels, np.asarray(expected(reference, asked, "pil")))


@pytest.mark.parametrize("asked", [Asked(negative=""), Asked(negative="bad", scale=7.0, size=(32, 64), steps=6)])
def test_with_guidance_it_is_close(studio, reference, asked):
    drawn = studio.draw(asked).drawn[0]
    assert (drawn.latents - expected(reference, asked, "latent")).abs().max() <= TOLERANCE
    assert np.abs(drawn.pixels.astype(int) - np.asarray(expected(reference, asked, "pil"))).max() <= 1


def test_unequal_pictures_in_one_batch_equal_their_solo_runs(studio):
    asked = [Asked(negative="", steps=6), Asked(scale=1.0, steps=2), Asked(negative="bad", scale=7.0, prompt="sea")]
    session = studio.draw(*asked, arrivals=(0, 2, 3))
    for uid, one in enumerate(asked):
        assert (session.drawn[uid].latents - studio.draw(one).drawn[0].latents).abs().max() <= TOLERANCE
        assert session.counts()[uid] == one.steps
    assert max(len(step.rows) for step in session.steps) == 3
    other = studio.draw(Asked(negative="", steps=6, prompt="another prompt")).drawn[0]
    assert (studio.draw(asked[0]).drawn[0].pixels != other.pixels).mean() > 0.1


def test_what_is_no_picture_of_this_model_is_refused_and_a_long_prompt_noted(studio):
    assert "at most 512" in studio.draw(Asked(size=(1024, 16))).drawn[0].error
    assert "first 256 count" in studio.draw(Asked(prompt="sea " * 99, steps=1)).drawn[0].payload.scalar("warning")


def test_without_t5_it_is_the_pipeline_s_too(tiny_folder, tmp_path):
    from diffusers import StableDiffusion3Pipeline

    folder = shutil.copytree(tiny_folder, tmp_path / "copy")
    index = json.loads((folder / "model_index.json").read_text())
    for part in ("text_encoder_3", "tokenizer_3"):
        shutil.rmtree(folder / part)
        index[part] = [None, None]
    (folder / "model_index.json").write_text(json.dumps(index))
    assert check_model(str(folder), "auto") == ()
    studio = Studio(folder, stepper=SD3Stepper(ModelSpec(path=str(folder), load_format="auto", dtype="float32")))
    theirs = StableDiffusion3Pipeline.from_pretrained(folder, text_encoder_3=None, tokenizer_3=None)
    asked = Asked(scale=1.0, steps=2)
    assert torch.equal(studio.draw(asked).drawn[0].latents, expected(theirs, asked, "latent"))
    absent = folder / "tokenizer_2" / "tokenizer_config.json"
    absent.unlink()
    assert check_model(str(folder), "auto") == (f"{absent}: no such file",)
    (folder / "model_index.json").write_text("{")
    assert str(folder / "model_index.json") in check_model(str(folder), "auto")[0]


def test_a_folder_is_known_before_it_is_loaded(tiny_folder, studio):
    assert check_model(str(tiny_folder), "auto") == ()
    known = CONTRACTS["sd3"].stage_memory(str(tiny_folder), "painter", "float32")
    assert str(known.weight_bytes) == studio.facts["weight_bytes"]
    able = image(str(tiny_folder))
    assert (able.width, able.multiple, able.most_side, able.steps, able.negative_prompt) == (128, 16, 512, 8, "")


def test_what_each_encoder_leaves_of_a_prompt_is_said(studio):
    condition = studio.stepper.encode("b" * 100)
    assert condition.warning == "has 101 tokens, of which the first 77 count for CLIP"
    assert condition.tokens == 101
    both = studio.stepper.encode("b" * 300).warning
    assert both == "; ".join(
        f"has 301 tokens, of which the first {most} count for {name}" for name, most in (("CLIP", 77), ("T5", 256))
    )
