"""What is refused, decided and noted of a picture that is asked for, before anything starts."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from omni_cli.config.image import ImageConfig
from omni_cli.config.load import load_config
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import Inventory
from omni_cli.plan.drawing import content_problems, drawing, drawing_problems, generation
from stages.messages import ChatMessage, ImageParams, Part
from stages.models.registry import ImageContract
from stages.payload import Tensor

ABLE = ImageContract(
    width=64, height=32, steps=8, multiple=16, most_pixels=2048 * 2048, least_steps=2, true_cfg_scale=4.0
)

PICTURE = Tensor(name="media0", dtype="uint8", shape=(50, 90, 3), data=memoryview(bytes(50 * 90 * 3)))


@pytest.fixture(scope="module")
def plan():
    plan = build_plan(load_config(("recipe=synthetic",)), Inventory.imagined(0))
    return plan.model_copy(update={"image": ABLE})


def problems(plan, **asked) -> list[str]:
    return [str(problem) for problem in drawing_problems(plan, ImageConfig(**asked), "request.")]


@pytest.mark.parametrize("size", ["512x512", "512X512", "512x2048", "16x16", "2048x2048", "auto", None])
def test_a_size_that_the_model_can_do_is_drawn_as_it_is(plan, size):
    assert problems(plan, size=size) == []
    params, notes = drawing(ABLE, ImageConfig(size=size))
    given = size.lower() if size not in ("auto", None) else "64x32"
    assert (f"{params.width}x{params.height}", notes) == (given, ())


@pytest.mark.parametrize(
    ("size", "says"),
    [
        ("513x512", "multiples of 16; the nearest are 512x512, 528x512"),
        ("520x500", "the nearest are 512x496, 528x512"),
        ("3x512", "the nearest are 16x512, 32x512"),
        ("2047x2049", "the nearest are 2032x2048, 2048x2048"),
        ("100000x10000", "has 1000000000 pixels, more than 4194304 (as 2048x2048)"),
    ],
)
def test_another_size_is_refused_with_what_would_do(plan, size, says):
    (problem,) = problems(plan, size=size)
    assert "request.image.size" in problem
    assert says in problem


@pytest.mark.parametrize(
    "asked",
    [
        *({"size": size} for size in ("0x512", "-16x512", "512", "", "512x", "x", "512x512x3", 512, "５12x512")),
        *({"steps": steps} for steps in (0, -1, 1.5, "8", 10**6, True)),
        *({"true_cfg_scale": scale} for scale in (-1.0, float("nan"), 1e9, "4")),
        *({"n": n} for n in (0, -1, 1000)),
        *({"strength": strength} for strength in (0.0, 1.1)),
        *({"sigmas": sigmas} for sigmas in ((0.0,), (1.5,), ("1",))),
        {"negative_prompt": 5},
        {"format": "gif"},
        {"guidance_scale": 7.0},
    ],
    ids=str,
)
def test_what_is_out_of_range_is_refused_by_the_schema(asked):
    with pytest.raises(ValidationError):
        ImageConfig(**asked)


@pytest.mark.parametrize("asked", [{"steps": 1}, {"sigmas": (1.0,)}])
def test_fewer_steps_than_the_noise_schedule_needs_are_refused(plan, asked):
    (problem,) = problems(plan, **asked)
    assert "needs 2 steps at least" in problem


@pytest.mark.parametrize(
    ("able", "asked", "says"),
    [
        ({}, {"frames": 5}, "draws single pictures"),
        ({"most_frames": 33, "frame_multiple": 4}, {"frames": 10}, "1 more than a multiple of 4: 9, 13"),
        ({"most_frames": 33, "frame_multiple": 4}, {"frames": 37}, "at most 33"),
        ({"most_side": 512}, {"size": "1024x16"}, "a side has 512 pixels at most"),
        ({"sigmas": False}, {"sigmas": (1.0, 0.5)}, "takes no other levels"),
        ({}, {"sigmas": (0.5, 1.0)}, "ends with 1; the noise schedule of this checkpoint needs 0.999 or less"),
    ],
)
def test_what_this_model_does_not_draw_is_refused(plan, able, asked, says):
    (problem,) = problems(plan.model_copy(update={"image": replace(ABLE, **able)}), **asked)
    assert says in problem


def test_a_picture_to_start_from_brings_a_strength():
    able = replace(ABLE, strength=0.6, most_pictures=1)
    params, _ = drawing(able, ImageConfig(), [PICTURE])
    assert (params.strength, params.pictures, params.width, params.height) == (0.6, ((90, 50),), 64, 32)
    params, notes = drawing(able, ImageConfig(strength=0.3), [PICTURE])
    assert (params.strength, notes) == (0.3, ())


def test_what_is_edited_keeps_its_shape_and_has_no_strength():
    able = replace(ABLE, least_pictures=1, most_pictures=2, width=128, height=128)
    params, (note,) = drawing(able, ImageConfig(strength=0.3), [PICTURE, PICTURE])
    assert (params.strength, params.pictures, params.width, params.height) == (None, ((90, 50),) * 2, 160, 96)
    assert note == "image.strength has no effect on a model that edits"
    params, _ = drawing(able, ImageConfig(size="32x32"), [PICTURE])
    assert (params.width, params.height) == (32, 32)


@pytest.mark.parametrize(
    ("least", "most", "count", "says"),
    [
        (0, 1, 2, "drawn from one picture at most, not from 2"),
        (1, 1, 0, "edits one picture, and none came"),
        (1, 1, 2, "edits one picture, and 2 came"),
        (1, 8, 9, "edits 1 to 8 pictures, and 9 came"),
    ],
)
def test_how_many_pictures_may_come_with_a_prompt(least, most, count, says):
    able = replace(ABLE, least_pictures=least, most_pictures=most)
    parts = (Part(kind="text", text="red"), *(Part(kind="image", media=f"media{at}") for at in range(count)))
    (problem,) = content_problems(able, [ChatMessage(role="user", parts=parts)])
    assert (problem.key, says in problem.message) == ("images", True)
    enough = (*parts[:1], Part(kind="image", media="media0"))
    assert list(content_problems(able, [ChatMessage(role="user", parts=enough)])) == []


@pytest.mark.parametrize(("every", "strength", "shown"), [(7, None, True), (8, None, False), (4, 0.5, False)])
def test_a_preview_that_would_be_the_picture_is_noted(every, strength, shown):
    able = replace(ABLE, strength=1.0)
    asked = ImageConfig(preview_every=every, strength=strength)
    _, notes = drawing(able, asked, [PICTURE] if strength else [])
    assert [note for note in notes if "preview" in note] == (
        [] if shown else [f"image.preview_every has no effect: the picture is done after {every} steps"]
    )


def test_previews_need_a_stage_that_decodes():
    assert drawing(ABLE, ImageConfig(preview_every=2))[0].preview_every == 2
    params, (note,) = drawing(ABLE, ImageConfig(preview_every=2), previews=False)
    assert params.preview_every == 0
    assert "does not decode" in note


def test_a_model_may_guide_without_being_asked_to():
    able = replace(ABLE, negative_prompt="", most_frames=33, frame_multiple=4, frames=9)
    params, notes = drawing(able, ImageConfig(true_cfg_scale=3.0))
    assert (params.guided, params.frames, notes) == (True, 9, ())
    params, notes = drawing(able, ImageConfig(true_cfg_scale=1.0, frames=5, format="webp"))
    assert (params.guided, params.frames) == (False, 5)
    assert notes == ("image.format has no effect on a video, which is an mp4",)


def test_a_pipeline_that_draws_nothing_refuses_to(plan):
    blind = plan.model_copy(update={"image": None})
    assert problems(blind) == []
    (problem,) = problems(blind, steps=4)
    assert "request.image" in problem
    assert "draws no pictures" in problem


@pytest.mark.parametrize(
    ("asked", "guided", "says"),
    [
        ({}, False, ""),
        ({"negative_prompt": "red"}, True, ""),
        ({"negative_prompt": "", "true_cfg_scale": 2.5}, True, ""),
        ({"negative_prompt": "red", "true_cfg_scale": 1.0}, False, "negative_prompt has no effect"),
        ({"negative_prompt": "red", "true_cfg_scale": 0.0}, False, "negative_prompt has no effect"),
        ({"true_cfg_scale": 4.0}, False, "true_cfg_scale has no effect without"),
        ({"strength": 0.5}, False, "strength has no effect"),
        ({"sigmas": (1.0, 0.5), "steps": 9}, False, "steps has no effect beside"),
    ],
)
def test_what_cannot_act_is_noted(asked, guided, says):
    params, notes = drawing(ABLE, ImageConfig(**asked))
    assert params.guided is guided
    assert len(notes) == bool(says)
    assert says in "".join(notes)


def test_a_model_that_was_trained_at_one_size_says_so_of_others():
    able = replace(ABLE, one_size=True)
    assert drawing(able, ImageConfig(size="64x32"))[1] == drawing(able, ImageConfig())[1] == ()
    (said,) = drawing(able, ImageConfig(size="64x64"))[1]
    assert "was trained at 64x32 alone" in said


def test_a_model_of_one_size_draws_16_times_its_pixels_at_most(plan):
    small = plan.model_copy(update={"image": replace(ABLE, one_size=True)})
    assert problems(small, size="256x128") == []
    (problem,) = problems(small, size="1024x1024")
    assert "more than 32768 (as 181x181); this model was trained at 64x32 alone" in problem


def test_a_model_without_guidance_says_so():
    params, (note,) = drawing(
        ImageContract(width=64, height=64, steps=4, multiple=8, most_pixels=4096), ImageConfig(negative_prompt="red")
    )
    assert not params.guided
    assert "knows no guidance" in note


def test_a_file_says_what_it_takes_to_draw_it_again(plan):
    params = ImageParams(width=64, height=32, steps=3, true_cfg_scale=2.5, negative_prompt="", sigmas=(1.0, 0.5, 0.1))
    assert generation(params, "a bell", 7, plan) == {
        "prompt": "a bell", "negative_prompt": "", "true_cfg_scale": "2.5", "seed": "7", "size": "64x32", "steps": "3",
        "sigmas": "[1.0, 0.5, 0.1]", "model": "", "recipe": "synthetic", "software": "omni",
    }  # fmt: skip
