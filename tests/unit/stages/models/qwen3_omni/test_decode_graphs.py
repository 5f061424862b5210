"""A decode step over buffers of a fixed size gives each row what the plain step gives it, and touches nothing else."""

from pathlib import Path
from typing import Any

import pytest
import torch

from stages.models.qwen3_omni.decode_graphs import TalkerGraphs, ThinkerGraphs
from stages.models.qwen3_omni.defaults import CODE_PREDICTOR
from stages.models.qwen3_omni.modules import Source, read_config, talker_module, thinker_module
from stages.models.qwen3_omni.talker import Talker
from stages.models.qwen3_omni.thinker import Thinker
from stages.models.qwen3_omni.tiny import tiny_checkpoint
from stages.runners.kv_cache import BlockTables, PagedCache, Span, StepLayout

CPU = torch.device("cpu")
LENGTHS, SLOTS = (5, 33, 17), 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tiny_checkpoint(tmp_path_factory.mktemp("omni_cache")))


def noisy_cache(decoder: Any) -> tuple[PagedCache, StepLayout]:
    """Rows of LENGTHS tokens, the last of which is this step's."""
    cache = PagedCache(
        layers=decoder.num_hidden_layers, blocks=6, block_tokens=16, kv_heads=decoder.num_key_value_heads,
        head_dim=decoder.head_dim, dtype=torch.float32, device=CPU,
    )  # fmt: skip
    cache.keys.normal_(), cache.values.normal_()
    tables, free = BlockTables(16), [5, 0, 3, 2, 1, 4]
    for uid, length in enumerate(LENGTHS):
        tables.extend(uid, [free.pop() for _ in range(-(-length // 16))])
    return cache, tables.layout([Span(uid, length - 1, 1) for uid, length in enumerate(LENGTHS)], CPU)


@torch.inference_mode()
def test_thinker(folder: Path) -> None:
    config = read_config(folder)
    module, _ = thinker_module(config, Source(folder=folder, device=CPU, dtype=torch.float32, dummy=False))
    cache, layout = noisy_cache(config.thinker_config.text_config)
    thinker = Thinker(module, cache, accept_layer=1, device=CPU)
    graphs = ThinkerGraphs(thinker, cache, rows=SLOTS, blocks=4, graphs=False)
    ids, positions = torch.tensor([3, 9, 40]), torch.tensor([4.0, 32.0, 16.0])
    expected = thinker.decode(ids, positions, layout)
    kept = cache.keys[:, : cache.sink].clone()
    torch.testing.assert_close(graphs.decode(ids, positions, layout), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(cache.keys[:, : cache.sink], kept, rtol=1e-4, atol=1e-4)
    # A step of fewer rows in the same buffers: nothing of the step before is left in it.
    fewer = StepLayout(
        slots=layout.slots[1:2], query_starts=layout.query_starts[:2], kv_lengths=layout.kv_lengths[1:2],
        block_tables=layout.block_tables[1:2], max_query=1,
    )  # fmt: skip
    found = graphs.decode(ids[1:2], positions[1:2], fewer)
    torch.testing.assert_close(found, expected[1:2], rtol=1e-4, atol=1e-4)
    assert not graphs.graphs.captured
    assert graphs.graphs.eager_runs == 2


@torch.inference_mode()
@pytest.mark.parametrize("drawn", [False, True])
def test_talker(folder: Path, drawn: bool) -> None:
    config = read_config(folder)
    module, _ = talker_module(config, Source(folder=folder, device=CPU, dtype=torch.float32, dummy=False))
    decoder = config.talker_config.text_config
    cache, layout = noisy_cache(decoder)
    talker = Talker(module, torch.randn(60, decoder.hidden_size), cache, config, slots=SLOTS, predictor=CODE_PREDICTOR)
    graphs = TalkerGraphs(talker, cache, rows=SLOTS, blocks=4, spare=SLOTS, graphs=False)
    slots = torch.tensor([6, 0, 3])
    hidden = torch.randn(SLOTS, decoder.hidden_size)
    first, text, positions = torch.tensor([1, 2, 3]), torch.tensor([7, 8, 9]), torch.tensor([4.0, 32.0, 16.0])
    numbers = torch.rand(3, talker.predictor.groups - 1, dtype=torch.float64) if drawn else None
    greedy = torch.tensor([False, True, False]) if drawn else None

    def step(decode: Any) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        for slot in range(SLOTS):
            talker.restore(slot, hidden[slot])
        logits, codes = decode(first, text, slots, positions, layout, numbers, greedy)
        return logits.clone(), codes.clone(), [talker.last(slot) for slot in range(SLOTS)]

    logits, codes, last = step(talker.decode)
    same_logits, same_codes, same_last = step(graphs.decode)
    assert torch.equal(same_codes, codes)
    torch.testing.assert_close(same_logits, logits, rtol=1e-4, atol=1e-4)
    for slot in range(SLOTS):
        torch.testing.assert_close(same_last[slot], last[slot], rtol=1e-4, atol=1e-4)
