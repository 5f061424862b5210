"""Batches and run folders as users make them: odd names, odd line ends, folders that are taken, runs at once."""

import json

import pytest

from omni_cli.batch.options import RunOptions
from omni_cli.batch.run import judge
from tests.integration.cli import (
    Ended,
    batch,
    check_trace,
    judged,
    leaves_nothing,
    omni,
    read_events,
    refused,
    start,
)

IDS = [
    "../../etc", "/abs", "a/b", ".", "..", "-rf", " ", "CON", "nul", "manifest.json", "results.jsonl", "plan.json",
    "run.log", "trace", "a", "A", "a\nb", "a\tb", "a\0b", "*", "~", "$HOME", "é", "e\u0301", "\u202eevil", "李🙂",
    "x" * 5000, "line-3",
]  # fmt: skip


@pytest.fixture(scope="module")
def named(tmp_path_factory) -> Ended:
    lines = [{"id": name, "prompt": f"prompt {n}", "modalities": ["text"]} for n, name in enumerate(IDS)]
    with leaves_nothing():
        return batch(tmp_path_factory.mktemp("names"), [*lines, {"prompt": "nameless"}], "recipe=synthetic")


def test_any_id_is_safe_and_no_two_share_a_folder(named):
    assert named.code == 0, named.err
    assert set(named.results) == {*IDS, f"line-{len(IDS) + 1}"}
    folders = [named.results[name]["folder"] for name in IDS]
    assert len({folder.lower() for folder in folders if folder not in ("a", "A")}) == len(IDS) - 2
    for n, name in enumerate(IDS):
        assert named.text(named.results[name]["folder"]) == f"prompt {n}"
    files = {"manifest.json", "plan.json", "results.jsonl", "run.log", "trace.jsonl"}
    assert {path.name for path in named.run.iterdir()} == {*files, *folders, f"line-{len(IDS) + 1}"}
    assert sorted(path.name for path in named.cwd.iterdir()) == ["batch.jsonl", "outputs"]
    check_trace(named.run)


def test_odd_ids_do_not_spoil_what_is_shown(named):
    shown = omni("trace", "show", str(named.run), cwd=named.cwd)
    assert shown.code == 0
    assert "\u202e" not in shown.out
    (row,) = [line for line in shown.out.splitlines() if line.startswith("../../etc")]
    assert " finished " in row
    one = omni("trace", "show", str(named.run), "--request", "a\nb", cwd=named.cwd)
    assert "request a\\nb  finished" in one.out


def test_bad_lines_fail_by_file_and_line_and_the_others_go_on(tmp_path):
    lines = [
        "[" * 10_000, "{'prompt': 'a'}", "null", '{"prompt": "a", "prompt": "b"}', '{"prompt": "x", "images": "a.png"}',
        '{"id": 5, "prompt": "x"}', '{"id": "\\ud83d", "prompt": "x"}', '{"prompt": "x", "synthetic": []}',
        '{"id": "same", "prompt": "first"}', '{"id": "same", "prompt": "second"}',
    ]  # fmt: skip
    huge = {
        "id": "huge",
        "prompt": "word " * 1_000_000,
        "sampling": {"thinker": {"max_tokens": 3}},
        "modalities": ["text"],
    }
    ended = batch(tmp_path, [*lines, huge], "recipe=synthetic")
    assert ended.code == 1
    failed = [number for number in range(1, 12) if f"failed: batch.jsonl:{number}: " in ended.err]
    assert failed == [1, 2, 3, 4, 5, 6, 7, 8, 10]
    assert "9 of 11 requests failed\n" in ended.err
    assert max(map(len, ended.err.splitlines())) < 300
    assert ended.text("same") == "first"
    assert ended.text("huge").split() == ["word"] * 3
    check_trace(ended.run)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty (0 bytes)"),
        (b"\n \n", "holds no request"),
        ('{"prompt": "a"}'.encode("utf-16"), "is not UTF-8 text (byte 0): save it as UTF-8"),
        (bytes(range(256)), "is not UTF-8 text"),
        (b'{"prompt": ""}\n{"promt": "a"}\n', "no line is a valid request"),
    ],
)
def test_a_batch_file_without_any_request_is_refused(tmp_path, content, said):
    (tmp_path / "batch.jsonl").write_bytes(content)
    assert said in judged(input=str(tmp_path / "batch.jsonl"))


