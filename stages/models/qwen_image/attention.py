"""Joint attention of Qwen-Image over texts of unequal lengths without a mask, which no flash kernel takes.

Rows side by side whose texts are equally long attend together, their padding cut off, by whichever backend is set in
diffusers; or all rows together, where there are kernels for that. Knows no request.
"""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_qwenimage import apply_rotary_emb_qwen

FEATURES = (16, 32, 64, 128)
"""Of a head, for which there are kernels."""


def joined_attention(
    texts: Sequence[torch.Tensor],
    pictures: Sequence[torch.Tensor],
    norms: Sequence[torch.Tensor],
    places: Sequence[torch.Tensor],
    eps: float,
    lengths: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """What texts and pictures attend to, each [rows, tokens, heads, features], 0 for padding of texts, which have
    `lengths`. Of either stream come query, key and value in that shape; the first two are normed by `norms` [features],
    two of texts and two of pictures, and rotated by complex `places` [tokens, features / 2].
    """
    told, shown = torch.zeros_like(texts[0]), torch.empty_like(pictures[0])
    if texts[0].is_cuda and texts[0].shape[-1] in FEATURES:
        # Triton is not on every machine.
        from stages.kernels.cuda.joint import join_heads

        join: Any = partial(join_heads, norms=norms, places=places, eps=eps)
    else:
        texts, pictures = _ready(texts, norms[:2], places[0], eps), _ready(pictures, norms[2:], places[1], eps)
        join = _side_by_side
    end = 0
    for length, same in groupby(lengths):
        run = slice(end, end + len(list(same)))
        end = run.stop
        found = dispatch_attention_fn(*join([each[run, :length] for each in texts], [each[run] for each in pictures]))
        told[run, :length], shown[run] = found[:, :length], found[:, length:]
    return told, shown


def _joint(
    texts: list[torch.Tensor],
    pictures: list[torch.Tensor],
    norms: list[torch.Tensor],
    places: list[torch.Tensor],
    eps: float,
    lengths: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`joined_attention` with `lengths` [rows] on the CPU: an operation of its own, so that compiled blocks stay whole
    and no length is compiled in."""
    return joined_attention(texts, pictures, norms, places, eps, lengths.tolist())


def ragged_on(device: torch.device, dtype: torch.dtype, features: int) -> bool:
    """Whether `ragged_attention` has kernels there for heads of so many features."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16) or features not in FEATURES:
        return False
    return bool(torch.cuda.get_device_capability(device) >= (8, 0))


def ragged_attention(
    texts: Sequence[torch.Tensor],
    pictures: Sequence[torch.Tensor],
    norms: Sequence[torch.Tensor],
    places: Sequence[torch.Tensor],
    eps: float,
    lengths: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `joined_attention`, but nothing that is launched depends on `lengths`, int32 [rows] on the device, and what
    texts' padding attends to is anything. On a GPU all rows attend to their pictures in one launch, and in another to
    their texts as well."""
    if not texts[0].is_cuda:
        texts, pictures = _ready(texts, norms[:2], places[0], eps), _ready(pictures, norms[2:], places[1], eps)
        query, key, value = _side_by_side(pictures, texts)
        shown = pictures[0].shape[1]
        ends = enumerate((shown + lengths).tolist())
        found = [dispatch_attention_fn(query[at, None], key[at, None, :n], value[at, None, :n]) for at, n in ends]
        both = torch.cat(found)
        return both[:, shown:], both[:, :shown]
    from stages.kernels.cuda.joint import join_heads
    from stages.kernels.cuda.more_keys import attended_as_well

    of_both = [*norms[2:], *norms[:2]]
    query, key = join_heads(pictures[:2], texts[:2], of_both, places[::-1], eps)
    found, sums = _with_sums(query, key[:, : pictures[0].shape[1]], pictures[2])
    shown, told = attended_as_well(query, key, texts[2], found, sums, lengths)
    return told, shown


def _with_sums(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """On a GPU what each query attends to, [rows, tokens, heads, features], and the logarithm of its sum of exponents,
    float32 [rows, heads, tokens]."""
    heads = [each.transpose(1, 2) for each in (query, key, value)]
    if torch.cuda.get_device_capability(query.device) >= (9, 0):
        found, sums, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(*heads, None, True)
    else:
        found, sums, *_ = torch.ops.aten._scaled_dot_product_flash_attention(*heads)
    return found.transpose(1, 2).contiguous(), sums.flatten(2).contiguous()


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


def _side_by_side(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.cat(pair, dim=1) for pair in zip(one, other, strict=True)]


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
