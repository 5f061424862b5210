"""What a prompt can ask for, the words that ask for it, and which combinations training never sees."""

import hashlib
import random
from dataclasses import dataclass
from typing import Any

import torch

from training.nano_image.drawings import BACKGROUNDS, Drawings

SIZES = ("", "small", "big")
_HELD_OUT = 12  # one combination in so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A picture's content: places in `Drawings.names`, SIZES and BACKGROUNDS. `right` is None for a single thing; of
    two neither has a size."""

    thing: int
    right: int | None
    size: int
    background: int


def fits(scene: Scene, drawings: Drawings) -> bool:
    """Whether it can be seen: no shape on a ground of its own colour, and not one thing beside itself."""
    ground = list(BACKGROUNDS)[scene.background]
    things = (scene.thing,) if scene.right is None else (scene.thing, scene.right)
    return ground not in {drawings.colours[thing] for thing in things} and scene.thing != scene.right


def held_out(scene: Scene, drawings: Drawings) -> bool:
    """Of a single thing, thing and background decide; of two, the pair."""
    other = list(BACKGROUNDS)[scene.background] if scene.right is None else drawings.names[scene.right]
    key = f"{drawings.names[scene.thing]}|{scene.right is None}|{other}"
    return hashlib.blake2b(key.encode(), digest_size=1).digest()[0] % _HELD_OUT == 0


def draw_scene(chance: random.Random, drawings: Drawings, *, pairs: float, unseen: bool) -> Scene:
    """A random one; `pairs` is the share with two things; `unseen`: of those that are held out, else of the others."""
    things = len(drawings.names)
    while True:
        two = chance.random() < pairs
        scene = Scene(
            thing=chance.randrange(things),
            right=chance.randrange(things) if two else None,
            size=0 if two else chance.randrange(len(SIZES)),
            background=chance.randrange(len(BACKGROUNDS)),
        )
        if fits(scene, drawings) and held_out(scene, drawings) == unseen:
            return scene


class Combinations:
    """All scenes that fit, drawn on the device as rows int64 [scenes, 4]: thing, right thing (-1: none), size and
    background. `unseen` as in `draw_scene`; None: all."""

    def __init__(self, drawings: Drawings, device: str, *, unseen: bool | None) -> None:
        things, grounds = len(drawings.names), list(BACKGROUNDS)
        own = torch.tensor([grounds.index(colour) if colour in grounds else -1 for colour in drawings.colours])

        def wanted(thing: int, right: int | None, ground: int) -> bool:
            scene = Scene(thing=thing, right=right, size=0, background=ground)
            return unseen is None or held_out(scene, drawings) == unseen

        singles = [(thing, -1, at) for thing in range(things) for at in range(len(grounds)) if wanted(thing, None, at)]
        pairs = torch.tensor(
            [
                (left, right)
                for left in range(things)
                for right in range(things)
                if left != right and wanted(left, right, 0)
            ]
        )
        every = torch.arange(len(grounds)).repeat(len(pairs))[:, None]
        self._rows = []
        for rows in (torch.tensor(singles), torch.cat([pairs.repeat_interleave(len(grounds), 0), every], 1)):
            clash = (own[rows[:, :2].clamp(min=0)] == rows[:, 2:]) & (rows[:, :2] >= 0)
            self._rows.append(rows[~clash.any(1)].to(device))

    def draw(self, count: int, *, pairs: float) -> Any:
        """As many, from torch's own generator; `pairs` is the share with two things."""
        single, double = (rows[torch.randint(len(rows), (count,), device=rows.device)] for rows in self._rows)
        two = torch.rand(count, 1, device=single.device) < pairs
        chosen = torch.where(two, double, single)
        size = torch.randint(len(SIZES), (count, 1), device=single.device) * ~two
        return torch.cat([chosen[:, :2], size, chosen[:, 2:]], 1)


def scenes_of(rows: Any) -> list[Scene]:
    return [
        Scene(thing=thing, right=None if right < 0 else right, size=size, background=ground)
        for thing, right, size, ground in rows.tolist()
    ]


def plain(scene: Scene, drawings: Drawings) -> str:
    """The caption that scores are measured with."""
    return _sentence(scene, drawings, "{things} on a {ground} background")


# What some things are called as well.
_ALSO = {
    "red apple": "apple",
    "bicycle": "bike",
    "airplane": "plane",
    "television": "tv",
    "rabbit": "bunny",
    "doughnut": "donut",
    "hamburger": "burger",
    "birthday cake": "cake",
    "soccer ball": "ball",
    "alarm clock": "clock",
    "sunflower": "flower",
    "sailboat": "boat",
}
_SINGLE = ("{things} on a {ground} background", "{things} on {ground}", "{things}, {ground} background")
_LEADS = ("", "", "", "", "draw ", "a picture of ", "please draw ", "a drawing of ")


def vary(chance: random.Random, scene: Scene, drawings: Drawings) -> str:
    """One of the ways in which people ask for it. A white background may go unsaid."""
    forms: tuple[str, ...] = _SINGLE
    if list(BACKGROUNDS)[scene.background] == "white" and chance.random() < 0.5:
        forms = ("{things}",)
    sentence = chance.choice(_LEADS) + _sentence(scene, drawings, chance.choice(forms), chance)
    if chance.random() < 0.2:
        sentence = sentence[0].upper() + sentence[1:]
    return sentence + ("." if chance.random() < 0.2 else "")


def vocabulary(drawings: Drawings) -> list[str]:
    """Text that has every word of every caption, in every form."""
    chance = random.Random(0)
    scenes = [
        Scene(thing=thing, right=(thing + 1) % len(drawings.names), size=0, background=ground)
        for thing in range(len(drawings.names))
        for ground in range(len(BACKGROUNDS))
    ]
    words = " ".join((*_ALSO.values(), "small big next to left right of the and beside an A An Draw Please", *_LEADS))
    return [words] * 50 + [vary(chance, scene, drawings) for scene in scenes]


def _sentence(scene: Scene, drawings: Drawings, form: str, chance: random.Random | None = None) -> str:
    names = [drawings.names[thing] for thing in (scene.thing, scene.right) if thing is not None]
    if chance is not None:
        names = [_ALSO.get(name, name) if chance.random() < 0.5 else name for name in names]
    things = _noun(SIZES[scene.size], names[0])
    if scene.right is not None:
        left, right = things, _noun("", names[1])
        join = f"{left} and {right}"
        others = (f"{left} next to {right}", f"{left} to the left of {right}", f"{right} to the right of {left}")
        things = join if chance is None else chance.choice((join, join, *others))
    return form.format(things=things, ground=list(BACKGROUNDS)[scene.background])


def _noun(size: str, name: str) -> str:
    words = f"{size} {name}".strip()
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"
