"""What the runners of the three stages share: loading, and one state a request. What a step does is theirs."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from stages.config import StageSpec
from stages.messages import StageRequest
from stages.models.qwen3_omni.modules import Source, read_config
from stages.payload import Payload
from stages.runners.base import ModelRunner
from stages.runners.device import open_device

State = TypeVar("State")


class StageRunner(ModelRunner, ABC, Generic[State]):
    """The part of a `ModelRunner` that does not depend on the stage."""

    def __init__(self, spec: StageSpec) -> None:
        self._spec = spec
        self._folder = Path(spec.model.path)
        self._states: dict[int, State] = {}

    def load(self) -> tuple[tuple[str, str], ...]:
        spec = self._spec
        device = open_device(spec)
        config = read_config(self._folder)
        dtype: torch.dtype = getattr(torch, spec.model.dtype)
        source = Source(folder=self._folder, device=device, dtype=dtype, dummy=spec.model.load_format == "dummy")
        held = self._load(config, source)
        return (
            ("device", str(device)),
            ("dtype", str(dtype).removeprefix("torch.")),
            ("weight_bytes", str(held)),
        )

    def begin(self, request: StageRequest) -> None:
        self._states[request.uid] = self._open(request)

    def feed(self, uid: int, producer: str, payload: Payload, eos: bool) -> None:
        self._take(self._states[uid], payload, eos)

    def prompt_tokens(self, uid: int) -> int:
        return 1

    def end(self, uid: int) -> None:
        self._states.pop(uid, None)

    def close(self) -> None:
        self._states.clear()

    @abstractmethod
    def _load(self, config: Any, source: Source) -> int:
        """Loads the stage's module; returns its bytes."""

    @abstractmethod
    def _open(self, request: StageRequest) -> State:
        """A new request's state. Raises RequestRefused for what the stage cannot do."""

    @abstractmethod
    def _take(self, state: State, payload: Payload, eos: bool) -> None:
        """Copies what it needs from one message of the input stream."""
