"""Scenes as pixels: sprites placed on a ground, a whole batch at once on the device."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from training.nano_image.captions import Scene
from training.nano_image.drawings import BACKGROUNDS, Drawings

_SCALES = (0.72, 0.5, 0.95)  # of the side, by SIZES
_PAIR_SCALE, _PAIR_PLACE = 0.46, 0.48
_JITTER = 0.05


class Painter:
    """Renders scenes at the sprites' side. float32 in [-1, 1]."""

    def __init__(self, drawings: Drawings, device: str) -> None:
        sprites = torch.from_numpy(drawings.sprites).permute(0, 3, 1, 2).float().div(255)
        sprites[:, :3] *= sprites[:, 3:]  # premultiplied, so that they can be interpolated
        self._sprites = sprites.to(device)
        self._grounds = torch.tensor(list(BACKGROUNDS.values()), device=device).float() / 255

    def paint(self, scenes: Sequence[Scene], generator: torch.Generator) -> Any:
        """float32 [scenes, 3, side, side]. `generator` (CPU) moves and scales things a little."""
        device = self._sprites.device
        side = self._sprites.shape[-1]
        ground = self._grounds[torch.tensor([scene.background for scene in scenes], device=device)]
        canvas = ground[:, :, None, None].expand(-1, -1, side, side)
        noise = torch.rand(2, len(scenes), 3, generator=generator) * 2 - 1
        for slot in (0, 1):
            things = [scene.thing if slot == 0 else scene.right for scene in scenes]
            shown = torch.tensor([thing is not None for thing in things], device=device).float()
            scale = torch.tensor([_PAIR_SCALE if s.right is not None else _SCALES[s.size] for s in scenes])
            place = torch.tensor([_PAIR_PLACE * (2 * slot - 1) if s.right is not None else 0.0 for s in scenes])
            scale = scale * (1 + _JITTER * noise[slot, :, 0])
            theta = torch.zeros(len(scenes), 2, 3)
            theta[:, 0, 0] = theta[:, 1, 1] = 1 / scale
            theta[:, 0, 2] = -(place + _JITTER * noise[slot, :, 1]) / scale
            theta[:, 1, 2] = -_JITTER * noise[slot, :, 2] / scale
            grid = F.affine_grid(theta.to(device), [len(scenes), 4, side, side], align_corners=False)
            chosen = self._sprites[torch.tensor([thing or 0 for thing in things], device=device)]
            layer = F.grid_sample(chosen, grid, align_corners=False) * shown[:, None, None, None]
            canvas = layer[:, :3] + (1 - layer[:, 3:]) * canvas
        return canvas * 2 - 1
