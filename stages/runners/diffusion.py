"""Runs denoising pipelines step by step: requests at different steps, with guidance of their own, in one forward.

`DiffusionRunner` owns the batch, a `Stepper` the algorithm: another pipeline is another stepper. A request's result
does not depend on who shares its steps, but for the rounding of another tensor shape.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch

from stages.config import StageSpec
from stages.errors import RequestRefused, StageError, describe
from stages.messages import REQUEST, ImageParams, StageRequest
from stages.payload import Payload, Scalar
from stages.runners.base import Emission, Output, RowResult
from stages.runners.device import open_device
from stages.runners.tensors import from_payload, read_all, to_payload
from stages.schedulers.base import Denoising, KVCapacity, Row

_PROMPT_CHARACTERS = 100_000  # a longer text is refused before a tokenizer sees it
_KEPT_TEXTS = 16  # encoded texts that are kept: the empty negative prompt, the prompt of several pictures
_WARM_UP = -1
# What the messages between the three stages carry.
_TEXTS = ("prompt", "negative_prompt")
_START = "start"
_LATENTS = "latents"
_WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Condition:
    """One encoded text: `embeds` [tokens, features], and for models that want one a summary, `pooled` [features].
    `warning` says what did not fit."""

    embeds: torch.Tensor
    warning: str = ""
    pooled: torch.Tensor | None = None


@dataclass(slots=True)
class Canvas:
    """A picture or video in the making: `latents` [1, ...], and `schedule`, a noise scheduler of its own that knows
    the `timesteps` [steps] and where it stands; None once there are no more steps."""

    latents: torch.Tensor
    schedule: Any = None
    timesteps: torch.Tensor = field(default_factory=lambda: torch.empty(0))


class Stepper(Protocol):
    """What a pipeline does in each of its parts. One request's texts and canvas never see another's.

    `fps` are the frames a second of its videos, 0 for pictures.
    """

    fps: float

    def load(self, device: torch.device, dtype: torch.dtype) -> int:
        """Loads the modules; returns the bytes that they hold."""
        ...

    def least(self) -> ImageParams:
        """The least work that passes through everything, for the warm-up."""
        ...

    def denoising(self, image: ImageParams) -> Denoising:
        """What the request's steps will be. Raises RequestRefused for what the model cannot draw."""
        ...

    def encode(self, text: str) -> Condition: ...

    def blank(self) -> Condition:
        """A text of one token that says nothing, for the warm-up of a stage that encodes none."""
        ...

    def encode_picture(self, image: ImageParams, pixels: torch.Tensor, seed: int) -> torch.Tensor:
        """The latents of a picture to start from, uint8 [height, width, 3] of any size. Raises RequestRefused where
        the model takes none."""
        ...

    def begin(self, image: ImageParams, seed: int, start: torch.Tensor | None = None) -> Canvas:
        """The noise, over `start` if there is one, and the schedule at its start. The same seed gives what the pipeline
        itself draws with a CPU generator of that seed."""
        ...

    def predict(
        self, image: ImageParams, latents: torch.Tensor, timesteps: torch.Tensor, conditions: Sequence[Condition]
    ) -> torch.Tensor:
        """One forward over all rows, of one shape: latents [rows, ...], timesteps [rows]."""
        ...

    def guide(self, wanted: torch.Tensor, unwanted: torch.Tensor, scale: float) -> torch.Tensor:
        """Both predictions of one request as one, each [1, ...]."""
        ...

    def decode(self, image: ImageParams, latents: torch.Tensor) -> torch.Tensor:
        """float32 [rows, height, width, 3], of videos [rows, frames, height, width, 3], in 0 to 1, on the CPU, from the
        latents of as many requests of one shape."""
        ...


@dataclass(slots=True)
class _Picture:
    """A request in this stage. `conditions` are its prompt and, where it is guided, its negative prompt."""

    request: StageRequest
    image: ImageParams
    texts: tuple[str, ...]
    asks: Denoising
    conditions: tuple[Condition, ...] = ()
    pixels: torch.Tensor | None = None
    canvas: Canvas | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def meta(self) -> tuple[tuple[str, str], ...]:
        return ((_WARNING, "\n".join(self.warnings)),) if self.warnings else ()

    @property
    def drawn(self) -> Canvas:
        if self.canvas is None:
            raise StageError(f"request {self.request.uid} has not been encoded")
        return self.canvas


