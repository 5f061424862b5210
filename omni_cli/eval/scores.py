"""From answers to scores, and what a score has to be. Pure functions of what was answered and what the judges say."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from omni_cli.eval.items import Item
from omni_cli.eval.judges import Judges, Samples, Voiced

SHORT = "very short"  # spoken answers in which there is no word for whisper to hear
_LONGEST = 1.5  # of the expected duration
_ROUNDING = 1e-3  # of full scale: other codes would be a hundred times as far apart
_MOS = "speech: DNSMOS"

BARS = {
    "text": 0.95,
    "seeing": 0.90,
    "hearing: words": 0.85,
    "speech: words of templates": 0.90,
    "speech: words of word strings": 0.70,
    "speech: very short are spoken": 1.0,
    "speech: duration": 1.0,
    "speech: silence after the end": 1.0,
    _MOS: 2.5,
    "speech: words alone as together": 0.95,
    "speech: streamed equals whole": 1.0,
    **{f"pictures: thing, {topic}": 0.95 for topic in ("one thing", "two things")},
    **{
        f"pictures: {part}, {topic}": 0.98 for topic in ("one thing", "two things") for part in ("colour", "background")
    },
    **{
        f"pictures: {part}, {topic}, held out": 0.85
        for topic in ("one thing", "two things")
        for part in ("thing", "colour", "background")
    },
}
"""The least that a checkpoint shall reach, by a score's name: all that has a bar."""

