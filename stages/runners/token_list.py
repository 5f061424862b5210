"""The answer to a request that wants nothing but the tokens of its prompt. Knows neither torch nor a tokenizer."""

from array import array
from collections.abc import Sequence

from stages.errors import RequestRefused
from stages.messages import StageRequest
from stages.payload import Payload, Tensor
from stages.runners.base import Output, RowResult

MOST_TOKENS = 1 << 18
"""Of one answer: 1 MB of ids, which travel in a report."""
_PIECE_TOKENS = 1 << 14  # 64 KiB: what a piece of an output may have without a ring


def token_list(request: StageRequest, ids: Sequence[int], context: int | None) -> RowResult:
    """The only row of the request: it computes nothing. Its output is `text` without a text, in payloads `token_ids`
    [n] int32, with the scalar `context_tokens` where the model has a longest sequence. Raises RequestRefused."""
    if len(ids) > MOST_TOKENS:
        raise RequestRefused(f"the text has {len(ids)} tokens, at most {MOST_TOKENS} are told")
    meta = () if context is None else (("context_tokens", context),)
    starts = range(0, max(len(ids), 1), _PIECE_TOKENS)
    payloads = (Payload(tensors=(_ids(ids[start : start + _PIECE_TOKENS]),), meta=meta) for start in starts)
    outputs = tuple(Output(modality="text", units=0, payload=payload) for payload in payloads)
    return RowResult(uid=request.uid, units=0, tokens=0, finished="stop", outputs=outputs)


def _ids(ids: Sequence[int]) -> Tensor:
    data = memoryview(array("i", ids)).cast("B")
    return Tensor(name="token_ids", dtype="int32", shape=(len(ids),), data=data)
