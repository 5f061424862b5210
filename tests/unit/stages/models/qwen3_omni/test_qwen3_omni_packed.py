"""Packed rows over a paged cache give each sequence what it gets alone from transformers' own cache and attention."""

from pathlib import Path
from typing import Any

import pytest
import torch

from stages.models.qwen3_omni import modules
from stages.models.qwen3_omni.packed import PackedDecoder, PagedStep
from stages.runners.kv_cache import BlockTables, PagedCache, Span

CPU = torch.device("cpu")
LENGTHS = (5, 40, 17, 3)


@pytest.fixture(scope="module", params=["thinker", "talker"])
def stack(request: pytest.FixtureRequest, tiny_folder: Path) -> Any:
    """A decoder of a freshly loaded stage."""
    config = modules.read_config(tiny_folder)
    source = modules.Source(folder=tiny_folder, device=CPU, dtype=torch.float32, dummy=False)
    if request.param == "thinker":
        return modules.ThinkerParts.of(modules.stage_module("thinker", config, source)[0]).text
    return modules.stage_module("talker", config, source)[0].model


@pytest.fixture(scope="module")
def sequences(stack: Any) -> list[tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]]:
    """Embeddings [n, hidden], positions [3, n] and all hidden states, computed before the stack is packed."""
    generator = torch.Generator().manual_seed(3)
    done = []
    for length in LENGTHS:
        embeds = torch.randn(length, stack.config.hidden_size, generator=generator)
        positions = torch.randint(0, 50, (3, length), generator=generator).float()
        with torch.inference_mode():
            output = stack(inputs_embeds=embeds[None], position_ids=positions[:, None], output_hidden_states=True)
        done.append((embeds, positions, [hidden[0] for hidden in output.hidden_states]))
    return done


@pytest.mark.parametrize("chunks", [(1, 1, 1, 1), (1, 7, 4, 2), (40, 40, 40, 40)])
def test_equal_to_each_sequence_alone(
    stack: Any, sequences: list[tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]], chunks: tuple[int, ...]
) -> None:
    config = stack.config
    decoder = PackedDecoder(stack)
    cache = PagedCache(
        layers=config.num_hidden_layers, blocks=24, block_tokens=4, kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim, dtype=torch.float32, device=CPU,
    )  # fmt: skip
    tables, free = BlockTables(4), torch.randperm(24, generator=torch.Generator().manual_seed(1)).tolist()
    for uid, length in enumerate(LENGTHS):
        tables.extend(uid, [free.pop() for _ in range(-(-length // 4))])
    done = [0] * len(LENGTHS)
    got: dict[int, list[list[torch.Tensor]]] = {layer: [[] for _ in LENGTHS] for layer in (0, 1, len(stack.layers))}
    steps = 0
    while any(at < length for at, length in zip(done, LENGTHS, strict=True)):
        spans = [
            Span(uid, done[uid], min(chunks[uid], length - done[uid]))
            for uid, length in enumerate(LENGTHS)
            if done[uid] < length and steps >= uid  # each sequence begins a step after the one before it
        ]
        parts = [(slice(span.start, span.start + span.tokens), *sequences[span.uid][:2]) for span in spans]
        embeds = torch.cat([embeds[part] for part, embeds, _ in parts])[None]
        positions = torch.cat([positions[:, part] for part, _, positions in parts], dim=1)[:, None]
        with torch.inference_mode():
            for layer in got:
                step = PagedStep(cache, tables.layout(spans))
                last, caught = decoder.with_layer(layer, embeds, positions, step)
                begin = 0
                for span in spans:
                    got[layer][span.uid].append(caught[0, begin : begin + span.tokens])
                    begin += span.tokens
        assert last.shape == embeds.shape
        for span in spans:
            done[span.uid] += span.tokens
        steps += 1
    for layer, pieces in got.items():
        for (_, _, expected), found in zip(sequences, pieces, strict=True):
            torch.testing.assert_close(torch.cat(found), expected[layer], rtol=0, atol=3e-5)
