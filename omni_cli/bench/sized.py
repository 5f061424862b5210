"""The requests of `omni bench run`: one size, no two alike, every draw keyed by the seed. Asks nothing of an engine."""

from dataclasses import dataclass, replace
from random import Random

from omni_cli.bench.served import AUDIO, TEXT
from omni_cli.config.load import LoadedConfig
from omni_cli.config.request import request_line
from omni_cli.errors import ConfigError
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

    def __post_init__(self) -> None:
        if self.loaded.family.sized is None:
            raise ConfigError(f"family `{self.loaded.family.name}` has no requests for measuring (contract `sized`)")

    @property
    def warm(self) -> "SizedRequests":
        """Smaller ones of the same kind, of another seed."""
        size = replace(
            self.size,
            text_tokens=min(self.size.text_tokens, _WARM_TEXT_TOKENS),
            frames=min(self.size.frames, _WARM_FRAMES),
        )
        return replace(self, size=size, seed=self.seed + 1)

    def make(self, number: int, request_id: str) -> OmniRequest:
        """What `request.*` says holds for it as well, but for its size."""
        sized = self.loaded.family.sized
        if sized is None:
            raise ValueError("a family without requests for measuring was let in")
        draw = self.draw(number)
        line = request_line(sized(self.size, draw), self.loaded)
        prompt = Part(kind="text", text=line.prompt or "")
        return OmniRequest(
            request_id=request_id,
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

    def units(self, output: str) -> int | None:
        """How many of its units an output shall have."""
        return {TEXT: self.size.text_tokens, AUDIO: self.size.frames}.get(type_of(output))
