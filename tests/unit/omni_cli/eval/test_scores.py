"""From items to scores, with judges that say what they are told to."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_cli.errors import ConfigError, InputError
from omni_cli.eval.items import Item, choose, read_items
from omni_cli.eval.judges import Judges, Samples, Voiced
from omni_cli.eval.scores import Answer, Score, all_scores


class Told(Judges):
    """A sound names what whisper makes of it; on every picture is a red circle on blue, and what its pixels name."""

    def whisper(self, samples: Samples) -> str:
        return (samples * 256).astype(np.uint8).tobytes().decode()

    def silero(self, samples: Samples) -> Voiced:
        noise = "noise" in self.whisper(samples)
        return Voiced(spoken=not noise, ends_quiet=not noise)

    def dnsmos(self, samples: Samples) -> float:
        return 3.0

    def pictures(self, pixels: Any) -> dict[str, str]:
        return {"thing": "red circle", "right": pixels, "colour": "red", "size": "big", "background": "blue"}


class Gone(Judges):
    def words(self, *_: object) -> Any:
        raise ModuleNotFoundError(name="rapid_fuzz")

    whisper = nearest = silero = dnsmos = words


def spoken(topic: str, text: str, heard: str = "", voice: str = "a", longer: float = 1.0) -> Answer:
    item = Item(group="speech", topic=topic, request={"voice": voice}, answer=text, duration_s=1.0)
    return Answer(item=item, text=text, sound=sound(heard or text), duration_s=longer)


def sound(text: str) -> Samples:
    return np.frombuffer(text.encode(), np.uint8).astype(np.float32) / 256


def scored(
    answers: Sequence[Answer],
    alone: Sequence[Answer] = (),
    whole: Sequence[Answer] = (),
    judges: type[Judges] = Told,
) -> dict[str, Score]:
    return {score.name: score for score in all_scores(answers, alone, whole, judges(Path()))}


def values(found: dict[str, Score]) -> dict[str, float | None]:
    return {name.partition(": ")[2] or name: score.value for name, score in found.items()}


def test_spoken_answers() -> None:
    answers = [
        spoken("templates", "the sky is blue"),
        spoken("templates", "nine is more than two", "nine is less than two", voice="b", longer=1.6),
        spoken("word strings", "lamp door", "damp store"),
        spoken("very short", "bye"),
        spoken("very short", "1", "noise bye bye"),
    ]
    other = [replace(answers[0], sound=sound("the sky is red")), *answers[1:3]]
    found = scored(answers, other, answers[:3])
    assert values(found) == {
        "words of templates": pytest.approx(8 / 9),
        "words of word strings": 0.0,
        "words of voice a": pytest.approx(4 / 6),
        "words of voice b": pytest.approx(4 / 5),
        "told from all others": pytest.approx(4 / 5),
        "very short are spoken": 0.5,
        "duration": pytest.approx(4 / 5),
        "silence after the end": pytest.approx(4 / 5),
        "DNSMOS": 3.0,
        "words alone as together": pytest.approx(1 - 1 / 4 / 3),
        "streamed equals whole": pytest.approx(2 / 3),
    }
    assert found["speech: DNSMOS"].met
    assert found["speech: words of voice a"].met is None
    assert found["speech: words of templates"].row() == ("speech: words of templates", "88.9 %", "2", "90.0 %", "below")


def test_an_answer_in_more_words_may_take_longer() -> None:
    one = spoken("templates", "four", longer=2.9)
    assert values(scored([one]))["duration"] == 0
    assert values(scored([replace(one, text="fourfour")]))["duration"] == 1


def test_what_cannot_be_judged_is_told_and_has_not_met_its_bar() -> None:
    found = scored([spoken("templates", "a")], judges=Gone)
    assert found.pop("speech: duration").met
    picture = Item(group="pictures", topic="one thing", request={}, drawn={"thing": "cat", "right": "", "size": ""})
    assert "judge.json" in all_scores([Answer(item=picture, pixels="")], (), (), Judges(Path()))[0].why
    for score in found.values():
        assert score.row()[1] == "skipped: needs rapid-fuzz: pip install 'omni-stages[eval]'"
        assert score.met is (None if score.bar is None else False)


def test_texts_and_failures() -> None:
    def answer(group: Any, topic: str, right: str, text: str) -> Answer:
        return Answer(item=Item(group=group, topic=topic, request={}, answer=right), text=text)

    answers = [
        answer("text", "sum", "Two.", "Two.\n"),
        answer("text", "name", "Ben.", "ben"),
        answer("text", "name", "Ben.", ""),
        answer("hearing", "words", "the sea is blue", "the sea blue"),
        answer("hearing", "questions", "Two.", "Two."),
        answer("seeing", "look", "I see a cat.", "I see a cat."),
        replace(spoken("templates", "a"), text="", sound=None, duration_s=0.0),
    ]
    found = values(scored(answers))
    assert found.pop("DNSMOS") == 1.0
    right = {"text": pytest.approx(1 / 3), "sum": 1.0, "questions": 1.0, "seeing": 1.0, "look": 1.0, "words": 0.75}
    assert {name: value for name, value in found.items() if value} == right


def test_pictures() -> None:
    def answer(thing: str, right: str, colour: str, size: str, ground: str, pixels: Any) -> Answer:
        drawn = {"thing": thing, "right": right, "colour": colour, "size": size, "background": ground}
        return Answer(item=Item(group="pictures", topic="some", request={}, drawn=drawn), pixels=pixels)

    found = scored(
        [
            answer("red circle", "", "red", "big", "blue", ""),
            answer("red circle", "", "red", "big", "blue", None),  # failed
            answer("cat", "", "", "small", "blue", ""),
            answer("red circle", "cat", "red", "", "green", "cat"),
        ]
    )
    assert values(found) == {
        "thing, some": 0.5,
        "colour, some": pytest.approx(2 / 3),
        "background, some": 0.5,
        "size, some": pytest.approx(1 / 3),
    }


def items(folder: Path, *lines: str) -> list[Item]:
    (folder / "eval.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return read_items(folder)


def test_some_of_each_topic_are_chosen_and_keep_their_numbers(tmp_path: Path) -> None:
    topics = [("seeing", "a"), ("text", "b"), ("text", "c")] * 8
    lines = (json.dumps({"group": group, "topic": topic, "request": {}}) for group, topic in topics)
    found = items(tmp_path, *lines)
    chosen = choose(found, None, 2, seed=3)
    assert [item.topic for _, item in chosen].count("b") == 2
    assert len(chosen) == 6
    assert choose(found, "text", 2, seed=3) == [(number, item) for number, item in chosen if item.group == "text"]
    assert choose(found, None, None, 0) == list(enumerate(found))
    assert choose(found, "text", None, 0) == [(n, item) for n, item in enumerate(found) if item.group == "text"]
    with pytest.raises(ConfigError, match="--only pictures: this checkpoint has items of seeing, text"):
        choose(found, "pictures", None, 0)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", ":1: "),
        (json.dumps({"group": "smell", "topic": "a", "request": {}}), "eval.jsonl:1: group: should be"),
        (json.dumps({"group": "text", "topic": "a", "request": {}, "answr": "b"}), "answr"),
    ],
)
def test_a_wrong_file_is_refused(line: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="published without questions and answers"):
        read_items(tmp_path)
    with pytest.raises(InputError, match=says):
        items(tmp_path, line)
