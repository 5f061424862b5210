"""Requests that share their steps: each gets what it would get alone, and as many steps as it asked for."""

import gc
import random
import time
from collections import Counter

import numpy as np
import pytest
import torch

from stages.config import ModelSpec
from stages.errors import StageError
from stages.models.qwen_image import attention
from stages.models.qwen_image.stepper import QwenImageStepper
from stages.runners.tensors import from_payload
from tests.unit.stages.models.qwen_image.studio import Asked, Studio
from tests.unit.stages.models.qwen_image.test_qwen_image_parity import TOLERANCE, expected

FATAL_SCALE = 13.0


class Faulty(QwenImageStepper):
    """Fails where a certain scale is guided for the third time."""

    calls = 0

    def guide(self, wanted, unwanted, scale):
        if scale == FATAL_SCALE:
            self.calls += 1
            if self.calls == 3:
                raise StageError("guided to nowhere")
        return super().guide(wanted, unwanted, scale)


UNEQUAL = [
    Asked(steps=20, negative="bad", seed=3),
    Asked(steps=1, prompt="two green fish on a blue road"),
    Asked(steps=7, negative="a long negative prompt, much longer than its own", scale=2.5),
    Asked(steps=4, prompt="sea", seed=5),
    Asked(steps=20, prompt="cancelled on its way"),
    Asked(steps=9, prompt="it fails on its way", negative="", scale=FATAL_SCALE),
    Asked(steps=4, negative="", scale=1.2, prompt="a bell"),
    Asked(steps=7, sigmas=(1.0, 0.8, 0.5, 0.4, 0.1)),
]
CANCELLED, FAILED = 4, 5


@pytest.fixture(scope="module")
def faulty(tiny_folder) -> Studio:
    return Studio(tiny_folder, stepper=Faulty(ModelSpec(path=str(tiny_folder), load_format="auto", dtype="float32")))


def assert_alike(drawn, alone):
    assert (drawn.latents - alone.latents).abs().max() <= TOLERANCE
    assert np.abs(drawn.pixels.astype(int) - alone.pixels).max() <= 1


def test_staggered_unequal_requests_equal_their_solo_runs_and_have_exactly_their_steps(faulty, studio):
    session = faulty.draw(*UNEQUAL, arrivals=(0, 1, 2, 4, 0, 3, 6, 9), leaving={CANCELLED: 15})
    for uid, asked in enumerate(UNEQUAL):
        if uid not in (CANCELLED, FAILED):
            assert_alike(session.drawn[uid], studio.draw(asked).drawn[0])
    counts = session.counts()
    assert {uid: counts[uid] for uid in (0, 1, 2, 3, 6, 7)} == {0: 20, 1: 1, 2: 7, 3: 4, 6: 4, 7: 5}
    assert session.cancelled == {CANCELLED}
    assert 0 < counts[CANCELLED] < 20
    assert session.drawn[FAILED].error == "guided to nowhere"
    assert counts[FAILED] == 3
    most = max(session.steps, key=lambda step: len(step.rows))
    assert len(most.rows) >= 5  # they did share
    assert set(dict(session.gauges).values()) == {0}


def test_a_request_without_guidance_adds_one_row_beside_one_with_it(studio):
    session = studio.draw(Asked(steps=2, negative="bad"), Asked(steps=2))
    rows = [dict(step.counters)["forward_rows"] for step in session.steps if step.rows[0].phase == "denoise"]
    assert rows == [3, 3]


def test_rows_attend_without_a_mask_each_over_its_own_text(studio, monkeypatch):
    """16 tokens of the picture, and as many of its text as there are."""
    seen = []
    attend = attention.dispatch_attention_fn
    monkeypatch.setattr(attention, "dispatch_attention_fn", lambda *qkv: seen.append(qkv[0].shape[:2]) or attend(*qkv))
    studio.draw(Asked(steps=1, negative="bad"), Asked(steps=1, prompt="a blue boat, and a bell"))
    lengths = [len(studio.stepper.encode(text).embeds) for text in ("a red boat", "bad", "a blue boat, and a bell")]
    assert Counter(seen) == {(1, 16 + length): 2 for length in lengths}  # in each of 2 layers
    seen.clear()
    studio.draw(Asked(steps=1), Asked(steps=1, seed=2))
    assert set(seen) == {(2, 16 + lengths[0])}


