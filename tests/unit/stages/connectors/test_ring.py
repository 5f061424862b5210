"""The ring's file: created whole or not at all, told apart from the rings of dead runs by its lock alone."""

import errno
import os
import subprocess
import sys
import uuid

import pytest

from stages.config import RingSpec
from stages.connectors import ring as rings
from stages.connectors.ring import FREE, WRITTEN, Ring, RingError, Slot, create_ring, live_slots, ring_path

KEY = "deploy.stages.b.inputs.a.ring_bytes"


@pytest.fixture
def spec():
    spec = RingSpec(segment=f"omni-test-{uuid.uuid4().hex[:12]}", slots=4, data_bytes=10_000, key=KEY)
    yield spec
    if os.path.exists(ring_path(spec.segment)):
        rings.unlink(spec.segment)


def test_what_the_producer_marks_anyone_can_read_by_name(spec):
    file = create_ring(spec)
    with Ring(spec.segment, writable=True) as producer, Ring(spec.segment) as reader:
        assert live_slots(spec.segment) == ()
        producer.data[100:103] = b"abc"
        producer.mark(2, Slot(state=WRITTEN, lease=7, offset=100, length=3))
        assert bytes(reader.data[100:103]) == b"abc"
        assert reader.slot(2) == Slot(state=WRITTEN, lease=7, offset=100, length=3)
        assert live_slots(spec.segment) == (2,)
        producer.mark(2, Slot(state=FREE, lease=7, offset=0, length=0))
        assert live_slots(spec.segment) == ()
        assert (reader.slots, reader.data_bytes) == (4, 10_000)
    file.close()


def test_a_reader_cannot_write(spec):
    file = create_ring(spec)
    with Ring(spec.segment) as reader, pytest.raises(TypeError):
        reader.data[0:1] = b"x"
    file.close()


def test_a_taken_name_is_refused_and_left_alone(spec):
    file = create_ring(spec)
    with pytest.raises(FileExistsError):
        create_ring(spec)
    assert live_slots(spec.segment) == ()
    file.close()


def test_no_room_is_an_error_with_size_free_space_and_key_and_leaves_nothing(spec):
    stat = os.statvfs(rings.SHM_DIR)
    huge = RingSpec(segment=spec.segment, slots=4, data_bytes=stat.f_blocks * stat.f_frsize * 2, key=KEY)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RingError) as caught:
        create_ring(huge)
    message = str(caught.value)
    assert KEY in message
    assert f"{(huge.data_bytes + rings._data_offset(4)) / 2**20:.2f} MiB" in message
    assert "are free" in message
    assert not os.path.exists(ring_path(spec.segment))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_folder_that_takes_no_file_is_an_error_with_what_names_it(spec, monkeypatch, code):
    def refuse(path: str) -> int:
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(rings, "_create_locked", refuse)
    with pytest.raises(RingError, match=f"{rings.SHM_DIR}: .*OMNI_SHM_DIR"):
        create_ring(spec)


def test_a_file_that_is_no_ring_is_refused(spec):
    with open(ring_path(spec.segment), "wb") as file:
        file.write(b"x" * 10)
    with pytest.raises(RingError, match=spec.segment):
        Ring(spec.segment)


def test_a_file_that_is_no_ring_is_never_taken_for_the_ring_of_a_dead_run(spec):
    path = ring_path(spec.segment)
    with open(path, "wb") as file:
        file.write(b"somebody else's segment")
    assert not rings.is_orphan(path)
    assert not rings.is_orphan(path, remove=True)
    assert os.path.exists(path)


def test_a_ring_is_an_orphan_once_its_creator_is_gone(spec):
    file = create_ring(spec)
    path = ring_path(spec.segment)
    assert not rings.is_orphan(path)
    assert not rings.is_orphan(path, remove=True)
    assert os.path.exists(path)
    file.close()
    assert rings.is_orphan(path)
    assert rings.is_orphan(path, remove=True)
    assert not os.path.exists(path)


def test_a_killed_creator_leaves_an_orphan_and_a_stage_that_is_attached_does_not_hide_it(spec):
    code = (
        "import os, signal, sys\n"
        "from stages.config import RingSpec\n"
        "from stages.connectors.ring import create_ring\n"
        f"file = create_ring(RingSpec(segment={spec.segment!r}, slots=1, data_bytes=64, key='k'))\n"
        "print('made', flush=True)\n"
        "sys.stdin.read()\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "made\n"
    assert not rings.is_orphan(ring_path(spec.segment))
    with Ring(spec.segment):
        child.kill()
        child.wait()
        assert rings.is_orphan(ring_path(spec.segment))
    child.stdin.close()
    child.stdout.close()


def test_a_creator_whose_new_file_is_cleaned_away_starts_again(spec, monkeypatch):
    real, removed = rings.fcntl.flock, []

    def flock(fd, operation):
        if operation == rings.fcntl.LOCK_SH and not removed:
            removed.append(ring_path(spec.segment))
            os.unlink(removed[0])  # what a clean-up does between the creator's open and lock
        return real(fd, operation)

    monkeypatch.setattr(rings.fcntl, "flock", flock)
    file = create_ring(spec)
    assert removed
    assert live_slots(spec.segment) == ()
    file.close()


def test_a_view_that_is_still_read_keeps_the_mapping(spec):
    file = create_ring(spec)
    producer, reader = Ring(spec.segment, writable=True), Ring(spec.segment)
    producer.data[0:3] = b"abc"
    kept = reader.data[0:3]
    reader.close()
    rings.unlink(spec.segment)
    assert bytes(kept) == b"abc"
    producer.close()
    file.close()
