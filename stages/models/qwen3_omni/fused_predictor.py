"""The code predictor by fused kernels: what `code_predictor` computes, as one chain of launches without a host in it.

Its cache is a paged one with a block a row; what depends on positions alone is computed once. Keeps nothing from one
frame to the next.
"""

from dataclasses import dataclass
from typing import Any

import torch

from stages.kernels.cuda.draw import draw
from stages.kernels.cuda.layers import fuse_layers
from stages.kernels.cuda.linear import matvec, products
from stages.runners.kv_cache import PagedCache, StepLayout
from stages.runners.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class _Group:
    """The pass that ends in one group of codes: where its tokens lie, and their rotary angles [T, dim]."""

    cache: PagedCache
    layout: StepLayout
    cos: torch.Tensor
    sin: torch.Tensor


class FusedCodePredictor:
    """transformers' code predictor, for up to `rows` rows at a time, on CUDA. `params` are those of rows that are not
    greedy."""

    def __init__(self, module: Any, rows: int, *, params: SamplingParams, device: torch.device) -> None:
        config = module.model.config
        self._params = params
        self._device = device
        self._layers = fuse_layers(module.model)
        self._norm = module.model.norm
        self._heads = [head.weight for head in module.lm_head]
        self.embeddings = module.model.codec_embedding
        self.groups = int(config.num_code_groups)
        self._cache = PagedCache(
            layers=int(config.num_hidden_layers),
            blocks=rows,
            block_tokens=max(16, self.groups),
            kv_heads=int(config.num_key_value_heads),
            head_dim=int(config.head_dim),
            dtype=self._heads[0].dtype,
            device=device,
        )
        places = torch.arange(self.groups, device=device)[None]
        cos, sin = module.model.rotary_emb(self._heads[0][:1], places)
        self._cos, self._sin = cos[0], sin[0]
        self._passes: dict[int, list[_Group]] = {}

    def _of(self, rows: int) -> list[_Group]:
        """The passes of a frame, for so many rows: two tokens a row, then one at a time."""
        if rows not in self._passes:
            spans = [(0, 2), *((start, start + 1) for start in range(2, self.groups))]
            self._passes[rows] = [self._pass(rows, begin, end) for begin, end in spans]
        return self._passes[rows]

    def _pass(self, rows: int, begin: int, end: int) -> _Group:
        tokens, row = end - begin, torch.arange(rows, device=self._device)
        places = torch.arange(begin, end, device=self._device)
        return _Group(
            self._cache,
            StepLayout(
                slots=(row[:, None] * self._cache.block_tokens + places).flatten(),
                query_starts=torch.arange(rows + 1, dtype=torch.int32, device=self._device) * tokens,
                kv_lengths=torch.full((rows,), end, dtype=torch.int32, device=self._device),
                block_tables=row[:, None].to(torch.int32),
                max_query=tokens,
            ),
            self._cos[begin:end].repeat(rows, 1),
            self._sin[begin:end].repeat(rows, 1),
        )

    def __call__(
        self, hidden: torch.Tensor, first: torch.Tensor, numbers: torch.Tensor | None, greedy: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `CodePredictor`: codes [R, groups - 1] int64 and the sum [R, hidden] of the frame's embeddings."""
        rows = len(hidden)
        norm = self._layers[0].norm
        codes = torch.empty((rows, self.groups - 1), dtype=torch.int64, device=self._device)
        total = first.to(torch.float32, copy=True)
        x, normed = torch.stack((hidden, first), dim=1).flatten(0, 1), None
        for group, step in enumerate(self._of(rows)):
            for layer in self._layers:
                x, normed = layer.rows(x, normed, step.cos, step.sin, step)
            x, normed = draw(
                self._logits(x, normed, group, rows),
                self._params,
                numbers,
                greedy,
                group,
                table=self.embeddings[group].weight,
                norm=norm.weight,
                eps=norm.variance_epsilon,
                codes=codes,
                total=total,
            )
        return codes, total.to(first.dtype)

    def _logits(self, x: torch.Tensor, normed: torch.Tensor | None, group: int, rows: int) -> torch.Tensor:
        """Parts [S, R, vocabulary] of the group's logits, from the last token of each row."""
        head = self._heads[group]
        if normed is None:
            norm = self._norm
            return matvec(x, head, norm=norm.weight, eps=norm.variance_epsilon, dtype=torch.float32)[None]
        return products(normed.view(rows, -1, normed.shape[1])[:, -1].contiguous(), head)
