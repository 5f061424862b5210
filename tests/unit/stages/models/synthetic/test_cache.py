"""The cache without tensors finds what a scheduler or a block pool may get wrong."""

import pytest

from stages.errors import StageError
from stages.models.synthetic.cache import BlockCache
from stages.schedulers.base import KVCapacity, Row


def row(uid, start, tokens, *blocks):
    return Row(uid=uid, phase="prefill", position=0, units=0, start=start, tokens=tokens, blocks=blocks)


@pytest.fixture
def cache():
    found = BlockCache(KVCapacity(blocks=4, block_tokens=2))
    found.compute(row(1, 0, 3, 2, 0))
    return found


def test_a_sequence_grows_over_its_blocks_and_starts_anew_in_others(cache):
    cache.compute(row(1, 3, 1))
    cache.compute(row(1, 4, 1, 3))
    cache.forget(1)
    cache.compute(row(2, 0, 2, 2))
    cache.compute(row(1, 0, 6, 0, 3, 1))
    cache.compute(row(2, 2, 0))


def test_a_block_that_two_have_is_found(cache):
    cache.compute(row(2, 0, 1, 0))
    with pytest.raises(StageError, match="block 0 should hold token 2 of request 1"):
        cache.compute(row(1, 3, 1))


def test_a_gap_a_repetition_and_too_few_blocks_are_found(cache):
    with pytest.raises(StageError, match="goes on at token 4, 3 are there"):
        cache.compute(row(1, 4, 1))
    with pytest.raises(StageError, match="goes on at token 2, 3 are there"):
        cache.compute(row(1, 2, 1))
    with pytest.raises(StageError, match="has 2 KV blocks of 2, too few for 5 tokens"):
        cache.compute(row(1, 3, 2))
