"""The tiny Qwen-Image on a GPU: the pictures of the CPU, however its steps are run, and attention by flash kernels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from omni_cli.plan.devices import visible_devices
from stages.config import ModelSpec, StageTuning
from stages.models.cache import built_once
from stages.models.qwen_image import tiny
from stages.models.qwen_image.attention import _ready, joint_attention, ragged_attention
from stages.models.qwen_image.edit import QwenImageEditStepper
from stages.models.qwen_image.stepper import QwenImageStepper
from tests.unit.stages.models.qwen_image.studio import Asked, Studio, gradient

COUNT = len(visible_devices())
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not COUNT, reason="needs a GPU")]
ASKED = [Asked(negative="bad"), Asked(steps=3, prompt="a longer prompt"), Asked(size=(128, 48), steps=2, negative="")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return built_once(tmp_path_factory.mktemp("omni_cache"), tiny.NAME, tiny.write)


@pytest.mark.parametrize(("compile_", "ahead"), [("none", False), ("blocks", False), ("blocks", True)])
def test_pictures_are_those_of_the_cpu_and_nothing_is_compiled_for_a_request(folder, compile_, ahead):
    stepper = QwenImageStepper(ModelSpec(path=str(folder), load_format="auto", dtype="float32"), ahead=ahead)
    session = Studio(folder, gpus=("0",), stepper=stepper, tuning=StageTuning(compile=compile_)).draw(*ASKED)
    for drawn, plain in zip(session.drawn.values(), Studio(folder).draw(*ASKED).drawn.values(), strict=True):
        assert np.abs(drawn.pixels.astype(int) - plain.pixels).max() <= 1
    assert [name for step in session.steps for name, _ in step.counters if name == "compiled"] == []


def made(folder, *, dtype="float32", ahead=True, graphs=False, **options) -> Studio:
    stepper = QwenImageStepper(ModelSpec(path=str(folder), load_format="auto", dtype=dtype), ahead=ahead)
    return Studio(folder, dtype=dtype, stepper=stepper, tuning=StageTuning(graphs=graphs), **options)


@pytest.mark.parametrize(("dtype", "ahead"), [("float32", False), ("float32", True), ("bfloat16", True)])
def test_steps_that_are_replays_draw_the_same_to_the_bit(folder, dtype, ahead):
    plain, fast = (made(folder, dtype=dtype, ahead=ahead, graphs=graphs, gpus=("0",)) for graphs in (False, True))
    asked = [*ASKED, Asked(negative="as", steps=5)]
    sessions = [studio.draw(*asked, arrivals=(0, 2, 3, 3)) for studio in (plain, fast)]
    for drawn, other in zip(*(session.drawn.values() for session in sessions), strict=True):
        assert torch.equal(drawn.latents, other.latents)
    assert sum(count for step in sessions[1].steps for name, count in step.counters if name == "graph_replays")
    # Noise is drawn in the dtype of the model.
    for drawn, exact in zip(
        sessions[0].drawn.values(), made(folder, dtype=dtype).draw(*asked).drawn.values(), strict=True
    ):
        assert np.abs(drawn.pixels.astype(int) - exact.pixels).mean() <= (1 if dtype == "float32" else 8)


def test_replays_see_the_pictures_that_are_edited(tmp_path):
    kind = tiny.EDITS["tiny_edit_plus"]
    model = ModelSpec(
        path=str(built_once(tmp_path, tiny.named(kind), lambda folder: tiny.write(folder, kind))),
        load_format="auto",
        dtype="float32",
    )
    plain, fast = (
        Studio(
            Path(model.path),
            gpus=("0",),
            stepper=QwenImageEditStepper(model, ahead=True),
            tuning=StageTuning(graphs=graphs),
        )
        for graphs in (False, True)
    )
    wide, tall = gradient(90, 50), gradient(40, 77)
    for edited in ((wide, tall), (255 - wide, 255 - tall), (tall, wide)):
        asked = Asked(edited=edited, negative="bad")
        one, two = (studio.draw(asked) for studio in (plain, fast))
        assert torch.equal(one.drawn[0].latents, two.drawn[0].latents)
        assert sum(count for step in two.steps for name, count in step.counters if name == "graph_replays") >= 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_recorded_decoding_is_the_eager_one_to_the_bit_and_what_is_launched_waits_for_nothing(folder, dtype):
    model = ModelSpec(path=str(folder), load_format="auto", dtype=dtype)
    stepper = QwenImageStepper(model, parts=("vae",), graphs=True, ahead=True)
    stepper.load([torch.device("cuda", 0)], getattr(torch, dtype))
    with torch.inference_mode():
        for number in range(3):
            for size in ((64, 64), (128, 48)):
                image = Asked(size=size).image
                latents = stepper.begin(image, number).latents
                exact = stepper._decoded(image, latents)
                torch.cuda.set_sync_debug_mode("error")
                try:
                    found = stepper.decode(image, stepper.begin(image, number).latents)
                finally:
                    torch.cuda.set_sync_debug_mode("default")
                assert torch.equal(found, exact)
    assert stepper._decoding.paths.take() == (("graph_replays", 4), ("eager_runs", 2))


@pytest.mark.skipif(COUNT < 2, reason="needs two GPUs")
@pytest.mark.parametrize("ahead", [False, True])
def test_two_gpus_draw_what_two_forwards_on_one_draw(folder, ahead):
    one, two = (made(folder, gpus=gpus, joined=False, ahead=ahead, graphs=True) for gpus in (("0",), ("0", "1")))
    for drawn, other in zip(one.draw(*ASKED).drawn.values(), two.draw(*ASKED).drawn.values(), strict=True):
        assert torch.equal(drawn.latents, other.latents)
    two.runner.close()


def both(told: int, shown: int) -> tuple[list[list[torch.Tensor]], list[torch.Tensor], list[torch.Tensor]]:
    """Query, key and value of texts and of pictures, norms and places, of three rows."""
    sizes = {"generator": torch.Generator("cuda").manual_seed(0), "device": "cuda"}
    heads = [
        list(torch.randn(3, tokens, 3, 4, 128, dtype=torch.bfloat16, **sizes).unbind(2)) for tokens in (told, shown)
    ]
    norms = [torch.rand(128, dtype=torch.bfloat16, **sizes) + 0.5 for _ in range(4)]
    angles = [torch.randn(tokens, 64, **sizes) for tokens in (told, shown)]
    return heads, norms, [torch.polar(torch.ones_like(angle), angle) for angle in angles]


def exact(heads, norms, places, lengths):
    """With a mask, in float32, pictures behind texts."""
    ready = [
        _ready([each.float() for each in own], [norm.float() for norm in of_own], turns, 1e-6)
        for own, of_own, turns in zip(heads, (norms[:2], norms[2:]), places, strict=True)
    ]
    query, key, value = (torch.cat(pair, dim=1).transpose(1, 2) for pair in zip(*ready, strict=True))
    real = torch.ones(query.shape[0], query.shape[2], dtype=torch.bool, device="cuda")
    for row, length in enumerate(lengths.tolist()):
        real[row, length : heads[0][0].shape[1]] = False
    found = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=real[:, None, None])
    return found.transpose(1, 2), real


def test_texts_of_unequal_lengths_are_attended_by_flash_kernels():
    heads, norms, places = both(40, 256)
    lengths = torch.tensor([40, 7, 40])
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # which refuses a mask
        found = torch.cat(joint_attention(*heads, norms, places, 1e-6, lengths), dim=1).float()
    right, real = exact(heads, norms, places, lengths)
    torch.testing.assert_close(found[real], right[real], rtol=0, atol=2e-2)
    assert not found[~real].any()


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_rows_of_unequal_lengths_attend_to_what_counts_in_a_graph_as_well(monkeypatch, capability):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)  # FlashAttention, cuDNN
    heads, norms, places = both(44, 250)
    lengths = torch.tensor([44, 1, 20], dtype=torch.int32, device="cuda")
    graph, others = torch.cuda.CUDAGraph(), torch.tensor([3, 44, 30], dtype=torch.int32, device="cuda")
    ragged_attention(*heads, norms, places, 1e-6, lengths)
    with torch.cuda.graph(graph):
        found = ragged_attention(*heads, norms, places, 1e-6, lengths)
    lengths.copy_(others)
    graph.replay()
    right, real = exact(heads, norms, places, others)
    torch.testing.assert_close(torch.cat(found, dim=1).float()[real], right[real], rtol=0, atol=2e-2)
