"""The requests that are measured: one size, no two alike, every draw keyed by the seed. Asks nothing of an engine."""

from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

from omni_cli.bench.served import AUDIO, TEXT
from omni_cli.config.load import LoadedConfig
from omni_cli.config.request import request_line
from omni_cli.errors import ConfigError
from omni_cli.plan.drawing import drawing
from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.request import OmniRequest
from omni_cli.trace.summary import type_of
from stages.messages import ChatMessage, ImageParams, Part
from stages.models.registry import RequestSize

# A warm-up request: as long a prompt, and a few chunks of sound.
_WARM_TEXT_TOKENS, _WARM_FRAMES = 16, 64
_WARM_STEPS = 4  # of a picture
_UNMEASURED = ("n", "preview_every")  # each request draws one picture, and shows it once


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedRequests:
    """Makes request `number`, always the same for one seed. `outputs` are what it asks for, all of them to the end;
    `image` is how it is drawn, of which `notes` say what cannot act, and `step_flop` the FLOP of a denoising step, None
    if the family has no formula."""

    loaded: LoadedConfig
    size: RequestSize
    outputs: tuple[str, ...]
    seed: int
    image: ImageParams | None = None
    notes: tuple[str, ...] = ()
    step_flop: int | None = None

    @classmethod
    def of(
        cls, loaded: LoadedConfig, plan: ExecutionPlan, size: RequestSize, seed: int, *, text_only: bool = False
    ) -> "SizedRequests":
        """They ask for what `request.modalities` says, or for all that is deployed. ConfigError if that cannot be."""
        if loaded.family.sized is None:
            raise ConfigError(f"family `{loaded.family.name}` has no requests for measuring (contract `sized`)")
        outputs = (TEXT,) if text_only else loaded.config.request.modalities or tuple(plan.outputs)
        if missing := [output for output in outputs if output not in plan.outputs]:
            there = ", ".join(plan.outputs)
            raise ConfigError(f"{', '.join(missing)} is not deployed; there is {there} (deploy.outputs)")
        made = cls(loaded=loaded, size=size, outputs=outputs, seed=seed)
        if plan.image is None:
            return made
        if plan.image.least_pictures:
            raise ConfigError("this model edits pictures, and requests for measuring bring none (model.path)")
        asked = loaded.config.request.image
        image, notes = drawing(plan.image, asked.model_copy(update=dict.fromkeys(_UNMEASURED)))
        idle = [f"image.{name} is left out" for name in _UNMEASURED if getattr(asked, name) is not None]
        said = [f"request.{note}" for note in (*notes, *idle)]
        flops = loaded.family.step_flops
        if flops is not None and any(stage.tuning.step_cache not in (None, "none") for stage in plan.stages):
            flops = None
            said.append("TFLOP/s are left out: a step cache skips part of a step's FLOP.")
        return replace(
            made,
            image=image,
            notes=tuple(said),
            step_flop=None if flops is None else flops(plan.model.path, image, size.prompt_tokens),
        )

    @property
    def warm(self) -> "SizedRequests":
        """Smaller ones of the same kind, of another seed."""
        text, frames = min(self.size.text_tokens, _WARM_TEXT_TOKENS), min(self.size.frames, _WARM_FRAMES)
        warm = replace(self, size=replace(self.size, text_tokens=text, frames=frames), seed=self.seed + 1)
        return warm if self.image is None else warm.of_steps(min(self.image.steps, _WARM_STEPS))

    def of_steps(self, steps: int) -> "SizedRequests":
        """The same pictures by another number of denoising steps, evenly spaced."""
        return self if self.image is None else replace(self, image=replace(self.image, steps=steps, sigmas=()))

    @property
    def prefix(self) -> str:
        """What the ids of these, and of no others, begin with."""
        return f"{self.seed}-"

    @property
    def asked(self) -> dict[str, int | None]:
        """How many units each output shall have."""
        sizes = {TEXT: self.size.text_tokens, AUDIO: self.size.frames, "image": 1}
        return {output: sizes.get(type_of(output)) for output in self.outputs}

    def document(self) -> dict[str, Any]:
        """As JSON."""
        image = {"image": asdict(self.image), "step_flop": self.step_flop} if self.image is not None else {}
        return {**asdict(self.size), **image, "outputs": list(self.outputs), "seed": self.seed}

    def __str__(self) -> str:
        asks = f"A request has {self.size.prompt_tokens} prompt tokens and asks for {', '.join(self.outputs)}"
        if self.image is not None:
            image = self.image
            guided = f"guidance {image.true_cfg_scale:g}" if image.guided else "no guidance"
            return f"{asks}: {image.width}x{image.height}, {image.steps} steps, {guided}; no two requests alike."
        frames = f", {self.size.frames} frames" if AUDIO in map(type_of, self.outputs) else ""
        return f"{asks}: {self.size.text_tokens} text tokens{frames}; end tokens ignored, no two requests alike."

    def make(self, number: int) -> OmniRequest:
        """What `request.*` says holds for it as well, but for its size."""
        if self.loaded.family.sized is None:
            raise ValueError("a family without requests for measuring was let in")
        draw = self.draw(number)
        line = request_line(self.loaded.family.sized(self.size, draw), self.loaded)
        prompt = Part(kind="text", text=line.prompt or "")
        return OmniRequest(
            request_id=f"{self.prefix}{number}",
            seed=draw.getrandbits(63),
            conversation=(ChatMessage(role="user", parts=(prompt,)),),
            outputs=self.outputs,
            sampling={stage: sampling.message() for stage, sampling in line.request.sampling.items()},
            voice=line.request.voice,
            timeout_s=line.request.timeout_s,
            image=self.image,
            options=line.options,
        )

    def draw(self, number: int) -> Random:
        """What everything about request `number` is drawn from."""
        return Random(f"{self.seed}/{number}")
