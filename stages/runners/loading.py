"""Builds a module directly on its device and fills it: strictly from a checkpoint folder, or with random values.

Every parameter and persistent buffer is accounted for; a missing, unexpected or misshapen tensor is an error that names
it. Only the shards and tensors that the module needs are read. Knows no model family: a route says what belongs where.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from stages.errors import CheckpointError
from stages.models.checkpoint import tensor_files

# How many names an error lists before it counts the rest.
_NAMED = 8


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a stored tensor belongs: a parameter of the module, or the part of it that `index` selects."""

    parameter: str
    index: tuple[int | slice, ...] = ()


Route = Callable[[str], Slot | None]
"""From a stored name, prefix stripped, to its slot; None if the module has no place for it."""


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def build(factory: Callable[[], Any], *, device: torch.device, dtype: torch.dtype) -> Any:
    """The module that `factory` makes, in evaluation mode, its parameters allocated on `device` and left unfilled.

    Computed buffers (rotary frequencies, sinusoids) hold their values. There is no copy on another device.
    """
    from transformers import PreTrainedModel
    from transformers.initialization import no_init_weights

    with no_init_weights(), device, _default_dtype(dtype):
        module = factory()
        if isinstance(module, PreTrainedModel):
            module.tie_weights(recompute_mapping=False)  # which is left out with the initial values
    module.eval()
    module.requires_grad_(False)
    return module


def load_weights(module: nn.Module, folder: Path, *, prefix: str, route: Route, mapped: bool = False) -> int:
    """Fills `module` from the tensors of `folder` whose names begin with `prefix`; returns the bytes it now holds.

    Values are converted to the parameters' dtype. With `mapped`, those that need not be converted stay where they are
    in the file, as `from_pretrained` leaves them: CPU kernels round in another way where memory is aligned in another
    way, so that only then results are equal to the bit.

    Raises CheckpointError that names missing, unexpected or misshapen tensors.
    """
    state = module.state_dict(keep_vars=True)
    files = {name: path for name, path in tensor_files(folder).items() if name.startswith(prefix)}
    slots, unexpected = {}, []
    for name in files:
        slot = route(name.removeprefix(prefix))
        if slot is None or slot.parameter not in state:
            unexpected.append(name)
        else:
            slots[name] = slot
    if unexpected:
        raise CheckpointError(f"{folder}: tensors that the model does not have: {_listed(unexpected)}")
    filled = dict.fromkeys(map(id, state.values()), 0)  # one that is tied has two names, and is stored once or twice
    with torch.no_grad():
        for name, tensor in _tensors(files):
            slot = slots[name]
            target = state[slot.parameter]
            part = target[slot.index] if slot.index else target
            if part.shape != tensor.shape:
                raise CheckpointError(
                    f"{files[name]}: {name} has shape {list(tensor.shape)}, the model needs {list(part.shape)}"
                )
            if mapped and not slot.index and (tensor.dtype, tensor.device) == (target.dtype, target.device):
                target.data = tensor
            else:
                part.copy_(tensor)
            filled[id(target)] = tensor.numel() + (filled[id(target)] if slot.index else 0)
    missing = [prefix + name for name, tensor in state.items() if filled[id(tensor)] != tensor.numel()]
    if missing:
        raise CheckpointError(f"{folder}: tensors missing from the checkpoint: {_listed(missing)}")
    return weight_bytes(module)


def fill_random(module: nn.Module, *, seed: int, name_as: Callable[[str], str] = str) -> int:
    """Fills every parameter and persistent buffer in place; returns the bytes.

    Matrices are normal with deviation 0.02, vectors called `bias` 0, other vectors 1. A tensor's values depend on
    `seed` and its name alone, as `name_as` has it, so they are the same whichever stage holds it.
    """
    with torch.no_grad():
        for name, tensor in module.state_dict(keep_vars=True).items():
            if tensor.ndim > 1:
                key = hashlib.blake2b(f"{seed}:{name_as(name)}".encode(), digest_size=7).digest()
                generator = torch.Generator(tensor.device).manual_seed(int.from_bytes(key))
                tensor.normal_(0.0, 0.02, generator=generator)
            else:
                tensor.fill_(0.0 if name.endswith("bias") else 1.0)
    return weight_bytes(module)


def read_tensor(folder: Path, names: Sequence[str]) -> torch.Tensor:
    """The first of `names` that the checkpoint has, on the CPU. Raises CheckpointError if it has none."""
    files = tensor_files(folder)
    for name in names:
        if name in files:
            return next(_tensors({name: files[name]}))[1]
    raise CheckpointError(f"{folder}: tensors missing from the checkpoint: {_listed(list(names))}")


def weight_bytes(module: nn.Module) -> int:
    """Bytes of all parameters and persistent buffers; one that is tied has two names and counts once."""
    held = {id(tensor): tensor for tensor in module.state_dict(keep_vars=True).values()}
    return sum(tensor.numel() * tensor.element_size() for tensor in held.values())


def _tensors(files: dict[str, Path]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors, file by file, so that each shard is opened once."""
    for path in sorted(set(files.values())):
        try:
            with safe_open(path, framework="pt") as shard:
                for name in sorted(name for name, file in files.items() if file == path):
                    yield name, shard.get_tensor(name)
        except FileNotFoundError:
            raise CheckpointError(f"{path}: no such file") from None
        except SafetensorError as error:
            raise CheckpointError(f"{path}: {error}") from error


def _listed(names: list[str]) -> str:
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(sorted(names)[:_NAMED]) + rest
