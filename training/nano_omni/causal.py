"""transformers' decoder layers, run without a mask: rows see those before them. Neither embeds nor gives logits."""

from typing import Any

import torch


def through(model: Any, hidden: Any, axes: tuple[int, ...]) -> Any:
    """What transformers' forward gives for `hidden` [batch, rows, width]; `axes`: of its positions, before the rows.
    Its own search for packed sequences makes the host wait for the device in every step."""
    turns = model.rotary_emb(hidden, torch.arange(hidden.shape[1], device=hidden.device).expand(*axes, -1))
    for layer in model.layers:
        hidden = layer(hidden, attention_mask=None, position_embeddings=turns)
    return model.norm(hidden)
