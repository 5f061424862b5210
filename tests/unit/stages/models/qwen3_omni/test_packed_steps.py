"""A step over buffers of a fixed size gives each row what the plain step gives it, and touches nothing else."""

from pathlib import Path
from typing import Any

import pytest
import torch

from stages.models.qwen3_omni.defaults import CODE_PREDICTOR
from stages.models.qwen3_omni.modules import Source, read_config, stage_module
from stages.models.qwen3_omni.packed_steps import Buckets, TalkerSteps, ThinkerSteps
from stages.models.qwen3_omni.talker import Frames, Talker
from stages.models.qwen3_omni.thinker import Thinker
from stages.models.qwen3_omni.tiny import tiny_checkpoint
from stages.runners.kv_cache import BlockTables, PagedCache, Span, StepLayout
from stages.runners.sampler import Sampler
from stages.runners.sampling import DrawKey, SamplingParams

CPU = torch.device("cpu")
LENGTHS, SLOTS = (5, 33, 17), 8
BUCKETS = Buckets(decode=(SLOTS,), prefill=((32, 4),), blocks=4)
# (start, tokens) of a step with a prompt, a row that decodes and the end of a prompt, and where its rows end
CHUNKS, PLACES = ((0, 5), (32, 1), (10, 7)), torch.tensor([4, 5, 12])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tiny_checkpoint(tmp_path_factory.mktemp("omni_cache")))


def noisy_cache(decoder: Any) -> tuple[PagedCache, StepLayout, StepLayout]:
    """Rows of LENGTHS tokens, and two steps: the last token of each, and CHUNKS."""
    cache = PagedCache(
        layers=decoder.num_hidden_layers, blocks=6, block_tokens=16, kv_heads=decoder.num_key_value_heads,
        head_dim=decoder.head_dim, dtype=torch.float32, device=CPU,
    )  # fmt: skip
    cache.keys.normal_(), cache.values.normal_()
    tables, free = BlockTables(16), [5, 0, 3, 2, 1, 4]
    for uid, length in enumerate(LENGTHS):
        tables.extend(uid, [free.pop() for _ in range(-(-length // 16))])
    decode = tables.layout([Span(uid, length - 1, 1) for uid, length in enumerate(LENGTHS)])
    return cache, decode, tables.layout([Span(uid, *chunk) for uid, chunk in enumerate(CHUNKS)])


@torch.inference_mode()
def test_thinker(folder: Path) -> None:
    config = read_config(folder)
    module, _ = stage_module("thinker", config, Source(folder=folder, device=CPU, dtype=torch.float32, dummy=False))
    cache, layout, chunks = noisy_cache(config.thinker_config.text_config)
    thinker = Thinker(module, cache, accept_layer=1, device=CPU)
    steps = ThinkerSteps(thinker, cache, BUCKETS)
    ids, positions = torch.tensor([3, 9, 40]), torch.tensor([4.0, 32.0, 16.0])
    expected = thinker.decode(ids, positions, layout)
    kept = cache.keys[:, : cache.sink].clone()
    torch.testing.assert_close(steps.decode(ids, positions, layout), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(cache.keys[:, : cache.sink], kept, rtol=1e-4, atol=1e-4)
    # A step of fewer rows in the same buffers: nothing of the step before is left in it.
    fewer = StepLayout(
        slots=layout.slots[1:2], query_starts=layout.query_starts[:2], kv_lengths=layout.kv_lengths[1:2],
        block_tables=layout.block_tables[1:2], max_query=1,
    )  # fmt: skip
    found = steps.decode(ids[1:2], positions[1:2], fewer)
    torch.testing.assert_close(found, expected[1:2], rtol=1e-4, atol=1e-4)
    ids, positions = torch.arange(13), torch.rand(3, 13).mul(30).floor()
    expected = thinker.prefill(ids, positions, chunks, PLACES)
    for _ in range(2):
        torch.testing.assert_close(steps.prefill(ids, positions, chunks, PLACES), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        steps.decode(torch.tensor([9]), torch.tensor([32.0]), fewer), found, rtol=1e-4, atol=1e-4
    )
    assert torch.isfinite(cache.keys).all()
    assert steps.paths.take() == (("graph_replays", 0), ("eager_runs", 5))
    assert steps.paths.take() == (("graph_replays", 0), ("eager_runs", 0))


@torch.inference_mode()
@pytest.mark.parametrize("drawn", [False, True])
def test_talker(folder: Path, drawn: bool) -> None:
    config = read_config(folder)
    module, _ = stage_module("talker", config, Source(folder=folder, device=CPU, dtype=torch.float32, dummy=False))
    decoder = config.talker_config.text_config
    cache, layout, chunks = noisy_cache(decoder)
    talker = Talker(module, torch.randn(60, decoder.hidden_size), cache, config, slots=SLOTS, predictor=CODE_PREDICTOR)
    sampler = Sampler(decoder.vocab_size, SLOTS + 1, device=CPU, end_tokens=(3,))
    steps = TalkerSteps(talker, sampler, cache, BUCKETS, spare=SLOTS)
    slots = torch.tensor([6, 0, 3])
    hidden = torch.randn(SLOTS, decoder.hidden_size)
    first, text, positions = torch.tensor([1, 2, 3]), torch.tensor([7, 8, 9]), torch.tensor([4.0, 32.0, 16.0])
    numbers = torch.rand(3, talker.predictor.groups - 1, dtype=torch.float64) if drawn else None
    greedy = torch.tensor([False, True, False]) if drawn else None

    def step(run: TalkerSteps) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        for slot in range(SLOTS):
            talker.restore(slot, hidden[slot])
            params = SamplingParams(max_tokens=9, temperature=0.0 if slot else 0.9, repetition_penalty=1.05, top_k=5)
            sampler.open(slot, params, DrawKey(seed=slot, stage="talker"), generated=[slot, slot + 1])
        sampling = sampler.prepare([(slot, 2) for slot in slots.tolist()])
        frames = Frames(first=first, text=text, slots=slots, numbers=numbers, greedy=greedy)
        tokens, codes = run.decode(frames, positions, layout, sampling)
        return tokens.clone(), codes.clone(), [talker.last(slot) for slot in range(SLOTS)]

    tokens, codes, last = step(TalkerSteps(talker, sampler, cache, Buckets(), spare=SLOTS))
    same_tokens, same_codes, same_last = step(steps)
    assert torch.equal(same_codes, codes)
    assert torch.equal(same_tokens, tokens)
    for slot in range(SLOTS):
        torch.testing.assert_close(same_last[slot], last[slot], rtol=1e-4, atol=1e-4)
    embeds, at = torch.randn(13, decoder.hidden_size), torch.rand(3, 13).mul(30).floor()
    logits = talker.prefill(embeds, at, chunks, PLACES, slots)
    kept = [talker.last(slot) for slot in range(SLOTS)]
    torch.testing.assert_close(steps.prefill(embeds, at, chunks, PLACES, slots), logits, rtol=1e-4, atol=1e-4)
    for slot in range(SLOTS):
        torch.testing.assert_close(talker.last(slot), kept[slot], rtol=1e-4, atol=1e-4)
