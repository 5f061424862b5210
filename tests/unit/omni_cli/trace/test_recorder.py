import json
import logging
import os
import sys
import threading

import pytest

from omni_cli.errors import TraceError
from omni_cli.runtime.events import ProcessDead
from omni_cli.trace import recorder as module
from omni_cli.trace.reader import TraceReader
from omni_cli.trace.recorder import Recorder
from stages.events import InputReady, OutputProduced
from stages.payload import PayloadRef

LONG_S = 3600.0  # a window that never ends by itself in a test


def ready(uid: int) -> InputReady:
    return InputReady(uid=uid, t_ns=uid)


def wait_for_lines(monkeypatch, count: int) -> threading.Event:
    """An event that is set when so many lines have been handed to the kernel."""
    written, done = [0], threading.Event()
    write = os.write

    def counting(fd: int, data: memoryview) -> int:
        size = write(fd, data)
        written[0] += bytes(data[:size]).count(b"\n")
        if written[0] >= count:
            done.set()
        return size

    monkeypatch.setattr(module.os, "write", counting)
    return done


def test_everything_is_written_in_order_and_numbered_when_it_is_closed(tmp_path):
    recorder = Recorder(tmp_path / "trace.jsonl", window_s=LONG_S)
    for uid in range(1000):
        recorder.hear("talker.0" if uid % 2 else "thinker.0", ready(uid))
    recorder.close()
    recorder.close()
    lines = list(TraceReader(tmp_path / "trace.jsonl"))
    assert [line.event.uid for line in lines] == [line.ordinal for line in lines] == list(range(1000))
    assert {line.source for line in lines[1::2]} == {"talker.0"}
    assert recorder.events == 1000
    assert recorder.problem is None


def test_events_are_on_disk_after_the_window_without_a_close(tmp_path, monkeypatch):
    done = wait_for_lines(monkeypatch, 1)
    recorder = Recorder(tmp_path / "trace.jsonl", window_s=0.01)
    recorder.hear("thinker.0", ready(1))
    assert done.wait(10)
    assert [line.event for line in TraceReader(tmp_path / "trace.jsonl")] == [ready(1)]
    recorder.close()


def test_what_explains_a_failure_is_written_at_once_with_all_before_it(tmp_path, monkeypatch):
    done = wait_for_lines(monkeypatch, 2)
    recorder = Recorder(tmp_path / "trace.jsonl", window_s=LONG_S)
    recorder.hear("thinker.0", ready(1))
    recorder.hear("omni", ProcessDead(t_ns=2, process="thinker.0", expected=False, cause="killed by SIGKILL"))
    assert done.wait(10)
    recorder.close()


def test_a_trace_is_never_written_over_another(tmp_path):
    (tmp_path / "trace.jsonl").write_text("precious")
    with pytest.raises(TraceError, match="exists already"):
        Recorder(tmp_path / "trace.jsonl")
    assert (tmp_path / "trace.jsonl").read_text() == "precious"
    with pytest.raises(TraceError, match="cannot be created: No such file"):
        Recorder(tmp_path / "absent" / "trace.jsonl")


def test_a_full_disk_is_reported_once_and_breaks_nothing(tmp_path, monkeypatch, caplog):
    write, room = os.write, [200]

    def full_soon(fd: int, data: memoryview) -> int:
        if room[0] == 0:
            raise OSError(28, "No space left on device")
        size = write(fd, data[: room[0]])
        room[0] -= size
        return size

    monkeypatch.setattr(module.os, "write", full_soon)
    recorder = Recorder(tmp_path / "trace.jsonl", window_s=0.001)
    with caplog.at_level(logging.ERROR):
        for uid in range(1000):
            recorder.hear("thinker.0", ready(uid))
        recorder.close()
    assert recorder.problem is not None
    assert "No space left on device" in recorder.problem
    assert len([r for r in caplog.records if "the recording ended" in r.message]) == 1
    assert "1000 of 1000 events were not recorded" in caplog.text
    reader = TraceReader(tmp_path / "trace.jsonl")
    assert [line.event.uid for line in reader] == [0, 1]
    assert reader.torn


def test_an_event_that_cannot_be_written_costs_the_trace_and_not_the_run(tmp_path):
    recorder = Recorder(tmp_path / "trace.jsonl", window_s=0.001)
    recorder.hear("thinker.0", ready(1))
    recorder.hear("thinker.0", "not an event")  # type: ignore[arg-type]
    recorder.hear("thinker.0", ready(2))
    recorder.close()
    assert recorder.problem is not None
    assert "KeyError" in recorder.problem


def test_lines_are_json_for_every_other_reader(tmp_path):
    recorder = Recorder(tmp_path / "trace.jsonl")
    recorder.hear("thinker.0", ready(1))
    recorder.close()
    (line,) = (tmp_path / "trace.jsonl").read_text().splitlines()
    assert json.loads(line) == {"kind": "input_ready", "src": "thinker.0", "n": 0, "t": 1, "uid": 1, "prompt_tokens": 0}


def test_after_a_failed_write_nothing_follows_the_gap(tmp_path, monkeypatch):
    """The disk is full once, and has room again: what comes then would look like a whole trace with events missing."""
    write, failed, second = os.write, threading.Event(), threading.Event()

    def full_once(fd: int, data: memoryview) -> int:
        if not failed.is_set():
            recorder.hear("thinker.0", ready(2))  # queued while the write fails
            failed.set()
            raise OSError(28, "No space left on device")
        second.set()
        return write(fd, data)

    monkeypatch.setattr(module.os, "write", full_once)
    recorder = Recorder(tmp_path / "trace.jsonl", window_s=0.001)
    recorder.hear("thinker.0", ready(1))
    assert failed.wait(10)
    recorder.hear("thinker.0", ready(3))
    recorder.close()
    assert not second.is_set()
    assert (tmp_path / "trace.jsonl").read_bytes() == b""
    assert recorder.events == 3


def test_what_came_before_an_event_that_cannot_be_written_is_kept(tmp_path):
    recorder = Recorder(tmp_path / "trace.jsonl", window_s=LONG_S)
    recorder.hear("thinker.0", ready(1))
    recorder.hear("thinker.0", "not an event")  # type: ignore[arg-type]
    recorder.hear("thinker.0", ready(2))
    recorder.close()
    assert [line.event for line in TraceReader(tmp_path / "trace.jsonl")] == [ready(1)]
    assert recorder.events == 3


def test_a_payload_is_not_kept_until_it_is_written(tmp_path):
    recorder = Recorder(tmp_path / "trace.jsonl", window_s=LONG_S)
    event = OutputProduced(
        uid=1, t_ns=1, modality="audio", seq=0, units=1, eos=True, ref=PayloadRef(tensors=(), meta=(), nbytes=0)
    )
    held = sys.getrefcount(event)
    recorder.hear("code2wav.0", event)
    assert sys.getrefcount(event) == held
    recorder.close()
