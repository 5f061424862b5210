"""Both connectors through the registry: put, get in place, reclaim, credits and refusals."""

import itertools
import os
import uuid

import pytest

from stages.config import EdgeSpec, RingSpec
from stages.connectors.inline import INLINE_MAX_BYTES
from stages.connectors.registry import CONNECTORS, open_reader, open_writer
from stages.connectors.ring import create_ring, live_slots, unlink
from stages.connectors.shm import ShmWriter, StaleReference
from stages.errors import PayloadTooLarge, StageError
from stages.lease import Lease
from stages.payload import Payload, Tensor

KEY = "deploy.stages.talker.inputs.thinker.ring_bytes"


def payload(data, name="a", meta=()):
    return Payload(tensors=(Tensor(name=name, dtype="uint8", shape=(len(data),), data=memoryview(data)),), meta=meta)


@pytest.fixture
def edge():
    spec = RingSpec(segment=f"omni-test-{uuid.uuid4().hex[:12]}", slots=3, data_bytes=1 << 20, key=KEY)
    file = create_ring(spec)
    yield EdgeSpec(producer="thinker", consumer="talker", mode="incremental", connector="shm", rings=(spec,))
    file.close()
    unlink(spec.segment)


@pytest.fixture
def ends(edge):
    writer, reader = open_writer(edge, "thinker.0", itertools.count(5)), open_reader(edge)
    yield writer, reader
    reader.close()
    writer.close()


INLINE = EdgeSpec(producer="thinker", consumer="talker", mode="complete", connector="inline", rings=())


def test_the_registry_is_closed():
    assert set(CONNECTORS) == {"inline", "shm"}
    with pytest.raises(KeyError):
        open_reader(EdgeSpec(producer="a", consumer="b", mode="complete", connector="tcp", rings=()))


def test_shm_copies_once_and_is_read_in_place(edge, ends):
    writer, reader = ends
    source = bytearray(b"hello")
    ref, lease = writer.put([payload(source, meta=(("x", 1),)), payload(b" world")])
    source[:] = b"XXXXX"
    assert lease == Lease(owner="thinker.0", number=5, slot=ref.slot)
    got = reader.get(ref)
    assert bytes(got.tensor("a").data) == b"hello world"
    assert got.tensor("a").shape == (11,)
    assert got.scalar("x") == 1
    assert ref.inline is None
    assert live_slots(edge.rings[0].segment) == (ref.slot,)
    writer.reclaim(lease)
    assert live_slots(edge.rings[0].segment) == ()


def test_credit_is_the_free_slots_and_no_room_is_none(ends):
    writer, _ = ends
    leases = [writer.put([payload(b"x")])[1] for _ in range(3)]
    assert [lease.number for lease in leases] == [5, 6, 7]
    assert writer.free_slots() == 0
    assert writer.put([payload(b"y")]) is None
    writer.reclaim(leases[1])
    assert writer.free_slots() == 1
    ref, lease = writer.put([payload(b"y")])
    assert (ref.slot, lease.number) == (leases[1].slot, 8)


def test_a_payload_waits_for_bytes_as_well_as_for_a_slot(ends):
    writer, _ = ends
    _, first = writer.put([payload(bytes(600_000))])
    assert writer.put([payload(bytes(600_000))]) is None
    assert writer.free_slots() == 2
    writer.reclaim(first)
    assert writer.put([payload(bytes(600_000))]) is not None


def test_a_slot_that_is_live_is_never_overwritten(ends):
    writer, reader = ends
    kept = {}
    for round_ in range(200):
        data = bytes([round_]) * (100 + 777 * round_ % 90_000)
        found = writer.put([payload(data)])
        while found is None:
            lease, (ref, expected) = kept.popitem()
            assert bytes(reader.get(ref).tensor("a").data) == expected
            writer.reclaim(lease)
            found = writer.put([payload(data)])
        kept[found[1]] = (found[0], data)
        for ref, expected in kept.values():
            assert bytes(reader.get(ref).tensor("a").data) == expected


