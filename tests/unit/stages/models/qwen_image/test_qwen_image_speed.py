"""What makes steps faster, and what it leaves of the result. On the CPU, without a compiler behind."""

import copy
import threading
from dataclasses import replace

import pytest
import torch
from diffusers import FirstBlockCacheConfig

from stages.config import ModelSpec, StageTuning
from stages.errors import StageError
from stages.models.qwen_image import modulation
from stages.models.qwen_image import stepper as qwen_stepper
from stages.models.qwen_image.attention import ragged_on
from stages.models.qwen_image.frame import for_pictures
from stages.models.qwen_image.stepper import PROMPT_TOKENS, QwenImageStepper
from stages.models.qwen_image.texts import TextGraphs
from stages.runners import forward_graphs, predictor, step_cache
from stages.runners.compiled_blocks import compiled
from stages.runners.forward_graphs import Captured, ForwardGraphs
from tests.unit.stages.models.qwen_image.studio import Asked, Studio, gradient, replays
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


@pytest.mark.parametrize("places", [1, 2])
def test_a_composition_is_recorded_when_it_comes_again_and_its_result_stays_the_same(tiny_folder, recorders, places):
    plain, fast = (
        Studio(tiny_folder, joined=places == 1, places=places, tuning=tuning)
        for tuning in (StageTuning(), StageTuning(graphs=True))
    )
    alone = [Asked(prompt="012", negative="3", steps=3), Asked(prompt="456", negative="7", steps=3, seed=7)]
    for asked, expected in zip(alone, [[(0, 1), (1, 0), (1, 0)], [(1, 0)] * 3], strict=True):
        session = fast.draw(asked)
        assert replays(session) == [(places * many, places * eager) for many, eager in expected]
        assert torch.equal(session.drawn[0].latents, plain.draw(asked).drawn[0].latents)
    asked = [Asked(steps=5), Asked(negative="a longer one", steps=4), Asked(size=(128, 64), steps=2), Asked(steps=1)]
    sessions = [studio.draw(*asked, arrivals=(0, 2, 3, 5)) for studio in (fast, plain)]
    for drawn, exact in zip(*(session.drawn.values() for session in sessions), strict=True):
        assert torch.equal(drawn.latents, exact.latents)
    assert len(recorders) == places
    for recorder in recorders:
        first, *others = recorder.pools[-2:]  # behind the warm-up's, which are forgotten
        assert others == [first] or first is None
    plain.runner.close()
    fast.runner.close()


def test_the_oldest_composition_is_forgotten_and_without_memory_steps_run_one_by_one(tiny_folder, recorders, caplog):
    fast = Studio(tiny_folder, tuning=StageTuning(graphs=True))
    two, sizes = Asked(steps=2), [(64, 16 * side) for side in range(1, forward_graphs.MOST + 1) if side != 4]
    assert replays(fast.draw(two)) == [(0, 1), (1, 0)]
    for size in sizes:
        fast.draw(Asked(steps=1, size=size))
    assert replays(fast.draw(two)) == [(1, 0)] * 2  # in the last place
    fast.draw(Asked(steps=1, size=(16, 16)))
    recorders[0].full = True
    assert replays(fast.draw(two)) == replays(fast.draw(two)) == [(0, 1)] * 2
    assert "no memory for CUDA graphs" in caplog.text


def test_a_step_takes_the_memory_that_graphs_have(caplog):
    def forward(image, latents, timesteps, conditions):
        if len(latents) > 2 or (len(latents) > 1 and any(each.captured for each in graphs._known.values())):
            raise torch.OutOfMemoryError("nothing left")
        return latents + timesteps

    graphs = ForwardGraphs(forward, lambda step, pool: Captured(lambda: None, step(), pool))
    taken = [graphs(Asked().image, torch.zeros(rows, 1), torch.ones(1), ()).sum() for rows in (1, 1, 2, 1, 1)]
    assert (taken, graphs.paths.take()) == ([1, 1, 2, 1, 1], (("graph_replays", 1), ("eager_runs", 4)))
    assert caplog.text.count("no memory for CUDA graphs") == 1
    with pytest.raises(torch.OutOfMemoryError):
        graphs(Asked().image, torch.zeros(3, 1), torch.ones(1), ())


def test_the_rotations_that_graphs_read_outlive_them(studio):
    rotations = studio.stepper.transformers[0].pos_embed._compute_video_freqs
    first = rotations(1, 2, 2, 0, torch.device("cpu"))
    for side in range(forward_graphs.MOST * 9):
        rotations(1, 2, 3 + side, 0, torch.device("cpu"))
    assert rotations(1, 2, 2, 0, torch.device("cpu")) is first


