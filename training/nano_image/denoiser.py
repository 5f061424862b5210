"""The transformer and its text encoder, trained as one by flow matching on the VAE's latents.

Source: Liu et al., "Flow Straight and Fast" (arXiv:2209.03003), with time drawn as in Esser et al. (arXiv:2403.03206).
"""

import copy
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from diffusers.models.transformers import transformer_qwenimage
from torch.nn import functional as F
from torch.optim.swa_utils import get_ema_multi_avg_fn

from training.budget import moments
from training.nano_image import layout
from training.nano_image.captions import Combinations, scenes_of, vary, vocabulary
from training.nano_image.drawings import Drawings
from training.nano_image.scenes import Painter
from training.nano_image.vae import moments_of, stills
from training.repeat import Step, half

log = logging.getLogger(__name__)
_RATE = 1e-3
_DECAY, _MEAN_EVERY = 0.995, 4
_UNCONDITIONED = 0.1
_PAIRS = 0.5


class Denoiser(torch.nn.Module):
    """What the pipeline does between prompt and velocity, with gradients."""

    def __init__(self, text_encoder: Any, transformer: Any, drop: int) -> None:
        super().__init__()
        self.text_encoder, self.transformer, self._drop = text_encoder, transformer, drop

    def forward(self, latents: Any, time: Any, ids: Any, mask: Any) -> Any:
        """Velocity of packed latents [batch, tokens, 4 x channels] at `time` [batch], 0 to 1, for text [batch, ids].

        The parts' own forwards make tensors from numbers of the host, which a recording may not: so it is spelt out.
        """
        net, side = self.transformer, round(latents.shape[1] ** 0.5)
        before = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).tril()
        seen = before & mask.bool()[:, None, None, :]
        read = self.text_encoder.model.language_model(
            input_ids=ids, attention_mask={"full_attention": seen}, use_cache=False
        ).last_hidden_state[:, self._drop :]
        picture, text = net.img_in(latents), net.txt_in(net.txt_norm(read))
        moment = net.time_text_embed.timestep_embedder(net.time_text_embed.time_proj(time))
        places = net.pos_embed([[(1, side, side)]], max_txt_seq_len=text.shape[1], device=latents.device)
        places, shown = tuple(torch.view_as_real(turn) for turn in places), mask[:, self._drop :].bool()
        with mock.patch.object(transformer_qwenimage, "apply_rotary_emb_qwen", _turned):
            for block in net.transformer_blocks:
                text, picture = block(
                    hidden_states=picture,
                    encoder_hidden_states=text,
                    encoder_hidden_states_mask=shown,
                    temb=moment,
                    image_rotary_emb=places,
                )
        return net.proj_out(net.norm_out(picture, moment))


