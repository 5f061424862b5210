"""The scheduler of each execution type."""

from stages.config import ExecutionType
from stages.schedulers.ar import ARScheduler
from stages.schedulers.base import Scheduler
from stages.schedulers.generation import GenerationScheduler


def create_scheduler(execution_type: ExecutionType, max_batch: int, max_units_a_row: int | None = None) -> Scheduler:
    """`max_units_a_row` bounds the rows of `llm_generation`. Raises ValueError for a type without a scheduler."""
    if execution_type == "llm_ar":
        return ARScheduler(max_batch)
    if execution_type == "llm_generation":
        return GenerationScheduler(max_batch, max_units_a_row)
    raise ValueError(f"no scheduler for execution type {execution_type!r}; there are llm_ar and llm_generation")
