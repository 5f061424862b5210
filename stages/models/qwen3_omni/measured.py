"""Requests for measuring: of a size to the token, and what a later stage gets when it is measured alone. Torch-free."""

from array import array
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from stages.models.checkpoint import read_json
from stages.models.registry import Feed, RequestSize
from stages.payload import Payload, Tensor

# What the chat template puts around one user turn: start, role and newline of both turns, end and newline of the first.
_TEMPLATE_TOKENS = 8
# The rows that begin the talker's answer, behind the user turn.
_ANSWER_ROWS = 9
_BYTES = 256  # the first ids of a byte-level vocabulary, none of them special


def sized(size: RequestSize, draw: Random) -> Mapping[str, Any]:
    """A prompt of digits, each of which is a token: Qwen's tokenizers cut them apart before they merge anything."""
    digits = draw.choices("0123456789", k=max(1, size.prompt_tokens - _TEMPLATE_TOKENS))
    # the talker's last token yields no frame
    limits = {"thinker": size.text_tokens, "talker": size.frames + 1}
    sampling = {stage: {"max_tokens": limit, "ignore_eos": True} for stage, limit in limits.items()}
    return {"prompt": "".join(digits), "sampling": sampling}


def feed(model_path: str, stage: str, size: RequestSize, draw: Random) -> Feed:
    """Of the talker, a prompt that takes `prompt_tokens` of its context, and the whole text. Of code2wav, random codes,
    a frame a message."""
    config = read_json(Path(model_path) / "config.json")
    if stage == "talker":
        return _spoken(config, size, draw)
    if stage == "code2wav":
        return _frames(config["code2wav_config"], size, draw)
    raise KeyError(f"stage {stage!r} is fed by requests")


def _spoken(config: dict[str, Any], size: RequestSize, draw: Random) -> Feed:
    start, end = config["im_start_token_id"], config["im_end_token_id"]
    rest = max(1, size.prompt_tokens - _ANSWER_ROWS - 3)
    user = [start, config["user_token_id"], *_ids(draw, rest), end]
    answer = [start, config["assistant_token_id"], end]
    text = [*_ids(draw, size.text_tokens - 1), end]
    tensors = _tensor("prompt_ids", [*user, *answer]), _tensor("generated_ids", text)
    return ((len(text), Payload(tensors=tensors)),)


def _frames(code2wav: dict[str, Any], size: RequestSize, draw: Random) -> Feed:
    groups, codebook = int(code2wav["num_quantizers"]), int(code2wav["codebook_size"])
    messages = []
    for number in range(size.frames):
        data = memoryview(array("i", [draw.randrange(codebook) for _ in range(groups)])).cast("B")
        codes = Tensor(name="codes", dtype="int32", shape=(1, groups), data=data)
        last = number == size.frames - 1
        messages.append((1, Payload(tensors=(codes,), meta=(("finish_reason", "length"),) if last else ())))
    return tuple(messages)


def _ids(draw: Random, count: int) -> list[int]:
    return [draw.randrange(_BYTES) for _ in range(count)]


def _tensor(name: str, ids: list[int]) -> Tensor:
    return Tensor(name=name, dtype="int64", shape=(len(ids),), data=memoryview(array("q", ids)).cast("B"))
