"""The thinker's encoders and logits are transformers' own, however the prompt is put together."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stages.messages import ChatMessage, Part
from stages.models.qwen3_omni import modules
from stages.models.qwen3_omni.processing import ModelInputs, load_processor
from stages.models.qwen3_omni.thinker import Thinker

NOISE = np.random.default_rng(1)
MEDIA = {
    "picture": NOISE.integers(0, 256, (64, 96, 3), dtype=np.uint8),
    "other picture": NOISE.integers(0, 256, (32, 32, 3), dtype=np.uint8),
    "film": NOISE.integers(0, 256, (4, 64, 32, 3), dtype=np.uint8),
    "sound": NOISE.standard_normal(20_000).astype(np.float32) * 0.1,
    "short sound": NOISE.standard_normal(3_000).astype(np.float32) * 0.1,
}
PARTS = {
    "picture": Part(kind="image", media="picture"),
    "other picture": Part(kind="image", media="other picture"),
    "film": Part(kind="video", media="film", fps=2.0),
    "sound": Part(kind="audio", media="sound"),
    "short sound": Part(kind="audio", media="short sound"),
}
PROMPTS = (
    ("picture", "other picture"),
    ("film",),
    ("sound", "short sound"),
    ("film", "picture", "other picture"),
    ("other picture", "sound", "film"),
)


@pytest.fixture(scope="module")
def config(tiny_folder: Path) -> Any:
    return modules.read_config(tiny_folder)


@pytest.fixture(scope="module")
def module(tiny_folder: Path, config: Any) -> Any:
    source = modules.Source(folder=tiny_folder, device=torch.device("cpu"), dtype=torch.float32, dummy=False)
    return modules.thinker_module(config, source)[0]


def encode(folder: Path, config: Any, names: tuple[str, ...]) -> ModelInputs:
    parts = (*(PARTS[name] for name in names), Part(kind="text", text="What is it?"))
    processor = load_processor(folder, config, dummy=False)
    return processor.encode((ChatMessage(role="user", parts=parts),), MEDIA)


@pytest.mark.parametrize("names", PROMPTS, ids=" and ".join)
def test_prefill_equals_one_forward_call(tiny_folder: Path, config: Any, module: Any, names: tuple[str, ...]) -> None:
    inputs = encode(tiny_folder, config, names)
    ids = inputs.input_ids[None]
    clips = {}
    if inputs.input_features is not None:
        lengths = inputs.audio_lengths
        mask = torch.arange(int(lengths.max()))[None] < lengths[:, None]
        padded = torch.zeros(len(lengths), inputs.input_features.shape[0], mask.shape[1])
        padded.transpose(1, 2)[mask] = inputs.input_features.T
        clips = {"input_features": padded, "feature_attention_mask": mask.long()}
    expected = module(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        pixel_values=inputs.pixel_values,
        image_grid_thw=inputs.image_grid_thw,
        pixel_values_videos=inputs.pixel_values_videos,
        video_grid_thw=inputs.video_grid_thw,
        video_second_per_grid=inputs.video_second_per_grid,
        output_hidden_states=True,
        **clips,
    )
    for layer in range(4):
        done = Thinker(module, accept_layer=layer, device=torch.device("cpu")).prefill(inputs)
        torch.testing.assert_close(done.logits, expected.logits[0, -1], rtol=0, atol=2e-5)
        media = torch.isin(
            ids[0], torch.tensor([config.thinker_config.image_token_id, config.thinker_config.video_token_id,
                                  config.thinker_config.audio_token_id])
        )  # fmt: skip
        assert torch.equal(done.media_hidden, expected.hidden_states[layer][0, media]), layer
        assert done.state.length == ids.shape[1]


def test_encoders_are_called_as_transformers_calls_them(tiny_folder: Path, config: Any, module: Any) -> None:
    inputs = encode(tiny_folder, config, ("picture", "sound"))
    thinker = Thinker(module, accept_layer=0, device=torch.device("cpu"))
    features = thinker.prefill(inputs).media_hidden
    pictures = torch.cat(list(module.get_image_features(inputs.pixel_values, inputs.image_grid_thw).pooler_output))
    sounds = module.get_audio_features(
        inputs.input_features[None],
        feature_attention_mask=torch.ones(1, int(inputs.audio_lengths[0]), dtype=torch.long),
    ).last_hidden_state
    assert torch.equal(features, torch.cat((pictures, sounds)))


def test_text_alone_has_no_media_states(tiny_folder: Path, config: Any, module: Any) -> None:
    done = Thinker(module, accept_layer=1, device=torch.device("cpu")).prefill(encode(tiny_folder, config, ()))
    assert done.media_hidden.shape == (0, 64)
    assert done.state.rope_delta == 0


def test_interleaved_requests_keep_their_own_state(tiny_folder: Path, config: Any, module: Any) -> None:
    thinker = Thinker(module, accept_layer=1, device=torch.device("cpu"))
    prompts = [encode(tiny_folder, config, names) for names in PROMPTS[:3]]

    def alone(inputs: ModelInputs) -> list[torch.Tensor]:
        done = thinker.prefill(inputs)
        return [done.logits] + [thinker.decode(int(inputs.input_ids[step]), done.state) for step in range(4)]

    started = [thinker.prefill(inputs) for inputs in prompts]
    mixed = [[done.logits] for done in started]
    for step in range(4):
        for done, inputs, rows in zip(started, prompts, mixed, strict=True):
            rows.append(thinker.decode(int(inputs.input_ids[step]), done.state))
    for inputs, rows in zip(prompts, mixed, strict=True):
        assert all(torch.equal(row, own) for row, own in zip(rows, alone(inputs), strict=True))
