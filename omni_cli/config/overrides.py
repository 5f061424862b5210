"""What the words KEY=VALUE of a command line mean: the choice of a group file, a value, or a refusal with a way out.

Hydra's grammar reads the values. Request text never gets that far: it is data, and the key alone gives it away.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from typing import Any, Literal

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override as HydraOverride
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException

from omni_cli.config.library import GROUPS, RECIPE
from omni_cli.config.recipes import is_file
from omni_cli.config.report import COMMAND_LINE, Problem

_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*", re.ASCII)
_PREFIX = re.compile(r"\+{1,2}|~")

# Names under which people try to give a request's content, and the option that takes it.
_CONTENT = {
    "prompt": "--prompt TEXT, --prompt-file PATH (- is stdin) or --input BATCH.jsonl",
    "prompts": "--input BATCH.jsonl, one request a line",
    "prompt_file": "--prompt-file PATH (- is stdin)",
    "text": "--prompt TEXT or --prompt-file PATH (- is stdin)",
    "messages": "--messages FILE.json",
    "image": "--image PATH",
    "images": "--image PATH, repeatable",
    "audio": "--audio PATH",
    "audios": "--audio PATH, repeatable",
    "video": "--video PATH",
    "videos": "--video PATH, repeatable",
    "input": "--input BATCH.jsonl",
}
_PROMPT_OPTIONS = _CONTENT["prompt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One word of the command line. `text` is what was typed; `value` is a choice's name or a plain Python value."""

    text: str
    kind: Literal["choice", "value"]
    key: str
    value: Any

    def for_hydra(self, value: Any = None) -> str:
        """The override in Hydra's grammar; `value` instead of its own where given."""
        value = self.value if value is None else value
        return f"{'' if self.kind == 'choice' else '++'}{self.key}={literal(value)}"


def literal(value: Any) -> str:
    """A plain value in Hydra's grammar, such that it is read back as the same value."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case list():
            return "[" + ",".join(map(literal, value)) + "]"
        case dict():
            return "{" + ",".join(f"{key}:{literal(item)}" for key, item in value.items()) + "}"
        case _:
            return str(QuotedString(str(value), Quote.single).with_quotes())


def classify(
    words: Sequence[str], takes_text: Callable[[str], bool]
) -> tuple[tuple[Override, ...], tuple[Problem, ...]]:
    """All words, and all that is wrong with them. `takes_text(key)` says which keys hold text: their value is kept to
    the letter where Hydra's grammar would refuse it or change its type."""
    overrides: list[Override] = []
    problems: list[Problem] = []
    for word in words:
        found = _classify(word, takes_text)
        if isinstance(found, Problem):
            problems.append(found)
        else:
            problems += _conflicts(found, overrides)
            overrides.append(found)
    return tuple(overrides), tuple(problems)


def _classify(word: str, takes_text: Callable[[str], bool]) -> Override | Problem:
    prefix = _PREFIX.match(word)
    bare = word[prefix.end() :] if prefix else word
    key, equals, raw = bare.partition("=")
    if key.split(".")[0].split("/")[0] == "hydra":
        return _refused(key, "Hydra's own settings have no effect here and are refused; leave it out")
    if content := _content_option(key, has_value=bool(equals)):
        return _refused(_short(key), content)
    if prefix and prefix.group() == "~" and _KEY.fullmatch(key):
        return _refused(key, "deleting is not supported; set the key to null, or choose another group file")
    if not equals or not _KEY.fullmatch(key):
        return _refused(
            _short(word), f"is not KEY=VALUE; a prompt is given with {_PROMPT_OPTIONS}, a value as a.b.c=VALUE"
        )
    if key in (*GROUPS, RECIPE):
        return _choice(word, key, raw)
    return _value(word, key, raw, takes_text)


def _choice(word: str, key: str, raw: str) -> Override | Problem:
    name = raw.strip().strip("'\"")
    is_path = key == RECIPE and is_file(name) and not name.startswith(("[", "{"))
    if is_path or (name and not re.search(r"[\[\]{}(),=\n]", name)):
        return Override(text=word, kind="choice", key=key, value=name)
    return _refused(key, f"takes one name of a file, got `{_short(raw)}`; single values are set as {key}.KEY=VALUE")


def _value(word: str, key: str, raw: str, takes_text: Callable[[str], bool]) -> Override | Problem:
    try:
        parsed = _parse(f"++{key}={raw}")
        swept = parsed.is_sweep_override()
        value = None if swept else parsed.value()
    except HydraException:
        parsed, value, swept = None, None, False
    if takes_text(key) and "${" not in raw and (parsed is None or swept or not isinstance(value, str | None)):
        return Override(text=word, kind="value", key=key, value=raw)
    if parsed is None:
        quoted = f'"{key}={_short(literal(raw))}"'
        return _refused(key, f"the value `{_short(raw)}` cannot be read; as text it is written {quoted}")
    if swept:
        return _refused(
            key, f"`{_short(raw)}` is several values; write [{_short(raw)}] for a list, or sweep with `omni run -m`"
        )
    return Override(text=word, kind="value", key=key, value=value)


def _parse(word: str) -> HydraOverride:
    return OverridesParser.create().parse_override(word)


def _content_option(key: str, *, has_value: bool) -> str | None:
    """The refusal if a key stands for request content (`prompt`, `request.prompt`, `requst.promt`), else None."""
    parts = key.split(".")
    if not has_value or len(parts) > 2:
        return None
    head, leaf = ("request", parts[0]) if len(parts) == 1 else (parts[0], parts[1])
    if head not in ("input", "inputs") and SequenceMatcher(None, head, "request").ratio() < 0.7:
        return None
    if leaf not in _CONTENT:
        close = get_close_matches(leaf, ("prompt", "prompt_file", "messages"), n=1, cutoff=0.8)
        if not close:
            return None
        leaf = close[0]
    return f"is what a request says (request.{leaf}), which is data, not configuration; give it with {_CONTENT[leaf]}"


def _conflicts(new: Override, earlier: Sequence[Override]) -> list[Problem]:
    for old in earlier:
        first, second = sorted((old.key + ".", new.key + "."), key=len)
        if old.kind == new.kind and second.startswith(first):
            return [_refused(new.key, f"is set twice, by `{_short(old.text)}` and by `{_short(new.text)}`; keep one")]
    return []


def expand_sweep(words: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The jobs of a sweep: the product over all words with several values (`a=1,2`, `a=range(0,4)`), in order.

    A word that Hydra's grammar cannot read stands for itself; `classify` has the message for it.
    """
    return tuple(itertools.product(*(_spread(word) for word in words)))


def _spread(word: str) -> tuple[str, ...]:
    try:
        parsed = _parse(word)
    except HydraException:
        return (word,)
    if not parsed.is_discrete_sweep():
        return (word,)
    key = word.partition("=")[0]
    return tuple(f"{key}={item}" for item in parsed.sweep_string_iterator())


def _refused(key: str, message: str) -> Problem:
    return Problem(key=key, message=message, where=COMMAND_LINE)


def _short(text: str, limit: int = 60) -> str:
    line = text.replace("\n", "\\n")
    return line if len(line) <= limit else line[: limit - 3] + "..."
