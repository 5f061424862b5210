"""What can be drawn: named pictures from a colour emoji font, and plain shapes in plain colours. RGBA, made once."""

import math
import re
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
    "pink": (250, 120, 190),
    "white": (250, 250, 250),
    "black": (10, 10, 10),
}
SHAPES = ("circle", "square", "triangle", "star", "heart", "ring")

_BITMAP = 109  # the font's only size
# The word, then the drawing: what people would ask for, and what can be told apart at a glance.
_THINGS = """
red apple 🍎 green apple 🍏 pear 🍐 orange 🍊 lemon 🍋 banana 🍌 watermelon 🍉 grapes 🍇 strawberry 🍓 cherries 🍒
peach 🍑 pineapple 🍍 coconut 🥥 kiwi 🥝 tomato 🍅 eggplant 🍆 avocado 🥑 broccoli 🥦 cucumber 🥒 hot pepper 🌶
corn 🌽 carrot 🥕 potato 🥔 garlic 🧄 onion 🧅 mushroom 🍄 peanuts 🥜 bread 🍞 croissant 🥐 pretzel 🥨 pancakes 🥞
cheese 🧀 egg 🥚 bacon 🥓 hamburger 🍔 fries 🍟 pizza 🍕 hot dog 🌭 sandwich 🥪 taco 🌮 salad 🥗 popcorn 🍿 sushi 🍣
spaghetti 🍝 soup 🍲 ice cream 🍨 doughnut 🍩 cookie 🍪 birthday cake 🎂 cupcake 🧁 pie 🥧 chocolate bar 🍫 candy 🍬
lollipop 🍭 honey pot 🍯 coffee ☕ beer 🍺 wine glass 🍷 cocktail 🍸 cat 🐈 dog 🐕 mouse 🐁 hamster 🐹 rabbit 🐇
fox 🦊 bear 🐻 panda 🐼 koala 🐨 tiger 🐅 lion 🦁 cow 🐄 pig 🐖 frog 🐸 monkey 🐒 gorilla 🦍 chicken 🐔 rooster 🐓
penguin 🐧 bird 🐦 chick 🐤 duck 🦆 eagle 🦅 owl 🦉 parrot 🦜 flamingo 🦩 peacock 🦚 bat 🦇 wolf 🐺 horse 🐎
unicorn 🦄 bee 🐝 bug 🐛 butterfly 🦋 snail 🐌 ladybug 🐞 ant 🐜 spider 🕷 scorpion 🦂 turtle 🐢 snake 🐍 lizard 🦎
dinosaur 🦕 octopus 🐙 shrimp 🦐 crab 🦀 lobster 🦞 fish 🐟 tropical fish 🐠 dolphin 🐬 whale 🐳 shark 🦈
crocodile 🐊 zebra 🦓 elephant 🐘 hippo 🦛 rhino 🦏 camel 🐪 giraffe 🦒 kangaroo 🦘 sheep 🐑 goat 🐐 deer 🦌 llama 🦙
hedgehog 🦔 raccoon 🦝 dragon 🐉 tree 🌳 pine tree 🌲 palm tree 🌴 cactus 🌵 clover 🍀 maple leaf 🍁 rose 🌹 tulip 🌷
sunflower 🌻 daisy 🌼 bouquet 💐 shell 🐚 sun ☀ moon 🌙 cloud ☁ rainbow 🌈 lightning ⚡ snowflake ❄ snowman ⛄
fire 🔥 droplet 💧 wave 🌊 volcano 🌋 mountain 🏔 island 🏝 smiley 😀 ghost 👻 skull 💀 robot 🤖 alien 👽 pumpkin 🎃
clown 🤡 baby 👶 eye 👁 ear 👂 nose 👃 mouth 👄 tooth 🦷 bone 🦴 hand ✋ house 🏠 castle 🏰 factory 🏭 church ⛪
tent ⛺ school 🏫 hospital 🏥 fountain ⛲ statue 🗽 carousel 🎠 door 🚪 bed 🛏 car 🚗 taxi 🚕 bus 🚌 police car 🚓
ambulance 🚑 fire truck 🚒 truck 🚚 tractor 🚜 bicycle 🚲 scooter 🛵 motorcycle 🏍 train 🚂 airplane ✈ helicopter 🚁
rocket 🚀 sailboat ⛵ ship 🚢 speedboat 🚤 anchor ⚓ traffic light 🚦 balloon 🎈 gift 🎁 party popper 🎉
soccer ball ⚽ basketball 🏀 football 🏈 baseball ⚾ tennis ball 🎾 volleyball 🏐 bowling 🎳 trophy 🏆 medal 🥇
dart board 🎯 dice 🎲 guitar 🎸 violin 🎻 trumpet 🎺 saxophone 🎷 drum 🥁 piano 🎹 microphone 🎤 headphones 🎧
musical note 🎵 bell 🔔 radio 📻 camera 📷 television 📺 phone 📱 laptop 💻 printer 🖨 watch ⌚ alarm clock ⏰
hourglass ⌛ light bulb 💡 candle 🕯 battery 🔋 magnet 🧲 key 🔑 lock 🔒 hammer 🔨 wrench 🔧 scissors ✂ pencil ✏
paintbrush 🖌 paperclip 📎 book 📖 books 📚 newspaper 📰 envelope ✉ package 📦 microscope 🔬 telescope 🔭 globe 🌍
money bag 💰 gem 💎 crown 👑 hat 🎩 glasses 👓 dress 👗 shirt 👕 jeans 👖 shoe 👟 boot 👢 umbrella ☂ backpack 🎒
handbag 👜 lipstick 💄 bathtub 🛁 toilet 🚽 chair 💺 shopping cart 🛒 teddy bear 🧸 artist palette 🎨
"""


