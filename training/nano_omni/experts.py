"""The experts' layers where every token goes through all of them: two matrix products, nothing to sort, so that the
host never waits for the device. Registered with transformers as `all`."""

from typing import Any

import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

NAME = "all"


def _all(module: Any, hidden: Any, index: Any, weights: Any) -> Any:
    """As the module's own forward: `hidden` [tokens, width], `index` and `weights` [tokens, all experts]."""
    tokens, experts = weights.shape
    gate, up = (hidden @ module.gate_up_proj.flatten(0, 1).T).view(tokens, experts, -1).chunk(2, dim=-1)
    by_expert = torch.zeros_like(weights).scatter(1, index, weights)
    inner = (module.act_fn(gate) * up * by_expert[..., None].to(gate.dtype)).flatten(1)
    return (inner @ module.down_proj.transpose(1, 2).flatten(0, 1)).to(hidden.dtype)


ALL_EXPERTS_FUNCTIONS.register(NAME, _all)


def use(model: Any) -> None:
    """Makes all experts' layers of `model` work this way."""
    for module in model.modules():
        if hasattr(module, "gate_up_proj"):
            module.config._experts_implementation = NAME
