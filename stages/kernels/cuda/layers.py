"""transformers' decoder layers of the Qwen3 kind, each computed by about ten fused kernels over its own weights.

A `FusedLayer` takes a layer's place in its decoder and keeps the call: what surrounds the layers (rotary angles, hooks,
visual features, the last norm) stays transformers'. Works on packed rows over a paged cache; knows no requests.
"""

from typing import Any, Protocol

import torch
from torch import nn

from stages.kernels.cuda.attention import decode, paged_attention
from stages.kernels.cuda.experts import experts_of_row, experts_of_rows, tile_rows
from stages.kernels.cuda.linear import gated_products, matvec, products
from stages.kernels.cuda.norm import add_norm, rms_norm
from stages.kernels.cuda.rope import rope_and_cache
from stages.kernels.cuda.router import FEW_ROWS, route, route_few
from stages.runners.kv_cache import PagedCache, StepLayout

# Logits in a row are a multiple of this.
_ALIGNED = 16


class PagedRows(Protocol):
    """What a layer needs of the step that it works for."""

    @property
    def cache(self) -> PagedCache: ...

    @property
    def layout(self) -> StepLayout: ...


def fuse_layers(decoder: Any) -> list["FusedLayer"]:
    """Replaces the layers of a transformers decoder, in place, and returns them. Weights are merged where that saves a
    launch, and the layers' own parameters become views of the merged ones.

    Raises TypeError for a layer that is not of this kind.
    """
    fused = []
    for layer in decoder.layers:
        fused.append(FusedLayer(layer))
        if torch.cuda.is_available():
            # What a layer had before it was merged does not fit the next one: without this it would pile up.
            torch.cuda.empty_cache()
    for index, layer in enumerate(fused):
        layer.next_norm = fused[index + 1].norm if index + 1 < len(fused) else decoder.norm
        decoder.layers[index] = layer
    return fused


def merge(*layers: Any) -> torch.Tensor:
    """The weights of linear layers without bias, one below the other; the layers keep views of the result."""
    if any(getattr(layer, "bias", None) is not None for layer in layers):
        raise TypeError("a projection with a bias has no fused kernel")
    merged = torch.cat([layer.weight for layer in layers])
    parts = merged.split([len(layer.weight) for layer in layers])
    for layer, part in zip(layers, parts, strict=True):
        layer.weight.data = part
    return merged


