"""All connectors by one contract: put, get, reclaim, credits and refusals. A device is shared memory here."""

import ctypes
import itertools
import os
import uuid
from dataclasses import dataclass, replace

import pytest

from stages.config import EdgeSpec, RingSpec
from stages.connectors.cuda_ipc import CudaIpcReader, CudaIpcWriter
from stages.connectors.device_memory import DeviceBlock, DeviceMemoryError
from stages.connectors.inline import INLINE_MAX_BYTES
from stages.connectors.registry import CONNECTORS, open_reader, open_writer
from stages.connectors.ring import create_ring, live_slots, unlink
from stages.connectors.shm import ShmWriter, StaleReference
from stages.errors import PayloadTooLarge, StageError
from stages.lease import Lease
from stages.payload import Payload, Tensor
from tests.unit.stages.connectors.shared_device import SharedDevice

KEY = "deploy.stages.talker.inputs.thinker.ring_bytes"
INLINE = EdgeSpec(producer="thinker", consumer="talker", mode="complete", connector="inline", rings=())


@dataclass
class Way:
    """One edge with its two ends. `place` makes a tensor of the bytes: in host memory, or on the producer's device."""

    edge: EdgeSpec
    writer: object
    reader: object
    memory: SharedDevice
    theirs: SharedDevice
    on_device: bool

    def payload(self, data, name="a", meta=()):
        return Payload(tensors=(self.tensor(data, name),), meta=meta)

    def tensor(self, data, name="a"):
        if not (self.on_device and data):
            return Tensor(name=name, dtype="uint8", shape=(len(data),), data=memoryview(data))
        buffer = (ctypes.c_char * len(data)).from_buffer(data if isinstance(data, bytearray) else bytearray(data))
        block = Kept(self.memory, ctypes.addressof(buffer), len(data))
        block.buffer = buffer
        return Tensor(name=name, dtype="uint8", shape=(len(data),), on_device=block)


def read(tensor):
    found = bytearray(tensor.nbytes)
    tensor.copy_to(memoryview(found))
    return bytes(found)


class Kept(DeviceBlock):
    """Keeps the bytes that it is the address of."""

    buffer = None


def open_ends(edge, owner="thinker.0", first=5, room=1 << 30):
    """Both ends, and the device of each of the two processes."""
    memory, theirs = SharedDevice(f"{edge.rings[0].segment}-device", room), SharedDevice("")
    if edge.connector != "cuda_ipc":
        return open_writer(edge, owner, itertools.count(first)), open_reader(edge), memory, theirs
    writer = CudaIpcWriter(edge.rings[0], owner, itertools.count(first), memory)
    return writer, CudaIpcReader(edge.rings, lambda: theirs), memory, theirs


@pytest.fixture(params=["shm", "shm, of a device", "cuda_ipc", "cuda_ipc, of a device"])
def way(request):
    connector, _, where = request.param.partition(", ")
    spec = RingSpec(segment=f"omni-test-{uuid.uuid4().hex[:12]}", slots=3, data_bytes=1 << 20, key=KEY)
    file = create_ring(spec)
    edge = EdgeSpec(producer="thinker", consumer="talker", mode="incremental", connector=connector, rings=(spec,))
    writer, reader, memory, theirs = open_ends(edge)
    yield Way(edge, writer, reader, memory, theirs, bool(where))
    reader.close()
    writer.close()
    memory.remove()
    file.close()
    unlink(spec.segment)


def test_the_registry_is_closed():
    assert set(CONNECTORS) == {"inline", "shm", "cuda_ipc"}
    with pytest.raises(KeyError):
        open_reader(replace(INLINE, connector="tcp"))


def test_what_is_put_is_read_and_what_happens_to_the_source_later_is_not(way):
    source = bytearray(b"hello")
    pieces = [way.payload(source, meta=(("x", 1),)), way.payload(b" world")]
    ref, lease = way.writer.put(pieces)
    source[:] = b"XXXXX"
    assert lease == Lease(owner="thinker.0", number=5, slot=ref.slot)
    got = way.reader.get(ref)
    assert read(got.tensor("a")) == b"hello world"
    assert got.tensor("a").shape == (11,)
    assert (got.tensor("a").on_device is not None) == (way.on_device and way.edge.connector == "cuda_ipc")
    assert got.scalar("x") == 1
    assert (ref.inline, ref.nbytes) == (None, 11)
    assert live_slots(way.edge.rings[0].segment) == (ref.slot,)
    way.writer.reclaim(lease)
    assert live_slots(way.edge.rings[0].segment) == ()


