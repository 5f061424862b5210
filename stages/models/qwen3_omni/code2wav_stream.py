"""Code2Wav as a stream: frames in pieces of any size, and the samples of one pass over all of them.

The blocks are transformers' own, called on what each still needs of its earlier input followed by the new input; what
they compute for the earlier input again is dropped. No frame passes through the network twice. Must not know requests:
a state is a row of numbers, and any rows that begin, or that do not, make a batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling

from stages.errors import CheckpointError
from stages.models.qwen3_omni.modules import CachedDecoder


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """A causal block of the convolution stack. It needs the last `reach` positions before its new input, which lie at
    `offset` in a state; one position becomes `stride`. `ahead` 1: its output of a position needs the next position too.
    """

    module: Any
    reach: int
    channels: int
    offset: int
    stride: int = 1
    ahead: int = 0


class Code2WavStream:
    """One step of any number of streams. It has no state of its own and asks the device for nothing: all shapes follow
    from the arguments' shapes, so that a step can be captured as one CUDA graph per shape.

    `state_size`: numbers in one stream's state. `held_samples`: how many samples of the last frame need the next one.
    """

    def __init__(self, module: Any) -> None:
        config = module.config
        self._module = module
        self._transformer = CachedDecoder(module.pre_transformer)
        self._window = int(config.sliding_window) - 1
        attention = module.pre_transformer.layers[0].self_attn
        self._kv_shape = (2, int(config.num_key_value_heads), self._window, int(attention.head_dim))
        self._kv_size = len(module.pre_transformer.layers) * torch.Size(self._kv_shape).numel()
        self._blocks = tuple(_blocks(module, self._kv_size))
        self.state_size = self._kv_size + sum(block.reach * block.channels for block in self._blocks)
        self.samples_per_frame = int(module.total_upsample)
        self.held_samples = 0
        for block in self._blocks:
            self.held_samples = (self.held_samples + block.ahead) * block.stride

    def samples(self, frames: int, *, begins: bool) -> int:
        """How many samples the next `frames` frames of a stream complete."""
        return frames * self.samples_per_frame - (self.held_samples if begins and frames else 0)

    def __call__(
        self, codes: torch.Tensor, frames: torch.Tensor, starts: torch.Tensor, states: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Advances streams by their next `codes` [batch, groups, n], of which `frames` [batch] are real and the others
        come after them; `starts` [batch] frames came before. `states` [batch, state_size], or None where all begin.

        Returns samples [batch, n * samples_per_frame], less `held_samples` where the streams begin, and the states
        after the step. Of row i the first `samples(frames[i])` samples are real. Integers are int64.
        """
        module = self._module
        after = torch.empty(
            (len(codes), self.state_size), dtype=module.code_embedding.weight.dtype, device=codes.device
        )
        hidden = module.code_embedding(codes + module.code_offset).mean(1)
        wave = self._attend(hidden, frames, starts, states, after).transpose(1, 2)
        counts = frames
        for block in self._blocks:
            wave, counts = _convolve(block, wave, counts, states, after)
        return wave.clamp(-1, 1).squeeze(1), after

    def _attend(
        self,
        hidden: torch.Tensor,
        frames: torch.Tensor,
        starts: torch.Tensor,
        states: torch.Tensor | None,
        after: torch.Tensor,
    ) -> torch.Tensor:
        """pre_transformer on hidden [batch, n, hidden]; its window of keys and values is the first part of a state."""
        lead = 0 if states is None else self._window
        steps = torch.arange(hidden.shape[1], device=hidden.device)
        keys = torch.arange(lead + hidden.shape[1], device=hidden.device)
        age = lead + steps[:, None] - keys
        # Before a stream's first frame there is nothing, though the state has room for it.
        mask = ((age >= 0) & (age <= self._window)) & (keys >= lead - starts[:, None])[:, None]
        window = _Window(self._kv_shape, frames, states, after)
        return self._transformer(
            hidden, starts[:, None] + steps, window, attention_mask={"sliding_attention": mask[:, None]}
        )


