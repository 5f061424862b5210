"""The transformer and its text encoder, trained as one by flow matching on the VAE's latents.

Source: Liu et al., "Flow Straight and Fast" (arXiv:2209.03003), with time drawn as in Esser et al. (arXiv:2403.03206).
"""

import logging
import random
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from training.budget import moments
from training.nano_image import layout
from training.nano_image.captions import draw_scene, vary, vocabulary
from training.nano_image.drawings import Drawings
from training.nano_image.scenes import Painter

log = logging.getLogger(__name__)
_RATE = 8e-4
_DECAY = 0.999
_UNCONDITIONED = 0.1
_PAIRS = 0.4


class Denoiser(torch.nn.Module):
    """What the pipeline does between prompt and velocity, with gradients."""

    def __init__(self, text_encoder: Any, transformer: Any, drop: int) -> None:
        super().__init__()
        self.text_encoder, self.transformer, self._drop = text_encoder, transformer, drop

    def forward(self, latents: Any, time: Any, ids: Any, mask: Any) -> Any:
        """Velocity of packed latents [batch, tokens, 4 x channels] at `time` [batch], 0 to 1, for text [batch, ids]."""
        read = self.text_encoder(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states[-1]
        side = round(latents.shape[1] ** 0.5)
        return self.transformer(
            hidden_states=latents,
            encoder_hidden_states=read[:, self._drop :],
            encoder_hidden_states_mask=mask[:, self._drop :].bool(),
            timestep=time,
            img_shapes=[[(1, side, side)]] * len(latents),
            return_dict=False,
        )[0]


def train(
    drawings: Drawings,
    painter: Painter,
    autoencoder: Any,
    *,
    seconds: float,
    scenes: int,
    batch: int,
    device: str,
    seed: int,
) -> Any:
    """diffusers' pipeline, all its parts trained, float32. `scenes` are drawn beforehand and seen again and again."""
    torch.manual_seed(seed)
    tokenizer = layout.tokenizer(vocabulary(drawings))
    model = Denoiser(
        layout.text_encoder(tokenizer), layout.transformer(), layout.pipeline().prompt_template_encode_start_idx
    )
    model = model.to(device)
    latents, ids, mask = _data(drawings, painter, autoencoder, tokenizer, scenes, seed)
    empty_ids, empty_mask = _texts(tokenizer, [""], ids.shape[1], device)
    log.info("denoiser: %.2f M values, %d scenes", sum(p.numel() for p in model.parameters()) / 1e6, len(latents))
    mean = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(_DECAY))
    optimizer = torch.optim.AdamW(model.parameters(), _RATE, betas=(0.9, 0.99), weight_decay=0.01)
    if device == "cuda":
        model.transformer.compile_repeated_blocks()
    for now in moments(seconds):
        optimizer.param_groups[0]["lr"] = now.rate(_RATE)
        rows = torch.randint(len(latents), (batch,), device=device)
        clean = latents[rows].float()
        bare = (torch.rand(batch, 1, device=device) < _UNCONDITIONED).expand(-1, ids.shape[1])
        noise, time = torch.randn_like(clean), torch.sigmoid(torch.randn(batch, device=device) + 0.4)
        at = time[:, None, None]
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            text, read = torch.where(bare, empty_ids, ids[rows]), torch.where(bare, empty_mask, mask[rows])
            velocity = model((1 - at) * clean + at * noise, time, text, read)
        loss = (velocity.float() - (noise - clean)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean.update_parameters(model)
        if now.step % 250 == 0:
            log.info("denoiser: step %d, %d %% of the time, loss %.4f", now.step, 100 * now.done, loss.item())
    done = mean.module
    return layout.pipeline(
        vae=autoencoder, text_encoder=done.text_encoder, tokenizer=tokenizer, transformer=done.transformer
    )


def _data(
    drawings: Drawings, painter: Painter, autoencoder: Any, tokenizer: Any, count: int, seed: int
) -> tuple[Any, Any, Any]:
    """Packed latents (bfloat16), token ids and masks of as many scenes, on the painter's device."""
    chance, generator = random.Random(seed + 2), torch.Generator().manual_seed(seed + 2)
    scenes = [draw_scene(chance, drawings, pairs=_PAIRS, unseen=False) for _ in range(count)]
    mean, deviation = (
        torch.tensor(values)[None, :, None, None]
        for values in (autoencoder.config.latents_mean, autoencoder.config.latents_std)
    )
    packed, pack = [], layout.pipeline()._pack_latents
    with torch.no_grad():
        for start in range(0, count, 256):
            pixels = painter.paint(scenes[start : start + 256], generator)
            found = autoencoder.encode(pixels[:, :, None]).latent_dist.mode()[:, :, 0]
            scaled = (found - mean.to(found)) / deviation.to(found)
            packed.append(pack(scaled, *scaled.shape).bfloat16())
    device = str(packed[0].device)
    texts = [vary(chance, scene, drawings) for scene in scenes]
    return torch.cat(packed), *_texts(tokenizer, texts, None, device)


def _texts(tokenizer: Any, texts: Sequence[str], length: int | None, device: str) -> tuple[Any, Any]:
    """Ids and masks, padded on the right to `length` (None: to the longest)."""
    template = layout.pipeline().prompt_template_encode
    padding = True if length is None else "max_length"
    found = tokenizer(
        [template.format(text) for text in texts], padding=padding, max_length=length, return_tensors="pt"
    )
    return found.input_ids.to(device), found.attention_mask.to(device)