def test_tensors_of_both_memories_travel_in_one_message_in_their_order(way):
    host = Tensor(name="ids", dtype="int32", shape=(2,), data=memoryview(b"12345678"))
    empty = Tensor(name="none", dtype="int32", shape=(0, 4))
    payload = Payload(tensors=(host, way.tensor(b"abc", "x"), empty, way.tensor(b"defgh", "y")))
    for _ in range(4):
        ref, lease = way.writer.put([payload])
        got = way.reader.get(ref)
        assert [tensor.name for tensor in got.tensors] == ["ids", "x", "none", "y"]
        assert [read(tensor) for tensor in got.tensors] == [b"12345678", b"abc", b"", b"defgh"]
        way.writer.reclaim(lease)
    two = [Payload(tensors=(host, way.tensor(b"abc", "x"))), Payload(tensors=(way.tensor(b"de", "x"), host))]
    got = way.reader.get(way.writer.put(two)[0])
    assert {tensor.name: read(tensor) for tensor in got.tensors} == {"ids": 2 * b"12345678", "x": b"abcde"}


def fail(*given):
    raise DeviceMemoryError("an illegal memory access was encountered")


def test_credit_is_the_free_slots_and_no_room_is_none(way, monkeypatch):
    writer = way.writer
    leases = [writer.put([way.payload(b"x")])[1] for _ in range(3)]
    assert [lease.number for lease in leases] == [5, 6, 7]
    assert writer.free_slots() == 0
    with monkeypatch.context() as patch:
        patch.setattr(way.memory, "read", fail)  # nothing is copied off the device for nothing
        assert writer.put([way.payload(b"y")]) is None
    writer.reclaim(leases[1])
    assert writer.free_slots() == 1
    ref, lease = writer.put([way.payload(b"y")])
    assert (ref.slot, lease.number) == (leases[1].slot, 8)


def test_a_payload_waits_for_bytes_as_well_as_for_a_slot(way):
    _, first = way.writer.put([way.payload(bytes(600_000))])
    assert way.writer.put([way.payload(bytes(600_000))]) is None
    assert way.writer.free_slots() == 2
    way.writer.reclaim(first)
    assert way.writer.put([way.payload(bytes(600_000))]) is not None


def test_a_slot_that_is_live_is_never_overwritten(way):
    kept = {}
    for round_ in range(100):
        data = bytes([round_]) * (100 + 777 * round_ % 90_000)
        found = way.writer.put([way.payload(data)])
        while found is None:
            lease, (ref, expected) = kept.popitem()
            assert read(way.reader.get(ref).tensor("a")) == expected
            way.writer.reclaim(lease)
            found = way.writer.put([way.payload(data)])
        kept[found[1]] = (found[0], data)
        for ref, expected in kept.values():
            assert read(way.reader.get(ref).tensor("a")) == expected


def test_too_large_for_ever_names_the_key(way):
    with pytest.raises(PayloadTooLarge, match=KEY):
        way.writer.put([way.payload(bytes((1 << 20) + 1))])
    host = Tensor(name="ids", dtype="uint8", shape=((1 << 20) + 1,), data=memoryview(bytes((1 << 20) + 1)))
    for _ in range(2):  # the part on a device alone would fit
        with pytest.raises(PayloadTooLarge, match=KEY):
            way.writer.put([Payload(tensors=(host, way.tensor(bytes(1 << 20))))])
    assert way.writer.free_slots() == 3
    assert way.writer.put([way.payload(bytes(1 << 20))]) is not None


def test_a_lease_ends_once(way):
    _, lease = way.writer.put([way.payload(b"x")])
    with pytest.raises(ValueError, match="not held"):
        way.writer.reclaim(Lease(owner="talker.0", number=lease.number, slot=lease.slot))
    way.writer.reclaim(lease)
    with pytest.raises(ValueError, match="not held"):
        way.writer.reclaim(lease)


def test_a_reference_that_outlived_its_lease_is_refused(way):
    ref, lease = way.writer.put([way.payload(b"x")])
    way.writer.reclaim(lease)
    with pytest.raises(StaleReference):
        way.reader.get(ref)
    way.writer.put([Payload(tensors=(Tensor(name="b", dtype="uint8", shape=(6,), data=memoryview(b"longer")),))])
    with pytest.raises(StaleReference):
        way.reader.get(ref)


def test_a_ring_with_live_slots_takes_no_second_producer(way):
    way.writer.put([way.payload(b"x")])
    with pytest.raises(StageError, match="live slots"):
        ShmWriter(way.edge.rings[0], "thinker.0", itertools.count())


def test_a_payload_without_bytes_takes_a_slot_all_the_same(way):
    ref, lease = way.writer.put([way.payload(b"", meta=(("n", 0),))])
    assert way.reader.get(ref).tensor("a").shape == (0,)
    assert way.writer.free_slots() == 2
    way.writer.reclaim(lease)


