"""Log probabilities of an answer's tokens in the two shapes that OpenAI's API has for them."""

import codecs
from collections.abc import Iterable
from typing import Any

from omni_cli.runtime.request import OutputChunk
from omni_cli.runtime.token_logs import TokenLog, token_logs

PlacedLog = tuple[TokenLog, int]
"""A token, and how many characters of the answer are complete before it."""

LEAST = -9999.0  # what stands for minus infinity, which JSON does not have


class TokenLogs:
    """The tokens of one answer as they come."""

    def __init__(self) -> None:
        self.all: list[PlacedLog] = []
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at = 0

    def take(self, chunk: OutputChunk) -> list[PlacedLog]:
        """The tokens of a piece: none if it only ends the answer, or holds them back."""
        found = []
        for log in token_logs(() if chunk.payload is None else (chunk.payload,)):
            found.append((log, self._at))
            self._at += len(self._utf8.decode(log.data))
        self.all += found
        return found


def chat_logprobs(logs: Iterable[PlacedLog]) -> dict[str, Any]:
    """`choices[].logprobs` of chat. A part of a character reads as U+FFFD; `bytes` says what it is."""
    content = [{**_entry(log), "top_logprobs": [_entry(other) for other in log.likely]} for log, _ in logs]
    return {"content": content, "refusal": None}


def completion_logprobs(logs: Iterable[PlacedLog]) -> dict[str, Any]:
    """`choices[].logprobs` of plain completions: lists side by side; the likely tokens and the one that was taken."""
    told = list(logs)
    return {
        "tokens": [_text(log) for log, _ in told],
        "token_logprobs": [_number(log) for log, _ in told],
        "top_logprobs": [_likely(log) for log, _ in told],
        "text_offset": [offset for _, offset in told],
    }


def _likely(log: TokenLog) -> dict[str, float]:
    found: dict[str, float] = {}
    for other in (*log.likely, log):
        found.setdefault(_text(other), _number(other))  # the likelier of two that read alike
    return found


def _entry(log: TokenLog) -> dict[str, Any]:
    return {"token": _text(log), "bytes": list(log.data), "logprob": _number(log)}


def _text(log: TokenLog) -> str:
    return log.data.decode(errors="replace")


def _number(log: TokenLog) -> float:
    return max(log.logprob, LEAST)
