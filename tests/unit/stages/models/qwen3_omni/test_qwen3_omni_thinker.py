"""The thinker's states and logits are transformers' own, however the prompt is put together and cut into chunks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stages.messages import ChatMessage, Part
from stages.models.qwen3_omni import modules
from stages.models.qwen3_omni.processing import ModelInputs, load_processor
from stages.models.qwen3_omni.prompt import Prompt, media_rows
from stages.models.qwen3_omni.thinker import MediaStep, Thinker
from stages.runners.kv_cache import BlockTables, PagedCache, Span

CPU = torch.device("cpu")
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


def load(folder: Path, config: Any) -> Any:
    source = modules.Source(folder=folder, device=CPU, dtype=torch.float32, dummy=False)
    return modules.stage_module("thinker", config, source)[0]


@pytest.fixture(scope="module")
def reference(tiny_folder: Path, config: Any) -> Any:
    """As transformers has it."""
    return load(tiny_folder, config)


def encode(folder: Path, config: Any, names: tuple[str, ...]) -> ModelInputs:
    parts = (*(PARTS[name] for name in names), Part(kind="text", text="What is it?"))
    processor = load_processor(folder, config, dummy=False)
    return processor.encode((ChatMessage(role="user", parts=parts),), MEDIA)


class Alone:
    """One request at a time over a cache of its own."""

    def __init__(self, folder: Path, layer: int) -> None:
        config = modules.read_config(folder)
        text = config.thinker_config.text_config
        cache = PagedCache(
            layers=text.num_hidden_layers, blocks=40, block_tokens=8, kv_heads=text.num_key_value_heads,
            head_dim=text.head_dim, dtype=torch.float32, device=CPU,
        )  # fmt: skip
        self.thinker = Thinker(load(folder, config), cache, accept_layer=layer, device=CPU)
        self._tables = BlockTables(8)
        self._tables.extend(0, range(40))

    @torch.inference_mode()
    def run(self, inputs: ModelInputs, chunk: int) -> tuple[Prompt, torch.Tensor, torch.Tensor]:
        """The prompt, hidden states [n, hidden] behind the last norm, and the accepted ones [media tokens, hidden]."""
        prompt = self.thinker.prompt(inputs)
        encoders = self.thinker.encoders
        media = [(medium.kind, encoders.encode(medium)) for medium in encoders.media(inputs)]
        rows = media_rows(prompt, media) if media else None
        hidden, accepted = [], [torch.empty(0, 64)]
        for start in range(0, len(prompt), chunk):
            tokens = min(chunk, len(prompt) - start)
            layout = self._tables.layout([Span(0, start, tokens)])
            ids, positions = (torch.from_numpy(part.copy()) for part in prompt.part(start, tokens, ()))
            first, after = np.searchsorted(prompt.places, (start, start + tokens)).tolist()
            if rows is None or first == after:
                hidden.append(self.thinker.hidden(ids, positions, layout))
                continue
            places = torch.from_numpy(prompt.places[first:after] - start)
            step = MediaStep.of([(places, rows.part(first, after))])
            done = self.thinker.hidden_with_media(ids, positions, layout, step)
            hidden.append(done[0])
            accepted.append(done[1])
        return prompt, torch.cat(hidden), torch.cat(accepted)


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("names", PROMPTS, ids=" and ".join)
def test_chunks_equal_one_forward_call(
    tiny_folder: Path, config: Any, reference: Any, names: tuple[str, ...], chunk: int
) -> None:
    inputs = encode(tiny_folder, config, names)
    ids = inputs.input_ids[None]
    clips = {}
    if inputs.input_features is not None:
        lengths = inputs.audio_lengths
        mask = torch.arange(int(lengths.max()))[None] < lengths[:, None]
        padded = torch.zeros(len(lengths), inputs.input_features.shape[0], mask.shape[1])
        padded.transpose(1, 2)[mask] = inputs.input_features.T
        clips = {"input_features": padded, "feature_attention_mask": mask.long()}
    with torch.inference_mode():
        expected = reference(
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
        alone = Alone(tiny_folder, layer)
        prompt, hidden, accepted = alone.run(inputs, chunk)
        torch.testing.assert_close(hidden, expected.hidden_states[-1][0], rtol=0, atol=1e-4)
        torch.testing.assert_close(alone.thinker.logits(hidden), expected.logits[0], rtol=0, atol=1e-4)
        media = expected.hidden_states[layer][0, torch.from_numpy(prompt.places)]
        torch.testing.assert_close(accepted, media, rtol=0, atol=1e-4)


def test_a_token_is_decoded_at_its_place(tiny_folder: Path, config: Any) -> None:
    """The positions of what is generated go on behind the picture's, which are fewer than its tokens."""
    inputs = encode(tiny_folder, config, ("picture",))
    alone = Alone(tiny_folder, 1)
    prompt, _, _ = alone.run(inputs, 64)
    assert prompt.delta < 0
    ids, positions = prompt.part(len(prompt) - 2, 4, [7, 8, 9])
    assert ids.tolist() == [*prompt.ids[-2:].tolist(), 7, 8]
    later = [len(prompt) + prompt.delta, len(prompt) + 1 + prompt.delta]
    assert positions.tolist() == [[*row[-2:].tolist(), *later] for row in prompt.positions]
    assert later[0] == prompt.positions.max() + 1


def test_text_alone_has_no_media(tiny_folder: Path, config: Any) -> None:
    prompt, _, accepted = Alone(tiny_folder, 1).run(encode(tiny_folder, config, ()), 64)
    assert accepted.shape == (0, 64)
    assert (prompt.delta, len(prompt.places)) == (0, 0)
    assert prompt.positions.tolist() == [list(range(len(prompt)))] * 3
