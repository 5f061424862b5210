"""Control messages between the orchestrator and a stage process. Tensors never travel in them, only references.

Parent to worker: a `Turn` of commands. Worker to parent: a `StepReport` of events (`stages.events`), a
`LogLine` or a `Beat`.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from stages.config import RingSpec
from stages.errors import ErrorInfo
from stages.lease import Lease
from stages.payload import PayloadRef

REQUEST = "request"  # the producer's name on the edge that carries decoded media into a first stage, and the
# consumer's name on the edge that carries final outputs out of the pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a stage draws its tokens; None leaves the choice to the checkpoint's own generation config.

    `temperature` 0 is greedy. `max_tokens` counts the stage's own tokens. `logit_bias` is added to the logits of its
    tokens. `stop` ends a text before the first of these strings, `stop_token_ids` the stage with the token. `seed` keys
    the draws of this stage alone; None takes the request's. `ignore_eos` goes on to the limit, for measuring.
    `logprobs` is how many likely tokens are reported beside each token; None reports no log probabilities.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    max_tokens: int | None = None
    seed: int | None = None
    ignore_eos: bool = False
    logprobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One piece of a message: text, or the medium whose tensor is called `media` in the request's input payload.

    image: uint8 [height, width, 3] RGB. audio: float32 [samples], mono, 16 kHz. video: uint8 [frames, height, width, 3]
    with `fps`.
    """

    kind: Literal["text", "image", "audio", "video"]
    text: str = ""
    media: str = ""
    fps: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    role: Literal["system", "user", "assistant"]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageParams:
    """How a picture is drawn, or a video of several `frames`; nothing is left open. `width` and `height` in pixels.

    `pictures` are width and height of those that the request brings. `strength` is how much of one to start from is
    drawn anew, None if it brings none or brings them to be edited. `sigmas` are
    noise levels before the model's own shift, one a step; empty is the model's own choice for `steps`. After every
    `preview_every` steps it is shown as it is; 0 is never.
    """

    width: int
    height: int
    steps: int
    frames: int = 1
    true_cfg_scale: float = 1.0
    negative_prompt: str | None = None
    pictures: tuple[tuple[int, int], ...] = ()
    strength: float | None = None
    sigmas: tuple[float, ...] = ()
    preview_every: int = 0

    @property
    def guided(self) -> bool:
        """Away from the negative prompt: two predictions a step."""
        return self.negative_prompt is not None and self.true_cfg_scale > 1

    @property
    def taken(self) -> int:
        """Of `steps` those that are taken; for the others the picture to start from stands, as in diffusers'
        QwenImageImg2ImgPipeline, but never for all, however little is drawn anew."""
        drawn = self.steps if self.strength is None else self.steps * self.strength
        return max(1, self.steps - int(self.steps - drawn))


Tokenize = Literal["prompt", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRequest:
    """What one stage is asked to do for one request.

    `uid` is the run's own number for the request, the only key in the data plane. `inputs` names the producers whose
    streams this request will get here (`request` where media come in). `conversation` is filled in first stages only.
    `outputs` are the final modalities that this stage shall produce for it, `consumers` the stages that are fed.
    `image` is for stages that draw. `options` is the family's own frozen dataclass (contract `options`), or None. With
    `tokenize` the stage that writes text does nothing but tell token ids (`stages.runners.token_list`): of the prompt
    that it would read, or of the conversation's only text as it stands.
    """

    uid: int
    seed: int
    inputs: tuple[str, ...]
    consumers: tuple[str, ...]
    outputs: tuple[str, ...]
    sampling: Sampling = field(default_factory=Sampling)
    conversation: tuple[ChatMessage, ...] = ()
    voice: str | None = None
    choice: int = 0
    image: ImageParams | None = None
    options: Any = None
    tokenize: Tokenize | None = None

    @property
    def own_seed(self) -> int:
        """What keys the draws of this stage."""
        return self.seed if self.sampling.seed is None else self.sampling.seed


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMessage:
    """One ordered message of a stream (request, edge). The last one has `eos`; it may carry a payload as well.

    `seq` counts from 0. `units` is how many of the producer's units (tokens, frames) it carries. `lease` is None where
    the payload is inline or absent.
    """

    uid: int
    producer: str
    consumer: str
    seq: int
    units: int
    eos: bool
    ref: PayloadRef | None = None
    lease: Lease | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Take on a request. Streams follow as `Deliver`."""

    request: StageRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """The next message of an input stream. Its lease must be answered by `LeaseReleased`, whatever happens."""

    message: StreamMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim:
    """These leases of yours have ended: their slots are yours again."""

    leases: tuple[Lease, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Give up a request: release what was delivered for it, drop its state, answer with `StageCancelled`."""

    uid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """A replica of `producer` has been started again; from now on it writes `ring`."""

    producer: str
    ring: RingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Detach:
    """Nothing in this ring of a dead replica of `producer` is to be read any more."""

    producer: str
    segment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Leave the loop and exit with 0. Requests in flight have ended or been cancelled before."""


Command = Submit | Deliver | Reclaim | Cancel | Attach | Detach | Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """All that the orchestrator has to say to one worker in one turn of its loop, in order."""

    commands: tuple[Command, ...]
    sent_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A log record of a stage process, to be logged once by the parent under the stage's name."""

    process: str
    level: int
    logger: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The process is there. `rounds` counts what its loop has got done; with `working` it is in the middle of more,
    else it waits for its parent."""

    rounds: int
    working: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFailed:
    """The stage process could not start or has to give up; it exits after this."""

    process: str
    t_ns: int
    error: ErrorInfo