class _Window:
    """What transformers' attention takes for its cache: the window before the new positions, and the new ones."""

    def __init__(
        self, shape: tuple[int, ...], frames: torch.Tensor, states: torch.Tensor | None, after: torch.Tensor
    ) -> None:
        self._shape = shape
        self._size = torch.Size(shape).numel()
        self._frames = frames
        self._states = states
        self._after = after

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """New `keys` and `values` [batch, heads, n, dim] of a layer, each behind its window."""
        part = slice(layer_idx * self._size, (layer_idx + 1) * self._size)
        new = torch.stack((keys, values), dim=1)
        full = new
        if self._states is not None:
            full = torch.cat((self._states[:, part].unflatten(1, self._shape), new), dim=3)
        self._after[:, part] = _last(full, self._frames, full.shape[3] - new.shape[3], self._shape[2], dim=3).flatten(1)
        return full[:, 0], full[:, 1]


def _convolve(
    block: _Block, inputs: torch.Tensor, counts: torch.Tensor, states: torch.Tensor | None, after: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A block on inputs [batch, channels, n], of which `counts` [batch] are real; the same for its output.

    At a stream's beginning the block's own zeros stand for what is not there; a transposed convolution, which starts
    with its second input, completes one position less.
    """
    if not block.reach:
        return block.module(inputs), counts * block.stride
    part = slice(block.offset, block.offset + block.channels * block.reach)
    if states is None:
        after[:, part] = _last(inputs, counts, 0, block.reach, dim=2).flatten(1)
        return block.module(inputs), (counts - block.ahead) * block.stride
    full = torch.cat((states[:, part].unflatten(1, (block.channels, block.reach)), inputs), dim=2)
    after[:, part] = _last(full, counts, block.reach, block.reach, dim=2).flatten(1)
    outputs = block.module(full)
    return outputs if block.ahead else outputs[..., block.reach :], counts * block.stride


def _last(full: torch.Tensor, counts: torch.Tensor, lead: int, width: int, *, dim: int) -> torch.Tensor:
    """The last `width` positions along `dim` before the padding: `lead` old ones and `counts` [batch] real ones come
    first. Zeros for positions before the beginning."""
    index = (lead - width + counts)[:, None] + torch.arange(width, device=full.device)
    shape = [len(full)] + [1] * (full.dim() - 1)
    shape[dim] = width
    index = index.view(shape)
    target = list(full.shape)
    target[dim] = width
    found = full.gather(dim, index.clamp_min(0).expand(target))
    return found if lead >= width else found.where(index >= 0, 0)


def _blocks(module: Any, offset: int) -> Iterator[_Block]:
    """The stack after pre_transformer, flat and in order; their parts of a state begin at `offset`."""
    for part in _flat((*module.upsample, *module.decoder)):
        block = _block(part, offset)
        offset += block.channels * block.reach
        yield block


def _flat(modules: Any) -> Iterator[Any]:
    for module in modules:
        if isinstance(module, nn.ModuleList):
            yield from _flat(module)
        elif isinstance(module, modeling.Qwen3OmniMoeCode2WavDecoderBlock):
            yield from _flat(module.block)
        else:
            yield module


def _block(module: Any, offset: int) -> _Block:
    match module:
        case modeling.Qwen3OmniMoeCausalTransConvNet():
            convolution = module.conv
            stride = int(convolution.stride[0])
            overlap = int(module.left_pad) // stride
            if convolution.kernel_size[0] != (1 + overlap) * stride or overlap > 1:
                raise CheckpointError(f"code2wav: {module}: not a transposed convolution that can be streamed")
            return _Block(
                module=module,
                reach=overlap,
                channels=int(convolution.in_channels),
                offset=offset,
                stride=stride,
                ahead=overlap,
            )
        case modeling.Qwen3OmniMoeCausalConvNet():
            first = module
        case modeling.Qwen3OmniMoeConvNeXtBlock():
            first = module.dwconv
        case modeling.Qwen3OmniMoeCode2WavDecoderResidualUnit():
            # Its activation maps 0 to 0, so that zeros before it are the zeros that its convolution starts with.
            first = module.conv1
        case modeling.Qwen3OmniMoeSnakeBeta():
            return _Block(module=module, reach=0, channels=0, offset=offset)
        case _:
            raise CheckpointError(f"code2wav: {type(module).__name__}: a block that is not known to be causal")
    return _Block(module=module, reach=int(first.padding), channels=int(first.conv.in_channels), offset=offset)
