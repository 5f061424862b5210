"""The knobs of the synthetic family, as plain dataclasses: `synthetic` in YAML, and per request.

The control plane validates them with pydantic; this module must not import it, since every stage process imports it.
A request's options are complete when they arrive here: the request's own values over those of the deployment.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

Shape = Literal["n", "1xn", "1x1xn", "nx1"]
Wave = Literal["tone", "sine_1k", "nan", "loud", "empty"]
FailKind = Literal["raise", "oom", "exit", "hang"]

AT_LOAD = -1  # value of `fail.at`: the stage fails while it loads


@dataclass(frozen=True, slots=True)
class Within:
    """Bounds of a number, both included, in pydantic's protocol for annotations (so NaN and infinity are refused)."""

    low: float
    high: float

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], dict[str, Any]]) -> object:
        return {**handler(source), "ge": self.low, "le": self.high}


Delay = Annotated[float, Within(0, 3_600_000)]
Count = Annotated[int, Within(0, 1_000_000)]


class _Strict:
    __slots__ = ()
    __pydantic_config__: ClassVar = {"extra": "forbid", "use_attribute_docstrings": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDelays(_Strict):
    """A time for each stage of `synthetic`; the unit is in the name of the knob."""

    thinker: Delay = 0.0
    talker: Delay = 0.0
    code2wav: Delay = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DagStageDelays(StageDelays):
    """A time for each stage of `synthetic_dag`."""

    singer: Delay = 0.0
    mixer: Delay = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail(_Strict):
    """A failure on purpose, in one stage."""

    stage: Literal["thinker", "talker", "code2wav"] | None = None
    """Where; none: nowhere."""
    at: Annotated[int, Within(AT_LOAD, 1_000_000)] = 0
    """At which of the stage's own units, from 0: tokens of the thinker, frames of the others. -1: while it loads."""
    kind: FailKind = "raise"
    """`raise` and `oom` fail the request, `exit` ends the process with code 3, `hang` blocks it for ever."""
    times: Annotated[int, Within(1, 1_000_000)] | None = None
    """How often in the life of that process; none: every time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DagFail(Fail):
    """A failure on purpose, in one stage of `synthetic_dag`."""

    stage: Literal["thinker", "talker", "code2wav", "singer", "mixer"] | None = None  # type: ignore[assignment]
    """Where; none: nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticOptions(_Strict):
    """The knobs of `synthetic`."""

    frames: Count | None = None
    """Frames of audio; none: three for each token of the text. 0 ends every audio output as `empty`."""
    delay_ms: StageDelays = field(default_factory=StageDelays)
    """What each scheduled step of a stage takes; the longest of the requests that share the step."""
    init_delay_s: StageDelays = field(default_factory=StageDelays)
    """What loading a stage takes. Of the deployment only."""
    payload_bytes: Annotated[int, Within(0, 1 << 34)] = 0
    """Ballast in each message between stages, checked by its reader."""
    fail: Fail = field(default_factory=Fail)
    """A failure on purpose."""
    prompt_tokens: Annotated[int, Within(1, 1_000_000)] = 1
    """Length of the prompt of a language stage, which counts where the stage has a KV cache."""
    never_end: bool = False
    """The talker goes on after its last frame, at most 100 frames a second, until the request is cancelled."""
    sample_rate_hz: Annotated[int, Within(1_000, 384_000)] = 24_000
    """The rate that the last stage declares; a frame has 1920 samples whatever the rate."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """The type of the samples that the last stage hands over."""
    shape: Shape = "n"
    """The shape of the samples that the last stage hands over; n is their number."""
    wave: Wave = "tone"
    """`tone`: by text, seed and frame. `sine_1k`: 1 kHz. `nan`: sample 10 is NaN. `loud`: +-2. `empty`: no samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DagOptions(SyntheticOptions):
    """The knobs of `synthetic_dag`: those of `synthetic`, for five stages."""

    delay_ms: DagStageDelays = field(default_factory=DagStageDelays)
    init_delay_s: DagStageDelays = field(default_factory=DagStageDelays)
    fail: DagFail = field(default_factory=DagFail)
