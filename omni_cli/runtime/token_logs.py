"""The log probabilities that travel beside a text output, read from its payloads.

The layout is that of `stages/models/qwen3_omni/logprobs.py`; any stage that writes text may use it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from stages.payload import Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLog:
    """One token of a text: its id, the bytes it stands for (perhaps only a part of a character), its log probability,
    and the likely tokens in its place, descending."""

    token: int
    data: bytes
    logprob: float
    likely: tuple["TokenLog", ...] = ()


def token_logs(payloads: Iterable[Payload]) -> Iterator[TokenLog]:
    """The tokens of a text, in order."""
    for payload in payloads:
        tokens = payload.tensor("token_ids").data.cast("q").tolist()
        logprobs = payload.tensor("logprobs").data.cast("f").tolist()
        count = payload.tensor("likely_ids").shape[1]
        likely = payload.tensor("likely_ids").data.cast("q").tolist()
        likely_logprobs = payload.tensor("likely_logprobs").data.cast("f").tolist()
        spelled = bytes(payload.tensor("token_bytes").data)
        pieces = [spelled[a:b] for a, b in pairwise((0, *payload.tensor("token_ends").data.cast("i").tolist()))]
        others = [
            TokenLog(token=token, data=data, logprob=logprob)
            for token, data, logprob in zip(likely, pieces[len(tokens) :], likely_logprobs, strict=True)
        ]
        for index, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            own = tuple(others[index * count : (index + 1) * count])
            yield TokenLog(token=token, data=pieces[index], logprob=logprob, likely=own)
