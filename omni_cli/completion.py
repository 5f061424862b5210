"""Completion for bash: verbs, group choices and dotted keys. A completer never prints anything else and never raises."""

BASH = ""


def complete(args: list[str]) -> int:
    return 0
