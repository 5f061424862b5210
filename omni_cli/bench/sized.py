"""The requests that are measured: one size, no two alike, every draw keyed by the seed. Asks nothing of an engine."""

from dataclasses import dataclass, replace
from random import Random

from omni_cli.bench.served import AUDIO, TEXT
from omni_cli.config.load import LoadedConfig
from omni_cli.config.request import request_line
from omni_cli.errors import ConfigError
from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.request import OmniRequest
from omni_cli.trace.summary import type_of
from stages.messages import ChatMessage, Part
from stages.models.registry import RequestSize

# A warm-up request: as long a prompt, and a few chunks of sound.
_WARM_TEXT_TOKENS, _WARM_FRAMES = 16, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedRequests:
    """Makes request `number`, always the same for one seed. `outputs` are what it asks for, all of them to the end."""

    loaded: LoadedConfig
    size: RequestSize
    outputs: tuple[str, ...]
    seed: int

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
        return cls(loaded=loaded, size=size, outputs=outputs, seed=seed)

    @property
    def warm(self) -> "SizedRequests":
        """Smaller ones of the same kind, of another seed."""
        text, frames = min(self.size.text_tokens, _WARM_TEXT_TOKENS), min(self.size.frames, _WARM_FRAMES)
        return replace(self, size=replace(self.size, text_tokens=text, frames=frames), seed=self.seed + 1)

    @property
    def prefix(self) -> str:
        """What the ids of these, and of no others, begin with."""
        return f"{self.seed}-"

    @property
    def asked(self) -> dict[str, int | None]:
        """How many units each output shall have."""
        sizes = {TEXT: self.size.text_tokens, AUDIO: self.size.frames}
        return {output: sizes.get(type_of(output)) for output in self.outputs}

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
            options=line.options,
        )

    def draw(self, number: int) -> Random:
        """What everything about request `number` is drawn from."""
        return Random(f"{self.seed}/{number}")
