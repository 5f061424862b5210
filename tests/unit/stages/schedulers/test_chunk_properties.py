"""The scheduler with chunks, against the model of the contract: whatever comes in whatever order."""

from hypothesis import settings

from stages.schedulers.chunks import Chunking
from stages.schedulers.generation import GenerationScheduler
from tests.unit.stages.schedulers.test_scheduler_properties import GenerationMachine

CHUNKS = Chunking(first=2, then=3, most=12)


class ChunkMachine(GenerationMachine):
    """First chunks of 2 units, then 3, or 6 or 12 for who is behind."""

    def make(self, max_batch):
        self.seen = {}
        self.idle = {}
        return GenerationScheduler(max_batch, CHUNKS.most, chunks=CHUNKS)

    def check_step(self, credits, held):
        output = super().check_step(credits, held)
        if output is not None:
            sizes = [_size(row) for row in output.rows]
            calls = {(row.position == 0, size) for row, size in zip(output.rows, sizes, strict=True) if row.units}
            assert len(calls) <= 1, "rows of one step need one forward call"
            assert sum(sizes) <= max(3 * self.max_batch, CHUNKS.most)
        return output

    def check_units(self, row, model):
        self.check_idle(row, model)
        if row.units not in _sizes(row):
            assert model.over(), "a chunk that is not complete"
            assert row.units < _sizes(row)[0]
            assert row.position + row.units == max(model.total(), row.position), "the rest was left out"


def _sizes(row):
    return CHUNKS.later_sizes if row.position else CHUNKS.first_sizes


def _size(row):
    """The size of the forward call that the row needs."""
    return min(size for size in _sizes(row) if size >= row.units) if row.units else 0


TestChunks = ChunkMachine.TestCase
TestChunks.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
