"""Compiles the blocks that a diffusers transformer repeats: one code for all of them, all sizes and numbers of rows.

It takes place at the first call, so that whoever calls for it warms up with one row and with several, which are two
codes. What cannot be compiled as a whole is an error: nothing falls back. Knows no model.
"""

from types import MethodType
from typing import Any

import torch
from diffusers.models.activations import GELU
from torch import nn


def repeated_blocks(transformer: nn.Module) -> nn.ModuleList:
    """The longest list of modules in it."""
    return max((part for part in transformer.children() if isinstance(part, nn.ModuleList)), key=len)


def compile_blocks(transformer: nn.Module, backend: str) -> None:
    """Each block's `forward` in place, so that hooks put on it later stay outside."""
    for block in repeated_blocks(transformer):
        fuse_activations(block)
        forward: Any = torch.compile(block.forward, fullgraph=True, dynamic=True, backend=backend)
        block.forward = forward


def fuse_activations(module: nn.Module) -> None:
    """On a GPU, in place."""
    for part in module.modules():
        if isinstance(part, GELU) and part.approximate == "tanh" and part.proj.weight.is_cuda:
            part.forward = MethodType(_projected_and_activated, part)


def _projected_and_activated(gelu: GELU, hidden: torch.Tensor) -> torch.Tensor:
    """diffusers' GELU [..., features] in its product's kernel, which the compiler does not do by itself. On a CPU the
    same operation would be the exact GELU."""
    flat = torch._addmm_activation(gelu.proj.bias, hidden.flatten(0, -2), gelu.proj.weight.t(), use_gelu=True)
    return flat.unflatten(0, hidden.shape[:-1])


def configure_compiler() -> None:
    """For a thread that will compile: settings are each thread's own."""
    # Two sizes that happen to be equal where it is compiled are not one size.
    torch.fx.experimental._config.use_duck_shape = False
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def compiled() -> int:
    """How many codes this process has compiled so far."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
