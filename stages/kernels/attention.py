"""Attention of packed rows over a paged KV cache: one entry, chosen by device. Writes nothing; knows no model."""

import torch

from stages.runners.kv_cache import StepLayout


def paged_attention(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, layout: StepLayout, scale: float
) -> torch.Tensor:
    """Attention [T, heads, head_dim] of `q` [T, heads, head_dim] over what each row has in the cache.

    `k_cache` and `v_cache` [blocks, block_tokens, kv_heads, head_dim] already hold the keys and values of this step's
    tokens. Token i of a row with n tokens and kv length l sees the first l - n + i + 1 positions of its row, and of no
    other. Head h reads kv head h // (heads // kv_heads).
    """
    if q.is_cuda:
        from stages.kernels.cuda.attention import paged_attention as kernels

        done: torch.Tensor = kernels(q.contiguous(), k_cache, v_cache, layout, scale)
        return done
    return _torch_attention(q, k_cache, v_cache, layout, scale)


def _torch_attention(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, layout: StepLayout, scale: float
) -> torch.Tensor:
    """Rows of one token together, each longer row by itself."""
    if layout.max_query == 1:
        return _single(q, k_cache, v_cache, layout.block_tables, layout.kv_lengths, layout, scale)
    starts = layout.query_starts.tolist()
    lengths = layout.kv_lengths.tolist()
    out = torch.zeros_like(q) if layout.padded else torch.empty_like(q)
    singles = [row for row in range(len(lengths)) if starts[row + 1] - starts[row] == 1]
    for row, length in enumerate(lengths):
        begin, end = starts[row], starts[row + 1]
        if end - begin > 1:
            out[begin:end] = _chunk(q[begin:end], k_cache, v_cache, layout.block_tables[row], length, scale)
    if singles:
        rows = torch.tensor(singles, device=q.device)
        places = layout.query_starts[rows].long()
        out[places] = _single(
            q[places], k_cache, v_cache, layout.block_tables[rows], layout.kv_lengths[rows], layout, scale
        )
    return out


def _single(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    layout: StepLayout,
    scale: float,
) -> torch.Tensor:
    """One token a row: [R, heads, head_dim]."""
    rows, heads, dim = q.shape
    kv_heads = k_cache.shape[2]
    if (hidden := layout.memo.get("hidden")) is None:
        reach = tables.shape[1] * k_cache.shape[1]
        hidden = torch.arange(reach, device=q.device) >= lengths[:, None]
        layout.memo["hidden"] = hidden = hidden[:, None, None]
    keys = k_cache[tables].view(rows, -1, kv_heads, dim).permute(0, 2, 3, 1)
    values = v_cache[tables].view(rows, -1, kv_heads, dim).transpose(1, 2)
    scores = torch.matmul(q.view(rows, kv_heads, heads // kv_heads, dim) * scale, keys)
    weights = scores.masked_fill_(hidden, float("-inf")).softmax(-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, values).view(rows, heads, dim)


def _chunk(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, table: torch.Tensor, length: int, scale: float
) -> torch.Tensor:
    """Several tokens of one row: [n, heads, head_dim]."""
    tokens = len(q)
    keys = k_cache[table].flatten(0, 1)[:length].transpose(0, 1)
    values = v_cache[table].flatten(0, 1)[:length].transpose(0, 1)
    seen = None
    if tokens < length:
        seen = torch.ones(tokens, length, dtype=torch.bool, device=q.device).tril(length - tokens)
    done = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys[None],
        values[None],
        attn_mask=seen,
        is_causal=seen is None,
        scale=scale,
        enable_gqa=True,
    )
    return done[0].transpose(0, 1)
