"""What a caller hands to the engine, with all media decoded, and what comes back, piece by piece."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from omni_cli.errors import StageFailure
from stages.errors import ErrorInfo
from stages.events import FinishReason
from stages.messages import ChatMessage, ImageParams, Sampling, Tokenize
from stages.payload import Payload


def draw_seed() -> int:
    """A seed for a request that came without one: 63 bits."""
    return secrets.randbits(63)


@dataclass(frozen=True, slots=True, kw_only=True)
class OmniRequest:
    """One request. `outputs` are the modalities wanted, at least one, none twice.

    `media` holds the tensors that the conversation's parts name. `sampling` is by stage. `seed` keys every random draw;
    a caller who was given none takes `draw_seed()` and reports it. `timeout_s` runs from the submission to the first
    stage. `choice` numbers the answers to one question. `image` says how to draw. `options` is the family's own
    dataclass. `traceparent` is only kept for the trace. `tokenize` asks for token ids alone: `outputs` is `text`, and
    its chunks carry them.
    """

    request_id: str
    seed: int
    conversation: tuple[ChatMessage, ...]
    outputs: tuple[str, ...]
    media: Payload = field(default_factory=Payload)
    sampling: Mapping[str, Sampling] = field(default_factory=dict)
    voice: str | None = None
    timeout_s: float | None = None
    choice: int = 0
    image: ImageParams | None = None
    options: Any = None
    traceparent: str | None = None
    tokenize: Tokenize | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputChunk:
    """A piece of one final output: `text`, or `payload` (owned bytes; audio: tensor `audio`, scalar `sample_rate_hz`).

    `units` counts tokens or frames in it. The last piece of an output has `eos` and `reason` (`empty`: nothing came).
    """

    modality: str
    seq: int
    units: int
    eos: bool
    text: str = ""
    payload: Payload | None = None
    reason: FinishReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnd:
    """How a request ended. `error` is set unless it finished."""

    outcome: Literal["finished", "failed", "cancelled"]
    error: ErrorInfo | None = None


class RequestError(StageFailure):
    """A request ended without all its outputs: it failed, ran out of time, or was cancelled. `end` says which."""

    def __init__(self, request_id: str, end: RequestEnd) -> None:
        error = end.error
        where = f" in stage {error.stage}" if error and error.stage else ""
        why = f": {error.kind}: {error.message}" if error else ""
        super().__init__(
            f"request {request_id} {end.outcome}{where}{why}",
            stage=error.stage if error else None,
            request_id=request_id,
            fault=error.fault if error else "server",
        )
        self.end = end
