"""Decoders with fused layers give the hidden states of transformers' own: prompts, chunks and single tokens."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AttentionInterface
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling

from stages.kernels.cuda.layers import fuse_layers
from stages.models.qwen3_omni.fused_predictor import FusedCodePredictor
from stages.models.qwen3_omni.modules import read_config
from stages.models.qwen3_omni.tiny import tiny_checkpoint
from stages.runners.kv_cache import BlockTables, PagedCache, Span, StepLayout
from stages.runners.sampling import SamplingParams

AttentionInterface.register("none_of_transformers", lambda *_: None)
LENGTHS = (21, 5, 34)


@dataclass(frozen=True, slots=True)
class Step:
    cache: PagedCache
    layout: StepLayout


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return read_config(Path(tiny_checkpoint(tmp_path_factory.mktemp("omni_cache"))))


def lively(module: Any, device: torch.device) -> Any:
    for parameter in module.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
        else:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return module.eval().requires_grad_(False).to(device)


def positions(kind: str, *ranges: range) -> torch.Tensor:
    flat = torch.cat([torch.tensor(list(part)) for part in ranges])[None]
    return flat if kind == "predictor" else flat.expand(3, 1, -1)


@pytest.mark.parametrize("kind", ["thinker", "talker", "predictor"])
@pytest.mark.parametrize("last", [(1, 1, 1), (3, 1, 34)], ids=["decode", "mixed"])
def test_fused_layers(kind: str, last: tuple[int, ...], config: Any, device: torch.device) -> None:
    """`last` are the tokens of each row in the second step; what comes before them is in the first."""
    kinds = {
        "thinker": (modeling.Qwen3OmniMoeThinkerTextModel, config.thinker_config.text_config),
        "talker": (modeling.Qwen3OmniMoeTalkerModel, config.talker_config.text_config),
        "predictor": (modeling.Qwen3OmniMoeTalkerCodePredictorModel, config.talker_config.code_predictor_config),
    }
    build, settings = kinds[kind]
    module = lively(build._from_config(copy.deepcopy(settings)), device)
    settings = module.config
    rows = [torch.randn(length, settings.hidden_size, device=device) for length in LENGTHS]
    whole = [
        module(inputs_embeds=row[None], position_ids=positions(kind, range(len(row))).to(device), use_cache=False)
        for row in rows
    ]
    fuse_layers(module)
    settings._attn_implementation = "none_of_transformers"
    cache = PagedCache(
        layers=settings.num_hidden_layers, blocks=6, block_tokens=16, kv_heads=settings.num_key_value_heads,
        head_dim=settings.head_dim, dtype=torch.float32, device=device,
    )  # fmt: skip
    tables, free = BlockTables(16), [5, 0, 3, 2, 1, 4]
    for uid, length in enumerate(LENGTHS):
        tables.extend(uid, [free.pop() for _ in range(-(-length // 16))])

    def step(spans: list[tuple[int, int, int]]) -> torch.Tensor:
        """Hidden states of (row, begin, end)."""
        layout = tables.layout([Span(uid, begin, end - begin) for uid, begin, end in spans]).to(device)
        found = module(
            inputs_embeds=torch.cat([rows[uid][begin:end] for uid, begin, end in spans])[None],
            position_ids=positions(kind, *(range(begin, end) for _, begin, end in spans)).to(device),
            use_cache=False,
            omni_step=Step(cache, layout),
        )
        return found.last_hidden_state[0]

    lengths = list(zip(LENGTHS, last, strict=True))
    steps = [
        [(uid, 0, length - new) for uid, (length, new) in enumerate(lengths) if length > new],
        [(uid, length - new, length) for uid, (length, new) in enumerate(lengths)],
    ]
    for spans in steps:
        expected = torch.cat([whole[uid].last_hidden_state[0, begin:end] for uid, begin, end in spans])
        torch.testing.assert_close(step(spans), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 3])
def test_fused_predictor(rows: int, config: Any, device: torch.device) -> None:
    settings = config.talker_config.code_predictor_config
    module = lively(
        modeling.Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration._from_config(settings), device
    )
    own = copy.deepcopy(module)
    params = SamplingParams(max_tokens=1, temperature=1.0, top_k=50, top_p=0.8)
    predictor = FusedCodePredictor(module, 4, params=params, device=device)
    hidden, first = torch.randn(2, rows, settings.hidden_size, device=device)
    codes, total = predictor(hidden, first, None, None)
    sequence = torch.stack((hidden, first), dim=1)
    for group in range(settings.num_code_groups - 1):
        places = torch.arange(sequence.shape[1], device=device)[None]
        states = own.model(inputs_embeds=sequence, position_ids=places, use_cache=False).last_hidden_state
        likeliest = own.lm_head[group](states[:, -1]).argmax(-1)
        assert torch.equal(codes[:, group], likeliest)
        sequence = torch.cat((sequence, own.model.codec_embedding[group](likeliest)[:, None]), dim=1)
    torch.testing.assert_close(total, sequence[:, 1:].sum(1))

    numbers = torch.rand(rows, settings.num_code_groups - 1, dtype=torch.float64, device=device)
    together = predictor(hidden, first, numbers, None)[0]
    alone = [
        predictor(hidden[row : row + 1], first[row : row + 1], numbers[row : row + 1], None)[0] for row in range(rows)
    ]
    assert torch.equal(together, torch.cat(alone))
