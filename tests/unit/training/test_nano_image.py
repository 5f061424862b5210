"""nano-image: captions and pictures agree, nothing held out is trained on, and the whole way ends in a checkpoint."""

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from stages.models.packed import unpack
from stages.models.qwen_image import contract
from stages.models.qwen_image.contract import check_model, image
from stages.models.qwen_image.judge import load
from stages.models.random_weights import save
from training.nano_image import denoiser, judge, layout, score, vae
from training.nano_image.captions import (
    Combinations,
    Scene,
    draw_scene,
    fits,
    held_out,
    plain,
    scenes_of,
    vary,
    vocabulary,
)
from training.nano_image.drawings import BACKGROUNDS, Drawings, shapes
from training.nano_image.scenes import Painter
from training.pack import pack

DRAWINGS = shapes()
GROUNDS = list(BACKGROUNDS)


def place(name):
    return DRAWINGS.names.index(name)


def scene(thing, ground, right=None, size=0):
    return Scene(thing=place(thing), right=right and place(right), size=size, background=GROUNDS.index(ground))


def test_a_caption_says_what_is_there():
    assert plain(scene("red circle", "blue", size=2), DRAWINGS) == "a big red circle on a blue background"
    assert (
        plain(scene("orange star", "pink", "red ring"), DRAWINGS)
        == "an orange star and a red ring on a pink background"
    )
    chance = random.Random(1)
    asked = scene("green heart", "gray", "red ring")
    for _ in range(50):
        text = vary(chance, asked, DRAWINGS)
        assert {"green heart", "red ring", "gray"} <= {
            part for part in ("green heart", "red ring", "gray") if part in text
        }
        if "right of" in text:
            assert text.index("red ring") < text.index("green heart")
        else:
            assert text.index("green heart") < text.index("red ring")


@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("pairs", [0.0, 1.0])
def test_scenes_can_be_seen_and_are_held_out_or_not(pairs, unseen):
    chance = random.Random(2)
    for _ in range(100):
        found = draw_scene(chance, DRAWINGS, pairs=pairs, unseen=unseen)
        assert fits(found, DRAWINGS)
        assert held_out(found, DRAWINGS) == unseen
        assert (found.right is not None) == bool(pairs)
    torch.manual_seed(2)
    for found in scenes_of(Combinations(DRAWINGS, "cpu", unseen=unseen).draw(100, pairs=pairs)):
        assert fits(found, DRAWINGS)
        assert held_out(found, DRAWINGS) == unseen
        assert (found.right is not None) == bool(pairs)


def test_a_picture_has_its_thing_where_the_caption_says():
    painter = Painter(DRAWINGS, "cpu")
    asked = [scene("red square", "white", "blue square"), scene("green square", "black", size=1)]
    pixels = painter.paint(asked, torch.Generator().manual_seed(0)).add(1).mul(127.5)
    assert pixels.shape == (2, 3, 128, 128)
    left, right, corner = pixels[0, :, 64, 33], pixels[0, :, 64, 95], pixels[0, :, 2, 2]
    assert left.round().tolist() == [230, 30, 30]
    assert right.round().tolist() == [30, 70, 230]
    assert corner.round().tolist() == [255, 255, 255]
    covered = (pixels[1] - pixels[1, :, :1, :1]).abs().sum(0).gt(60).float().mean().item()
    assert 0.1 < covered < 0.25, "a small square: half the side, or somewhat less"


