"""The scheduler of each execution type."""

from collections.abc import Callable, Mapping

from stages.config import ExecutionType, StageTuning
from stages.schedulers.ar import ARScheduler
from stages.schedulers.base import Denoising, KVCapacity, Scheduler
from stages.schedulers.chunks import Chunking
from stages.schedulers.diffusion import DiffusionScheduler
from stages.schedulers.generation import GenerationScheduler
from stages.schedulers.streams import NO_LOOKAHEAD


def create_scheduler(
    execution_type: ExecutionType,
    max_batch: int,
    max_units_a_row: int | None = None,
    *,
    tuning: StageTuning | None = None,
    kv: KVCapacity | None = None,
    lookahead: Mapping[str, int] = NO_LOOKAHEAD,
    stage: str = "STAGE",
    denoising: Callable[[int], Denoising] | None = None,
    encodes: bool = True,
    decodes: bool = True,
) -> Scheduler:
    """`max_units_a_row` bounds the rows of `llm_generation`; `kv` is what the runner has, None for a stage without KV;
    `lookahead` has the input contract's `lookahead_units` by producer; `stage` is named in refusals. `denoising`,
    `encodes` and `decodes` are those of `DiffusionScheduler`.

    Raises ValueError for `diffusion` without `denoising`.
    """
    step_tokens = None if tuning is None else tuning.step_tokens
    if execution_type == "llm_ar":
        return ARScheduler(max_batch, step_tokens=step_tokens, kv=kv, lookahead=lookahead, stage=stage)
    if execution_type == "llm_generation":
        return GenerationScheduler(
            max_batch, max_units_a_row, chunks=_chunks(tuning, max_units_a_row), lookahead=lookahead
        )
    if denoising is None:
        raise ValueError(f"the runner of stage {stage!r} does not say what its requests denoise: it is no diffusion")
    return DiffusionScheduler(max_batch, denoising, step_tokens=step_tokens, encodes=encodes, decodes=decodes)


def _chunks(tuning: StageTuning | None, most: int | None) -> Chunking | None:
    """The chunks that a stage's deploy keys ask for, if any; transformers' own decoding has the largest throughout."""
    if tuning is not None and tuning.decode == "transformers" and most is not None:
        return Chunking(first=most, then=most, most=most)
    if tuning is None or tuning.chunk_frames is None:
        return None
    first = tuning.first_chunk_frames or tuning.chunk_frames
    return Chunking(first=first, then=tuning.chunk_frames, most=most or max(first, tuning.chunk_frames))
