"""One YAML file of the configuration: its data and the line of every key, or an error that names file and line.

Must not compose: which files take part is the composition's business.
"""

import os
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from omni_cli.errors import ConfigError

KeyPath = tuple[str, ...]

_PACKAGE_HEADER = re.compile(r"^#\s*@package\s+(\S+)\s*$", re.MULTILINE)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML 1.1 as PyYAML reads it, but `1e-3` is a number and a date stays text, as in YAML 1.2."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"), list("-+.0123456789")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlFile:
    """`lines` maps the path of each key to its line, counted from 1. `package` is the file's `# @package` header."""

    path: Path
    data: Mapping[str, Any]
    lines: Mapping[KeyPath, int]
    package: str | None

    def where(self, key: KeyPath) -> str:
        """`file:line` of a key, or the file alone."""
        line = self.lines.get(key)
        return shown(self.path) if line is None else f"{shown(self.path)}:{line}"


def shown(path: Path) -> str:
    """The path for a message: relative to the working folder where it lies below it, else absolute."""
    absolute = Path(os.path.abspath(path))
    try:
        return str(absolute.relative_to(Path.cwd()))
    except ValueError:
        return str(absolute)


def read_yaml(path: Path) -> YamlFile:
    """Reads a file as UTF-8, whatever the locale. ConfigError: absent, unreadable, not UTF-8, not YAML, key twice."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{shown(path)}: cannot be read: {error.strerror or error}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{shown(path)}:{line}: not UTF-8 (byte 0x{raw[error.start]:02x}); save it as UTF-8"
        ) from None
    lines: dict[KeyPath, int] = {}
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            data: Any = {}
        else:
            _collect(root, (), lines, path)
            data = loader.construct_document(root)
    except yaml.YAMLError as error:
        raise ConfigError(_syntax(path, error)) from None
    if not isinstance(data, dict):
        raise ConfigError(f"{shown(path)}:1: must be a map of keys to values, not {type(data).__name__}")
    header = _PACKAGE_HEADER.search(text)
    return YamlFile(path=path, data=data, lines=lines, package=header.group(1) if header else None)


def _collect(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], file: Path) -> None:
    """Notes the line of every key below a node and refuses a key that is written twice or is no plain text."""
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[Hashable, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            shape = f"`{key_node.value}`" if isinstance(key_node, yaml.ScalarNode) else "a list or map"
            raise ConfigError(f"{shown(file)}:{line}: {shape} as a key is not text; put it in quotes")
        key = key_node.value
        if key in seen:
            dotted = ".".join((*path, key))
            raise ConfigError(
                f"{shown(file)}:{line}: key `{dotted}` is written twice, first in line {seen[key]}; keep one of them"
            )
        seen[key] = line
        lines[*path, key] = line
        _collect(value_node, (*path, key), lines, file)


def _syntax(path: Path, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error).splitlines()[0]
    line = f":{mark.line + 1}" if mark is not None else ""
    return f"{shown(path)}{line}: not valid YAML: {problem}"