def test_too_large_for_ever_names_the_key(ends):
    with pytest.raises(PayloadTooLarge, match=KEY):
        ends[0].put([payload(bytes((1 << 20) + 1))])


def test_a_lease_ends_once(ends):
    writer, _ = ends
    _, lease = writer.put([payload(b"x")])
    with pytest.raises(ValueError, match="not held"):
        writer.reclaim(Lease(owner="talker.0", number=lease.number, slot=lease.slot))
    writer.reclaim(lease)
    with pytest.raises(ValueError, match="not held"):
        writer.reclaim(lease)


def test_a_reference_that_outlived_its_lease_is_refused(ends):
    writer, reader = ends
    ref, lease = writer.put([payload(b"x")])
    writer.reclaim(lease)
    with pytest.raises(StaleReference):
        reader.get(ref)
    writer.put([payload(b"longer")])
    with pytest.raises(StaleReference):
        reader.get(ref)


def test_a_ring_with_live_slots_takes_no_second_producer(edge, ends):
    ends[0].put([payload(b"x")])
    with pytest.raises(StageError, match="live slots"):
        ShmWriter(edge.rings[0], "thinker.0", itertools.count())


def test_a_payload_without_bytes_takes_a_slot_all_the_same(ends):
    writer, reader = ends
    ref, lease = writer.put([payload(b"", meta=(("n", 0),))])
    assert reader.get(ref).tensor("a").shape == (0,)
    assert writer.free_slots() == 2
    writer.reclaim(lease)


def test_one_reader_serves_the_rings_of_several_replicas(edge, ends):
    spec = RingSpec(segment=edge.rings[0].segment + "-1", slots=1, data_bytes=64, key=KEY)
    file = create_ring(spec)
    second = EdgeSpec(producer="thinker", consumer="talker", mode="incremental", connector="shm", rings=(spec,))
    both = EdgeSpec(
        producer="thinker", consumer="talker", mode="incremental", connector="shm", rings=(*edge.rings, spec)
    )
    writer, reader = open_writer(second, "thinker.1", itertools.count()), open_reader(both)
    assert bytes(reader.get(ends[0].put([payload(b"zero")])[0]).tensor("a").data) == b"zero"
    assert bytes(reader.get(writer.put([payload(b"one")])[0]).tensor("a").data) == b"one"
    with pytest.raises(ValueError, match="one ring"):
        open_writer(both, "thinker.0", itertools.count())
    reader.close()
    writer.close()
    file.close()
    unlink(spec.segment)


def test_inline_carries_its_bytes_and_refuses_above_64_kib():
    writer, reader = open_writer(INLINE, "thinker.0", itertools.count()), open_reader(INLINE)
    ref, lease = writer.put([payload(b"hel"), payload(b"lo")])
    assert lease is None
    assert bytes(reader.get(ref).tensor("a").data) == b"hello"
    assert writer.put([payload(bytes(INLINE_MAX_BYTES))]) is not None
    with pytest.raises(PayloadTooLarge, match=r"deploy\.stages\.talker\.inputs\.thinker\.connector=shm"):
        writer.put([payload(bytes(INLINE_MAX_BYTES + 1))])
    with pytest.raises(ValueError, match="not held"):
        writer.reclaim(Lease(owner="thinker.0", number=0, slot=0))
    writer.close()
    reader.close()


def test_an_inline_reader_refuses_a_reference_into_a_ring(ends):
    ref, _ = ends[0].put([payload(b"x")])
    with pytest.raises(ValueError, match="inline"):
        open_reader(INLINE).get(ref)


def test_no_descriptor_is_left(edge):
    before = len(os.listdir("/proc/self/fd"))
    writer, reader = open_writer(edge, "thinker.0", itertools.count()), open_reader(edge)
    ref, _ = writer.put([payload(b"x")])
    assert bytes(reader.get(ref).tensor("a").data) == b"x"
    reader.close()
    writer.close()
    assert len(os.listdir("/proc/self/fd")) == before
