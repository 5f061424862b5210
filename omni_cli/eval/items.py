"""What a checkpoint is asked and what the right answers are, as its own `eval.jsonl` has it. Asks nothing."""

import os
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from omni_cli.config.report import worded
from omni_cli.errors import ConfigError, InputError
from omni_cli.inputs.limits import MIB, InputLimits
from omni_cli.inputs.text import parse_json, read_text

ITEMS_FILE = "eval.jsonl"
_LIMITS = InputLimits(max_text_bytes=64 * MIB)


class Item(BaseModel):
    """One question: a line of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    group: Literal["text", "seeing", "hearing", "speech", "pictures"]
    topic: str
    """Items of one topic are scored together."""
    request: dict[str, Any]
    """A line of a batch file; media are data URLs."""
    answer: str = ""
    """The right text."""
    duration_s: float = 0.0
    """How long the answer takes to be said."""
    drawn: dict[str, str] = {}
    """The right picture: `thing`, `right` of it, `colour` of the thing, `size`, `background`; "" is not asked for."""

    @property
    def outputs(self) -> list[str]:
        return {"speech": ["text", "audio"], "pictures": ["image"]}.get(self.group, ["text"])


def read_items(folder: Path) -> list[Item]:
    """Raises ConfigError where the checkpoint has none, InputError, which names the line, where one is wrong."""
    path, found = folder / ITEMS_FILE, []
    if not os.path.isfile(path):
        raise ConfigError(f"there is no {path}: the checkpoint was published without questions and answers")
    for number, line in enumerate(read_text(str(path), "items", limits=_LIMITS).splitlines(), 1):
        try:
            found.append(Item.model_validate(parse_json(line)))
        except (ValidationError, InputError) as error:
            found_wrong = error.errors() if isinstance(error, ValidationError) else ()
            said = "; ".join(f"{'.'.join(map(str, wrong['loc']))}: {worded(wrong)}" for wrong in found_wrong)
            raise InputError(f"{path}:{number}: {said or error}") from error
    return found


def choose(items: list[Item], only: str | None, count: int | None, seed: int) -> list[tuple[int, Item]]:
    """Those of the groups in `only` (comma-separated; None: all), `count` of each topic, drawn by the seed, in their
    order, each with its place in `items`. What is drawn of a topic does not depend on `only`. ConfigError for a group
    that has no items."""
    there = dict.fromkeys(item.group for item in items)
    asked = list(there) if only is None else [name.strip() for name in only.split(",")]
    if foreign := [name for name in asked if name not in there]:
        raise ConfigError(f"--only {foreign[0]}: this checkpoint has items of {', '.join(there)}")
    topics: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, item in enumerate(items):
        topics[item.group, item.topic].append(place)
    chance = Random(seed)
    drawn = (places if count is None else chance.sample(places, min(count, len(places))) for places in topics.values())
    kept = sorted(place for places in drawn for place in places)
    return [(place, items[place]) for place in kept if items[place].group in asked]
