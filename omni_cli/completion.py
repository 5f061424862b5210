"""Completion for bash: verbs, group choices and dotted keys. It never prints anything else and never raises."""

BASH = ""


def complete(args: list[str]) -> int:
    return 0
