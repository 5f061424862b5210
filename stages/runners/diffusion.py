"""Runs denoising pipelines step by step: requests at different steps, with guidance of their own, in one forward.

`DiffusionRunner` owns the batch, a `Stepper` the algorithm: another pipeline is another stepper. A request's result
does not depend on who shares its steps, but for the rounding of another tensor shape.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from stages.config import StageSpec
from stages.errors import RequestRefused, StageError, describe
from stages.messages import REQUEST, ImageParams, StageRequest
from stages.payload import Payload, Scalar
from stages.runners.base import Emission, Output, RowResult
from stages.runners.device import open_device
from stages.runners.predictor import Moment, Predictor
from stages.runners.stepper import Canvas, Condition, Stepper
from stages.runners.tensors import from_payload, hand_over, read_all, to_payload
from stages.schedulers.base import Denoising, KVCapacity, Row

_PROMPT_CHARACTERS = 100_000  # a longer text is refused before a tokenizer sees it
_KEPT_TEXTS = 16  # encoded texts that are kept: the empty negative prompt, the prompt of several pictures
_WARM_UP = -2  # and the one behind it
# What the messages between the three stages carry.
_TEXTS = ("prompt", "negative_prompt")
_START = "start"
_PICTURES = "pictures"
_LATENTS = "latents"
_POOLED = "_pooled"  # behind the name of a text
_WARNING = "warning"
_PROMPT_TOKENS, _SEEN_TOKENS = "prompt_tokens", "seen_tokens"


@dataclass(slots=True)
class _Picture:
    """A request in this stage. `conditions` are its prompt and, where it is guided, its negative prompt."""

    request: StageRequest
    image: ImageParams
    texts: tuple[str, ...]
    asks: Denoising
    conditions: tuple[Condition, ...] = ()
    pixels: tuple[torch.Tensor, ...] = ()
    canvas: Canvas | None = None
    warnings: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def meta(self) -> tuple[tuple[str, Scalar], ...]:
        known: dict[str, Scalar] = {_WARNING: "\n".join(self.warnings), **self.counts}
        return tuple((name, value) for name, value in known.items() if value)

    @property
    def drawn(self) -> Canvas:
        if self.canvas is None:
            raise StageError(f"request {self.request.uid} has not been encoded")
        return self.canvas


class DiffusionRunner:
    """A `ModelRunner` of a stage that encodes, denoises and decodes; or of three, each of which does its part: of type
    `llm_generation` those at the ends, which need no steps. What a stage does follows from its edges.

    With `joined`, the predictions with and without the prompt are rows of one forward; else there are two forwards, as
    in diffusers' pipelines, and a request that is alone equals theirs to the bit. `backend` compiles blocks.
    `devices` are those of the plan if none are given.
    """

    def __init__(
        self,
        spec: StageSpec,
        stepper: Stepper,
        *,
        joined: bool = True,
        backend: str = "inductor",
        devices: Sequence[torch.device] = (),
    ) -> None:
        self._spec = spec
        self._stepper = stepper
        self._devices = devices
        self._predictor = Predictor(stepper, joined=joined, backend=backend)
        self._denoises = spec.execution_type == "diffusion"
        self._encodes = not spec.outputs if not self._denoises else all(e.producer == REQUEST for e in spec.inputs)
        self._decodes = bool(spec.outputs)
        self._pictures: dict[int, _Picture] = {}
        self._texts: OrderedDict[str, Condition] = OrderedDict()
        self._counters: dict[str, int] = {}
        self._launched: Any = None

    def load(self) -> tuple[tuple[str, str], ...]:
        spec = self._spec
        self._device = open_device(spec)
        devices = self._devices or [torch.device("cuda", index) for index in range(len(spec.devices))]
        held = self._stepper.load(devices or [self._device], getattr(torch, spec.model.dtype))
        self._predictor.prepare(spec.tuning)
        return ("device", str(self._device)), ("dtype", spec.model.dtype), ("weight_bytes", str(held))

    def warm_up(self) -> None:
        """Guided; and where that is other code, with a single row, and with two requests."""
        least, tuning = self._stepper.least(), self._spec.tuning
        works, keys = [[least]], []
        if self._predictor.compiles:
            works += [replace(least, true_cfg_scale=1.0)], [least] * min(2, self._spec.max_batch)
            keys.append("compile=none starts without compiled blocks")
        if tuning.graphs:
            keys.append("graphs=false without CUDA graphs")
        try:
            for images in works:
                self._warm_up(images)
        except Exception as error:
            if not keys:
                raise
            hint = ", ".join(f"deploy.stages.{self._spec.stage}.{key}" for key in keys)
            raise StageError(f"the warm-up failed; {hint}: {error}") from error
        self._predictor.warmed_up()

    def _warm_up(self, images: Sequence[ImageParams]) -> None:
        for uid, image in enumerate(images, _WARM_UP):
            request = StageRequest(uid=uid, seed=0, inputs=(), consumers=(), outputs=(), image=image)
            picture = self._pictures[uid] = self._picture(request, "warm up")
            picture.conditions = tuple(self._stepper.blank() for _ in picture.texts)
            picture.canvas = self._stepper.begin(picture.image, request.seed)
            picture.pixels = tuple(torch.zeros(high, wide, 3, dtype=torch.uint8) for wide, high in image.pictures)
        uids = tuple(self._pictures)
        steps = self._pictures[_WARM_UP].asks.steps if self._denoises else 0
        for phase in ["encode"] * self._encodes + ["denoise"] * steps + ["decode"] * self._decodes:
            rows = tuple(Row(uid=uid, phase=phase, position=0, units=1) for uid in uids)  # type: ignore[arg-type]
            for result in self.execute(rows):
                if result.error is not None:
                    raise StageError(f"the warm-up failed: {result.error.message}\n{result.error.trace}")
        for uid in uids:
            self.end(uid)
        self._texts.clear()

    def begin(self, request: StageRequest) -> None:
        self._pictures[request.uid] = self._picture(request, _prompt(request) if self._encodes else "")

    def _picture(self, request: StageRequest, prompt: str) -> _Picture:
        image = request.image
        if image is None:
            raise RequestRefused("the request does not say how to draw (request.image)")
        texts = (prompt, image.negative_prompt or "") if image.guided else (prompt,)
        asks = self._stepper.denoising(image)
        asks = replace(asks, pictures=len(image.pictures), preview_every=image.preview_every)
        return _Picture(request, image, texts, asks)

    def denoising(self, uid: int) -> Denoising:
        return self._pictures[uid].asks

    def feed(self, uid: int, producer: str, payload: Payload, eos: bool) -> None:
        """The request's picture; encoded texts from the stage before; or the latents of what is denoised."""
        picture = self._pictures[uid]
        if producer == REQUEST:
            self._take_pixels(picture, payload)
            return
        tensors = read_all(payload, self._device)
        picture.warnings += (str(value) for name, value in payload.meta if name == _WARNING)
        picture.counts |= {name: int(value) for name, value in payload.meta if name in (_PROMPT_TOKENS, _SEEN_TOKENS)}
        if _LATENTS in tensors:
            picture.canvas = Canvas(tensors[_LATENTS])
        elif tensors:
            picture.conditions = tuple(
                Condition(tensors[name], pooled=tensors.get(name + _POOLED), pictures=tensors.get(_PICTURES))
                for name in _TEXTS
                if name in tensors
            )
            picture.canvas = self._stepper.begin(picture.image, picture.request.seed, tensors.get(_START))

    def _take_pixels(self, picture: _Picture, payload: Payload) -> None:
        picture.pixels = tuple(map(from_payload, payload.tensors))
        if picture.image.strength is None:
            return
        if len(picture.pixels) != 1:
            raise RequestRefused(f"a picture is drawn from one picture at most, not from {len(picture.pixels)}")
        height, width = picture.pixels[0].shape[:2]
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
        """What the last step's predictions took, as `Predictor.counters` has it."""
        return tuple(self._counters.items())

    def execute(self, rows: tuple[Row, ...]) -> tuple[RowResult, ...]:
        self._counters = {}
        with torch.inference_mode():
            if rows[0].phase == "denoise":
                return self._denoise(rows)
            if rows[0].phase == "decode":
                return self._decode(rows)
            work = self._encode if self._encodes else lambda row: self._decode((row,))[0]  # they may have any shape
            return tuple(self._alone(row, work) for row in rows)

    def _alone(self, row: Row, work: Callable[[Row], RowResult]) -> RowResult:
        """What a row does by itself also fails by itself."""
        try:
            return work(row)
        except Exception as error:
            return RowResult(uid=row.uid, units=0, error=describe(error, self._spec.stage))

    def _encode(self, row: Row) -> RowResult:
        picture = self._pictures[row.uid]
        latents = [self._stepper.encode_picture(picture.image, p, picture.request.seed) for p in picture.pixels]
        start = latents[0] if latents and picture.image.strength is not None else None
        edited = torch.cat(latents, dim=1) if latents and start is None else None
        seen = () if edited is None else picture.pixels
        picture.conditions = tuple(replace(self._condition(text, seen), pictures=edited) for text in picture.texts)
        picture.pixels = ()  # of any size, and for the rest of its life of no use
        for name, text in zip(_TEXTS, picture.conditions, strict=False):
            picture.warnings += [f"the {name.replace('_', ' ')} {text.warning}"] if text.warning else []
        prompt = picture.conditions[0]
        picture.counts = {_PROMPT_TOKENS: prompt.tokens, _SEEN_TOKENS: prompt.seen_tokens}
        if not self._denoises:
            texts = dict(zip(_TEXTS, picture.conditions, strict=False))
            tensors = {name: text.embeds for name, text in texts.items()}
            tensors |= {name + _POOLED: text.pooled for name, text in texts.items() if text.pooled is not None}
            latent = {_START: start, _PICTURES: edited}
            tensors |= {name: tensor for name, tensor in latent.items() if tensor is not None}
            emissions = self._handed_on(picture, tensors)
            return RowResult(uid=row.uid, units=row.units, finished="stop", emissions=emissions)
        picture.canvas = self._stepper.begin(picture.image, picture.request.seed, start)
        return RowResult(uid=row.uid, units=0)

    def _handed_on(self, picture: _Picture, tensors: Mapping[str, torch.Tensor]) -> tuple[Emission, ...]:
        payload = Payload(tensors=tuple(hand_over(name, tensor) for name, tensor in tensors.items()), meta=picture.meta)
        return tuple(Emission(consumer=name, units=1, payload=payload) for name in picture.request.consumers)

    def _condition(self, text: str, pictures: Sequence[torch.Tensor]) -> Condition:
        """Kept only if it is of a text alone."""
        if len(text) > _PROMPT_CHARACTERS:
            raise RequestRefused(f"a text has {len(text)} characters; {_PROMPT_CHARACTERS} are read at most")
        if pictures:
            return self._stepper.encode(text, pictures)
        found = self._texts.get(text)
        if found is None:
            found = self._texts[text] = self._stepper.encode(text)
            if len(self._texts) > _KEPT_TEXTS:
                self._texts.popitem(last=False)
        self._texts.move_to_end(text)
        return found

    def _denoise(self, rows: tuple[Row, ...]) -> tuple[RowResult, ...]:
        pictures = [self._pictures[row.uid] for row in rows]
        moments = [
            Moment(
                uid=row.uid,
                image=picture.image,
                latents=picture.drawn.latents,
                timestep=picture.drawn.time(row.position),
                conditions=picture.conditions,
            )
            for row, picture in zip(rows, pictures, strict=True)
        ]
        predictions = self._predictor.predict(moments)
        self._counters = self._predictor.counters()
        results = tuple(
            self._alone(row, partial(self._step, wanted=wanted, unwanted=unwanted))
            for row, (wanted, unwanted) in zip(rows, predictions, strict=True)
        )
        self._pace()
        return results

    def _pace(self) -> None:
        """Waits for the step before this one: a GPU is one step behind at most, so that whoever comes or goes is in
        time, and steps take as long as their work."""
        if self._device.type == "cuda":
            before, self._launched = self._launched, torch.cuda.Event()
            self._launched.record()
            if before is not None:
                before.synchronize()

    def _step(self, row: Row, wanted: torch.Tensor, unwanted: torch.Tensor | None) -> RowResult:
        picture = self._pictures[row.uid]
        if unwanted is not None:
            wanted = self._stepper.guide(wanted, unwanted, picture.image.true_cfg_scale)
        canvas = picture.drawn
        timestep = canvas.timesteps[row.position]
        canvas.latents = canvas.schedule.step(wanted, timestep, canvas.latents, return_dict=False)[0]
        last = row.position + 1 == picture.asks.steps
        if last and (loss := self._predictor.loss(row.uid)):
            picture.warnings.append(loss)
        if self._decodes or not last:
            return RowResult(uid=row.uid, units=1)
        emissions = self._handed_on(picture, {_LATENTS: canvas.latents})
        return RowResult(uid=row.uid, units=1, finished="stop", emissions=emissions)

    def _decode(self, rows: tuple[Row, ...]) -> tuple[RowResult, ...]:
        """All is launched before anything waits for the device, which may still be at the last step."""
        pictures = [self._pictures[row.uid] for row in rows]
        latents = torch.cat([picture.drawn.latents for picture in pictures])
        drawn = zip(rows, _levels(self._stepper.decode(pictures[0].image, latents)), strict=True)
        return tuple(self._alone(row, partial(self._shown, pixels=pixels)) for row, pixels in drawn)

    def _shown(self, row: Row, pixels: torch.Tensor) -> RowResult:
        picture = self._pictures[row.uid]
        if not bool(picture.drawn.latents.isfinite().all()):
            steps = row.position or picture.asks.steps  # a stage that only decodes has taken none
            raise StageError(f"the latents are not finite after {steps} steps: there is no picture in them")
        meta = picture.meta
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
        self._predictor.forget(uid)

    def close(self) -> None:
        self._predictor.close()
        self._pictures.clear()
        self._texts.clear()


def _levels(pixels: torch.Tensor) -> torch.Tensor:
    """Of pixels in 0 to 1, which it may overwrite, those of 255 on the host."""
    levels = pixels.float().mul_(255).round_().to(torch.uint8, memory_format=torch.contiguous_format)
    return torch.empty_like(levels, device="cpu", pin_memory=True).copy_(levels) if levels.is_cuda else levels


def _prompt(request: StageRequest) -> str:
    """The text of the only turn. Raises RequestRefused for a conversation."""
    turns = request.conversation
    if len(turns) != 1 or turns[0].role != "user":
        raise RequestRefused("a picture is drawn from one prompt, not from a conversation")
    return "".join(part.text for part in turns[0].parts)
