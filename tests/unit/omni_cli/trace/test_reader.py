import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_cli.errors import TraceError
from omni_cli.trace.codec import encode
from omni_cli.trace.reader import TraceReader, find_trace
from stages.events import InputReady, MessageGot

EVENTS = [
    InputReady(uid=1, t_ns=5),
    MessageGot(uid=1, t_ns=6, producer="thinker", seq=0),
    InputReady(uid=2, t_ns=7),
]
LINES = [encode("talker.0", n, event).encode() for n, event in enumerate(EVENTS)]
WHOLE = b"".join(LINES)


@given(cut=st.integers(0, len(WHOLE)))
def test_a_torn_file_gives_every_whole_line_and_says_that_it_is_torn(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("torn") / "trace.jsonl"
    path.write_bytes(WHOLE[:cut])
    reader = TraceReader(path)
    whole = WHOLE[:cut].count(b"\n")
    assert [line.event for line in reader] == EVENTS[:whole]
    assert reader.torn == (cut != sum(map(len, LINES[:whole])))


@given(place=st.integers(0, 2), junk=st.binary(min_size=1).filter(lambda b: b"\n" not in b))
def test_a_corrupt_line_is_named_with_file_and_line(tmp_path_factory, place, junk):
    path = tmp_path_factory.mktemp("corrupt") / "trace.jsonl"
    path.write_bytes(b"".join([*LINES[:place], junk + b"\n", *LINES[place:]]))
    seen = []
    with pytest.raises(TraceError) as caught:
        seen.extend(TraceReader(path))
    assert str(caught.value).startswith(f"{path}:{place + 1}: ")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"absent\.jsonl: cannot be read: No such file"):
        list(TraceReader(tmp_path / "absent.jsonl"))


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Three runs, the last one in the order of names not the newest."""
    for age, name in enumerate(("demo/b-1", "demo/a-1", "other/a-2")):
        (tmp_path / "outputs" / name).mkdir(parents=True)
        trace = tmp_path / "outputs" / name / "trace.jsonl"
        trace.write_bytes(WHOLE)
        os.utime(trace, ns=(age, age))
    return tmp_path / "outputs"


@pytest.mark.parametrize(
    ("run", "found"),
    [("latest", "other/a-2"), ("b", "demo/b-1"), ("demo/a", "demo/a-1"), ("a-1", "demo/a-1"), ("a-2", "other/a-2")],
)
def test_a_run_is_found_by_latest_or_by_the_beginning_of_its_name(outputs, run, found):
    assert find_trace(run, outputs) == outputs / found / "trace.jsonl"


def test_a_run_is_found_by_its_folder_or_its_file(outputs):
    folder = outputs / "demo" / "a-1"
    assert find_trace(str(folder), outputs) == folder / "trace.jsonl"
    assert find_trace(str(folder / "trace.jsonl"), outputs) == folder / "trace.jsonl"


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("a-", "more than one run begins so, the newest are demo/a-1, other/a-2"),
        ("c", "no such file, folder or run under"),
        ("OUTPUTS", r"has no trace"),
    ],
)
def test_a_run_that_is_not_there_or_not_one_is_refused(outputs, run, said):
    with pytest.raises(TraceError, match=said):
        find_trace(str(outputs) if run == "OUTPUTS" else run, outputs)


def test_latest_without_any_run_is_refused(tmp_path):
    with pytest.raises(TraceError, match="no such file, folder or run"):
        find_trace("latest", tmp_path)
