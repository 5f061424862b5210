"""What makes steps faster, and what it leaves of the result. On the CPU, without a compiler behind."""

import threading

import pytest
import torch
from diffusers import FirstBlockCacheConfig

from stages.config import StageTuning
from stages.errors import StageError
from stages.runners import step_cache
from stages.runners.compiled_blocks import compiled
from tests.unit.stages.models.qwen_image.studio import Asked, Studio
from tests.unit.stages.models.qwen_image.test_qwen_image_parity import assert_equal


def test_blocks_are_compiled_before_ready_for_every_size_length_and_number_of_rows(tiny_folder, studio):
    before = compiled()
    fast = Studio(tiny_folder, tuning=StageTuning(compile="blocks"))
    assert compiled() - before == 2  # several rows, and one
    asked = [Asked(negative="bad", steps=2), Asked(size=(128, 48), steps=1), Asked(prompt="a longer prompt", steps=3)]
    session = fast.draw(*asked)
    assert [name for step in session.steps for name, _ in step.counters if name == "compiled"] == []
    for drawn, plain in zip(session.drawn.values(), studio.draw(*asked).drawn.values(), strict=True):
        assert torch.equal(drawn.latents, plain.latents)


def test_what_cannot_be_compiled_names_the_key_that_does_without(tiny_folder, monkeypatch):
    monkeypatch.setattr("stages.runners.predictor.Predictor.predict", lambda *_: 1 / 0)
    with pytest.raises(StageError, match=r"failed; deploy\.stages\.painter\.compile=none starts .*division by zero"):
        Studio(tiny_folder, tuning=StageTuning(compile="blocks"))


THRESHOLD = 1.0  # one at which the tiny model, of which each step changes much, skips some


@pytest.fixture
def cached_reference(reference):
    reference.transformer.enable_cache(FirstBlockCacheConfig(threshold=THRESHOLD))
    yield reference
    reference.transformer.disable_cache()


def test_the_cache_skips_what_diffusers_would_in_any_company_and_says_how_far_off_it_was(
    tiny_folder, cached_reference, monkeypatch
):
    monkeypatch.setattr(step_cache, "THRESHOLD", THRESHOLD)
    fast = Studio(tiny_folder, tuning=StageTuning(step_cache="first_block"))
    asked = [Asked(negative="bad", steps=12), Asked(prompt="sea", steps=6), Asked(steps=1), Asked(steps=2)]
    session = fast.draw(*asked, arrivals=(0, 2, 3, 4))
    for uid, one in enumerate(asked):
        assert_equal(session.drawn[uid], cached_reference, one)
    counts = [dict(step.counters) for step in session.steps if step.rows[0].phase == "denoise"]
    assert sum(each["forwards"] for each in counts) == 2 * 12 + 6 + 1 + 2
    said = [dict(drawn.payload.meta).get("warning", "") for drawn in session.drawn.values()]
    skipped = [int(text.split(" in ")[1].split(" of ")[0]) if text else 0 for text in said]
    assert sum(skipped) == sum(each["forwards_skipped"] for each in counts) > 4
    assert "% when computed again (" in said[0]
    assert said[2] == ""
    assert not any(fast.runner._predictor._cache._states.values())


@pytest.mark.parametrize("tuning", [StageTuning(), StageTuning(step_cache="first_block")], ids=["exact", "cached"])
def test_on_two_devices_a_guided_request_is_what_two_forwards_make_of_it(tiny_folder, monkeypatch, tuning):
    monkeypatch.setattr(step_cache, "THRESHOLD", THRESHOLD)
    asked = [Asked(negative="bad", steps=4), Asked(steps=2), Asked(negative="a longer one", scale=2.0, steps=3)]
    one, two = (Studio(tiny_folder, joined=False, places=count, tuning=tuning) for count in (1, 2))
    assert int(two.facts["weight_bytes"]) > int(one.facts["weight_bytes"])
    assert len({id(each) for each in two.stepper.transformers}) == 2
    ran = [[], []]
    for each, transformer in zip(ran, two.stepper.transformers, strict=True):
        transformer.register_forward_pre_hook(lambda *_, each=each: each.append(threading.current_thread().name))
    alike, session = one.draw(*asked), two.draw(*asked)
    for drawn, other in zip(session.drawn.values(), alike.drawn.values(), strict=True):
        assert torch.equal(drawn.latents, other.latents)
        assert drawn.payload.meta == other.payload.meta
    assert [step.counters for step in session.steps] == [step.counters for step in alike.steps]
    assert set(ran[0]) == {threading.current_thread().name}
    assert set(ran[1]) == {"second-device_0"}
    two.runner.close()
