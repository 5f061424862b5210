"""Skips most of a transformer's blocks in a step whose first block says that little has changed since the last one that
was computed: diffusers' FirstBlockCache, a state for each request and side. It is inexact, and measures by how much.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from diffusers import FirstBlockCacheConfig

from stages.runners.compiled_blocks import repeated_blocks

THRESHOLD = 0.05
"""Relative L1 distance of what the first block adds, up to which the others are skipped; diffusers' default."""
_FIRST_BLOCK_HOOK = "fbc_leader_block_hook"


@dataclass(slots=True)
class _Account:
    """`errors`: each time that blocks were computed again after a skip, how far off the reused values were by then."""

    forwards: int = 0
    skipped: int = 0
    was_skipped: bool = False
    errors: list[float] = field(default_factory=list)


class StepCache:
    """That of some transformers. A request's sides (0: with its prompt) are forwards of their own, each of one row: a
    decision for several rows would make a result depend on company."""

    def __init__(self, transformers: Sequence[Any]) -> None:
        self._states: dict[int, dict[str, Any]] = {}
        for transformer in transformers:
            transformer.enable_cache(FirstBlockCacheConfig(threshold=THRESHOLD))
            hook = repeated_blocks(transformer)[0]._diffusers_hook.get_hook(_FIRST_BLOCK_HOOK)
            self._states[id(transformer)] = hook.state_manager._state_cache
        self._accounts: dict[str, _Account] = {}

    @property
    def skipped(self) -> int:
        """Forwards made short, of all requests that are here."""
        return sum(account.skipped for account in self._accounts.values())

    def forward(self, transformer: Any, uid: int, side: int, call: Callable[[], torch.Tensor]) -> torch.Tensor:
        """`call` runs the transformer over the one row."""
        name, states = _name(uid, side), self._states[id(transformer)]
        account = self._accounts.setdefault(name, _Account())
        before = states[name].tail_block_residuals if account.was_skipped else (torch.empty(0),)
        with transformer.cache_context(name):
            found = call()
        state = states[name]
        account.forwards += 1
        if not state.should_compute:
            account.skipped += 1
        elif account.was_skipped:
            exact = state.tail_block_residuals[0]
            account.errors.append(float((exact - before[0]).abs().mean() / exact.abs().mean()))
        account.was_skipped = not state.should_compute
        return found

    def report(self, uid: int) -> str:
        """What skipping has cost the request so far; empty if nothing was skipped."""
        accounts = [self._accounts[name] for side in (0, 1) if (name := _name(uid, side)) in self._accounts]
        skipped = sum(account.skipped for account in accounts)
        if not skipped:
            return ""
        errors = [error for account in accounts for error in account.errors]
        text = f"step_cache skipped most blocks in {skipped} of {sum(a.forwards for a in accounts)} forwards"
        if not errors:
            return f"{text}; what it reused was never computed again, so that the loss is not known"
        mean, most = sum(errors) / len(errors), max(errors)
        return f"{text}; what it reused was off by {mean:.1%} when computed again ({most:.1%} at most, relative L1)"

    def forget(self, uid: int) -> None:
        for side in (0, 1):
            self._accounts.pop(_name(uid, side), None)
            for states in self._states.values():
                states.pop(_name(uid, side), None)


def _name(uid: int, side: int) -> str:
    return f"{uid}.{side}"
