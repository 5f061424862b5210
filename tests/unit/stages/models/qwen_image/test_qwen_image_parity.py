"""One request alone equals diffusers' own pipeline on the same weights, to the bit where there is one forward."""

import numpy as np
import pytest
import torch
from PIL import Image

from stages.config import ModelSpec
from stages.models.qwen_image.stepper import QwenImageStepper
from tests.unit.stages.models.qwen_image.studio import Asked, Studio, gradient

TOLERANCE = 1e-5

PLAIN = [
    Asked(),
    Asked(prompt="two green fish", seed=7),
    Asked(size=(128, 64), steps=3),
    Asked(size=(48, 80), steps=5, seed=2**62),
    Asked(size=(16, 16), steps=2),
    Asked(steps=1),
    Asked(steps=11, prompt="李明说：“你好”🙂"),
    Asked(sigmas=(1.0, 0.7, 0.2)),
    Asked(scale=1.0, negative="without effect at this scale"),
]
GUIDED = [
    Asked(negative="bad"),
    Asked(negative="", scale=2.5, steps=3, size=(64, 32)),
    Asked(negative="a negative prompt that is longer than the prompt", scale=7.0),
    Asked(negative="equal as", scale=1.5, seed=9, steps=6),
]


def expected(reference, asked: Asked, output: str):
    """What the pipeline makes of it, as a user of it would ask."""
    found = reference(
        asked.prompt,
        negative_prompt=asked.negative,
        true_cfg_scale=asked.scale,
        width=asked.size[0],
        height=asked.size[1],
        num_inference_steps=asked.image.steps,
        sigmas=list(asked.sigmas) or None,
        generator=torch.Generator().manual_seed(asked.seed),
        output_type=output,
    ).images
    return found if output == "latent" else found[0]


def assert_equal(drawn, reference, asked: Asked):
    assert torch.equal(drawn.latents, expected(reference, asked, "latent"))
    assert (drawn.pixels == np.asarray(expected(reference, asked, "pil"))).all()


@pytest.mark.parametrize("asked", PLAIN, ids=lambda asked: f"{asked.prompt[:8]}-{asked.size}-{asked.image.steps}")
def test_without_guidance_latents_and_picture_are_equal_to_the_bit(studio, reference, asked):
    assert_equal(studio.draw(asked).drawn[0], reference, asked)


@pytest.mark.parametrize("asked", GUIDED, ids=lambda asked: f"{asked.negative[:8]}-{asked.scale}")
def test_with_guidance_one_joined_forward_is_close_and_two_are_equal(studio, two_forwards, reference, asked):
    session = studio.draw(asked)
    difference = session.drawn[0].latents - expected(reference, asked, "latent")
    assert difference.abs().max() <= TOLERANCE
    denoised = [dict(step.counters) for step in session.steps if step.rows[0].phase == "denoise"]
    assert denoised == [{"forwards": 1, "forward_rows": 2}] * asked.steps
    session = two_forwards.draw(asked)
    assert_equal(session.drawn[0], reference, asked)
    assert dict(session.steps[1].counters) == {"forwards": 2, "forward_rows": 2}


@pytest.fixture(scope="module")
def two_forwards(tiny_folder):
    return Studio(tiny_folder, joined=False)


