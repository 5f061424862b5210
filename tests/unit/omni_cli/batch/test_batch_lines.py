"""Batch files: what each line is called, and that no line can spoil another."""

import json
from pathlib import Path

import pytest

from omni_cli.batch.lines import read_tasks
from omni_cli.batch.task import Task
from omni_cli.config.load import load_config
from omni_cli.errors import InputError

LOADED = load_config(["recipe=synthetic"])


def tasks(folder: Path, *lines: object, ends: str = "\n") -> tuple[Task, ...]:
    path = folder / "batch.jsonl"
    text = ends.join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_bytes(text.encode("utf-8"))
    return read_tasks(str(path), LOADED)


def test_every_request_has_a_name_of_its_own(tmp_path):
    lines = [{"prompt": "a"}, {"id": "line-1", "prompt": "b"}, {"id": "x", "prompt": "c"}, {"id": "x", "prompt": "d"}]
    found = tasks(tmp_path, *lines, {"id": "line-4", "prompt": "e"}, {"prompt": "f"})
    assert [task.request_id for task in found] == ["line-1-", "line-1", "x", "line-4-", "line-4", "line-6"]
    assert [task.error is None for task in found] == [True, True, True, False, True, True]
    assert str(found[3].error) == "id 'x' stands on line 3 already"
    assert [task.where.rpartition(":")[2] for task in found] == ["1", "2", "3", "4", "5", "6"]


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\n\n \n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_line_ends_and_a_byte_order_mark_do_not_matter(tmp_path, ends, start):
    found = tasks(tmp_path, start + '{"prompt": "a b"}', {"prompt": "c\u2028d"}, "", ends=ends)
    assert [task.line.prompt for task in found if task.line] == ["a b", "c\u2028d"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[" * 100_000, "is nested too deep"),
        ('{"prompt": "x", "voice": ' + '{"a": ' * 5000 + "1" + "}" * 5001, "is nested too deep"),
        ('{"prompt": "a", "prompt": "b"}', "key 'prompt' stands there twice"),
        ("{'prompt': 'a'}", "is not JSON: "),
        ("null", "must be an object with keys and values, not NoneType"),
        ('{"id": 5, "prompt": "a"}', "id: should be text; got 5"),
        ('{"id": "", "prompt": "a"}', "id: should have at least 1 character"),
        ('{"id": "\\ud83d", "prompt": "a"}', "id: holds a lone surrogate"),
        ('{"prompt": "\\ud83d"}', "prompt: holds a lone surrogate"),
        (
            '{"messages": [{"role": "user", "content": ["' + "x" * 100_000 + '"]}]}',
            "messages[0].content[0].type is 'xxx",
        ),
    ],
)
def test_a_bad_line_fails_alone_and_shortly(tmp_path, line, said):
    bad, good = tasks(tmp_path, line, {"prompt": "good"})
    assert isinstance(bad.error, InputError)
    assert said in str(bad.error)
    assert len(str(bad.error)) < 300
    assert good.error is None


def test_a_byte_that_is_not_utf_8_spoils_its_line_alone(tmp_path):
    path = tmp_path / "batch.jsonl"
    path.write_bytes('{"prompt": "first"}\n{"prompt": "é'.encode() + b'\xff"}\n{"prompt": "third"}\n')
    first, bad, third = read_tasks(str(path), LOADED)
    assert (bad.where, str(bad.error)) == (f"{path}:2", "is not UTF-8 text (byte 14): save it as UTF-8")
    assert first.error is third.error is None


def test_a_line_may_be_longer_than_a_prompt_file(tmp_path):
    (task,) = tasks(tmp_path, {"prompt": "word " * 4_000_000})
    assert task.error is None