def _turned(values: Any, turns: Any, use_real: bool) -> Any:
    """Positions as the library turns them in, [batch, tokens, heads, width] by [tokens, width / 2, cosine and sine],
    without complex numbers, for which the compiler has no code."""
    real, imaginary = values.float().unflatten(-1, (-1, 2)).unbind(-1)
    cosine, sine = turns[:, None].unbind(-1)
    turned = (real * cosine - imaginary * sine, real * sine + imaginary * cosine)
    return torch.stack(turned, -1).flatten(-2).type_as(values)


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
    record: bool,
    keep: Callable[[Any], None] = lambda pipeline: None,
) -> Any:
    """diffusers' pipeline, all its parts trained, float32. `scenes` are drawn beforehand and seen again and again;
    `keep` gets the pipeline as it is every minute; `record`: as in Step."""
    torch.manual_seed(seed)
    tokenizer = layout.tokenizer(vocabulary(drawings))
    model = Denoiser(
        layout.text_encoder(tokenizer), layout.transformer(), layout.pipeline().prompt_template_encode_start_idx
    )
    model = model.to(device)
    latents, ids, mask = _data(drawings, painter, autoencoder, tokenizer, scenes, seed)
    empty_ids, empty_mask = _texts(tokenizer, [""], ids.shape[1], device)
    log.info("denoiser: %.2f M values, %d scenes", sum(p.numel() for p in model.parameters()) / 1e6, len(latents))
    mean = copy.deepcopy(model).requires_grad_(False)
    if device == "cuda" and record:
        model.transformer.compile_repeated_blocks()

    def loss() -> Any:
        rows = torch.randint(len(latents), (batch,), device=device)
        clean = latents[rows].float()
        bare = torch.rand(batch, 1, device=device) < _UNCONDITIONED
        noise, when = torch.randn_like(clean), torch.sigmoid(torch.randn(batch, device=device) + 0.4)
        at = when[:, None, None]
        with half(device):
            text, read = torch.where(bare, empty_ids, ids[rows]), torch.where(bare, empty_mask, mask[rows])
            velocity = model((1 - at) * clean + at * noise, when, text, read)
        return (velocity.float() - (noise - clean)).square().mean()

    step = Step(loss, model.parameters(), device=device, record=record)
    live, slow = list(model.parameters()), list(mean.parameters())
    for now in moments(seconds):
        found = step(now.rate(_RATE))
        if now.step % _MEAN_EVERY == 0:
            decay = min(_DECAY, now.step / (now.step + 10 * _MEAN_EVERY))
            get_ema_multi_avg_fn(decay)(slow, live, None)
        if now.kept:
            keep(_pipeline(mean, autoencoder, tokenizer))
        if now.told:
            log.info("denoiser: step %d, %d %% of the time, loss %.4f", now.step, 100 * now.done, found.item())
    log.info("denoiser: %d steps", now.step + 1)
    return _pipeline(mean, autoencoder, tokenizer)


def _pipeline(model: Denoiser, autoencoder: Any, tokenizer: Any) -> Any:
    return layout.pipeline(
        vae=autoencoder, text_encoder=model.text_encoder, tokenizer=tokenizer, transformer=model.transformer
    )


def _data(
    drawings: Drawings, painter: Painter, autoencoder: Any, tokenizer: Any, count: int, seed: int
) -> tuple[Any, Any, Any]:
    """Packed latents (bfloat16), token ids and masks of as many scenes, on the painter's device."""
    device = str(autoencoder.device)
    rows = Combinations(drawings, device, unseen=False).draw(count, pairs=_PAIRS)
    mean, deviation = (
        torch.tensor(values)[None, :, None, None]
        for values in (autoencoder.config.latents_mean, autoencoder.config.latents_std)
    )
    packed, pack = [], layout.pipeline()._pack_latents
    with torch.no_grad(), stills(autoencoder), half(device):
        for part in rows.split(512):
            found = moments_of(autoencoder, painter.paint_rows(part))[0][:, :, 0].float()
            scaled = (found - mean.to(found)) / deviation.to(found)
            packed.append(pack(scaled, *scaled.shape).bfloat16())
    chance = random.Random(seed + 2)
    texts = [vary(chance, scene, drawings) for scene in scenes_of(rows)]
    return torch.cat(packed), *_texts(tokenizer, texts, None, device)


def _texts(tokenizer: Any, texts: Sequence[str], length: int | None, device: str) -> tuple[Any, Any]:
    """Ids and masks, padded on the right to `length` (None: to the longest, and to whole eights of what is not dropped,
    without which attention copies its mask)."""
    pipeline = layout.pipeline()
    padding = True if length is None else "max_length"
    found = tokenizer(
        [pipeline.prompt_template_encode.format(text) for text in texts],
        padding=padding,
        max_length=length,
        return_tensors="pt",
    )
    short = 0 if length else (pipeline.prompt_template_encode_start_idx - found.input_ids.shape[1]) % 8
    ids = F.pad(found.input_ids, (0, short), value=tokenizer.pad_token_id)
    return ids.to(device), F.pad(found.attention_mask, (0, short)).to(device)