# What nano-image learns of them, for its few values: what is asked for most, and differs at 30 pixels. And all shapes.
_FEW = """
red apple, banana, lemon, watermelon, grapes, strawberry, cherries, pineapple, eggplant, avocado, broccoli, corn,
carrot, mushroom, bread, cheese, egg, hamburger, fries, pizza, ice cream, doughnut, birthday cake, coffee, beer, cat,
dog, rabbit, fox, panda, lion, cow, pig, frog, monkey, penguin, owl, flamingo, horse, bee, butterfly, snail, ladybug,
turtle, octopus, crab, tropical fish, whale, shark, elephant, giraffe, sheep, dinosaur, tree, palm tree, cactus,
clover, rose, sunflower, sun, moon, rainbow, lightning, snowflake, snowman, fire, mountain, smiley, ghost, skull, robot,
alien, pumpkin, eye, hand, house, castle, car, bus, tractor, bicycle, train, airplane, rocket, sailboat, anchor,
traffic light, balloon, gift, soccer ball, basketball, dice, guitar, trumpet, drum, bell, camera, television, laptop,
alarm clock, light bulb, key, lock, scissors, pencil, book, globe, gem, crown, hat, umbrella, teddy bear
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawings:
    """`names[i]` is the word for `sprites[i]`: uint8 [things, SIDE, SIDE, 4], RGBA. The last are the shapes, each in
    each colour; `colours[i]` is a shape's colour, "" for what has colours of its own."""

    names: tuple[str, ...]
    colours: tuple[str, ...]
    sprites: Any

    def save(self, path: Path) -> None:
        np.savez_compressed(path, sprites=self.sprites, names=np.array(self.names), colours=np.array(self.colours))

    def few(self) -> "Drawings":
        """Those that nano-image learns."""
        wanted = {name.strip() for name in _FEW.split(",")}
        places = [at for at, name in enumerate(self.names) if name in wanted or self.colours[at]]
        return Drawings(
            names=tuple(self.names[at] for at in places),
            colours=tuple(self.colours[at] for at in places),
            sprites=self.sprites[places],
        )


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
    for name, drawing in re.findall(r"([a-z ]+) ([^a-z\s])", _THINGS):
        image = Image.new("RGBA", (136, 136), (0, 0, 0, 0))
        ImageDraw.Draw(image).text((0, 4), drawing, font=face, embedded_color=True)
        found[name.strip()] = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.LANCZOS))
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
