"""Which dotted keys exist: read off the types of the schema, and off a family's own dataclass in the same way.

Says which keys of a dict exist nowhere in the types and what they probably meant. Must not judge values.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from omni_cli.config.files import KeyPath
from omni_cli.config.nearest import CALLED_ELSEWHERE, nearest

# The names that a map of names may have at a path, or None where any name goes.
Names = Callable[[KeyPath], tuple[str, ...] | None]


def fields(kind: Any) -> dict[str, Any] | None:
    """The fields of a pydantic model or a dataclass with their types; None for any other type."""
    kind = _core(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    return None


def _core(kind: Any) -> Any:
    """The type without Annotated and without `| None`."""
    while True:
        origin = get_origin(kind)
        if origin is Annotated:
            kind = get_args(kind)[0]
        elif origin in (Union, UnionType) and len(rest := [a for a in get_args(kind) if a is not type(None)]) == 1:
            kind = rest[0]
        else:
            return kind


def item_type(kind: Any) -> Any | None:
    """The type of a map's values; None for any other type."""
    core = _core(kind)
    origin = get_origin(core)
    return get_args(core)[1] if isinstance(origin, type) and issubclass(origin, Mapping) else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeyTree:
    """All valid keys: `roots` are the root nodes with their types, `names` the names that maps may have."""

    roots: Mapping[str, Any]
    names: Names

    def valid(self) -> tuple[str, ...]:
        """Every key that can hold a value, dotted. A map whose names are free stands for itself."""
        return tuple(key for name, kind in self.roots.items() for key in self._below(kind, (name,)))

    def _below(self, kind: Any, path: KeyPath) -> Iterator[str]:
        known = fields(kind)
        if known is None and (item := item_type(kind)) is not None:
            names = self.names(path)
            known = None if names is None else dict.fromkeys(names, item)
        if not known:
            yield ".".join(path)
            return
        for name, below in known.items():
            yield from self._below(below, (*path, name))

    def unknown(self, data: Mapping[str, Any]) -> tuple[str, ...]:
        """The dotted keys of a dict that do not exist; of an unknown map, every value in it."""
        return tuple(self._unknown(data, self.roots, ()))

    def _unknown(self, data: Mapping[str, Any], known: Mapping[str, Any], path: KeyPath) -> Iterator[str]:
        for name, value in data.items():
            here = (*path, str(name))
            if name not in known:
                yield from _leaves(value, here)
            elif isinstance(value, Mapping):
                yield from self._inside(value, known[name], here)

    def _inside(self, value: Mapping[str, Any], kind: Any, path: KeyPath) -> Iterator[str]:
        below = fields(kind)
        if below is not None:
            yield from self._unknown(value, below, path)
        elif (item := item_type(kind)) is not None:
            names = self.names(path)
            yield from self._unknown(value, dict.fromkeys(value if names is None else names, item), path)

    def kind(self, key: str) -> Any | None:
        """The type of a dotted key's value; None if there is no such key."""
        known: Mapping[str, Any] | None = self.roots
        kind: Any = None
        path: KeyPath = ()
        for part in key.split("."):
            if known is None or part not in known:
                return None
            kind, path = known[part], (*path, part)
            known = fields(kind)
            if known is None and (item := item_type(kind)) is not None:
                known = dict.fromkeys(self.names(path) or (), item)
        return kind

    def suggest(self, key: str) -> str | None:
        """The valid key that an unknown one most likely meant."""
        path, dot, name = key.rpartition(".")
        return nearest(path + dot + CALLED_ELSEWHERE.get(name, name), self.valid())


def _leaves(value: Any, path: KeyPath) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _leaves(item, (*path, str(name)))
    else:
        yield ".".join(path)
