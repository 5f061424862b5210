"""Scenes as pixels: sprites placed on a ground, a whole batch at once on the device."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from training.nano_image.captions import Scene
from training.nano_image.drawings import BACKGROUNDS, Drawings

_SCALES = (0.72, 0.5, 0.95)  # of the side, by SIZES
_PAIR_SCALE, _PAIR_PLACE = 0.46, 0.48


class Painter:
    """Renders scenes, float32 in [-1, 1]; `side` divides the sprites' side, which it is where nothing is said; places
    and sizes vary by `jitter` of themselves."""

    def __init__(self, drawings: Drawings, device: str, side: int | None = None, jitter: float = 0.05) -> None:
        self._jitter = jitter
        sprites = torch.from_numpy(drawings.sprites).permute(0, 3, 1, 2).float().div(255)
        sprites[:, :3] *= sprites[:, 3:]  # premultiplied, so that they can be interpolated
        self._sprites = F.avg_pool2d(sprites, sprites.shape[-1] // (side or sprites.shape[-1])).to(device)
        self._grounds = torch.tensor(list(BACKGROUNDS.values()), device=device).float() / 255
        self._scales = torch.tensor(_SCALES, device=device)

    def paint(self, scenes: Sequence[Scene], generator: torch.Generator, size: tuple[int, int] | None = None) -> Any:
        """float32 [scenes, 3, side, side], or of `size`, height and width, in which things keep about their own shape.
        `generator` (CPU) moves and scales things a little."""
        rows = [(one.thing, -1 if one.right is None else one.right, one.size, one.background) for one in scenes]
        return self.paint_rows(torch.tensor(rows, device=self._sprites.device), generator, size)

    def paint_rows(
        self, rows: Any, generator: torch.Generator | None = None, size: tuple[int, int] | None = None
    ) -> Any:
        """As `paint`, of rows of Combinations, nothing of which leaves the device."""
        things, (sizes, ground), pair = rows[:, :2], rows[:, 2:].unbind(1), rows[:, 1] >= 0
        noise = torch.rand(2, len(rows), 3, generator=generator, device=generator.device if generator else rows.device)
        noise = noise.to(rows.device) * 2 - 1
        height, width = size or self._sprites.shape[-2:]
        canvas = self._grounds[ground][:, :, None, None].expand(-1, -1, height, width)
        scales = self._scales[sizes].masked_fill(pair, _PAIR_SCALE)[:, None]
        if size is not None:
            scales = scales * _shares(pair, width / height, generator)
        for slot in (0, 1):
            wide, high = (scales * (1 + self._jitter * noise[slot, :, :1])).expand(-1, 2).unbind(1)
            theta = torch.zeros(len(rows), 2, 3, device=rows.device)
            theta[:, 0, 0], theta[:, 1, 1] = 1 / wide, 1 / high
            theta[:, 0, 2] = -(pair * _PAIR_PLACE * (2 * slot - 1) + self._jitter * noise[slot, :, 1]) / wide
            theta[:, 1, 2] = -self._jitter * noise[slot, :, 2] / high
            grid = F.affine_grid(theta, [len(rows), 4, height, width], align_corners=False)
            layer = F.grid_sample(self._sprites[things[:, slot].clamp(min=0)], grid, align_corners=False)
            layer = layer * (things[:, slot] >= 0)[:, None, None, None]
            canvas = layer[:, :3] + (1 - layer[:, 3:]) * canvas
        return canvas * 2 - 1


def _shares(pair: Any, shape: float, generator: torch.Generator | None) -> Any:
    """[scenes, 2]: of the width and of the height of a picture of `shape` (width by height), what a square of its
    shorter side has, more where two things have the room. It was a little wider or narrower before it was scaled."""
    chance = torch.rand(2, len(pair), generator=generator, device=generator.device if generator else pair.device)
    before, more = chance.to(pair.device)
    before = shape * (0.8 + 0.45 * before)
    shares = torch.stack([1 / before.clamp(min=1), before.clamp(max=1)], 1)
    return shares * (1 + pair * more * (before.clamp(1, 2) - 1))[:, None]
