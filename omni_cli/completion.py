"""Completion for bash: verbs, options, choices, dotted keys, values. Prints candidates only and never raises."""

import os
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

# `=` splits words in bash; without it in COMP_WORDBREAKS `recipe=syn` is one word. A candidate brings its own blank.
BASH = """\
COMP_WORDBREAKS=${COMP_WORDBREAKS//=/}
_omni_complete() {
    local IFS=$'\\n'
    COMPREPLY=( $(_OMNI_COMPLETE=bash omni "${COMP_CWORD}" "${COMP_WORDS[@]}" 2>/dev/null) )
}
complete -o nospace -o default -F _omni_complete omni
"""

_WITH_OVERRIDES = ("run", "plan", "bench", "eval")


def complete(args: Sequence[str]) -> int:
    """Prints the candidates for word number `args[0]` of the line that follows, one a line."""
    try:
        position, words = int(args[0]), list(args[1:])
        current = words[position] if position < len(words) else ""
        found = [word for word in _candidates(words[:position], current) if word.startswith(current)]
    except Exception:  # whatever is wrong with a half-typed line is not to be said while it is typed
        return 0
    print("\n".join(word if word.endswith(("=", ".", "/")) else f"{word} " for word in found))
    return 0


def _candidates(before: Sequence[str], current: str) -> Iterable[str]:
    if len(before) < 2:
        from omni_cli.app import available_verbs

        return available_verbs()
    verb = before[1]
    if current.startswith("-"):
        return _options(before[1:])
    if verb == "recipe":
        return _recipe_names() if len(before) > 2 else ("ls", "show", "cp", "validate")
    if verb not in _WITH_OVERRIDES:
        return ()
    return _overrides([word for word in before[2:] if "=" in word and not word.startswith("-")], current)


def _options(words: Sequence[str]) -> Iterator[str]:
    import typer

    from omni_cli.app import module_of

    command: Any = typer.main.get_command(import_module(module_of(words[0])).app)
    for word in words[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    for parameter in command.params:
        yield from (option for option in parameter.opts if option.startswith("--") and "completion" not in option)


def _recipe_names() -> list[str]:
    from omni_cli.config.library import RECIPE, Library

    return sorted(Library.of().choices(RECIPE))


def _overrides(words: Sequence[str], current: str) -> Iterable[str]:
    from omni_cli.config.library import GROUPS, RECIPE, Library

    key, equals, value = current.partition("=")
    bare = key.lstrip("+")
    if equals and bare == RECIPE and value.startswith((".", "/", "~")):
        return (f"{key}={path}" for path in _yaml_files(value))
    if equals and bare in (RECIPE, *GROUPS):
        return [f"{key}={name}" for name in sorted(Library.of().choices(bare))]
    tree = _keys(words)
    if equals:
        return [f"{key}={value}" for value in _values(tree.kind(bare))]
    prefix = key[: len(key) - len(bare)]
    choices = [f"{prefix}{group}=" for group in (RECIPE, *GROUPS)]
    return [*choices, *dict.fromkeys(prefix + _segment(name, bare) for name in tree.valid() if name.startswith(bare))]


def keys_called(name: str) -> list[str]:
    """The keys, three at most, that a user of other tools may mean by `--name`: those that end so, else the root's."""
    from omni_cli.config.library import GROUPS, RECIPE
    from omni_cli.config.nearest import CALLED_ELSEWHERE

    name = CALLED_ELSEWHERE.get(name, name)
    keys = (RECIPE, *GROUPS, *_keys(()).valid())
    ends = [key for key in keys if key.rpartition(".")[2] == name]
    return (ends or [key for key in keys if key.partition(".")[0] == name])[:3]


def _keys(words: Sequence[str]) -> Any:
    """The keys for the recipe that stands on the line already, or for the default one."""
    from omni_cli.config.load import load_config
    from omni_cli.errors import OmniError

    try:
        return load_config(words).keys
    except OmniError:
        return load_config(()).keys


def _segment(name: str, typed: str) -> str:
    """The key up to the end of the segment that is being typed, so that a list of keys stays short."""
    end = name.find(".", len(typed))
    return f"{name}=" if end < 0 else name[: end + 1]


def _values(kind: Any) -> Iterator[str]:
    if kind is bool:
        yield from ("true", "false")
    elif get_origin(kind) is Literal:
        yield from map(str, get_args(kind))
    else:
        for part in get_args(kind):
            yield from _values(part)


def _yaml_files(typed: str) -> Iterator[str]:
    folder, _, _ = typed.rpartition("/")
    for path in sorted(Path(folder or ".").expanduser().iterdir()):
        shown = f"{folder}/{path.name}" if folder else path.name
        if path.is_dir():
            yield f"{shown}{os.sep}"
        elif path.suffix in (".yaml", ".yml"):
            yield shown
