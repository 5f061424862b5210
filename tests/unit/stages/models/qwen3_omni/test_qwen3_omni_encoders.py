"""A medium is encoded as transformers encodes it, by itself, and kept under the name of its content."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stages.messages import ChatMessage, Part
from stages.models.qwen3_omni import modules
from stages.models.qwen3_omni.encoders import Encoders, FeatureCache, Features
from stages.models.qwen3_omni.processing import ModelInputs, load_processor

CPU = torch.device("cpu")
NOISE = np.random.default_rng(4)
PICTURES = [NOISE.integers(0, 256, (64, width, 3), dtype=np.uint8) for width in (96, 32, 64)]
CLIPS = [NOISE.standard_normal(samples).astype(np.float32) * 0.1 for samples in (3_000, 7_000, 30_000)]


@pytest.fixture(scope="module")
def module(tiny_folder: Path) -> Any:
    source = modules.Source(folder=tiny_folder, device=CPU, dtype=torch.float32, dummy=False)
    return modules.stage_module("thinker", modules.read_config(tiny_folder), source)[0]


@pytest.fixture(scope="module")
def encoders(module: Any) -> Encoders:
    parts = modules.ThinkerParts.of(module)
    return Encoders(parts.visual, parts.audio, n_window=module.config.audio_config.n_window, device=CPU)


def inputs(folder: Path, pictures: list[np.ndarray], clips: list[np.ndarray]) -> ModelInputs:
    media = {f"image{index}": array for index, array in enumerate(pictures)}
    media |= {f"audio{index}": array for index, array in enumerate(clips)}
    parts = tuple(Part(kind=name[:5], media=name) for name in media)
    processor = load_processor(folder, modules.read_config(folder), dummy=False)
    return processor.encode((ChatMessage(role="user", parts=parts),), media)


@pytest.mark.parametrize("clips", [CLIPS[:1], CLIPS[:2], CLIPS, CLIPS[::-1], CLIPS[2:]])
def test_clips_as_transformers_encodes_them_together(
    tiny_folder: Path, module: Any, encoders: Encoders, clips: list[np.ndarray]
) -> None:
    given = inputs(tiny_folder, [], clips)
    lengths = given.audio_lengths
    with torch.inference_mode():
        expected = modules.ThinkerParts.of(module).audio(given.input_features, feature_lens=lengths).last_hidden_state
        found = torch.cat([encoders.encode(medium).embeds for medium in encoders.media(given)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_pictures_as_transformers_encodes_them_together(tiny_folder: Path, module: Any, encoders: Encoders) -> None:
    given = inputs(tiny_folder, PICTURES, [])
    with torch.inference_mode():
        expected = modules.ThinkerParts.of(module).visual(given.pixel_values, grid_thw=given.image_grid_thw)
        found = [encoders.encode(medium) for medium in encoders.media(given)]
    torch.testing.assert_close(torch.cat([one.embeds for one in found]), expected.pooler_output, rtol=0, atol=1e-5)
    assert len(found[0].deepstack) == len(expected.deepstack_features) == 2
    for layer, whole in enumerate(expected.deepstack_features):
        torch.testing.assert_close(torch.cat([one.deepstack[layer] for one in found]), whole, rtol=0, atol=1e-5)


def test_the_key_is_the_content(tiny_folder: Path, encoders: Encoders) -> None:
    def keys(pictures: list[np.ndarray], clips: list[np.ndarray]) -> list[bytes]:
        return [medium.key for medium in encoders.media(inputs(tiny_folder, pictures, clips))]

    assert keys(PICTURES, [])[1:] == keys([PICTURES[1], PICTURES[2].copy()], [])
    changed = PICTURES[0].copy()
    changed[0, 0, 0] ^= 1
    turned = np.ascontiguousarray(PICTURES[0].transpose(1, 0, 2))
    assert len({keys([picture], [])[0] for picture in (*PICTURES, changed, turned)}) == 5
    # A clip of a second or more is the same in any company; a shorter one is padded with the others.
    assert keys([], CLIPS)[2] == keys([], CLIPS[2:])[0]
    assert keys([], CLIPS)[0] != keys([], CLIPS[:1])[0]


def features(size: int) -> Features:
    return Features(embeds=torch.zeros(size, dtype=torch.uint8), deepstack=(torch.zeros(0, dtype=torch.uint8),))


def test_the_cache_is_bounded_and_forgets_what_was_not_used() -> None:
    cache = FeatureCache(10)
    cache.put(b"a", features(4))
    cache.put(b"b", features(4))
    assert cache.get(b"a") is not None
    cache.put(b"c", features(4))
    assert cache.nbytes == 8
    assert (cache.get(b"a") is None, cache.get(b"b") is None, cache.get(b"c") is None) == (False, True, False)
    cache.put(b"d", features(11))
    assert cache.get(b"d") is None
    assert cache.nbytes == 8
    cache.put(b"a", features(4))
    assert cache.nbytes == 8