def test_what_is_trained_of_the_vae_is_all_that_acts_on_a_still():
    torch.manual_seed(0)
    model, pixels = layout.vae(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        latents = model.encode(pixels[:, :, None]).latent_dist.mode()
        drawn = model.decode(latents).sample[:, :, 0]
        with vae.stills(model):
            torch.testing.assert_close(vae.moments_of(model, pixels)[0], latents)
            torch.testing.assert_close(vae.decode(model, latents).clamp(-1, 1), drawn)
        torch.testing.assert_close(model.decode(latents).sample[:, :, 0], drawn)


def test_what_is_trained_of_the_denoiser_is_what_the_pipeline_runs(few):
    torch.manual_seed(0)
    tokenizer, drop = layout.tokenizer(vocabulary(few)), layout.pipeline().prompt_template_encode_start_idx
    model = denoiser.Denoiser(layout.text_encoder(tokenizer), layout.transformer(), drop).eval()
    for parameter in model.transformer.parameters():  # of which many begin as 0
        torch.nn.init.normal_(parameter, std=0.1)
    pipeline = denoiser._pipeline(model, layout.vae(), tokenizer)
    texts, latents, time = ["a big red circle on a blue background", "a"], torch.randn(2, 64, 32), torch.rand(2)
    with torch.no_grad():
        read, mask = pipeline.encode_prompt(texts, device="cpu")
        wanted = model.transformer(latents, read, mask, time, [[(1, 8, 8)]] * 2).sample
        found = model(latents, time, *denoiser._texts(tokenizer, texts, 72, "cpu"))
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def few():
    """Six shapes, so that a step costs little."""
    places = range(0, len(DRAWINGS.names), 9)
    return Drawings(
        names=tuple(DRAWINGS.names[at] for at in places),
        colours=tuple(DRAWINGS.colours[at] for at in places),
        sprites=DRAWINGS.sprites[list(places)],
    )


def test_one_step_of_everything_gives_a_checkpoint_that_is_packed_and_loaded(few, tmp_path):
    from diffusers import QwenImagePipeline

    painter, common = (
        Painter(few, "cpu", layout.SIDE),
        {"seconds": 1e-3, "batch": 2, "device": "cpu", "seed": 1, "record": True},
    )
    reader = judge.train(few, painter, **common)
    pipeline = denoiser.train(few, painter, vae.train(few, painter, **common), scenes=4, **common)
    whole, packed, unpacked = (tmp_path / name for name in ("whole", "packed", "unpacked"))
    save(pipeline, whole, layout.DEFAULTS)
    judge.save(reader, whole / "judge.safetensors")
    size = pack(whole, packed, coarse=("judge.safetensors",))
    unpacked.mkdir()
    unpack(packed, unpacked)
    assert size < 6.8e6
    assert check_model(str(unpacked), "auto") == ()
    known = image(str(unpacked))
    assert (known.multiple, known.width, known.steps) == (8, 64, 8)
    assert (known.negative_prompt, known.true_cfg_scale) == ("", 3.0)
    loaded = QwenImagePipeline.from_pretrained(unpacked)
    again = load(unpacked / "judge.safetensors")
    pairs = {part: (getattr(pipeline, part), getattr(loaded, part)) for part in ("transformer", "vae", "text_encoder")}
    for part, found in {**pairs, "judge": (reader, again)}.items():
        before, after = (one.state_dict() for one in found)
        assert before.keys() == after.keys()
        for name, values in before.items():
            bound = values.abs().max() / (14 if part == "judge" else 127) + 1e-3
            assert (values - after[name]).abs().max() <= bound, f"{part} {name}"
    found = score.measure(score.pipeline_draw(loaded, steps=1, true_cfg_scale=3.0), again, few, pictures=1, seed=1)
    assert [line.pictures for line in found] == [1] * 4


def test_the_template_is_as_long_as_what_the_pipeline_drops(few):
    tokenizer = layout.tokenizer(vocabulary(few))
    assert tokenizer.tokenize("a red circle")[-2:] == ["Ġred", "Ġcircle"]
    shipped = AutoTokenizer.from_pretrained(Path(contract.__file__).parent / "nano" / "tokenizer")
    for reads in (tokenizer, shipped):
        plain, typed = (reads(text).input_ids for text in ("draw a red circle on gray.", "Draw A RED Circle On Grey."))
        assert typed == plain
        template = layout.pipeline().prompt_template_encode.format("")
        assert reads.decode(reads(template).input_ids) == template, "which keeps its one capital"