def test_texts_padded_for_a_graph_are_encoded_as_by_the_pipeline(studio, monkeypatch):
    stepper, texts = studio.stepper, ["", "0123456789" * 6, "long " * 300]
    with torch.inference_mode():
        exact = [stepper.encode(text) for text in texts]
        language = stepper.pipeline.text_encoder.model.language_model
        monkeypatch.setattr(stepper, "_texts", TextGraphs(language, torch.device("cpu"), PROMPT_TOKENS + 34))
        for text, expected in zip(texts, exact, strict=True):
            found = stepper.encode(text)
            torch.testing.assert_close(found.embeds, expected.embeds, rtol=0, atol=1e-5)
            assert (found.tokens, found.warning) == (expected.tokens, expected.warning)


def test_texts_of_most_lengths_are_one_composition(tiny_folder, recorders, monkeypatch):
    monkeypatch.setattr(qwen_stepper, "TEXT_TOKENS", 64)
    model = ModelSpec(path=str(tiny_folder), load_format="auto", dtype="float32")
    plain, fast = (
        Studio(tiny_folder, stepper=QwenImageStepper(model, ahead=ahead), tuning=StageTuning(graphs=ahead))
        for ahead in (False, True)
    )
    monkeypatch.setattr(fast.stepper, "_ragged", True)
    first = Asked(prompt="", negative="a longer one", steps=3)
    other = Asked(prompt="long " * 12, negative="bad", steps=2)
    for asked, expected in ((first, [(0, 1), (1, 0), (1, 0)]), (other, [(1, 0)] * 2)):
        session = fast.draw(asked)
        assert replays(session) == expected
        torch.testing.assert_close(session.drawn[0].latents, plain.draw(asked).drawn[0].latents, rtol=0, atol=1e-5)


@pytest.mark.parametrize("places", [1, 2])
def test_what_timesteps_make_of_several_steps_at_once_is_what_they_make_of_each(tiny_folder, monkeypatch, places):
    monkeypatch.setattr(modulation, "STEPS", 3)
    model = ModelSpec(path=str(tiny_folder), load_format="auto", dtype="float32")
    plain, fast = (
        Studio(tiny_folder, stepper=QwenImageStepper(model, ahead=ahead), places=places) for ahead in (False, True)
    )
    asked = [
        Asked(negative="bad", steps=7),
        Asked(prompt="sea", steps=4),
        Asked(size=(128, 64), picture=gradient(8, 8)),
    ]
    sessions = [studio.draw(*asked, arrivals=(0, 2, 3)) for studio in (plain, fast)]
    for exact, drawn in zip(*(session.drawn.values() for session in sessions), strict=True):
        torch.testing.assert_close(drawn.latents, exact.latents, rtol=0, atol=1e-5)
    for studio in (plain, fast):
        studio.runner.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_decoder_of_pictures_is_that_of_videos_but_for_rounding(studio, dtype):
    decoder = copy.deepcopy(studio.stepper.pipeline.vae.decoder)
    latents = torch.randn(2, 16, 1, 5, 4, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        exact = decoder.double()(latents.double())
        slow, found = (each(latents.to(dtype)).double() for each in (decoder.to(dtype), for_pictures(decoder)))
    assert (found - exact).norm() <= 1.05 * (slow - exact).norm()
    assert (found - exact).norm() <= 2e-2 * exact.norm()


def test_a_picture_alone_and_without_tiles_is_decoded_by_a_recording_of_its_size(studio, recorders, monkeypatch):
    stepper, small, large = studio.stepper, Asked(steps=1), Asked(size=(128, 64), steps=1, seed=2)
    drawn = [Asked(picture=gradient(*size), steps=2) for size in ((40, 30), (50, 20))]  # to the size of the small one
    works = [[small], [large], [small], [small, small], [large], *([one] for one in drawn)]
    plain = [studio.draw(*asked).drawn for asked in works]
    monkeypatch.setattr(stepper, "_tiled_pixels", 128 * 64 - 1)
    graphs = forward_graphs.ForwardGraphs(stepper._decoded, predictor.capture_on(torch.device("cpu")))
    monkeypatch.setattr(stepper, "_decoding", graphs)
    found = [studio.draw(*asked).drawn for asked in works]
    for one, other in zip(plain, found, strict=True):
        assert all((other[uid].pixels == one[uid].pixels).all() for uid in one)
    assert graphs.paths.take() == (("graph_replays", 3), ("eager_runs", 1))
    with torch.inference_mode():
        stepper.decode(replace(small.image, pictures=((90, 50),)), found[0][0].latents)  # as one that edits
    assert graphs.paths.take() == (("graph_replays", 1), ("eager_runs", 0))


@pytest.mark.parametrize(
    ("kind", "dtype", "features", "capability"),
    [
        ("cpu", torch.bfloat16, 128, (9, 0)),
        ("cuda", torch.float32, 128, (9, 0)),
        ("cuda", torch.bfloat16, 96, (9, 0)),
        ("cuda", torch.float16, 128, (7, 5)),
    ],
)
def test_all_rows_attend_together_only_where_kernels_can(monkeypatch, kind, dtype, features, capability):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert not ragged_on(torch.device(kind), dtype, features)
    assert ragged_on(torch.device("cuda"), torch.float16, 64) == (capability >= (8, 0))
