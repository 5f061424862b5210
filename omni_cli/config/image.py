"""How pictures are drawn: one schema for the command line, YAML, JSONL and HTTP. What a model can draw, says the
planner."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Strict

from omni_cli.config.sampling import ConfigModel

_SIZE = re.compile(r"([1-9]\d{0,5})[xX]([1-9]\d{0,5})", re.ASCII)
MAX_STEPS = 1000  # as many as the noise schedules were trained with
MAX_NEGATIVE = 100_000  # characters: of more none is encoded


def _size(value: Any) -> Any:
    """`auto` leaves the choice to the model."""
    if value in (None, "auto"):
        return None
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("must be WIDTHxHEIGHT in pixels, as 1024x1024, or auto")
    return f"{int(found[1])}x{int(found[2])}"


class ImageConfig(ConfigModel):
    """How pictures are drawn. What is null, the model decides."""

    size: Annotated[Annotated[str, Strict()] | None, BeforeValidator(_size)] = None
    """WIDTHxHEIGHT in pixels, as 1024x1024; auto and null are the model's own."""
    frames: Annotated[int, Strict(), Field(ge=1, le=10_000)] | None = None
    """Of a video."""
    steps: Annotated[int, Strict(), Field(ge=1, le=MAX_STEPS)] | None = None
    """Denoising steps."""
    true_cfg_scale: Annotated[float, Strict(), Field(ge=0, le=100)] | None = None
    """How far away from the negative prompt; without one, or up to 1, it has no effect."""
    negative_prompt: Annotated[str, Strict(), Field(max_length=MAX_NEGATIVE)] | None = None
    """What shall not be seen, or nothing. Null is the model's own: an empty one, or no guidance in half the time."""
    n: Annotated[int, Strict(), Field(ge=1, le=64)] | None = None
    """Pictures of one prompt, each a request of its own with the next seed; null is one."""
    strength: Annotated[float, Strict(), Field(gt=0, le=1)] | None = None
    """How much of a given picture is drawn anew; without one it has no effect."""
    sigmas: Annotated[tuple[Annotated[float, Strict(), Field(gt=0, le=1)], ...], Field(max_length=MAX_STEPS)] = ()
    """Noise levels, one a step, before the model's own shift; empty spaces them evenly."""
    preview_every: Annotated[int, Strict(), Field(ge=1, le=MAX_STEPS)] | None = None
    """Show the picture as it is after every so many steps; null shows it when it is done."""
    format: Literal["png", "webp", "jpeg"] = "png"
    """Of a picture's file. Only PNG keeps every pixel."""

    @property
    def pixels(self) -> tuple[int, int] | None:
        """Width and height, if they are given."""
        if self.size is None:
            return None
        width, _, height = self.size.partition("x")
        return int(width), int(height)
