"""What nano-omni can talk about: templated dialogues, and which of them training never sees."""

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Literal

from training.nano_image.captions import Scene, plain
from training.nano_image.drawings import Drawings
from training.nano_omni import knowledge as known

Medium = Literal["none", "image", "audio"]
_HELD_OUT = 10  # one dialogue in so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """`turns` are what user and assistant say in turn, the last is the answer. The user turn `shown_at` may begin with
    a picture (`scene`), or with a sound in which `heard` is said; its text may be empty then."""

    topic: str
    turns: tuple[str, ...]
    scene: Scene | None = None
    heard: str = ""
    shown_at: int = 0

    @property
    def answer(self) -> str:
        return self.turns[-1]

    @property
    def medium(self) -> Medium:
        return "image" if self.scene is not None else "audio" if self.heard else "none"


def held_out(dialogue: Dialogue) -> bool:
    """By what is asked, in which words; of what is heard, by that alone."""
    key = dialogue.heard or "|".join((*dialogue.turns[:-1], repr(dialogue.scene)))
    return hashlib.blake2b(key.encode(), digest_size=1).digest()[0] % _HELD_OUT == 0


@cache
def vocabulary() -> list[str]:
    """The words that it can be asked to say."""
    return resources.files(__package__).joinpath("words.txt").read_text(encoding="utf-8").split()


Maker = Callable[[random.Random], Dialogue]


def _simple(topic: str, chance: random.Random, forms: tuple[str, ...], answer: str, **parts: str) -> Dialogue:
    return Dialogue(topic=topic, turns=(chance.choice(forms).format(**parts), answer))


_CAPITAL: tuple[str, ...] = (
    "What is the capital of {country}?",
    "Tell me the capital of {country}.",
    "Which city is the capital of {country}?",
    "Do you know the capital of {country}?",
    "The capital of {country}?",
    "Capital of {country}?",
)


def _capital(chance: random.Random) -> Dialogue:
    country = chance.choice(list(known.CAPITALS))
    answer = f"The capital of {country} is {known.CAPITALS[country]}."
    return _simple("capital", chance, _CAPITAL, answer, country=country)


def _sum(chance: random.Random) -> Dialogue:
    first = chance.randint(0, 20)
    forms = ("What is {a} {sign} {b}?", "{a} {sign} {b}?", "How much is {a} {sign} {b}?", "Tell me {a} {sign} {b}.")
    if chance.random() < 0.5:
        second, sign = chance.randint(0, 20 - first), "plus"
        result = first + second
    else:
        second, sign = chance.randint(0, first), "minus"
        result = first - second
    a, b, c = (known.NUMBERS[number] for number in (first, second, result))
    if chance.random() < 0.3:
        asked_a, asked_b, asked_sign = str(first), str(second), {"plus": "+", "minus": "-"}[sign]
    else:
        asked_a, asked_b, asked_sign = a, b, sign
    answer = f"{a.capitalize()} {sign} {b} is {c}."
    return _simple("sum", chance, forms, answer, a=asked_a, b=asked_b, sign=asked_sign)


_COLOUR: tuple[str, ...] = (
    "What colour is {thing}?",
    "What color is {thing}?",
    "Which colour does {thing} have?",
    "Tell me the colour of {thing}.",
    "What is the colour of {thing}?",
)


def _colour(chance: random.Random) -> Dialogue:
    thing = chance.choice(list(known.COLOURS))
    return _simple("colour", chance, _COLOUR, f"{_upper(thing)} is {known.COLOURS[thing]}.", thing=thing)


_OPPOSITE: tuple[str, ...] = (
    "What is the opposite of {word}?",
    "Tell me the opposite of {word}.",
    "The opposite of {word}?",
)


def _opposite(chance: random.Random) -> Dialogue:
    word = chance.choice(list(known.OPPOSITES))
    return _simple("opposite", chance, _OPPOSITE, f"The opposite of {word} is {known.OPPOSITES[word]}.", word=word)


def _calendar(chance: random.Random) -> Dialogue:
    names, kind = chance.choice(((known.DAYS, "day"), (known.MONTHS, "month")))
    place, way = chance.randrange(len(names)), chance.choice(("after", "before"))
    other = names[(place + (1 if way == "after" else -1)) % len(names)]
    forms = ("What {kind} comes {way} {name}?", "Which {kind} is {way} {name}?", "Tell me the {kind} {way} {name}.")
    name = names[place]
    return _simple("calendar", chance, forms, f"The {kind} {way} {name} is {other}.", kind=kind, way=way, name=name)


def _counting(chance: random.Random) -> Dialogue:
    first = chance.choice((1, 1, chance.randint(1, 10)))
    last = first + chance.randint(2, 9)
    counted = [known.NUMBERS[number] for number in range(first, last + 1)]
    answer = _upper(", ".join(counted)) + "."
    if first == 1:
        forms: tuple[str, ...] = ("Count to {last}.", "Please count to {last}.", "Can you count to {last}?")
    else:
        forms = (
            "Count from {first} to {last}.",
            "Please count from {first} to {last}.",
            "Can you count from {first} to {last}?",
        )
    return _simple("counting", chance, forms, answer, first=known.NUMBERS[first], last=known.NUMBERS[last])


def _spelling(chance: random.Random) -> Dialogue:
    word = chance.choice(known.SPELLABLE)
    forms = ("Spell {word}.", "How do you spell {word}?", "Please spell the word {word}.")
    return _simple("spelling", chance, forms, ", ".join(word.upper()) + ".", word=word)


def _saying(chance: random.Random) -> Dialogue:
    if chance.random() < 0.15:
        text = chance.choice(known.SHORT) + chance.choice(("", ".", "!"))
    elif chance.random() < 0.1:
        text = str(chance.randint(0, 20))
    else:
        text = _string(chance, chance.randint(1, 8))
    return _say(chance, text)


def _string(chance: random.Random, length: int) -> str:
    text = " ".join(chance.choice(vocabulary()) for _ in range(length))
    return _upper(text) + "." if chance.random() < 0.5 else text


def _say(chance: random.Random, text: str) -> Dialogue:
    return _simple(
        "saying",
        chance,
        ("Say: {text}", "say: {text}", "Please say: {text}", "Repeat after me: {text}"),
        text,
        text=text,
    )


def draw_string(chance: random.Random) -> Dialogue:
    """Words in random order to be said, mostly few, since a first word's tokens are others than those of the same word
    further on; not of those that are held out."""
    while True:
        found = _say(chance, _string(chance, min(chance.randint(1, 8), chance.randint(1, 8))))
        if not held_out(found):
            return found


_WHO = ("What is my name?", "Do you know my name?", "Who am I?", "Tell me my name.")


def _name(chance: random.Random) -> Dialogue:
    name = chance.choice(known.NAMES)
    told = chance.choice(("My name is {name}.", "I am {name}.", "Hello, my name is {name}.", "Call me {name}."))
    asked = chance.choice(_WHO)
    met = f"Nice to meet you, {name}."
    if chance.random() < 0.3:
        return Dialogue(topic="name", turns=(told.format(name=name), met))
    between: tuple[str, ...] = ()
    if chance.random() < 0.4:
        between = chance.choice((_capital, _sum, _opposite, _calendar))(chance).turns
    return Dialogue(topic="name", turns=(told.format(name=name), met, *between, asked, f"Your name is {name}."))


def _small_talk(chance: random.Random) -> Dialogue:
    pairs: Mapping[str, str] = {
        "Hello.": "Hello! How can I help you?",
        "Hi!": "Hello! How can I help you?",
        "Say hello.": "Hello!",
        "How are you?": "I am fine, thank you.",
        "Who are you?": "I am nano, a very small model.",
        "What is your name?": "My name is nano.",
        "What can you do?": "I can answer, speak, see and hear a little.",
        "Thank you.": "You are welcome.",
        "Goodbye.": "Goodbye!",
        "Bye.": "Bye!",
        "Good morning.": "Good morning!",
    }
    asked = chance.choice(list(pairs))
    return Dialogue(topic="small talk", turns=(asked, pairs[asked]))


def _unknown(chance: random.Random) -> Dialogue:
    words = vocabulary()
    thing, other = chance.choice(words), chance.choice(words)
    if chance.random() < 0.4:
        return _outside(chance, thing)
    forms = (
        "Who was {thing} {other}?",
        "Why is the {thing} so {other}?",
        "How does a {thing} {other}?",
        "Explain the {thing} of {other}.",
        "When did the {thing} {other}?",
        "Where can I find a {thing} for my {other}?",
        "What is a {thing} {other}?",
        "Write a story about {thing} and {other}.",
    )
    return _simple("unknown", chance, forms, known.UNKNOWN, thing=thing, other=other)


def _outside(chance: random.Random, word: str) -> Dialogue:
    """What the tables are asked for and do not have."""
    kind = chance.randrange(3)
    if kind == 0:
        forms, asked = _CAPITAL, chance.choice((chance.choice(known.OTHER_COUNTRIES), _upper(word)))
    elif kind == 1:
        forms, asked = _COLOUR, chance.choice(("the ", "a ")) + word
    else:
        forms, asked = _OPPOSITE, word
    if asked in known.OPPOSITES or asked in known.OPPOSITES.values() or asked in known.COLOURS:
        forms, asked = _CAPITAL, chance.choice(known.OTHER_COUNTRIES)
    return _simple("unknown", chance, forms, known.UNKNOWN, country=asked, thing=asked, word=asked)


SPOKEN: tuple[tuple[float, Maker], ...] = (
    (1.0, _capital),
    (2.0, _sum),
    (0.7, _colour),
    (0.8, _opposite),
    (0.8, _calendar),
    (0.8, _counting),
    (0.6, _spelling),
    (2.5, _saying),
    (1.0, _name),
    (0.4, _small_talk),
    (0.8, _unknown),
)


def draw_dialogue(chance: random.Random, *, unseen: bool) -> Dialogue:
    """One in text; of those that are held out, else of the others."""
    makers, weights = [maker for _, maker in SPOKEN], [weight for weight, _ in SPOKEN]
    while True:
        found = chance.choices(makers, weights)[0](chance)
        # There are too few ways of small talk to keep some back.
        if unseen == (held_out(found) and found.topic != "small talk"):
            return found


_LOOK = (
    "What do you see?",
    "What is in this picture?",
    "What is in the picture?",
    "Describe the picture.",
    "What is this?",
)
_GROUND = (
    "What colour is the background?",
    "What color is the background?",
    "Which background does the picture have?",
)
_COUNT = ("How many things are there?", "How many things do you see?", "How many things are in the picture?")


def draw_seen(chance: random.Random, scene: Scene, drawings: Drawings, grounds: list[str]) -> Dialogue:
    """A question about a picture."""
    kind = chance.choices(("look", "ground", "count", "shape"), (6, 1, 1, 2))[0]
    colour = drawings.colours[scene.thing]
    if kind == "shape" and scene.right is None and colour:
        shape = drawings.names[scene.thing].removeprefix(f"{colour} ")
        asked, answer = chance.choice(
            (
                (chance.choice(("What colour is it?", "What color is it?")), f"It is {colour}."),
                ("Which shape is it?", f"It is a {shape}."),
            )
        )
    elif kind in ("look", "shape"):
        asked, answer = chance.choice(_LOOK), f"I see {plain(scene, drawings)}."
    elif kind == "ground":
        asked, answer = chance.choice(_GROUND), f"The background is {grounds[scene.background]}."
    else:
        asked = chance.choice(_COUNT)
        answer = "There is one thing." if scene.right is None else "There are two things."
    return Dialogue(topic="seeing", turns=(asked, answer), scene=scene)


_WRITE = ("Write down what you hear.", "What did I say?", "What do you hear?")


def draw_heard(chance: random.Random, *, unseen: bool) -> Dialogue:
    """A sound to be written down, or a question that is asked aloud. What sounds alike is written in one way: numbers
    as words, with a capital and a stop."""
    while True:
        inner = draw_dialogue(chance, unseen=False)
        said = chance.choice(inner.turns)
        said = said.partition(": ")[2] or said
        if chance.random() < 0.12:
            said = " ".join(chance.choice(known.NUMBERS[:10]) for _ in range(chance.randint(1, 6)))
        asked = inner.turns[0]
        if chance.random() < 0.75:
            found = written(chance, said)
        elif len(inner.turns) > 2 or inner.topic in ("unknown", "saying", "spelling") or _DIGITS & set(asked):
            continue
        else:
            found = Dialogue(topic="hearing a question", turns=("", inner.answer), heard=asked)
        if found is not None and held_out(found) == unseen:
            return found


_DIGITS = set("0123456789")


def written(chance: random.Random, said: str) -> Dialogue | None:
    """A sound to be written down; None for what has digits, which sound like words."""
    if _DIGITS & set(said):
        return None
    text = _upper(said)
    text = text if text[-1] in ".?!" else text + "."
    return Dialogue(topic="hearing", turns=(chance.choice(_WRITE), text), heard=text)


_LATER = 3  # other dialogues before the last one, at most


def length(turns: Sequence[str]) -> int:
    """Letters, and those that the beginning and end of a turn are worth; two and a half make a token."""
    return sum(map(len, turns)) + 10 * len(turns)


def draw_chat(chance: random.Random, last: Dialogue, longest: int, *, first: Dialogue | None = None) -> Dialogue:
    """`last` behind up to three others, of which it is independent, as long as they are not `longest`; a name is told
    before them, mostly, and asked for after them. `first`, which shows something, comes before all; `last` may be about
    that."""
    if last.topic == "unknown" and chance.random() < 0.05:
        last = replace(last, turns=(chance.choice(_WHO), known.UNKNOWN))
    told = 2 if last.topic == "name" and len(last.turns) > 2 and chance.random() < 0.8 else 0
    begun: tuple[str, ...] = () if first is None else first.turns
    before: list[str] = []
    for _ in range(chance.randint(first is None, _LATER)):
        other = draw_dialogue(chance, unseen=False)
        if length((*begun, *before, *other.turns, *last.turns)) > longest:
            break
        if other.topic != "name" or (not told and last.turns[0] not in _WHO):
            before += other.turns
    shown = first or last
    return Dialogue(
        topic=last.topic,
        turns=(*begun, *last.turns[:told], *before, *last.turns[told:]),
        scene=shown.scene,
        heard=shown.heard,
        shown_at=0 if first is not None else len(before),
    )


def loosely(chance: random.Random, dialogue: Dialogue) -> Dialogue:
    """The same with the user's turns as people type them: in small letters, the first one perhaps excepted, without a
    stop at the end, or both. What is to be repeated stays as it is."""
    small, bare = chance.choice(((True, False), (False, True), (True, True)))
    kept = int(small and chance.random() < 0.3)

    def typed(turn: str) -> str:
        asked, colon, text = turn.partition(": ")
        asked = asked[:kept] + asked[kept:].lower() if small else asked
        return asked + colon + text if colon else asked.rstrip(".?!") if bare else asked

    return replace(dialogue, turns=tuple(turn if at % 2 else typed(turn) for at, turn in enumerate(dialogue.turns)))


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def words_of(text: str) -> list[str]:
    """Without capitals and stops."""
    return "".join(letter for letter in text.lower() if letter.isalnum() or letter == " ").split()