class DiffusionRunner:
    """A `ModelRunner` of a stage that encodes, denoises and decodes; or of three, each of which does its part: of type
    `llm_generation` those at the ends, which need no steps. What a stage does follows from its edges.

    With `joined`, the predictions with and without the prompt are rows of one forward; else there are two forwards, as
    in diffusers' pipelines, and a request that is alone equals theirs to the bit.
    """

    def __init__(self, spec: StageSpec, stepper: Stepper, *, joined: bool = True) -> None:
        self._spec = spec
        self._stepper = stepper
        self._joined = joined
        self._denoises = spec.execution_type == "diffusion"
        self._encodes = not spec.outputs if not self._denoises else all(e.producer == REQUEST for e in spec.inputs)
        self._decodes = bool(spec.outputs)
        self._pictures: dict[int, _Picture] = {}
        self._texts: OrderedDict[str, Condition] = OrderedDict()
        self._counters: dict[str, int] = {}

    def load(self) -> tuple[tuple[str, str], ...]:
        spec = self._spec
        self._device = open_device(spec)
        held = self._stepper.load(self._device, getattr(torch, spec.model.dtype))
        return ("device", str(self._device)), ("dtype", spec.model.dtype), ("weight_bytes", str(held))

    def warm_up(self) -> None:
        request = StageRequest(uid=_WARM_UP, seed=0, inputs=(), consumers=(), outputs=(), image=self._stepper.least())
        picture = self._pictures[_WARM_UP] = self._picture(request, "warm up")
        picture.conditions = tuple(self._stepper.blank() for _ in picture.texts)
        picture.canvas = self._stepper.begin(picture.image, request.seed)
        steps = picture.asks.steps if self._denoises else 0
        for phase in ["encode"] * self._encodes + ["denoise"] * steps + ["decode"] * self._decodes:
            row = Row(uid=_WARM_UP, phase=phase, position=0, units=1)  # type: ignore[arg-type]
            for result in self.execute((row,)):
                if result.error is not None:
                    raise StageError(f"the warm-up failed: {result.error.message}\n{result.error.trace}")
        self.end(_WARM_UP)
        self._texts.clear()

    def begin(self, request: StageRequest) -> None:
        self._pictures[request.uid] = self._picture(request, _prompt(request) if self._encodes else "")

    def _picture(self, request: StageRequest, prompt: str) -> _Picture:
        image = request.image
        if image is None:
            raise RequestRefused("the request does not say how to draw (request.image)")
        texts = (prompt, image.negative_prompt or "") if image.guided else (prompt,)
        asks = replace(self._stepper.denoising(image), preview_every=image.preview_every)
        return _Picture(request, image, texts, asks)

    def denoising(self, uid: int) -> Denoising:
        return self._pictures[uid].asks

    def feed(self, uid: int, producer: str, payload: Payload, eos: bool) -> None:
        """The request's picture; encoded texts from the stage before; or the latents of what is denoised."""
        picture = self._pictures[uid]
        if producer == REQUEST:
            self._take_pixels(picture, payload)
            return
        tensors = {name: tensor.to(self._device) for name, tensor in read_all(payload).items()}
        picture.warnings += (str(value) for name, value in payload.meta if name == _WARNING)
        if _LATENTS in tensors:
            picture.canvas = Canvas(tensors[_LATENTS])
        elif tensors:
            picture.conditions = tuple(Condition(tensors[name]) for name in _TEXTS if name in tensors)
            picture.canvas = self._stepper.begin(picture.image, picture.request.seed, tensors.get(_START))

    def _take_pixels(self, picture: _Picture, payload: Payload) -> None:
        if len(payload.tensors) != 1:
            raise RequestRefused(f"a picture is drawn from one picture at most, not from {len(payload.tensors)}")
        picture.pixels = from_payload(payload.tensors[0])
        height, width = picture.pixels.shape[:2]
        if (width, height) != (picture.image.width, picture.image.height):
            size = f"{picture.image.width}x{picture.image.height}"
            picture.warnings.append(f"the given picture is {width}x{height} and was scaled to {size}")

    def prompt_tokens(self, uid: int) -> int:
        """Latent tokens of a step: a text is counted when it is encoded."""
        return self._pictures[uid].asks.tokens

    def kv_capacity(self) -> KVCapacity | None:
        return None

    def preempt(self, uids: tuple[int, ...]) -> None:
        """There is no KV cache to take back."""

    def counters(self) -> tuple[tuple[str, int], ...]:
        """`forwards` of the denoiser in the last step, and `forward_rows` in all of them."""
        return tuple(self._counters.items())

    def execute(self, rows: tuple[Row, ...]) -> tuple[RowResult, ...]:
        self._counters = {}
        with torch.no_grad():
            if rows[0].phase == "denoise":
                return self._denoise(rows)
            if rows[0].phase == "decode":
                return self._decode(rows)
            if self._encodes:
                return tuple(self._alone(row, self._encode) for row in rows)
            return tuple(result for row in rows for result in self._decode((row,)))  # they may have any shape

    def _alone(self, row: Row, work: Callable[[Row], RowResult]) -> RowResult:
        """What a row does by itself also fails by itself."""
        try:
            return work(row)
        except Exception as error:
            return RowResult(uid=row.uid, units=0, error=describe(error, self._spec.stage))

    def _encode(self, row: Row) -> RowResult:
        picture = self._pictures[row.uid]
        picture.conditions = tuple(self._condition(text) for text in picture.texts)
        picture.warnings += dict.fromkeys(c.warning for c in picture.conditions if c.warning)
        start = None
        if picture.pixels is not None:
            start = self._stepper.encode_picture(picture.image, picture.pixels, picture.request.seed)
        if not self._denoises:
            tensors = {name: c.embeds for name, c in zip(_TEXTS, picture.conditions, strict=False)}
            tensors |= {} if start is None else {_START: start}
            emissions = self._handed_on(picture, tensors)
            return RowResult(uid=row.uid, units=row.units, finished="stop", emissions=emissions)
        picture.canvas = self._stepper.begin(picture.image, picture.request.seed, start)
        return RowResult(uid=row.uid, units=0)

    def _handed_on(self, picture: _Picture, tensors: Mapping[str, torch.Tensor]) -> tuple[Emission, ...]:
        payload = Payload(
            tensors=tuple(to_payload(name, tensor) for name, tensor in tensors.items()), meta=picture.meta
        )
        return tuple(Emission(consumer=name, units=1, payload=payload) for name in picture.request.consumers)

    def _condition(self, text: str) -> Condition:
        if len(text) > _PROMPT_CHARACTERS:
            raise RequestRefused(f"a text has {len(text)} characters; {_PROMPT_CHARACTERS} are read at most")
        found = self._texts.get(text)
        if found is None:
            found = self._texts[text] = self._stepper.encode(text)
            if len(self._texts) > _KEPT_TEXTS:
                self._texts.popitem(last=False)
        self._texts.move_to_end(text)
        return found

    def _denoise(self, rows: tuple[Row, ...]) -> tuple[RowResult, ...]:
        pictures = [self._pictures[row.uid] for row in rows]
        predictions = self._predictions(pictures, [row.position for row in rows])
        return tuple(
            self._alone(row, partial(self._step, wanted=wanted, unwanted=unwanted))
            for row, (wanted, unwanted) in zip(rows, predictions, strict=True)
        )

    def _step(self, row: Row, wanted: torch.Tensor, unwanted: torch.Tensor | None) -> RowResult:
        picture = self._pictures[row.uid]
        if unwanted is not None:
            wanted = self._stepper.guide(wanted, unwanted, picture.image.true_cfg_scale)
        canvas = picture.drawn
        timestep = canvas.timesteps[row.position]
        canvas.latents = canvas.schedule.step(wanted, timestep, canvas.latents, return_dict=False)[0]
        if self._decodes or row.position + 1 < picture.asks.steps:
            return RowResult(uid=row.uid, units=1)
        emissions = self._handed_on(picture, {_LATENTS: canvas.latents})
        return RowResult(uid=row.uid, units=1, finished="stop", emissions=emissions)

    def _predictions(
        self, pictures: list[_Picture], positions: list[int]
    ) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """For each picture the prediction with its prompt and, where it is guided, that with its negative prompt."""
        latents = torch.cat([picture.drawn.latents for picture in pictures])
        timesteps = torch.stack([p.drawn.timesteps[at] for p, at in zip(pictures, positions, strict=True)])
        guided = [index for index, picture in enumerate(pictures) if picture.image.guided]
        prompts = [picture.conditions[0] for picture in pictures]
        negatives = [pictures[index].conditions[1] for index in guided]
        every = list(range(len(pictures)))
        batches = [(every + guided, prompts + negatives)]
        if guided and not self._joined:
            batches = [(every, prompts), (guided, negatives)]
        rows = torch.cat(
            [
                self._stepper.predict(pictures[0].image, latents[chosen], timesteps[chosen], conditions)
                for chosen, conditions in batches
            ]
        )
        self._counters = {"forwards": len(batches), "forward_rows": len(rows)}
        against = {index: rows[len(every) + place, None] for place, index in enumerate(guided)}
        return [(rows[index, None], against.get(index)) for index in every]

    def _decode(self, rows: tuple[Row, ...]) -> tuple[RowResult, ...]:
        results = {row.uid: self._alone(row, self._judged) for row in rows}
        sound = [self._pictures[row.uid] for row in rows if results[row.uid].error is None]
        if sound:
            latents = torch.cat([picture.drawn.latents for picture in sound])
            pixels = (self._stepper.decode(sound[0].image, latents) * 255).round().to(torch.uint8)
            decoded = dict(zip((picture.request.uid for picture in sound), pixels, strict=True))
            results |= {row.uid: self._shown(row, decoded[row.uid]) for row in rows if row.uid in decoded}
        return tuple(results[row.uid] for row in rows)

    def _judged(self, row: Row) -> RowResult:
        picture = self._pictures[row.uid]
        if not bool(picture.drawn.latents.isfinite().all()):
            steps = row.position or picture.asks.steps  # a stage that only decodes has taken none
            raise StageError(f"the latents are not finite after {steps} steps: there is no picture in them")
        return RowResult(uid=row.uid, units=0)

    def _shown(self, row: Row, pixels: torch.Tensor) -> RowResult:
        picture = self._pictures[row.uid]
        meta: tuple[tuple[str, Scalar], ...] = picture.meta
        if pixels.ndim == 4:
            meta = (*meta, ("fps", self._stepper.fps))
        preview = self._denoises and row.position < picture.asks.steps
        if preview:
            meta = (*meta, ("step", row.position))
        outputs = tuple(
            Output(
                modality=name,
                units=1,
                payload=Payload(tensors=(to_payload(name.partition("_")[0], pixels),), meta=meta),
            )
            for name in picture.request.outputs
        )
        units = 0 if self._denoises else row.units
        return RowResult(uid=row.uid, units=units, finished=None if preview else "stop", outputs=outputs)

    def end(self, uid: int) -> None:
        del self._pictures[uid]

    def close(self) -> None:
        self._pictures.clear()
        self._texts.clear()


def cut_off(tokens: int, most: int) -> str:
    """The warning of a text of more tokens than count; none if it fits."""
    return f"the prompt has {tokens} tokens, of which the first {most} count" if tokens > most else ""


def _prompt(request: StageRequest) -> str:
    """The text of the only turn. Raises RequestRefused for a conversation."""
    turns = request.conversation
    if len(turns) != 1 or turns[0].role != "user":
        raise RequestRefused("a picture is drawn from one prompt, not from a conversation")
    return "".join(part.text for part in turns[0].parts)
