"""What a stage does when it draws a token, and the one number that each draw depends on.

The number is a function of (seed, stage, choice, position, code group) alone, so a request's tokens never depend on who
shares its batch, on a replica or on a replay. The arithmetic is `sampler`'s; this module needs no torch.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.errors import RequestRefused
from stages.messages import Sampling

_FILTERS_OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What a stage does when a request leaves nothing open. `temperature` 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0,
    `repetition_penalty` 1 and the other penalties 0 are off.

    `min_tokens` keeps the end token and `stop_token_ids` away for that many tokens. `logprobs` is how many likely
    tokens are reported beside the chosen one; None reports nothing.
    """

    max_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None

    def with_request(self, asked: Sampling, stage: str) -> "SamplingParams":
        """These values with what the request sets put over them.

        Raises RequestRefused for values out of range, and for a filter on a stage that would be greedy, where it could
        not act.
        """
        names = (one.name for one in fields(self))
        given = {name: value for name in names if (value := getattr(asked, name)) is not None}
        params = replace(self, **given)
        key = f"request.sampling.{stage}"
        idle = sorted(name for name, off in _FILTERS_OFF.items() if given.get(name, off) != off)
        if idle and params.temperature == 0 and asked.temperature is None:
            raise RequestRefused(
                f"{key}.{idle[0]}={given[idle[0]]} cannot act: {stage} is greedy by default; set {key}.temperature too"
            )
        for name, sound, expected in _CHECKS:
            value = getattr(params, name)
            if not sound(value):
                raise RequestRefused(f"{key}.{name} must be {expected}, got {value}")
        return params

    def check_tokens(self, vocabulary: int, stage: str) -> None:
        """Raises RequestRefused for a bias or a stop on a token that the stage does not have."""
        for name, tokens in (
            ("logit_bias", [token for token, _ in self.logit_bias]),
            ("stop_token_ids", self.stop_token_ids),
        ):
            for token in tokens:
                if not 0 <= token < vocabulary:
                    raise RequestRefused(
                        f"request.sampling.{stage}.{name}: {token} is no token; there are 0 to {vocabulary - 1}"
                    )


_CHECKS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("temperature", lambda value: 0 <= value < math.inf, "0 (greedy) or more"),
    ("top_k", lambda value: value >= 0, "0 (off) or more"),
    ("top_p", lambda value: 0 < value <= 1, "over 0 and at most 1"),
    ("min_p", lambda value: 0 <= value <= 1, "from 0 to 1"),
    ("repetition_penalty", lambda value: 0 < value < math.inf, "over 0"),
    ("presence_penalty", math.isfinite, "a number"),
    ("frequency_penalty", math.isfinite, "a number"),
    ("logit_bias", lambda value: all(math.isfinite(bias) for _, bias in value), "numbers by token"),
    ("stop", all, "texts that are not empty"),
    ("max_tokens", lambda value: value >= 1, "1 or more"),
    ("min_tokens", lambda value: value >= 0, "0 or more"),
    ("logprobs", lambda value: value is None or value >= 0, "0 or more"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawKey:
    """What all draws of one request in one stage share."""

    seed: int
    stage: str
    choice: int = 0
    _shared: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        prefix = f"{self.seed}/{self.stage}/{self.choice}/".encode()
        object.__setattr__(self, "_shared", hashlib.blake2b(prefix, digest_size=8))

    def uniform(self, position: int, group: int = 0) -> float:
        """A number in [0, 1) of 53 bits: BLAKE2b used as a counter-based generator."""
        return float(uniforms([(self, position)], (group,))[0, 0])


def uniforms(draws: Sequence[tuple[DrawKey, int]], groups: Sequence[int] = (0,)) -> npt.NDArray[np.float64]:
    """The numbers [draws, groups] of (key, position) pairs."""
    digests = bytearray()
    for key, position in draws:
        for group in groups:
            state = key._shared.copy()
            state.update(b"%d/%d" % (position, group))
            digests += state.digest()
    bits = np.frombuffer(digests, dtype=">u8").astype(np.uint64) >> np.uint64(11)
    return (bits.astype(np.float64) * 2.0**-53).reshape(len(draws), len(groups))