def test_a_large_picture_is_decoded_in_tiles_as_the_pipeline_does(tiny_folder, reference):
    asked = Asked(size=(112, 112), steps=1)
    model = ModelSpec(path=str(tiny_folder), load_format="auto", dtype="float32")
    studio = Studio(tiny_folder, stepper=QwenImageStepper(model, tiled_pixels=112 * 111))
    tiles = {"tile_sample_min_height": 64, "tile_sample_min_width": 64}
    tiles |= {"tile_sample_stride_height": 48, "tile_sample_stride_width": 48}
    start = Asked(picture=gradient(100, 100), size=(96, 96), steps=3)
    before = studio.draw(start).drawn[0]
    whole = studio.draw(asked).drawn[0]
    for vae in (studio.stepper._pipeline.vae, reference.vae):
        vae.enable_tiling(**tiles)
    try:
        tiled = studio.draw(asked).drawn[0]
        assert torch.equal(studio.draw(start).drawn[0].latents, before.latents)  # a picture is encoded whole
        assert_equal(tiled, reference, asked)
    finally:
        reference.vae.disable_tiling()
    assert (tiled.pixels != whole.pixels).any()
    assert studio.draw(Asked()).drawn[0].pixels is not None
    assert studio.stepper._pipeline.vae.use_tiling is False  # for the small one


def test_the_prompt_the_seed_and_the_guidance_act(studio):
    asked = [Asked(), Asked(prompt="two green fish"), Asked(seed=2), Asked(negative="bad")]
    pictures = [studio.draw(one).drawn[0].pixels for one in asked]
    assert all((picture != pictures[0]).mean() > 0.1 for picture in pictures[1:])


def test_a_prompt_that_is_too_long_counts_up_to_a_limit_and_the_result_says_so(studio, reference):
    asked = Asked(prompt="sea " * 2000, steps=1)
    drawn = studio.draw(asked).drawn[0]
    assert_equal(drawn, reference, asked)
    assert drawn.payload.scalar("warning") == "the prompt has 6006 tokens, of which the first 512 count"


def test_what_is_no_prompt_is_refused(studio):
    assert "100000 are read" in studio.draw(Asked(prompt="a" * 100_001)).drawn[0].error
    assert "multiples of 16" in studio.draw(Asked(size=(64, 40))).drawn[0].error


@pytest.mark.parametrize(
    "asked",
    [
        Asked(picture=gradient(64, 64), steps=5),
        Asked(picture=gradient(90, 50), size=(64, 32), steps=7, strength=0.35, seed=3, negative="bad"),
        Asked(picture=gradient(64, 64), steps=4, strength=1.0),
        Asked(picture=gradient(8, 200), steps=1, strength=0.01),
    ],
    ids=lambda asked: f"{asked.picture.shape}-{asked.strength}",
)
def test_from_a_picture_it_equals_the_pipeline_for_that(two_forwards, studio, reference, asked):
    from diffusers import QwenImageImg2ImgPipeline

    pipeline = QwenImageImg2ImgPipeline(**reference.components)
    pipeline.set_progress_bar_config(disable=True)

    def made(output: str):
        return pipeline(
            asked.prompt, image=Image.fromarray(asked.picture), strength=asked.strength,
            negative_prompt=asked.negative, true_cfg_scale=asked.scale, width=asked.size[0], height=asked.size[1],
            num_inference_steps=asked.steps, generator=torch.Generator().manual_seed(asked.seed), output_type=output,
        ).images  # fmt: skip

    session = two_forwards.draw(asked)
    assert torch.equal(session.drawn[0].latents, made("latent"))
    assert (session.drawn[0].pixels == np.asarray(made("pil")[0])).all()
    assert session.counts()[0] == asked.steps - int(max(asked.steps - asked.steps * asked.strength, 0))
    assert (studio.draw(asked).drawn[0].latents - session.drawn[0].latents).abs().max() <= TOLERANCE
    scaled = asked.picture.shape[1::-1] != asked.size
    assert ("was scaled to" in dict(session.drawn[0].payload.meta).get("warning", "")) is scaled


def test_pictures_and_texts_share_their_steps(studio):
    asked = [Asked(picture=gradient(64, 64), steps=6), Asked(steps=6), Asked(picture=gradient(64, 64), steps=6, seed=9)]
    session = studio.draw(*asked)
    for uid, one in enumerate(asked):
        assert (session.drawn[uid].latents - studio.draw(one).drawn[0].latents).abs().max() <= TOLERANCE
    assert max(len(step.rows) for step in session.steps) == 3
