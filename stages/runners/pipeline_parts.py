"""Loads the parts of a diffusers folder, strictly: built on their device, filled tensor by tensor. Knows no model."""

from collections.abc import Callable
from inspect import isclass
from pathlib import Path
from typing import Any

import diffusers
import torch
from torch import nn

from stages.config import ModelSpec
from stages.errors import CheckpointError
from stages.models.checkpoint import read_json
from stages.runners.loading import Route, Slot, build, fill_random, load_weights


class PipelineParts:
    """`held` counts the bytes of what was loaded."""

    def __init__(self, model: ModelSpec) -> None:
        self.folder = Path(model.path)
        self.held = 0
        self._dummy = model.load_format == "dummy"

    def config(self, part: str) -> dict[str, Any]:
        return read_json(self.folder / part / "config.json")

    def module(
        self,
        part: str,
        factory: Callable[[], nn.Module],
        *,
        device: torch.device,
        dtype: torch.dtype,
        route: Route = Slot,
    ) -> Any:
        """The part that `factory` makes, with its weights. Raises CheckpointError."""
        module = build(factory, device=device, dtype=dtype)
        exact = set(module._keep_in_fp32_modules or ()) if isinstance(module, diffusers.ModelMixin) else set()
        for name, parameter in module.named_parameters():
            if exact & set(name.split(".")):
                parameter.data = parameter.data.float()  # as `from_pretrained` leaves them
        if self._dummy:
            self.held += fill_random(module, seed=0)
        else:
            self.held += load_weights(module, self.folder / part, prefix="", route=route, mapped=True)
        return module

    def scheduler(self) -> Any:
        """The noise scheduler that the folder names. Raises CheckpointError for one that diffusers does not have."""
        config = self.folder / "scheduler" / "scheduler_config.json"
        kind: Any = getattr(diffusers, str(read_json(config).get("_class_name")), None)
        known = isclass(kind) and issubclass(kind, diffusers.SchedulerMixin)
        if not known:
            raise CheckpointError(f"{config}: _class_name names no noise scheduler of diffusers")
        return kind.from_pretrained(self.folder / "scheduler")
