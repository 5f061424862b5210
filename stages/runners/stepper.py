"""What a denoising pipeline is to the runner: its parts, one by one. Another pipeline is another `Stepper`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from stages.messages import ImageParams
from stages.schedulers.base import Denoising


@dataclass(frozen=True, slots=True)
class Condition:
    """One encoded text: `embeds` [tokens, features], and for models that want one a summary, `pooled` [features].
    `tokens` of it were read, padding not counted, `seen_tokens` of them of pictures; `warning` says what is left out.
    `pictures` [1, tokens, features] are the latents of those that are edited, None where none are. `length` [1], int32,
    says on the device how many of `embeds` count, if not all."""

    embeds: torch.Tensor
    warning: str = ""
    pooled: torch.Tensor | None = None
    tokens: int = 0
    seen_tokens: int = 0
    pictures: torch.Tensor | None = None
    length: torch.Tensor | None = None


@dataclass(slots=True)
class Canvas:
    """A picture or video in the making: `latents` [1, ...], and `schedule`, a noise scheduler of its own that knows
    the `timesteps` [steps] and where it stands; None once there are no more steps. `times` gives what a step's
    prediction is told of its timestep, if that is more than the number."""

    latents: torch.Tensor
    schedule: Any = None
    timesteps: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    times: Callable[[int], torch.Tensor] | None = None

    def time(self, step: int) -> torch.Tensor:
        return self.timesteps[step] if self.times is None else self.times(step)


class Stepper(Protocol):
    """What a pipeline does in each of its parts. One request's texts and canvas never see another's.

    `fps` are the frames a second of its videos, 0 for pictures. `transformers` take the steps, once they are loaded,
    one on each device; a stage that takes none has none. `recordable`: what they launch may become a CUDA graph.
    """

    fps: float
    recordable: bool
    transformers: Sequence[nn.Module]

    def load(self, devices: Sequence[torch.device], dtype: torch.dtype) -> int:
        """Loads the modules on the first device, and on the others what takes the steps; returns the bytes of all."""
        ...

    def least(self) -> ImageParams:
        """The least work that passes through everything, for the warm-up: more than one latent token a side."""
        ...

    def denoising(self, image: ImageParams) -> Denoising:
        """What the request's steps will be. Raises RequestRefused for what the model cannot draw."""
        ...

    def encode(self, text: str, pictures: Sequence[torch.Tensor] = ()) -> Condition:
        """Without the latents of pictures, uint8 [height, width, 3] of any size, that are edited as the text says."""
        ...

    def blank(self) -> Condition:
        """A text of a few tokens that says nothing, for the warm-up of a stage that encodes none."""
        ...

    def encode_picture(self, image: ImageParams, pixels: torch.Tensor, seed: int) -> torch.Tensor:
        """The latents of a picture, uint8 [height, width, 3] of any size: of one to start from, or, without a strength,
        [1, tokens, features] of one that is edited. Raises RequestRefused where the model takes none."""
        ...

    def begin(self, image: ImageParams, seed: int, start: torch.Tensor | None = None) -> Canvas:
        """The noise, over `start` if there is one, and the schedule at its start. The same seed gives what the pipeline
        itself draws with a CPU generator of that seed."""
        ...

    def fitted(self, image: ImageParams, conditions: Sequence[Condition]) -> Sequence[Condition]:
        """As `predict` takes them for such a picture: in shapes that more of them have in common."""
        ...

    def predict(
        self,
        transformer: nn.Module,
        image: ImageParams,
        latents: torch.Tensor,
        timesteps: torch.Tensor,
        conditions: Sequence[Condition],
    ) -> torch.Tensor:
        """One forward of one of `transformers`, on whose device everything is, over rows of one shape: latents
        [rows, ...], timesteps [rows, ...] as `Canvas.time` has them. On the host nothing may depend on a tensor's
        values, nor on more of `image` than its size: of what is called alike, a recording may be played."""
        ...

    def guide(self, wanted: torch.Tensor, unwanted: torch.Tensor, scale: float) -> torch.Tensor:
        """Both predictions of one request as one, each [1, ...]."""
        ...

    def decode(self, image: ImageParams, latents: torch.Tensor) -> torch.Tensor:
        """[rows, height, width, 3], of videos [rows, frames, height, width, 3], in 0 to 1, where the latents of as many
        requests of one shape are; until the next call. Waits for nothing that is on its way to a device."""
        ...


def cut_off(tokens: int, most: int) -> str:
    """The warning of a text of more tokens than count, without its name; none if it fits."""
    return f"has {tokens} tokens, of which the first {most} count" if tokens > most else ""
