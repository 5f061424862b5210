"""Tile sizes of the kernels, measured on an H200 and written down: nothing is tuned while a stage starts.

A choice depends on shapes alone, so one launch always runs the same way. Holds no kernels.
"""

import torch
from triton import cdiv, next_power_of_2

Tile = dict[str, int]
# float32 stays float32 on the tensor cores; for 16-bit operands the word has no effect.
PRECISION = {torch.float32: "ieee", torch.bfloat16: "tf32", torch.float16: "tf32"}


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return int(next_power_of_2(size))


def matvec_tiles(n: int, k: int, *, gated: bool) -> Tile:
    """Of one row times weight [n, k]."""
    if n > 65536:
        return {"BLOCK_N": 4, "num_warps": 8}
    if k > 2048 and not gated:
        return {"BLOCK_N": 4, "num_warps": 8} if n <= 1024 else {"BLOCK_N": 8, "num_warps": 4}
    return {"BLOCK_N": 2, "num_warps": 4}


def product_tiles(rows: int, n: int, k: int) -> tuple[Tile, int]:
    """Of a few rows times weight [n, k], and into how many parts k is split."""
    split = power_of_two(max(1, min(8, k // 256)))
    block_k = min(256, max(16, power_of_two(cdiv(k, split))))
    block_n, stages = (64 if n > 256 else 32), 3
    if block_k == 256 and (k % (split * block_k) or (rows > 16 and n > 4096)):
        block_k, stages = 128, 4
        block_n = 64 if n > 1024 else 32
    tile = {"BLOCK_N": block_n, "BLOCK_K": block_k, "num_warps": 4, "num_stages": stages}
    return {"BLOCK_M": max(16, power_of_two(rows)), **tile}, split


def gated_tiles(rows: int, n: int, k: int) -> Tile:
    """Of a few rows times a gated weight [2 * n, k]."""
    block_n, warps = (32, 4) if rows <= 16 else (16, 2)
    block_m = max(16, power_of_two(rows))
    return {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": 256, "num_warps": warps, "num_stages": 3}


def gate_up_row_tiles(inner: int, h: int) -> Tile:
    """Of one row's first product."""
    return {"BLOCK_N": 2, "num_warps": 8}


def down_row_tiles(inner: int, h: int) -> Tile:
    """Of one row's second product."""
    return {"BLOCK_N": 4, "num_warps": 4} if inner > 512 else {"BLOCK_N": 2, "num_warps": 2}


def expert_rows(mean: float) -> int:
    """Rows of a tile, for that many rows an expert on average."""
    for block in (16, 32, 64):
        if mean <= block // 2:
            return block
    return 128


def gate_up_tiles(block_m: int, inner: int, h: int) -> Tile:
    """Of the first product of grouped rows."""
    if block_m <= 32:
        return {"BLOCK_N": 32, "BLOCK_K": 128, "num_warps": 4, "num_stages": 3}
    return {"BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 8 if block_m == 128 else 4, "num_stages": 3}


def down_tiles(block_m: int, inner: int, h: int) -> Tile:
    """Of the second product of grouped rows."""
    if block_m <= 32:
        return {"BLOCK_N": 64, "BLOCK_K": 128, "num_warps": 4, "num_stages": 3}
    if block_m <= 64:
        return {"BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 4}
    return {"BLOCK_N": 256, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3}


def decode_splits(rows: int, kv_heads: int, reach: int) -> int:
    """Programs that share one row's cached tokens, `reach` at most, so that a few rows fill the device."""
    wanted = (128 if rows <= 16 else 256) // (rows * kv_heads)
    return power_of_two(max(1, min(32, wanted, cdiv(reach, 64))))


def decode_tiles(reach: int) -> Tile:
    """Of rows of one token."""
    return {"BLOCK_N": min(64, max(16, power_of_two(reach))), "num_warps": 4, "num_stages": 2}


def prefill_tiles(group: int, max_query: int) -> Tile:
    """Of longer rows: query tokens and heads of the group are the tile's rows, cached tokens its columns."""
    block_q = max(1, 16 // group, min(128 // group, power_of_two(max_query)))
    warps = 8 if block_q * group >= 128 else 4
    return {"BLOCK_Q": block_q, "BLOCK_G": group, "BLOCK_N": 64, "num_warps": warps, "num_stages": 2}
