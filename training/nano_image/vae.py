"""The VAE: trained on stills, for which every filter over time has but one entry that acts."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from training.budget import moments
from training.nano_image.captions import Combinations
from training.nano_image.drawings import Drawings
from training.nano_image.layout import vae as new_vae
from training.nano_image.scenes import Painter
from training.repeat import Step, half

log = logging.getLogger(__name__)
_RATE = 2e-3
_KL = 2e-4  # a nat a latent value, against the mean absolute error
_EDGES = 0.5
_LOG_VARIANCE = -4.0  # to begin with, lest noise hides what the first steps should learn from


def train(
    drawings: Drawings, painter: Painter, *, seconds: float, batch: int, device: str, seed: int, record: bool
) -> Any:
    """A VAE, float32, with the mean and deviation of its latents in its configuration."""
    torch.manual_seed(seed)
    scenes = Combinations(drawings, device, unseen=False)
    model = new_vae().to(device)
    torch.nn.init.constant_(model.quant_conv.bias[model.config.z_dim :], _LOG_VARIANCE)

    def loss() -> Any:
        pixels = painter.paint_rows(scenes.draw(batch, pairs=0.5)).contiguous(memory_format=torch.channels_last)
        with half(device):
            mean, spread = moments_of(model, pixels)
            drawn = decode(model, mean + torch.exp(0.5 * spread) * torch.randn_like(mean))
        kl = 0.5 * (mean.float() ** 2 + spread.float().exp() - 1 - spread.float()).mean()
        return (drawn.float() - pixels).abs().mean() + _EDGES * _edge_error(drawn.float(), pixels) + _KL * kl

    with stills(model):
        step = Step(loss, model.parameters(), device=device, record=record, weight_decay=1e-4)
        for now in moments(seconds):
            found = step(now.rate(_RATE))
            if now.told:
                log.info("vae: step %d, %d %% of the time, loss %.4f", now.step, 100 * now.done, found.item())
        log.info("vae: %d steps", now.step + 1)
        return _finished(model, scenes, painter, batch)


@contextmanager
def stills(model: Any) -> Iterator[None]:
    """Inside it, the model's filters do for a still only what acts."""
    from diffusers.models.autoencoders.autoencoder_kl_qwenimage import QwenImageCausalConv3d

    convs: list[Any] = [part for part in model.modules() if isinstance(part, QwenImageCausalConv3d)]
    for conv in convs:
        conv.forward = partial(_still, conv)
    try:
        yield
    finally:
        for conv in convs:
            del conv.forward


def moments_of(model: Any, pixels: Any) -> tuple[Any, Any]:
    """Mean and log variance [batch, channels, 1, side / 4, side / 4] of the latents of [batch, 3, side, side]."""
    mean, spread = model.quant_conv(model.encoder(pixels[:, :, None])).chunk(2, dim=1)
    return mean, spread.clamp(-20, 10)


def decode(model: Any, latents: Any) -> Any:
    """float [batch, 3, side, side]"""
    return model.decoder(model.post_quant_conv(latents))[:, :, 0]


def _still(conv: Any, pixels: Any, cache_x: object = None) -> Any:
    """What the filter does with a single frame: frames before it are 0, so that only its last entry acts."""
    padding = (conv._padding[2], conv._padding[0])
    return F.conv2d(pixels[:, :, 0], conv.weight[:, :, -1], conv.bias, padding=padding)[:, :, None]


def _edge_error(drawn: Any, pixels: Any) -> Any:
    return sum((drawn.diff(dim=dim) - pixels.diff(dim=dim)).abs().mean() for dim in (-1, -2))


def _finished(model: Any, scenes: Combinations, painter: Painter, batch: int) -> Any:
    """As a fresh module, without what never acted, and with its latents' statistics."""
    with torch.no_grad():
        pixels = painter.paint_rows(scenes.draw(8 * batch, pairs=0.5))
        latents = torch.cat([moments_of(model, part)[0] for part in pixels.split(64)])
        error = torch.cat([decode(model, part) for part in latents.split(64)]).clamp(-1, 1) - pixels
        log.info("vae: %.1f dB of peak signal over noise", 10 * torch.log10(4 / error.square().mean()).item())
        for parameter in model.parameters():
            if parameter.ndim == 5:
                parameter[:, :, :-1] = 0
    values = latents.transpose(0, 1).flatten(1)
    done = new_vae(values.mean(1).tolist(), values.std(1).tolist())
    done.load_state_dict(model.state_dict())
    return done.to(latents.device).eval()