def test_a_folder_that_is_taken_or_cannot_be_written_is_refused(tmp_path):
    words = ("recipe=synthetic", "--prompt", "a")
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    assert refused(*words, "--out", "file", cwd=tmp_path).startswith(f"omni: {tmp_path / 'file'}: is no folder")
    assert f"{tmp_path / 'full'}: holds files already" in refused(*words, "--out", "full", cwd=tmp_path)
    assert refused(*words, "--out=", cwd=tmp_path) == "omni: --out is empty; name a folder\n"
    assert "is no run folder" in refused(*words, "--resume", "full", cwd=tmp_path)
    (tmp_path / "outputs").touch()
    assert f"{tmp_path / 'outputs'}" in refused(*words, cwd=tmp_path)


def test_a_working_folder_that_cannot_be_written_needs_an_out(tmp_path):
    done = start("run", "recipe=synthetic", "--prompt", "a", cwd="/sys")
    _, said = done.communicate(timeout=60)
    assert done.returncode == 2
    assert said.startswith("omni: /sys/outputs")
    assert "cannot be written: " in said


def test_runs_at_once_have_folders_of_their_own(tmp_path):
    with leaves_nothing():
        runs = [start("run", "recipe=synthetic", "--prompt", f"number {n}", cwd=tmp_path) for n in range(2)]
        said = [process.communicate(timeout=120) for process in runs]
    assert [process.returncode for process in runs] == [0] * 2, said
    assert [text for text, _ in said] == [f"number {n}\n" for n in range(2)]
    folders = [tmp_path / errors.splitlines()[-1].removeprefix("files: ") for _, errors in said]
    assert len(set(folders)) == 2
    for n, folder in enumerate(folders):
        assert (folder / "request/text.txt").read_text() == f"number {n}"
        check_trace(folder)
    assert len({read_events(folder / "trace.jsonl")[0]["run_id"] for folder in folders}) == 2


# What is asked for, and what is made of it; None is refused. Options and words mean the same.
MODALITIES = {
    "text": {"text"}, "audio": {"audio"}, "text,audio": {"text", "audio"}, "audio,text": {"text", "audio"},
    " text , audio ": {"text", "audio"}, "[text]": {"text"}, "": None, "video": None, "Text": None, "text,text": None,
}  # fmt: skip


def test_a_request_has_exactly_the_outputs_that_it_asks_for(tmp_path):
    lists = [["text"], ["audio"], ["text", "audio"], ["audio", "text"]]
    bad = [[], ["video"], "text", [1], ["text", "text"], {}]
    lines = [{"id": f"{n}", "prompt": "a", "modalities": asked} for n, asked in enumerate([*lists, *bad])]
    ended = batch(tmp_path, [*lines, {"id": "all", "prompt": "a"}], "recipe=synthetic")
    for n, asked in enumerate(lists):
        assert {path.stem for path in (ended.run / f"{n}").iterdir()} == set(asked)
    assert {path.stem for path in (ended.run / "all").iterdir()} == {"text", "audio"}
    for n in range(len(lists), len(lists) + len(bad)):
        assert ended.results[f"{n}"]["error"]["message"].startswith("modalities")
    assert ended.code == 1


@pytest.mark.parametrize("asked", MODALITIES)
def test_modalities_as_an_option(asked):
    wanted = MODALITIES[asked]
    options = RunOptions(prompt="a", modalities=asked)
    if wanted is None:
        assert judged(prompt="a", modalities=asked).startswith("modalities")
    else:
        _, plan, (task,) = judge(("recipe=synthetic",), options)
        assert set(task.outputs) == wanted == set(plan.outputs)


def test_every_result_is_a_line_of_json_whatever_the_id(named):
    for line in (named.run / "results.jsonl").read_bytes().split(b"\n")[:-1]:
        assert json.loads(line)["status"] == "finished"
