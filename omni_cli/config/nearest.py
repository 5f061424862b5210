"""The valid name or dotted key that a mistyped or misplaced one most likely meant."""

from collections import Counter
from collections.abc import Iterable
from difflib import SequenceMatcher

# Below this a suggestion misleads more than it helps; found by trying typos against every key of the schema.
_ALIKE = 0.6


CALLED_ELSEWHERE = {
    "width": "size",
    "height": "size",
    "num_inference_steps": "steps",
    "guidance_scale": "true_cfg_scale",
    "cfg_scale": "true_cfg_scale",
    "num_images_per_prompt": "n",
    "num_frames": "frames",
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "do_sample": "temperature",
    "stop_sequences": "stop",
    "speaker": "voice",
    "gpu_memory_utilization": "memory_fraction",
    "tensor_parallel_size": "devices",
    "max_num_seqs": "max_batch",
    "max_num_batched_tokens": "step_tokens",
    "enforce_eager": "graphs",
}
"""Names that other tools have for a key's last segment, and are too far from it to be taken for slips."""


def likeness(name: str, candidate: str) -> float:
    """0 (nothing in common) to 1 (equal). Half of it is the last segment: `seed` alone means some `....seed`."""
    whole = SequenceMatcher(None, name, candidate, autojunk=False).ratio()
    leaf = SequenceMatcher(None, name.rpartition(".")[2], candidate.rpartition(".")[2], autojunk=False).ratio()
    return (whole + leaf) / 2


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The most similar candidate; of equals the one with the same letters, then the shorter one. None if none is."""

    def rank(candidate: str) -> tuple[float, int, int]:
        return likeness(name, candidate), (Counter(name) & Counter(candidate)).total(), -len(candidate)

    best = max(candidates, key=rank, default=None)
    return best if best is not None and likeness(name, best) >= _ALIKE else None
