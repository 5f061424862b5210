"""Routed experts: gated SiLU MLPs, each token through a few of them. One entry, chosen by device; knows no model."""

import torch
from torch.nn.functional import silu

# All experts over all tokens in one product, as long as that is no more than so many times the work that is asked for.
_DENSE = 4


def experts(
    hidden: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """The weighted sum [T, h], over each token's experts, of down @ (silu(gate @ x) * (up @ x)).

    `hidden` [T, h]; `gate_up` [E, 2i, h], the gate's rows first; `down` [E, h, i]; `ids` [T, k] int64, the experts of
    each token, all different; `weights` [T, k].
    """
    if hidden.is_cuda:
        from stages.kernels.cuda.experts import experts as kernels

        done: torch.Tensor = kernels(hidden.contiguous(), gate_up, down, ids.contiguous(), weights.contiguous())
        return done
    if len(gate_up) <= _DENSE * ids.shape[1]:
        return _dense(hidden, gate_up, down, ids, weights)
    return _one_by_one(hidden, gate_up, down, ids, weights)


def _dense(
    hidden: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """No shape depends on the routing and nothing is read back: few operations for few experts."""
    gate, up = torch.matmul(hidden, gate_up.transpose(1, 2)).chunk(2, dim=-1)
    shares = hidden.new_zeros(len(hidden), len(gate_up)).scatter_(1, ids, weights.to(hidden.dtype))
    return torch.bmm(silu(gate).mul_(up).mul_(shares.T[:, :, None]), down.transpose(1, 2)).sum(0)


def _one_by_one(
    hidden: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Tokens sorted by expert, a product for each expert that has any."""
    order = ids.flatten().argsort(stable=True)
    tokens = order // ids.shape[1]
    counts = torch.bincount(ids.flatten(), minlength=len(gate_up)).tolist()
    out = torch.zeros_like(hidden)
    begin = 0
    for expert, count in enumerate(counts):
        if count:
            chosen = tokens[begin : begin + count]
            share = weights.flatten()[order[begin : begin + count], None]
            gate, up = (hidden[chosen] @ gate_up[expert].T).chunk(2, dim=-1)
            out.index_add_(0, chosen, ((silu(gate) * up) @ down[expert].T * share).to(out.dtype))
        begin += count
    return out
