"""The embedded models are whole, small enough for the repository, the default of their families, and right."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"

from omni_cli.config.load import load_config
from omni_cli.eval.items import read_items
from omni_cli.eval.judges import Judges
from omni_cli.eval.scores import Answer, all_scores
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import Inventory
from stages.models.qwen3_omni import contract as omni
from stages.models.qwen_image import contract as image
from tests.integration.engine_run import greedy_request, run_requests
from tests.integration.qwen3_omni_reference import Reference
from tests.unit.stages.models.qwen_image.studio import Asked, Studio
from tests.unit.stages.models.qwen_image.test_qwen_image_parity import expected

PACKED = [Path(module.__file__).parent / "nano" for module in (omni, image)]


def plan(*words: str):
    return build_plan(load_config(words), Inventory())


def test_they_fit_into_the_repository_with_their_cards_notices_and_questions():
    assert sum(path.stat().st_size for folder in PACKED for path in folder.rglob("*.safetensors")) <= 24e6
    for folder in PACKED:
        names = {path.name for path in folder.iterdir()}
        assert {"MODEL_CARD.md", "OFL.txt", "packed.safetensors", "eval.jsonl"} <= names


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_nano_omni_is_the_default_and_has_its_own_voices_and_limits(load_format):
    default = plan("recipe=qwen3_omni", f"model.load_format={load_format}")
    assert default.model.path == plan("recipe=qwen3_omni", "model.path=nano").model.path
    assert default.voices == ("chelsie", "ethan")
    limits = json.loads((Path(default.model.path) / "generation_config.json").read_text())
    assert limits["thinker_max_new_tokens"] <= 128


TALKS = {
    "The capital of France is Paris.": [("user", ["What is the capital of France?"])],
    "Your name is Clara.": [
        ("user", ["I am Clara."]),
        ("assistant", ["Nice to meet you, Clara."]),
        ("user", ["Which month is after January?"]),
        ("assistant", ["The month after January is February."]),
        ("user", ["Do you know my name?"]),
    ],
}


def test_nano_omni_says_what_transformers_says():
    built = plan("recipe=qwen3_omni")
    reference, limits = Reference.load(Path(built.model.path)), {"text_tokens": 32, "codec_tokens": 64}
    found = run_requests(built, [greedy_request(right, talk, **limits) for right, talk in TALKS.items()])
    for right, talk in TALKS.items():
        expected = reference.answer(talk, **limits)
        assert found.outputs[right]["text"].text == right
        assert reference.tokenizer.decode(expected.text_ids, skip_special_tokens=True) == right
        torch.testing.assert_close(found.waveform(right), expected.waveform, atol=1e-4, rtol=0)


@pytest.mark.parametrize("recipe", ["qwen_image", "qwen_image_split"])
def test_nano_image_is_the_default_and_is_guided_where_nothing_is_said(recipe):
    default = plan(f"recipe={recipe}")
    assert default.model.path == plan(f"recipe={recipe}", "model.path=nano").model.path
    known = default.image
    assert (known.width, known.height, known.negative_prompt, known.true_cfg_scale) == (64, 64, "", 3.0)


def test_what_is_unpacked_draws_in_any_company_what_diffusers_draws_and_what_is_asked():
    """The eight are held out, some of one thing and some of two."""
    from diffusers import QwenImagePipeline

    folder = Path(plan("recipe=qwen_image").model.path)
    reference = QwenImagePipeline.from_pretrained(folder)
    reference.set_progress_bar_config(disable=True)
    items = [item for item in read_items(folder) if "held out" in item.topic][20:28]
    asked = [
        Asked(prompt=item.request["prompt"], negative="", scale=3.0, steps=8, seed=seed)
        for seed, item in enumerate(items)
    ]
    studio = Studio(folder)
    together = [drawn.pixels for drawn in studio.draw(*asked).drawn.values()]
    answers = [Answer(item=item, pixels=pixels) for item, pixels in zip(items, together, strict=True)]
    scores = {score.name: score.value for score in all_scores(answers, [], [], Judges(folder))}
    assert scores == dict.fromkeys(scores, 1.0)
    assert len(scores) == 7
    for one, drawn in ((asked[0], together[0]), (asked[-1], together[-1])):
        for same in (np.asarray(expected(reference, one, "pil")), studio.draw(one).drawn[0].pixels):
            assert np.abs(drawn.astype(int) - same).max() <= 1