def test_mixed_sizes_in_flight_all_finish_each_with_its_own(studio):
    sizes = [(64, 64), (32, 64), (64, 32), (64, 64), (16, 16), (32, 64)]
    asked = [Asked(size=size, steps=3, seed=seed) for seed, size in enumerate(sizes)]
    session = studio.draw(*asked, arrivals=(0, 0, 1, 2, 3, 3))
    for uid, one in enumerate(asked):
        assert session.drawn[uid].pixels.shape == (one.size[1], one.size[0], 3)
        assert_alike(session.drawn[uid], studio.draw(one).drawn[0])
    assert session.counts() == Counter(dict.fromkeys(range(len(sizes)), 3))


def test_a_prompt_that_several_pictures_share_is_encoded_once(studio, monkeypatch):
    encoded = []
    encode = studio.stepper.encode
    monkeypatch.setattr(studio.stepper, "encode", lambda text: encoded.append(text) or encode(text))
    session = studio.draw(*(Asked(prompt="only once", steps=1, seed=seed) for seed in range(4)))
    assert encoded == ["only once"]
    assert len({drawn.pixels.tobytes() for drawn in session.drawn.values()}) == 4


def test_previews_show_the_picture_on_its_way_and_change_nothing(studio):
    shown, plain = Asked(steps=7, preview_every=3, negative="bad"), Asked(steps=7, negative="bad")
    session = studio.draw(shown, Asked(steps=4))
    drawn = session.drawn[0]
    assert [dict(payload.meta).get("step") for payload in drawn.payloads] == [3, 6, None]
    assert_alike(drawn, studio.draw(plain).drawn[0])
    first, last = (from_payload(drawn.payloads[index].tensor("image")).numpy() for index in (0, -1))
    assert (first != last).mean() > 0.1
    assert session.counts() == {0: 7, 1: 4}
    whole = studio.draw(Asked(steps=4, preview_every=4)).drawn[0]
    assert ["step" in dict(payload.meta) for payload in whole.payloads] == [False]


def live_tensors() -> int:
    gc.collect()
    return sum(torch.is_tensor(thing) for thing in gc.get_objects())


def test_a_hundred_requests_with_random_cancels_leave_nothing(studio):
    def run() -> None:
        draws = random.Random(7)
        asked = [Asked(size=draws.choice([(16, 16), (32, 16)]), steps=draws.randint(1, 4)) for _ in range(100)]
        arrivals = [draws.randint(0, 150) for _ in asked]
        leaving = {uid: arrivals[uid] + draws.randint(1, 12) for uid in range(100) if draws.random() < 0.5}
        session = studio.draw(*asked, arrivals=arrivals, leaving=leaving)
        assert set(dict(session.gauges).values()) == {0}
        done = [uid for uid, drawn in session.drawn.items() if drawn.pixels is not None]
        assert 50 <= len(done) < 100
        assert all(session.counts()[uid] == asked[uid].steps for uid in done)
        assert not studio.runner._pictures

    run()
    before = live_tensors()
    run()
    assert live_tensors() <= before


@pytest.mark.soak
def test_eight_pictures_at_once_are_twice_as_fast_as_diffusers_one_by_one(studio, reference):
    """Best of three each, in turn, in this process."""
    asked = [Asked(size=(128, 128), steps=20, negative="bad", seed=seed) for seed in range(8)]
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(3):
        start = time.perf_counter()
        studio.draw(*asked)
        seconds["ours"].append(time.perf_counter() - start)
        start = time.perf_counter()
        for one in asked:
            expected(reference, one, "pil")
        seconds["theirs"].append(time.perf_counter() - start)
    ratio = min(seconds["theirs"]) / min(seconds["ours"])
    print(f"8 pictures of 128x128, 20 guided steps: {ratio:.2f} times as fast as diffusers")
    assert ratio >= 2
