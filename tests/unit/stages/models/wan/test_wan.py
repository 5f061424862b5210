"""Videos by the same runner: one request alone equals diffusers' WanPipeline to the bit, in company it stays close."""

import os

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

os.environ["HF_HUB_OFFLINE"] = "1"

from stages.config import ModelSpec
from stages.models.cache import built_once
from stages.models.pipeline_folder import DEFAULTS_FILE
from stages.models.wan import tiny
from stages.models.wan.contract import CONTRACTS, EXACT, check_model, video
from stages.models.wan.stepper import WanStepper
from tests.unit.stages.models.qwen_image.studio import Asked, Studio

TOLERANCE = 5e-5  # each step multiplies by the scale, 5, what the rounding of another tensor shape leaves
SMALL = {"size": (32, 16), "frames": 5, "scale": 5.0}


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory):
    return built_once(tmp_path_factory.mktemp("omni_cache"), tiny.NAME, tiny.write)


@pytest.fixture(scope="module")
def reference(tiny_folder):
    """By hand, since `from_pretrained` needs a package more for this transformer."""
    from diffusers import WanPipeline, WanTransformer3DModel

    transformer = WanTransformer3DModel.from_config(WanTransformer3DModel.load_config(tiny_folder / "transformer"))
    weights = load_file(tiny_folder / "transformer" / "diffusion_pytorch_model.safetensors")
    transformer.load_state_dict(weights, assign=True)
    pipeline = WanPipeline.from_pretrained(tiny_folder, transformer=transformer.eval())
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def studio(folder, **options) -> Studio:
    model = ModelSpec(path=str(folder), load_format="auto", dtype="float32")
    return Studio(folder, stepper=WanStepper(model), **options)


@pytest.fixture(scope="module")
def two_forwards(tiny_folder):
    return studio(tiny_folder, joined=False)


@pytest.fixture(scope="module")
def joined(tiny_folder):
    return studio(tiny_folder)


def expected(reference, asked: Asked, output: str):
    found = reference(
        asked.prompt,
        negative_prompt=asked.negative,
        guidance_scale=asked.scale,
        width=asked.size[0],
        height=asked.size[1],
        num_frames=asked.frames,
        num_inference_steps=asked.steps,
        generator=torch.Generator().manual_seed(asked.seed),
        output_type=output,
    ).frames
    return found if output == "latent" else found[0]


@pytest.mark.parametrize(
    "asked",
    [
        Asked(**{**SMALL, "scale": 1.0}),
        Asked(**SMALL, negative="", steps=6),
        Asked(**{**SMALL, "size": (48, 32), "frames": 9}, negative="bad", prompt="two  green\nfish", seed=9),
        Asked(**SMALL, negative="bad", steps=1),
    ],
    ids=lambda asked: f"{asked.frames}-{asked.scale}-{asked.negative}-{asked.steps}",
)
def test_one_request_alone_is_what_the_pipeline_makes(two_forwards, joined, reference, asked):
    drawn = two_forwards.draw(asked).drawn[0]
    assert torch.equal(drawn.latents, expected(reference, asked, "latent"))
    assert np.array_equal(drawn.pixels, (expected(reference, asked, "np") * 255).round().astype("uint8"))
    assert drawn.payload.scalar("fps") == 16.0
    assert (joined.draw(asked).drawn[0].latents - drawn.latents).abs().max() <= TOLERANCE


def test_unequal_videos_in_one_batch_equal_their_solo_runs(joined):
    asked = [
        Asked(**SMALL, negative="", steps=7),
        Asked(**{**SMALL, "scale": 1.0}, prompt="sea", steps=2),
        Asked(**{**SMALL, "frames": 9}, negative="bad", steps=4),
        Asked(**SMALL, negative="", steps=4, seed=5, prompt="a longer prompt than the others have"),
    ]
    session = joined.draw(*asked, arrivals=(0, 1, 2, 3))
    for uid, one in enumerate(asked):
        alone = joined.draw(one).drawn[0]
        assert (session.drawn[uid].latents - alone.latents).abs().max() <= TOLERANCE
        assert session.drawn[uid].pixels.shape == (one.frames, one.size[1], one.size[0], 3)
        assert session.counts()[uid] == one.steps
    assert max(len(step.rows) for step in session.steps) >= 3
    assert set(dict(session.gauges).values()) == {0}


def test_what_is_no_video_of_this_model_is_refused(joined):
    assert "1 more than a multiple of 4" in joined.draw(Asked(size=(32, 16), frames=6)).drawn[0].error
    assert "multiples of 16" in joined.draw(Asked(size=(32, 24), frames=5)).drawn[0].error
    (warning,) = (value for name, value in joined.draw(Asked(**SMALL, prompt="sea " * 200)).drawn[0].payload.meta
                  if name == "warning")  # fmt: skip
    assert "of which the first 512 count" in warning


def test_a_folder_is_known_before_it_is_loaded(tiny_folder, tmp_path, joined):
    assert check_model(str(tiny_folder), "auto") == ()
    whole, half = (
        CONTRACTS["wan"].stage_memory(str(tiny_folder), "painter", dtype).weight_bytes
        for dtype in ("float32", "bfloat16")
    )
    assert str(whole) == joined.facts["weight_bytes"]  # its tied embedding counts once
    stepper = WanStepper(ModelSpec(path=str(tiny_folder), load_format="auto", dtype="bfloat16"))
    assert half == stepper.load([torch.device("cpu")], torch.bfloat16)  # parts of which stay float32
    assert set(EXACT) == {*stepper._pipeline.transformer._keep_in_fp32_modules} - {"rope"}  # which has no weights
    able = video(str(tiny_folder))
    assert (able.width, able.height, able.frames, able.multiple, able.frame_multiple) == (64, 48, 9, 16, 4)
    assert able.negative_prompt == ""
    for part in tiny_folder.iterdir():
        if part.name not in ("model_index.json", DEFAULTS_FILE):
            (tmp_path / part.name).symlink_to(part)
    index = (tiny_folder / "model_index.json").read_text()
    (tmp_path / "model_index.json").write_text(index.replace('"boundary_ratio": null', '"boundary_ratio": 0.9'))
    assert "two transformers" in check_model(str(tmp_path), "auto")[0]
    assert (video(str(tmp_path)).width, video(str(tmp_path)).frames) == (832, 81)
