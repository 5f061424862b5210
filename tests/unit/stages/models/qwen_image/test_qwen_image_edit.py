"""The pipelines that edit: one request alone equals diffusers' own to the bit, and in company or split its solo run."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from stages.config import ModelSpec, StageTuning
from stages.models.cache import built_once
from stages.models.qwen_image import edit, tiny
from stages.models.qwen_image.contract import CONTRACTS, check_model, edge_bytes, edited, image
from tests.unit.stages.models.qwen_image.studio import Asked, Studio, gradient, replays
from tests.unit.stages.models.qwen_image.test_qwen_image_batches import assert_alike
from tests.unit.stages.models.qwen_image.test_qwen_image_parity import TOLERANCE
from tests.unit.stages.models.qwen_image.test_qwen_image_split import Chain, pixels

EDIT, PLUS = tiny.EDITS.values()
WIDE, TALL, SMALL = gradient(90, 50), 255 - gradient(40, 77), gradient(33, 31)
PLAIN = [
    (EDIT, Asked(edited=(WIDE,))),
    (EDIT, Asked(edited=(TALL,), size=(48, 80), steps=2, prompt="李明说：“你好”🙂", seed=7)),
    (EDIT, Asked(edited=(SMALL,), sigmas=(1.0, 0.7, 0.2), scale=1.0, negative="without effect at this scale")),
    (PLUS, Asked(edited=(WIDE,), steps=1)),
    (PLUS, Asked(edited=(WIDE, TALL))),
    (PLUS, Asked(edited=(TALL, SMALL, WIDE), size=(32, 16), seed=2**62)),
]
GUIDED = [
    (EDIT, Asked(edited=(WIDE,), negative="bad", steps=3)),
    (PLUS, Asked(edited=(TALL, WIDE), negative="", scale=2.5, size=(64, 32))),
]


class Desk:
    """A pipeline's tiny folder, diffusers' own over it, and stages that draw with it."""

    def __init__(self, root, kind: str) -> None:
        import diffusers

        self.folder = built_once(root, tiny.named(kind), lambda folder: tiny.write(folder, kind))
        processor = edit._Processor(self.folder / "processor")
        self.reference = getattr(diffusers, kind).from_pretrained(self.folder, processor=processor)
        self.reference.set_progress_bar_config(disable=True)
        self.model = ModelSpec(path=str(self.folder), load_format="auto", dtype="float32")

    def studio(self, ahead=False, **settings) -> Studio:
        return Studio(self.folder, stepper=edit.QwenImageEditStepper(self.model, ahead=ahead), **settings)

    def expected(self, asked: Asked, output: str):
        pictures = [Image.fromarray(picture) for picture in asked.edited]
        found = self.reference(
            image=pictures if len(pictures) > 1 else pictures[0], prompt=asked.prompt, negative_prompt=asked.negative,
            true_cfg_scale=asked.scale, num_inference_steps=asked.image.steps, sigmas=list(asked.sigmas) or None,
            generator=torch.Generator().manual_seed(asked.seed), output_type=output,
            width=asked.size[0], height=asked.size[1],
        ).images  # fmt: skip
        return found if output == "latent" else found[0]

    def assert_equal(self, drawn, asked: Asked) -> None:
        assert torch.equal(drawn.latents, self.expected(asked, "latent"))
        assert (drawn.pixels == np.asarray(self.expected(asked, "pil"))).all()


@pytest.fixture(scope="module")
def desks(tmp_path_factory):
    """With the areas of the tiny folders in diffusers' own code too."""
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus

    root = tmp_path_factory.mktemp("desks")
    found = {kind: Desk(root, kind) for kind in (EDIT, PLUS)}
    published = pipeline_qwenimage_edit_plus.calculate_dimensions
    areas = dict(zip((1024 * 1024, 384 * 384), edited(found[PLUS].folder), strict=True))
    assert edited(found[EDIT].folder) == (areas[1024 * 1024],) * 2
    with pytest.MonkeyPatch.context() as patch:
        own = lambda area, ratio: published(areas[area], ratio)  # noqa: E731
        patch.setattr(pipeline_qwenimage_edit_plus, "calculate_dimensions", own)
        patch.setattr(pipeline_qwenimage_edit, "calculate_dimensions", lambda *of: (*own(*of), None))
        yield found


@pytest.fixture(scope="module")
def studios(desks):
    return {kind: desk.studio() for kind, desk in desks.items()}


