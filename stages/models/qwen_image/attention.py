"""Joint attention of Qwen-Image over texts of unequal lengths without a mask, which no flash kernel takes.

Rows side by side whose texts are equally long attend together, their padding cut off; attention itself is by whichever
backend is set in diffusers. Knows no request.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_qwenimage import apply_rotary_emb_qwen


def _joint(
    texts: list[torch.Tensor],
    pictures: list[torch.Tensor],
    norms: list[torch.Tensor],
    places: list[torch.Tensor],
    eps: float,
    lengths: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What texts and pictures attend to, each [rows, tokens, heads, features], 0 for padding. Of either stream come
    query, key and value in that shape; the first two are normed by `norms` [features], two of texts and two of
    pictures, and rotated by complex `places` [tokens, features / 2]. `lengths` [rows] of the texts are on the CPU, as
    the host decides by them.

    An operation of its own, so that compiled blocks stay whole and no length is compiled in.
    """
    told, shown = torch.zeros_like(texts[0]), torch.empty_like(pictures[0])
    for run, text, picture in joined_runs(texts, pictures, norms, places, eps, lengths.tolist()):
        told[run, : text.shape[1]], shown[run] = text, picture
    return told, shown


class Ragged(NamedTuple):
    """Rows of unequal lengths, all int32 on the device: how many tokens of each row count, [rows], and where the rows
    begin and end among all tokens, [rows + 1]."""

    used: torch.Tensor
    ends: torch.Tensor

    @classmethod
    def of(cls, lengths: torch.Tensor, shown: int, told: int) -> "Ragged":
        """Rows of a picture of `shown` tokens and a text of `told`, of which its `lengths` [rows] count."""
        ends = torch.arange(len(lengths) + 1, dtype=torch.int32, device=lengths.device) * (shown + told)
        return cls(lengths + shown, ends)


def joined_runs(
    texts: Sequence[torch.Tensor],
    pictures: Sequence[torch.Tensor],
    norms: Sequence[torch.Tensor],
    places: Sequence[torch.Tensor],
    eps: float,
    lengths: Sequence[int] | Ragged,
) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
    """Rows side by side, and what their texts and their pictures attend to, [rows, tokens, heads, features] each;
    arguments are those of `_joint`. Of ragged rows, a picture and then its text, all are one run, padding with them."""
    if isinstance(lengths, Ragged):
        texts, pictures, norms, places = pictures, texts, [*norms[2:], *norms[:2]], places[::-1]
    if texts[0].is_cuda:
        # Triton is not on every machine.
        from stages.kernels.cuda.joint import join_heads

        join: Any = partial(join_heads, norms=norms, places=places, eps=eps)
    else:
        texts, pictures = _ready(texts, norms[:2], places[0], eps), _ready(pictures, norms[2:], places[1], eps)
        join = _side_by_side
    if isinstance(lengths, Ragged):
        query, key, value = join(texts, pictures)
        found, shown = ragged_attention(query, key, value, lengths), texts[0].shape[1]
        yield slice(None), found[:, shown:], found[:, :shown]
        return
    end = 0
    for length, same in groupby(lengths):
        run = slice(end, end + len(list(same)))
        end = run.stop
        found = dispatch_attention_fn(*join([each[run, :length] for each in texts], [each[run] for each in pictures]))
        yield run, found[:, :length], found[:, length:]


def ragged_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: Ragged) -> torch.Tensor:
    """[rows, tokens, heads, features]; of keys and values of a row those that count are attended to. By FlashAttention;
    on a CPU row by row."""
    rows, tokens = query.shape[:2]
    if not query.is_cuda:
        ends = enumerate(lengths.used.tolist())
        return torch.cat(
            [dispatch_attention_fn(query[at, None], key[at, None, :n], value[at, None, :n]) for at, n in ends]
        )
    packed = (each.flatten(0, 1) for each in (query, key, value))
    found, *_ = torch.ops.aten._flash_attention_forward(
        *packed, lengths.ends, lengths.ends, tokens, tokens, 0.0, False, False, seqused_k=lengths.used
    )
    together: torch.Tensor = found.unflatten(0, (rows, tokens))
    return together


def _ready(
    heads: Sequence[torch.Tensor], norms: Sequence[torch.Tensor], places: torch.Tensor, eps: float
) -> list[torch.Tensor]:
    """With the arithmetic of diffusers' RMSNorm and of its rotation."""
    *turned, value = heads
    for at, norm in enumerate(norms):
        root = torch.rsqrt(turned[at].float().pow(2).mean(-1, keepdim=True) + eps)
        normed = (turned[at] * root).to(norm.dtype) * norm
        turned[at] = apply_rotary_emb_qwen(normed, places, use_real=False)
    return [*turned, value]


def _side_by_side(texts: list[torch.Tensor], pictures: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.cat(pair, dim=1) for pair in zip(texts, pictures, strict=True)]


def _like(texts: list[torch.Tensor], pictures: list[torch.Tensor], *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(texts[0]), torch.empty_like(pictures[0])


joint_attention = torch.library.custom_op("omni::joint_attention", _joint, mutates_args=())
joint_attention.register_fake(_like)


class JointAttention:
    """An attention processor with the arithmetic of QwenDoubleStreamAttnProcessor2_0 (diffusers 0.42), for texts that
    are padded on the right: `text_lengths` [rows] on the CPU say how far each goes. On a GPU it rounds less often."""

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
        of_pictures, of_texts = (attn.to_q, attn.to_k, attn.to_v), (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
        norms = attn.norm_added_q, attn.norm_added_k, attn.norm_q, attn.norm_k
        told, shown = joint_attention(
            [layer(encoder_hidden_states).unflatten(-1, (attn.heads, -1)) for layer in of_texts],
            [layer(hidden_states).unflatten(-1, (attn.heads, -1)) for layer in of_pictures],
            [norm.weight for norm in norms],
            list(reversed(image_rotary_emb)),
            norms[0].eps,
            text_lengths,
        )
        return attn.to_out[0](shown.flatten(2)), attn.to_add_out(told.flatten(2))
