"""What a prompt can ask for, the words that ask for it, and which combinations training never sees."""

import hashlib
import random
from dataclasses import dataclass

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


def plain(scene: Scene, drawings: Drawings) -> str:
    """The caption that scores are measured with."""
    return _sentence(scene, drawings, "{things} on a {ground} background")


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
    words = " ".join(("small big next to left right of the and beside an A An Draw Please", *_LEADS))
    return [words] * 50 + [vary(chance, scene, drawings) for scene in scenes]


def _sentence(scene: Scene, drawings: Drawings, form: str, chance: random.Random | None = None) -> str:
    left = _noun(SIZES[scene.size], drawings.names[scene.thing])
    things = left
    if scene.right is not None:
        right = _noun("", drawings.names[scene.right])
        join = f"{left} and {right}"
        others = (f"{left} next to {right}", f"{left} to the left of {right}", f"{right} to the right of {left}")
        things = join if chance is None else chance.choice((join, join, *others))
    return form.format(things=things, ground=list(BACKGROUNDS)[scene.background])


def _noun(size: str, name: str) -> str:
    words = f"{size} {name}".strip()
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"
