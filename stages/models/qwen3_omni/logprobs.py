"""What is reported of each token beside its text: log probabilities, as tensors of a text output's payload.

`token_ids` [n] int64 and `logprobs` [n] float32; `likely_ids` [n, k] and `likely_logprobs` [n, k], descending.
`token_bytes` uint8 holds the bytes that the n tokens and then the n * k likely ones stand for, one after the other,
`token_ends` [n + n * k] int32 where those of each end.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stages.models.qwen3_omni.text import TokenCodec
from stages.payload import Payload
from stages.runners.sampler import Drawn
from stages.runners.tensors import to_payload


@dataclass(frozen=True, slots=True)
class TokenReport:
    """A token, and if anybody asked: its log probability and the likely tokens' (ids, log probabilities)."""

    token: int
    logprob: float = 0.0
    likely: tuple[Sequence[int], Sequence[float]] = ((), ())


def reports(drawn: Drawn) -> list[TokenReport]:
    """One a row. Waits for the device."""
    tokens = drawn.tokens.tolist()
    if drawn.logprob is None or drawn.likely is None or drawn.likely_logprob is None:
        return [TokenReport(token) for token in tokens]
    likely = zip(drawn.likely.tolist(), drawn.likely_logprob.tolist(), strict=True)
    return [
        TokenReport(token, logprob, both)
        for token, logprob, both in zip(tokens, drawn.logprob.tolist(), likely, strict=True)
    ]


def log_payload(told: Sequence[TokenReport], codec: TokenCodec, count: int) -> Payload:
    """`count` likely tokens beside each."""
    tokens = [report.token for report in told]
    likely = [report.likely[0][:count] for report in told]
    spelled = [codec.bytes_of(token) for token in (*tokens, *(token for row in likely for token in row))]
    ends = torch.tensor([len(piece) for piece in spelled], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    tensors = {
        "token_ids": torch.tensor(tokens, dtype=torch.int64),
        "logprobs": torch.tensor([report.logprob for report in told], dtype=torch.float32),
        "likely_ids": torch.tensor(likely, dtype=torch.int64).reshape(len(told), count),
        "likely_logprobs": torch.tensor([report.likely[1][:count] for report in told]).reshape(len(told), count),
        "token_bytes": torch.tensor(list(b"".join(spelled)), dtype=torch.uint8),
        "token_ends": ends,
    }
    return Payload(tensors=tuple(to_payload(name, tensor) for name, tensor in tensors.items()))