class FusedAttention:
    """Projection, head norms, rotary positions, cache, attention, projection."""

    def __init__(self, attention: Any) -> None:
        self._index: int = attention.layer_idx
        self._scale: float = attention.scaling
        self._q_norm, self._k_norm = attention.q_norm.weight, attention.k_norm.weight
        self._eps: float = attention.q_norm.variance_epsilon
        self.qkv = merge(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out: torch.Tensor = attention.o_proj.weight

    def __call__(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, step: PagedRows) -> torch.Tensor:
        """[T, heads * dim] for the parts [S, T, ...] of the projection."""
        keys, values = step.cache.keys[self._index], step.cache.values[self._index]
        norms, layout = (self._q_norm, self._k_norm), step.layout
        if layout.max_query == 1:
            return decode(qkv, *norms, cos, sin, keys, values, layout, self._eps, self._scale).flatten(1)
        q = rope_and_cache(qkv, *norms, cos, sin, layout.slots, keys, values, self._eps)
        return paged_attention(q, keys, values, layout, self._scale).flatten(1)


class FusedMLP:
    """A gated SiLU MLP between two sums."""

    def __init__(self, mlp: Any) -> None:
        self._gate_up = merge(mlp.gate_proj, mlp.up_proj)
        self._down: torch.Tensor = mlp.down_proj.weight

    def row(self, x: torch.Tensor, norm: Any, step: PagedRows) -> torch.Tensor:
        """x + MLP(norm(x)) for one row."""
        act = matvec(x, self._gate_up, norm=norm.weight, eps=norm.variance_epsilon, gated=True)
        return matvec(act, self._down, residual=x)

    def rows(
        self, x: torch.Tensor, normed: torch.Tensor, next_norm: Any, step: PagedRows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x + MLP(normed), and the norm of that."""
        parts = products(gated_products(normed, self._gate_up), self._down)
        return add_norm(x, parts, next_norm.weight, next_norm.variance_epsilon)


class FusedExperts:
    """Router and experts between two sums.

    A shared expert is cut into experts of the routed ones' size, which every row takes with the shared gate's weight.
    """

    def __init__(self, block: Any) -> None:
        gate = block.gate
        self._router: torch.Tensor = gate.weight
        self._gate_up, self._down = block.experts.gate_up_proj, block.experts.down_proj
        always = 0
        if hasattr(block, "shared_expert"):
            # Padded, so that a row of logits is aligned whatever comes behind the routed experts'.
            gates = nn.functional.pad(block.shared_expert_gate.weight, (0, 0, 0, _ALIGNED - 1))
            self._router = torch.cat((gate.weight, gates))
            always = self._append(block.shared_expert)
            # The layer's own parameters are no second copy.
            block.experts.gate_up_proj.data = self._gate_up[: gate.num_experts]
            block.experts.down_proj.data = self._down[: gate.num_experts]
        self._routing: dict[str, Any] = {
            "experts": gate.num_experts,
            "top": gate.top_k,
            "renorm": gate.norm_topk_prob,
            "always": always,
        }
        self._choices = gate.top_k + always

    def _append(self, shared: Any) -> int:
        inner = int(self._down.shape[2])
        parts = [layer.weight for layer in (shared.gate_proj, shared.up_proj)]
        always = -(-len(parts[0]) // inner)
        padded = always * inner - len(parts[0])
        gate, up = (nn.functional.pad(part, (0, 0, 0, padded)).unflatten(0, (-1, inner)) for part in parts)
        down = nn.functional.pad(shared.down_proj.weight, (0, padded)).unflatten(1, (-1, inner)).transpose(0, 1)
        self._gate_up = torch.cat((self._gate_up, torch.cat((gate, up), dim=1)))
        self._down = torch.cat((self._down, down))
        return always

    @staticmethod
    def _end(step: PagedRows) -> int:
        """The first slot of the sink: what goes there is padding, which must not wake experts."""
        return int(step.cache.blocks * step.cache.block_tokens)

    def row(self, x: torch.Tensor, norm: Any, step: PagedRows) -> torch.Tensor:
        """x + experts(norm(x)) for one row."""
        weight, eps = norm.weight, norm.variance_epsilon
        logits = matvec(x, self._router, norm=weight, eps=eps, dtype=torch.float32)
        ids, weights = route(logits[None], step.layout.slots, self._end(step), **self._routing)
        return experts_of_row(x, weight, eps, self._gate_up, self._down, ids, weights, residual=True)

    def rows(
        self, x: torch.Tensor, normed: torch.Tensor, next_norm: Any, step: PagedRows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x + experts(normed), and the norm of that."""
        logits, plan = products(normed, self._router), None
        if len(x) <= FEW_ROWS:
            block_m = tile_rows(len(x), self._choices, len(self._down))
            ids, weights, plan = route_few(logits, step.layout.slots, self._end(step), block_m, **self._routing)
        else:
            ids, weights = route(logits, step.layout.slots, self._end(step), **self._routing)
        return experts_of_rows(
            normed,
            self._gate_up,
            self._down,
            ids,
            weights,
            plan=plan,
            residual=x,
            norm=next_norm.weight,
            eps=next_norm.variance_epsilon,
        )


class FusedLayer(nn.Module):  # type: ignore[misc]
    """A decoder layer of transformers, called as one.

    With more than one row it leaves the norm of its result for the layer that comes next, which takes it if it is given
    that very result. `next_norm` is the module of that norm.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        if not hasattr(layer, "self_attn") or not hasattr(layer.self_attn, "q_norm"):
            raise TypeError(f"{type(layer).__name__} has no kernels: it is not a decoder layer of the Qwen3 kind")
        self.unfused = layer
        self.norm = layer.input_layernorm
        self.next_norm: Any = None
        self._middle = layer.post_attention_layernorm
        self._attention = FusedAttention(layer.self_attn)
        self._mlp = FusedExperts(layer.mlp) if hasattr(layer.mlp, "experts") else FusedMLP(layer.mlp)

    def forward(
        self,
        hidden_states: torch.Tensor,
        *_: Any,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        omni_step: PagedRows,
        **__: Any,
    ) -> torch.Tensor:
        """`hidden_states` [..., hidden], all but the last dimension packed; cos and sin [..., head_dim] likewise."""
        shape = hidden_states.shape
        cos, sin = (
            part.expand(*shape[:-1], part.shape[-1]).reshape(-1, part.shape[-1]).contiguous()
            for part in position_embeddings
        )
        x = hidden_states.reshape(-1, shape[-1]).contiguous()
        memo = omni_step.layout.memo
        left, known = memo.pop("normed", (None, None))
        out, normed = self.rows(x, known if left is hidden_states else None, cos, sin, omni_step)
        out = out.view(shape)
        if normed is not None:
            memo["normed"] = (out, normed)
        return out

    def rows(
        self, x: torch.Tensor, normed: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor, step: PagedRows
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """x [T, hidden] behind the layer, and the next norm of it unless T is 1; `normed`, this layer's norm of x."""
        weight, eps = self.norm.weight, self.norm.variance_epsilon
        if len(x) == 1:
            qkv = matvec(x, self._attention.qkv, norm=weight, eps=eps, dtype=torch.float32)
            attended = self._attention(qkv[None], cos, sin, step)
            x = matvec(attended, self._attention.out, residual=x)
            return self._mlp.row(x, self._middle, step), None
        if normed is None:
            normed = rms_norm(x, weight, eps)
        attended = self._attention(products(normed, self._attention.qkv), cos, sin, step)
        x, normed = add_norm(
            x, products(attended, self._attention.out), self._middle.weight, self._middle.variance_epsilon
        )
        return self._mlp.rows(x, normed, self.next_norm, step)