HEADER = ("score", "value", "of", "bar", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of an item; nothing of it where the request failed. `sound` is at RATE, `duration_s` that of the
    file; `pixels` are uint8 [height, width, 3]."""

    item: Item
    text: str = ""
    sound: Samples | None = None
    duration_s: float = 0.0
    pixels: Any = None

    @property
    def own(self) -> str:
        return self.text or self.item.answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """`value` is a share (of DNSMOS the mean), over `of` answers; None where `why` says why there is none."""

    name: str
    value: float | None
    of: int
    why: str = ""

    @property
    def bar(self) -> float | None:
        return BARS.get(self.name)

    @property
    def met(self) -> bool | None:
        """None where there is no bar. What could not be judged has not met its bar."""
        return None if self.bar is None else self.value is not None and self.value >= self.bar

    def row(self) -> tuple[str, ...]:
        met = "" if self.value is None else {None: "", True: "met", False: "below"}[self.met]
        return self.name, self._shown(self.value) or f"skipped: {self.why}", str(self.of), self._shown(self.bar), met

    def document(self) -> dict[str, Any]:
        skipped = {"skipped": self.why} if self.value is None else {}
        return {"value": self.value, "of": self.of, "bar": self.bar, "met": self.met, **skipped}

    def _shown(self, value: float | None) -> str:
        return "" if value is None else f"{value:.2f}" if self.name == _MOS else f"{100 * value:.1f} %"


Mark = Callable[[], float | tuple[float, float]]
"""Asks the judge: a share or a number, or so much of so much. Raises what Judges do."""


def all_scores(
    answers: Sequence[Answer], alone: Sequence[Answer], whole: Sequence[Answer], judges: Judges
) -> list[Score]:
    """`alone` and `whole` answer the first spoken items that are not very short, one at a time, `whole` with nothing
    streamed."""
    found: dict[str, list[Mark]] = defaultdict(list)
    for name, mark in _marks(answers, alone, whole, judges):
        found[name].append(mark)
    return [_score(name, marks) for name, marks in sorted(found.items())]


def _score(name: str, marks: Sequence[Mark]) -> Score:
    try:
        given = [mark() for mark in marks]
    except ModuleNotFoundError as error:
        why = f"needs {(error.name or '').replace('_', '-')}: pip install 'omni-stages[eval]'"
        return Score(name=name, value=None, of=len(marks), why=why)
    except FileNotFoundError as error:
        return Score(name=name, value=None, of=len(marks), why=str(error))
    pairs = [one if isinstance(one, tuple) else (float(one), 1.0) for one in given]
    total = sum(of for _, of in pairs)
    return Score(name=name, value=sum(right for right, _ in pairs) / total if total else 0.0, of=len(marks))


def _marks(
    answers: Sequence[Answer], alone: Sequence[Answer], whole: Sequence[Answer], judges: Judges
) -> Iterator[tuple[str, Mark]]:
    spoken = [one for one in answers if one.item.group == "speech"]
    for one in answers:
        group, topic = one.item.group, one.item.topic
        if group == "speech":
            yield from _speech(one, [other.own for other in spoken], judges)
        elif group == "pictures":
            yield from _pictures(one, judges)
        elif topic == "words":
            yield f"{group}: words", partial(judges.words, one.item.answer, one.text)
        else:
            exact = partial(bool, one.text.strip() == one.item.answer)
            yield f"{group}: {topic}", exact
            if group in BARS:
                yield group, exact
    first = [one for one in spoken if one.item.topic != SHORT]
    for one, other in zip(first, alone, strict=False):
        yield "speech: words alone as together", partial(_agree, one, other, judges)
    for one, other in zip(alone, whole, strict=False):
        yield "speech: streamed equals whole", partial(_alike, one, other)


def _speech(one: Answer, texts: Sequence[str], judges: Judges) -> Iterator[tuple[str, Mark]]:
    sound, topic = one.sound, one.item.topic
    # An answer in other words takes as much longer as it is longer.
    expected_s = one.item.duration_s * max(1.0, len(one.text) / max(1, len(one.item.answer)))
    in_time = 0 < one.duration_s <= _LONGEST * expected_s
    heard = cache(lambda: "" if sound is None else judges.whisper(sound))
    words = cache(lambda: judges.words(one.own, heard()))
    voiced = cache(lambda: Voiced(spoken=False, ends_quiet=False) if sound is None else judges.silero(sound))
    if topic == SHORT:
        yield "speech: very short are spoken", lambda: voiced().spoken and in_time
    else:
        yield f"speech: words of {topic}", words
        yield f"speech: words of voice {one.item.request.get('voice')}", words
        # A very short clip, repeated until it is long enough, is no speech to DNSMOS: the teacher's own get 2.5.
        yield _MOS, lambda: 1.0 if sound is None else judges.dnsmos(sound)
    yield "speech: told from all others", lambda: bool(heard()) and judges.nearest(heard(), texts) == one.own
    yield "speech: duration", lambda: in_time
    yield "speech: silence after the end", lambda: voiced().ends_quiet


def _agree(one: Answer, other: Answer, judges: Judges) -> float:
    """One less the difference of both word accuracies."""
    if _alike(one, other):
        return 1.0
    heard = ("" if each.sound is None else judges.whisper(each.sound) for each in (one, other))
    shares = [right / max(1, of) for right, of in map(judges.words, (one.own, other.own), heard)]
    return 1.0 - abs(shares[0] - shares[1])


def _alike(one: Answer, other: Answer) -> bool:
    """But for rounding."""
    if one.sound is None or other.sound is None or one.sound.shape != other.sound.shape:
        return False
    return bool(np.abs(one.sound - other.sound).max(initial=0.0) <= _ROUNDING)


def _pictures(one: Answer, judges: Judges) -> Iterator[tuple[str, Mark]]:
    """Colour of shapes alone, size of single things alone."""
    asked, topic = one.item.drawn, one.item.topic
    seen = cache(lambda: {} if one.pixels is None else judges.pictures(one.pixels))

    def right(part: str) -> bool:
        return seen().get(part) == asked.get(part, "")

    yield f"pictures: thing, {topic}", lambda: right("thing") and right("right")
    for part in ("colour", "size", "background"):
        if asked.get(part):
            yield f"pictures: {part}, {topic}", partial(right, part)
