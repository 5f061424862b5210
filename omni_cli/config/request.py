"""One request as data (a JSONL line, the fields of a call): the keys of `request.*` without the prefix, and content.

The same schema as the configuration's, over its values as defaults. Content is taken as it is: opening and judging it
is the business of `omni_cli.inputs`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field, Strict

from omni_cli.config.keys import KeyTree
from omni_cli.config.load import LoadedConfig, family_options, validated
from omni_cli.config.report import Problem
from omni_cli.config.sampling import Text
from omni_cli.config.schema import RequestConfig
from omni_cli.errors import InputError


class _Line(RequestConfig):
    """A request with its content, as written."""

    id: Text | None = None
    """The caller's name for it; null takes its place in the batch."""
    prompt: Annotated[str, Strict()] | None = None
    """One user turn."""
    messages: Annotated[list[Any], Strict()] | None = None
    """Several turns, instead of a prompt."""
    images: tuple[Text, ...] = Field(default=())
    """Images, each a path or a data URL."""
    audios: tuple[Text, ...] = Field(default=())
    """Sound files, each a path or a data URL."""
    videos: tuple[Text, ...] = Field(default=())
    """Videos, each a path or a data URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLine:
    """A valid request: `request` are its settings over the defaults, `options` the family's own dataclass for it."""

    request: RequestConfig
    options: Any
    id: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    images: tuple[str, ...] = ()
    audios: tuple[str, ...] = ()
    videos: tuple[str, ...] = ()


def request_line(line: object, loaded: LoadedConfig) -> RequestLine:
    """Checks one request over the defaults of `request.*` and of the family's node. Null means absent.

    Raises InputError with one line for each problem: the key, what is wrong with it, the nearest valid key.
    """
    if not isinstance(line, Mapping):
        raise InputError(f"must be an object with keys and values, not {type(line).__name__}")
    given = {str(key): value for key, value in line.items() if value is not None}
    node = loaded.options_node
    tree = _tree(loaded)
    problems = [_unknown(tree, key) for key in tree.unknown(given)]
    own = given.pop(node, {}) if loaded.family.options else {}
    defaults = loaded.origins.values.get("request", {})
    known = {key: value for key, value in given.items() if key in _Line.model_fields}
    checked, found = validated(_Line, merged(defaults, known), ())
    problems += found
    options, found = _options(loaded, own)
    problems += found
    if "prompt" in given and "messages" in given:
        problems.append(Problem(key="prompt", message="cannot stand beside `messages`; put it there as the last turn"))
    problems = [replace(problem, key=_PLACE.sub(r"[\1]", problem.key)) for problem in problems]
    if problems or checked is None:
        raise InputError("\n".join(map(str, problems)), param=problems[0].key if problems else None)
    settings = {name: getattr(checked, name) for name in RequestConfig.model_fields}
    content = {name: getattr(checked, name) for name in _Line.model_fields if name not in settings}
    return RequestLine(request=RequestConfig(**settings), options=options, **content)


_PLACE = re.compile(r"\.(\d+)(?=\.|$)")  # in a list, as data write it


def merged(base: Any, over: Any) -> Any:
    """`over` laid over `base`, map by map; null in `over` leaves the base."""
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        return {**base, **{key: merged(base.get(key), value) for key, value in over.items() if value is not None}}
    return over


def _tree(loaded: LoadedConfig) -> KeyTree:
    def names(path: tuple[str, ...]) -> tuple[str, ...] | None:
        return loaded.keys.names(("request", *path))

    roots: dict[str, Any] = {name: field.annotation for name, field in _Line.model_fields.items()}
    if loaded.family.options is not None:
        roots[loaded.options_node] = loaded.family.options
    return KeyTree(roots=roots, names=names)


def _options(loaded: LoadedConfig, own: object) -> tuple[Any, list[Problem]]:
    node = loaded.options_node
    if not isinstance(own, Mapping):
        return None, [Problem(key=node, message=f"must be a map of the family's options; got {own!r}")]
    return family_options(loaded.family, merged(loaded.origins.values.get(node, {}), own), (node,))


def _unknown(tree: KeyTree, key: str) -> Problem:
    close = tree.suggest(key) or tree.suggest(key.removeprefix("request."))
    hint = f"; the nearest is `{close}`" if close else f"; there are: {', '.join(tree.roots)}"
    return Problem(key=key, message=f"unknown key{hint}")