def test_one_reader_serves_the_rings_of_several_replicas(way):
    spec = replace(way.edge.rings[0], segment=way.edge.rings[0].segment + "-1", slots=1)
    file = create_ring(spec)
    writer, alone, memory, _ = open_ends(replace(way.edge, rings=(spec,)), "thinker.1")
    both = replace(way.edge, rings=(*way.edge.rings, spec))
    reader = CudaIpcReader(both.rings, lambda: memory) if both.connector == "cuda_ipc" else open_reader(both)
    assert read(reader.get(way.writer.put([way.payload(b"zero")])[0]).tensor("a")) == b"zero"
    assert read(reader.get(writer.put([way.payload(b"one")])[0]).tensor("a")) == b"one"
    with pytest.raises(ValueError, match="one ring"):
        open_writer(replace(both, connector="shm"), "thinker.0", itertools.count())
    for end in (alone, reader, writer):
        end.close()
    memory.remove()
    file.close()
    unlink(spec.segment)


def test_the_ring_of_a_dead_producer_is_left_for_that_of_its_next_life(way, caplog):
    """What the dead one has put is read until its ring is left; then its memory is given up, however that ends."""
    spec = replace(way.edge.rings[0], segment=way.edge.rings[0].segment + "-g1")
    gone = replace(spec, segment=spec.segment + "-g2")
    file = create_ring(spec)
    old, _ = way.writer.put([way.payload(b"old")])
    writer, alone, memory, _ = open_ends(replace(way.edge, rings=(spec,)), "thinker.0", 1 << 32)
    way.reader.attach(spec)
    way.reader.attach(gone)
    new, lease = writer.put([way.payload(b"new")])
    assert lease.number == 1 << 32
    for ref, data in ((new, b"new"), (old, b"old")):
        assert read(way.reader.get(ref).tensor("a")) == data
    opened = way.theirs.attached
    assert len(opened) == (2 if way.on_device and way.edge.connector == "cuda_ipc" else 0)
    way.reader.detach(way.edge.rings[0].segment)
    way.reader.detach(gone.segment)
    assert len(opened) in (0, 1)
    with pytest.raises(StaleReference, match="is not attached"):
        way.reader.get(old)
    assert read(way.reader.get(new).tensor("a")) == b"new"
    way.theirs.broken = True
    way.reader.detach(spec.segment)
    assert ("stays on the device" in caplog.text) == bool(opened)
    for end in (alone, writer):
        end.close()
    memory.remove()
    file.close()
    unlink(spec.segment)


def test_bytes_on_a_device_are_not_read_after_their_release(way):
    got = way.reader.get(way.writer.put([way.payload(b"x")])[0]).tensor("a")
    got.release()
    with pytest.raises((ValueError, DeviceMemoryError), match="release"):
        read(got)


def test_a_device_without_room_is_an_error_of_the_start_that_names_the_key(way):
    spec = replace(way.edge.rings[0], segment=way.edge.rings[0].segment + "-1")
    file = create_ring(spec)
    with pytest.raises(DeviceMemoryError, match=rf"1\.0 MiB \({KEY}\).*out of memory"):
        open_ends(replace(way.edge, connector="cuda_ipc", rings=(spec,)), room=1000)
    file.close()
    unlink(spec.segment)


def test_a_copy_that_fails_leaves_nothing_held(way, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(way.memory, "wait", fail)
        if way.on_device:
            with pytest.raises(DeviceMemoryError):
                way.writer.put([way.payload(b"x")])
            assert way.writer.free_slots() == 3
    assert way.writer.put([way.payload(bytes(1 << 20))]) is not None


def test_inline_carries_its_bytes_and_refuses_above_64_kib(way):
    writer, reader = open_writer(INLINE, "thinker.0", itertools.count()), open_reader(INLINE)
    ref, lease = writer.put([way.payload(b"hel"), way.payload(b"lo")])
    assert lease is None
    assert bytes(reader.get(ref).tensor("a").data) == b"hello"
    assert writer.put([way.payload(bytes(INLINE_MAX_BYTES))]) is not None
    with pytest.raises(PayloadTooLarge, match=r"deploy\.stages\.talker\.inputs\.thinker\.connector=shm"):
        writer.put([way.payload(bytes(INLINE_MAX_BYTES + 1))])
    with pytest.raises(ValueError, match="not held"):
        writer.reclaim(Lease(owner="thinker.0", number=0, slot=0))
    with pytest.raises(ValueError, match="inline"):
        reader.get(way.writer.put([way.payload(b"x")])[0])
    writer.close()
    reader.close()


def test_no_descriptor_is_left(way):
    before = len(os.listdir("/proc/self/fd"))
    edge = replace(way.edge, connector="shm")
    writer, reader = open_writer(edge, "thinker.0", itertools.count()), open_reader(edge)
    ref, _ = writer.put([way.payload(b"x")])
    assert bytes(reader.get(ref).tensor("a").data) == b"x"
    reader.close()
    writer.close()
    assert len(os.listdir("/proc/self/fd")) == before
