"""The experts' layers where every token goes through all of them: two matrix products, nothing to sort, so that the
host never waits for the device. Registered with transformers as `all`."""

from typing import Any

import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

NAME = "all"


def _all(module: Any, hidden: Any, index: Any, weights: Any) -> Any:
    """As the module's own forward: `hidden` [tokens, width], `index` and `weights` [tokens, all experts]."""
    gate, up = torch.einsum("tw,eow->teo", hidden, module.gate_up_proj).chunk(2, dim=-1)
    found = torch.einsum("tei,ewi->tew", module.act_fn(gate) * up, module.down_proj)
    by_expert = torch.zeros_like(weights).scatter(1, index, weights)
    return (found * by_expert[..., None]).sum(1).to(hidden.dtype)


ALL_EXPERTS_FUNCTIONS.register(NAME, _all)


def use(model: Any) -> None:
    """Makes all experts' layers of `model` work this way."""
    for module in model.modules():
        if hasattr(module, "gate_up_proj"):
            module.config._experts_implementation = NAME