@pytest.mark.parametrize(("kind", "asked"), PLAIN)
def test_without_guidance_latents_and_picture_are_equal_to_the_bit(desks, studios, kind, asked):
    session = studios[kind].draw(asked)
    desks[kind].assert_equal(session.drawn[0], asked)
    assert "warning" not in dict(session.drawn[0].payload.meta)


@pytest.mark.parametrize(("kind", "asked"), GUIDED)
def test_with_guidance_one_joined_forward_is_close_and_two_are_equal(desks, studios, kind, asked):
    session = studios[kind].draw(asked)
    assert (session.drawn[0].latents - desks[kind].expected(asked, "latent")).abs().max() <= TOLERANCE
    denoised = [dict(step.counters) for step in session.steps if step.rows[0].phase == "denoise"]
    assert denoised == [{"forwards": 1, "forward_rows": 2}] * asked.steps
    desks[kind].assert_equal(desks[kind].studio(joined=False).draw(asked).drawn[0], asked)


@pytest.mark.parametrize("kind", [EDIT, PLUS])
@pytest.mark.parametrize("picture", [WIDE, TALL, SMALL])
def test_without_a_size_it_has_the_shape_and_the_area_that_diffusers_gives_it(desks, kind, picture):
    drawn = desks[kind].reference(Image.fromarray(picture), "red", num_inference_steps=1).images[0]
    assert drawn.size == image(str(desks[kind].folder)).default_size([(8, 8), picture.shape[1::-1]])


def test_in_company_each_equals_its_solo_run_and_only_rows_with_equal_pictures_share(studios):
    studio = studios[PLUS]
    asked = [
        Asked(edited=(WIDE,), steps=7, negative="bad", seed=3),
        Asked(edited=(TALL,), steps=4, prompt="a blue house"),
        Asked(edited=(255 - WIDE,), steps=4, prompt="another picture of the same size"),
        Asked(edited=(WIDE, TALL), steps=3, scale=2.0, negative=""),
        Asked(edited=(WIDE,), steps=20, prompt="cancelled on its way"),
    ]
    session = studio.draw(*asked, arrivals=(0, 1, 2, 0, 1), leaving={4: 12})
    for uid, one in enumerate(asked[:4]):
        assert_alike(session.drawn[uid], studio.draw(one).drawn[0])
    counts = session.counts()
    assert [counts[uid] for uid in range(4)] == [7, 4, 4, 3]
    assert session.cancelled == {4}
    together = {frozenset(row.uid for row in step.rows) for step in session.steps if step.rows[0].phase == "denoise"}
    assert {0, 2} < max(together, key=len)
    assert all(len(rows & {0, 1, 3}) <= 1 for rows in together)
    assert set(dict(session.gauges).values()) == {0}


def test_the_pictures_the_prompt_and_their_order_act(studios):
    asked = [
        Asked(edited=(WIDE, TALL)),
        Asked(edited=(TALL, WIDE)),
        Asked(edited=(WIDE, 255 - TALL)),
        Asked(edited=(WIDE, TALL), prompt="two green fish"),
    ]
    drawn = [studios[PLUS].draw(one).drawn[0].pixels for one in asked]
    assert all((picture != drawn[0]).mean() > 0.1 for picture in drawn[1:])


def test_what_a_request_takes_counts_its_pictures(studios):
    one, two = (studios[PLUS].stepper.denoising(Asked(edited=(WIDE,) * count).image) for count in (1, 2))
    assert (one.tokens, two.tokens) == (16 + 12, 16 + 24)
    assert one.shape != two.shape
    assert studios[PLUS].stepper.denoising(Asked(edited=(WIDE,), negative="").image).tokens == 2 * one.tokens
    meta = dict(studios[PLUS].draw(Asked(edited=(WIDE,), steps=1)).drawn[0].payload.meta)
    read = studios[PLUS].stepper.pipeline.tokenizer
    words = read("Picture 1: ").input_ids + read("a red boat").input_ids
    assert meta["prompt_tokens"] - meta["seen_tokens"] == len(words) + 2 + 5  # around the picture, and behind the text


def test_what_cannot_be_edited_is_refused(studios, monkeypatch):
    studio = studios[EDIT]
    assert "brings none" in studio.draw(Asked()).drawn[0].error
    line = np.zeros((1, 101, 3), np.uint8)
    assert "101x1: a side may be at most 100 times" in studio.draw(Asked(edited=(line,))).drawn[0].error
    assert "100000 are read" in studio.draw(Asked(edited=(WIDE,), prompt="a" * 100_001)).drawn[0].error
    monkeypatch.setattr(edit, "EDIT_TOKENS", 150)
    assert "at most 150 are read" in studio.draw(Asked(edited=(WIDE,), prompt="sea " * 30)).drawn[0].error
    assert studio.draw(Asked(edited=(WIDE,), steps=1)).drawn[0].pixels is not None


