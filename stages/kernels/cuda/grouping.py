"""Which rows go to which expert: pairs of (row, expert) sorted by expert and cut into tiles, on the device.

Neither reads anything back nor has a shape that depends on the routing, so that it can be captured in a graph.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from stages.kernels.cuda.launch import programs
from stages.kernels.cuda.tiles import power_of_two

# Pairs of (row, expert) that one program of the plan sorts, and tiles that it describes.
_CHUNK = 64
_COUNTED_CHUNK = 128
# Counts of chunks that are read at once.
_COUNTS = 32
# Up to this many pairs each program of the plan counts them all by itself, which spares a launch.
_COUNTED_AT_ONCE = 1024


@triton.jit(do_not_specialize=["pairs"])
def _count(ids, counts, pairs, E: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    chunk = tl.program_id(0)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    expert = tl.load(ids + at, mask=at < pairs, other=-1).to(tl.int32)
    experts = tl.arange(0, E)
    tl.store(counts + chunk * E + experts, tl.sum((expert[:, None] == experts[None, :]).to(tl.int32), 0))


@triton.jit(do_not_specialize=["pairs", "chunks", "tiles_total"])
def _plan(
    ids,
    counts,
    order,
    tiles,
    pairs,
    chunks,
    tiles_total,
    E: tl.constexpr,
    COUNTED: tl.constexpr,
    COUNTS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program c places its chunk of pairs in `order` and describes its chunk of tiles as (expert, first, end)."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    mine = tl.program_id(0)
    experts = tl.arange(0, E)
    lane = tl.arange(0, CHUNK)
    before = tl.zeros((E,), tl.int32)
    total = tl.zeros((E,), tl.int32)
    if COUNTED:
        for start in range(0, chunks, COUNTS):
            chunk = start + tl.arange(0, COUNTS)
            at = counts + chunk[:, None] * E + experts[None, :]
            seen = tl.load(at, mask=(chunk < chunks)[:, None], other=0)
            before += tl.sum(tl.where((chunk < mine)[:, None], seen, 0), 0)
            total += tl.sum(seen, 0)
    else:
        for chunk in range(chunks):
            other = chunk * CHUNK + lane
            held = tl.load(ids + other, mask=other < pairs, other=-1).to(tl.int32)
            here = tl.sum((held[:, None] == experts[None, :]).to(tl.int32), 0)
            before += tl.where(chunk < mine, here, 0)
            total += here
    offset = tl.cumsum(total, 0) - total
    pair = mine * CHUNK + lane
    expert = tl.load(ids + pair, mask=pair < pairs, other=-1).to(tl.int32)
    chosen = (expert[:, None] == experts[None, :]).to(tl.int32)
    earlier = (expert[:, None] == expert[None, :]) & (lane[None, :] < lane[:, None])
    position = tl.sum(chosen * (offset + before)[None, :], 1) + tl.sum(earlier.to(tl.int32), 1)
    tl.store(order + position, pair, mask=(pair < pairs) & (expert >= 0))
    tile_count = (total + BLOCK_M - 1) // BLOCK_M
    tile_end = tl.cumsum(tile_count, 0)
    owner = tl.sum((tile_end[None, :] <= pair[:, None]).to(tl.int32), 1)
    chosen = (owner[:, None] == experts[None, :]).to(tl.int32)
    first = tl.sum(chosen * (offset - (tile_end - tile_count) * BLOCK_M)[None, :], 1) + pair * BLOCK_M
    end = tl.sum(chosen * (offset + total)[None, :], 1)
    described = pair < tiles_total
    tl.store(tiles + pair * 3, tl.where(owner < E, owner, -1), mask=described)
    tl.store(tiles + pair * 3 + 1, first, mask=described)
    tl.store(tiles + pair * 3 + 2, end, mask=described)


@dataclass(frozen=True, slots=True)
class Grouping:
    """Pairs (row * choices + choice) in the order of their experts, and tiles [n, 3] of (expert or -1, first, end)."""

    order: torch.Tensor
    tiles: torch.Tensor

    @staticmethod
    def empty(ids: torch.Tensor, experts: int, block_m: int) -> "Grouping":
        """Room for `ids` [T, choices], and for as many tiles of `block_m` pairs as any ids of this shape can need: so
        nothing depends on the values."""
        pairs = ids.numel()
        count = min(pairs, pairs // block_m + min(experts, pairs))
        return Grouping(
            torch.empty(pairs, dtype=torch.int32, device=ids.device),
            torch.empty((count, 3), dtype=torch.int32, device=ids.device),
        )


def group(ids: torch.Tensor, experts: int, block_m: int) -> Grouping:
    """Sorts the pairs of `ids` [T, choices] by expert, stably; negative ids are left out."""
    pairs = ids.numel()
    plan = Grouping.empty(ids, experts, block_m)
    count = len(plan.tiles)
    block = power_of_two(experts)
    counted = pairs > _COUNTED_AT_ONCE
    chunk = _COUNTED_CHUNK if counted else _CHUNK
    chunks = triton.cdiv(pairs, chunk)
    counts = plan.order
    if counted:
        counts = torch.empty((chunks, block), dtype=torch.int32, device=ids.device)
        programs(_count, chunks)(ids, counts, pairs, E=block, CHUNK=chunk, num_warps=4)
    programs(_plan, max(chunks, triton.cdiv(count, chunk)))(
        ids,
        counts,
        plan.order,
        plan.tiles,
        pairs,
        chunks,
        count,
        E=block,
        COUNTED=counted,
        COUNTS=_COUNTS,
        CHUNK=chunk,
        BLOCK_M=block_m,
        num_warps=16 if counted else 8,
    )
    return plan
