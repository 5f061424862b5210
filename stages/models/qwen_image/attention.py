"""Joint attention of Qwen-Image over texts of unequal lengths without a mask, which no flash kernel takes.

Rows side by side whose texts are equally long attend together, their padding cut off; attention itself is by whichever
backend is set in diffusers. Knows no request.
"""

from itertools import groupby
from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_qwenimage import apply_rotary_emb_qwen


def _joint(texts: list[torch.Tensor], pictures: list[torch.Tensor], lengths: torch.Tensor) -> torch.Tensor:
    """Query, key and value of the texts [rows, tokens, heads, features] and of the pictures behind them; `lengths`
    [rows] on the CPU, as the host decides by them. Returns [rows, tokens of both, heads, features], 0 for padding.

    An operation of its own, so that compiled blocks stay whole and no length is compiled in.
    """
    (rows, tokens, *_), runs = texts[0].shape, [(length, len(list(same))) for length, same in groupby(lengths.tolist())]
    if runs == [(tokens, rows)]:
        return _attend(texts, pictures)
    joint = _joint_shape(texts, pictures, lengths).zero_()
    end = 0
    for length, count in runs:
        run, end = slice(end, end + count), end + count
        found = _attend([each[run, :length] for each in texts], [each[run] for each in pictures])
        joint[run, :length], joint[run, tokens:] = found[:, :length], found[:, length:]
    return joint


def _joint_shape(texts: list[torch.Tensor], pictures: list[torch.Tensor], lengths: torch.Tensor) -> torch.Tensor:
    rows, tokens, heads, features = texts[0].shape
    return texts[0].new_empty(rows, tokens + pictures[0].shape[1], heads, features)


joint_attention = torch.library.custom_op("omni::joint_attention", _joint, mutates_args=())
joint_attention.register_fake(_joint_shape)


def _attend(texts: list[torch.Tensor], pictures: list[torch.Tensor]) -> torch.Tensor:
    query, key, value = (torch.cat(pair, dim=1) for pair in zip(texts, pictures, strict=True))
    joint: torch.Tensor = dispatch_attention_fn(query, key, value)
    return joint.contiguous()


class JointAttention:
    """An attention processor with the arithmetic of QwenDoubleStreamAttnProcessor2_0 (diffusers 0.42), for texts that
    are padded on the right: `text_lengths` [rows] on the CPU say how far each goes."""

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_hidden_states_mask: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: tuple[torch.Tensor, torch.Tensor] = (torch.empty(0), torch.empty(0)),
        text_lengths: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Both streams [rows, tokens, features], the picture's first."""
        masked = encoder_hidden_states_mask is not None or attention_mask is not None
        if masked or text_lengths is None:
            raise ValueError("this attention takes the lengths of the texts (text_lengths), not a mask")
        picture_places, text_places = image_rotary_emb
        of_pictures = (attn.to_q, attn.norm_q), (attn.to_k, attn.norm_k), (attn.to_v, None)
        of_texts = (attn.add_q_proj, attn.norm_added_q), (attn.add_k_proj, attn.norm_added_k), (attn.add_v_proj, None)
        pictures = _projected(hidden_states, attn.heads, picture_places, of_pictures)
        texts = _projected(encoder_hidden_states, attn.heads, text_places, of_texts)
        joint = joint_attention(texts, pictures, text_lengths).flatten(2)
        told, shown = joint.split([encoder_hidden_states.shape[1], hidden_states.shape[1]], dim=1)
        return attn.to_out[0](shown.contiguous()), attn.to_add_out(told.contiguous())


def _projected(
    stream: torch.Tensor, heads: int, places: torch.Tensor, layers: tuple[tuple[Any, Any], ...]
) -> list[torch.Tensor]:
    """Query, key and value, each [rows, tokens, heads, features]; those with a norm are rotated behind it."""
    split = ((layer(stream).unflatten(-1, (heads, -1)), norm) for layer, norm in layers)
    return [each if norm is None else _rotated(norm(each), places) for each, norm in split]


def _rotated(heads: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """[rows, tokens, heads, features], rotated by complex [tokens, features / 2]. Compiled code has no complex numbers:
    there the same in real ones."""
    if not torch.compiler.is_compiling():
        rotated: torch.Tensor = apply_rotary_emb_qwen(heads, places, use_real=False)
        return rotated
    real, imaginary = heads.float().unflatten(-1, (-1, 2)).unbind(-1)
    cosine, sine = places.real[:, None], places.imag[:, None]
    turned = torch.stack([real * cosine - imaginary * sine, real * sine + imaginary * cosine], dim=-1)
    return turned.flatten(-2).type_as(heads)