def test_three_stages_draw_what_one_draws_and_their_rings_hold_it(desks, studios):
    folder = desks[PLUS].folder
    asked = [Asked(edited=(WIDE, TALL), negative="bad", steps=2), Asked(edited=(SMALL,), steps=3)]
    found = Chain(folder).draw(*asked)
    for uid, one in enumerate(asked):
        assert abs(pixels(found[uid]).astype(int) - studios[PLUS].draw(one).drawn[0].pixels).max() <= 1
        assert found[uid].meta == studios[PLUS].draw(one).drawn[0].payload.meta
    most = Asked(edited=(WIDE,) * image(str(folder)).most_pictures)
    latents = sum(map(np.prod, studios[PLUS].stepper._grids(most.image)[1:])) * 64 * 4
    texts = 2 * edit.EDIT_TOKENS * 32 * 4
    assert latents + texts <= edge_bytes(str(folder), "text_encoder", "denoiser") < 2 * (latents + texts)


def test_the_second_device_gets_the_pictures_too(desks):
    asked = replace(GUIDED[1][1], steps=1)
    desks[PLUS].assert_equal(desks[PLUS].studio(places=2).draw(asked).drawn[0], asked)


def test_a_recorded_step_sees_the_pictures_of_its_request(desks, studios, recorders):
    desk, settings = desks[PLUS], {"ahead": True, "places": 2, "joined": False}
    plain, fast = (desk.studio(tuning=StageTuning(graphs=graphs), **settings) for graphs in (False, True))
    first = Asked(edited=(WIDE, TALL), negative="bad", steps=3)
    others = [replace(first, edited=edited) for edited in ((255 - WIDE, 255 - TALL), (TALL, WIDE))]
    new, known = [(0, 2), (2, 0), (2, 0)], [(2, 0)] * 3
    for asked, expected in zip([first, *others], (new, known, new), strict=True):
        session = fast.draw(asked)
        assert replays(session) == expected
        assert torch.equal(session.drawn[0].latents, plain.draw(asked).drawn[0].latents)
        assert_alike(session.drawn[0], studios[PLUS].draw(asked).drawn[0])
    for studio in (plain, fast):
        studio.runner.close()


def test_the_transformer_may_read_the_pictures_as_free_of_noise(desks, studios, monkeypatch, tmp_path, caplog):
    asked = Asked(edited=(WIDE, TALL), steps=2)
    copied = shutil.copytree(desks[PLUS].folder, tmp_path / "copy")
    config = copied / "transformer" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "zero_cond_t": True}))
    model = replace(desks[PLUS].model, path=str(copied))
    with caplog.at_level("INFO", "omni.graphs"):
        studio = Studio(copied, stepper=edit.QwenImageEditStepper(model, ahead=True), tuning=StageTuning(graphs=True))
    assert "no CUDA graphs of denoising steps" in caplog.text
    for part in (desks[PLUS].reference.transformer, *desks[PLUS].reference.transformer.transformer_blocks):
        monkeypatch.setattr(part, "zero_cond_t", True)
    session = studio.draw(asked)
    desks[PLUS].assert_equal(session.drawn[0], asked)
    assert (session.drawn[0].pixels != studios[PLUS].draw(asked).drawn[0].pixels).any()


def test_a_folder_is_known_by_its_class_and_needs_its_processor(desks, tmp_path):
    copied = shutil.copytree(desks[EDIT].folder, tmp_path / "copy")
    assert check_model(str(copied), "auto") == ()
    (copied / "processor" / "preprocessor_config.json").unlink()
    assert check_model(str(copied), "auto") == (f"{copied}/processor/preprocessor_config.json: no such file",)
    (copied / "omni.json").unlink()
    assert edited(copied) == (1024 * 1024, 1024 * 1024)
    index = copied / "model_index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "_class_name": PLUS}))
    assert edited(copied) == (1024 * 1024, 384 * 384)
    able = image(str(copied))
    assert (able.least_pictures, able.most_pictures, able.strength, able.default_size([(400, 300)])) == (
        1,
        8,
        None,
        (1184, 896),
    )
    assert set(tiny.EDITS) < set(CONTRACTS["qwen_image"].embedded)
