"""What can be drawn: named pictures from a colour emoji font, and plain shapes in plain colours. RGBA, made once."""

import math
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SIDE = 128  # pixels
FONT = Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")  # Debian's fonts-noto-color-emoji, OFL 1.1
BACKGROUNDS = {
    "white": (255, 255, 255),
    "black": (20, 20, 20),
    "red": (220, 60, 50),
    "green": (70, 170, 80),
    "blue": (60, 110, 220),
    "yellow": (250, 220, 70),
    "pink": (250, 170, 200),
    "gray": (150, 150, 150),
}
COLOURS = {
    "red": (230, 30, 30),
    "green": (30, 160, 50),
    "blue": (30, 70, 230),
    "yellow": (250, 210, 20),
    "purple": (140, 50, 180),
    "orange": (250, 130, 20),
    "white": (250, 250, 250),
    "black": (10, 10, 10),
}
SHAPES = ("circle", "square", "triangle", "star", "heart", "ring")

_BITMAP = 109  # the font's only size
_RANGES = (range(0x1F300, 0x1F650), range(0x1F680, 0x1F6D0), range(0x1F950, 0x1F9D0))
# Names that are no word for what is seen, people, and what is too much alike to be told apart.
_UNFIT = re.compile(
    r"face|sign|symbol|arrow|square|button|clock|person|man|woman|men|boy|girl|people|family|couple|hand|finger"
    r"|japanese|input|black|white|moon|kiss|baby|head|mail|no |non-|do not|emoji|heart|level|half|selector|negative"
    r"|fist|circled|id|currency|dancer|silhouette|bust|mark|triangle|hair|police|worker|guard|princess|lovers|hotel"
    r"|love|with|of|circle|diamond|large|small|high|low|end|back|on |top|soon|over|and"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawings:
    """`names[i]` is the word for `sprites[i]`: uint8 [things, SIDE, SIDE, 4], RGBA. The last are the shapes, each in
    each colour; `colours[i]` is a shape's colour, "" for what has colours of its own."""

    names: tuple[str, ...]
    colours: tuple[str, ...]
    sprites: Any

    def save(self, path: Path) -> None:
        np.savez_compressed(path, sprites=self.sprites, names=np.array(self.names), colours=np.array(self.colours))


def load(path: Path) -> Drawings:
    """What `save` wrote."""
    with np.load(path) as file:
        names, colours = (tuple(str(word) for word in file[key]) for key in ("names", "colours"))
        return Drawings(names=names, colours=colours, sprites=file["sprites"])


def draw(font: Path = FONT) -> Drawings:
    """Renders all. Raises OSError if the font is not there."""
    things, plain = _emoji(font), shapes()
    return Drawings(
        names=(*things, *plain.names),
        colours=("",) * len(things) + plain.colours,
        sprites=np.stack([*things.values(), *plain.sprites]),
    )


def shapes() -> Drawings:
    """Each in each colour; needs no font."""
    pairs = [(shape, colour) for shape in SHAPES for colour in COLOURS]
    return Drawings(
        names=tuple(f"{colour} {shape}" for shape, colour in pairs),
        colours=tuple(colour for _, colour in pairs),
        sprites=np.stack([_shape(shape, COLOURS[colour]) for shape, colour in pairs]),
    )


def _emoji(font: Path) -> dict[str, Any]:
    from PIL import Image, ImageDraw, ImageFont

    face = ImageFont.truetype(str(font), _BITMAP)
    found = {}
    for code in (code for span in _RANGES for code in span):
        name = unicodedata.name(chr(code), "").lower()
        if not re.fullmatch("[a-z]+( [a-z]+)?", name) or _UNFIT.search(name):
            continue
        image = Image.new("RGBA", (136, 136), (0, 0, 0, 0))
        ImageDraw.Draw(image).text((0, 4), chr(code), font=face, embedded_color=True)
        sprite = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.LANCZOS))
        if sprite[..., 3].mean() > 40:  # else the font has no such picture
            found[name] = sprite
    return found


def _shape(name: str, colour: tuple[int, int, int]) -> Any:
    """Drawn at four times the size, so that its edge is smooth."""
    from PIL import Image, ImageDraw

    side = 4 * SIDE
    image = Image.new("RGBA", (side, side), (*colour, 0))
    pen, ink, centre = ImageDraw.Draw(image), (*colour, 255), side / 2
    radius = 0.44 * side
    box = (centre - radius, centre - radius, centre + radius, centre + radius)
    if name == "circle":
        pen.ellipse(box, fill=ink)
    elif name == "ring":
        pen.ellipse(box, outline=ink, width=round(0.3 * radius))
    elif name == "square":
        pen.rectangle([round(place) for place in (side * 0.1, side * 0.1, side * 0.9, side * 0.9)], fill=ink)
    else:
        outline = {"triangle": _TRIANGLE, "star": _STAR, "heart": _HEART}[name]
        pen.polygon([(centre + radius * x, centre + radius * y) for x, y in outline], fill=ink)
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.LANCZOS))


_TRIANGLE = [(0.0, -0.9), (1.0, 0.85), (-1.0, 0.85)]
_STAR = [
    (
        (1.0, 0.42)[corner % 2] * math.sin(math.pi * corner / 5),
        -(1.0, 0.42)[corner % 2] * math.cos(math.pi * corner / 5),
    )
    for corner in range(10)
]
# https://mathworld.wolfram.com/HeartCurve.html, the sixth
_HEART = [
    (
        math.sin(t) ** 3,
        -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)) / 16,
    )
    for t in (2 * math.pi * step / 120 for step in range(120))
]
