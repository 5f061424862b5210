"""A replica's next rings: made in a thread while others are told, all or none, and none once the run's are removed."""

import errno
import os
import threading
import uuid

import pytest

from omni_cli.errors import LaunchError, RunEnding
from omni_cli.launch import rings as module
from omni_cli.launch.rings import Rings
from stages.config import EdgeSpec, ModelSpec, RingSpec, StageSpec
from stages.connectors.ring import SHM_DIR, RingError, create_ring

MODEL = ModelSpec(path="", load_format="dummy", dtype="float32")


class Name(str):
    """The name of a stage; whoever looks it up is held up by `interrupt`, once."""

    interrupt = None

    def __hash__(self):
        interrupt, Name.interrupt = Name.interrupt, None
        if interrupt is not None:
            interrupt()
        return super().__hash__()


def stage(run_id, name, **edges):
    return StageSpec(
        run_id=run_id, family="synthetic", stage=name, replica=0, generation=0, execution_type="llm_ar", model=MODEL,
        devices=(), max_batch=1, memory_fraction=0.5, threads=1, outputs=(), **{"inputs": (), "consumers": (), **edges},
    )  # fmt: skip


@pytest.fixture
def run():
    """The rings of a thinker that feeds two stages, and how to see what is left of them."""
    run_id = uuid.uuid4().hex[:12]
    edges = [
        EdgeSpec(
            producer="thinker", consumer=consumer, mode="complete", connector="shm",
            rings=(RingSpec(segment=f"omni-{run_id}-{index}", slots=1, data_bytes=4096, key="ring_bytes"),),
        )
        for index, consumer in enumerate((Name("talker"), "singer"))
    ]  # fmt: skip
    thinker = stage(run_id, "thinker", consumers=tuple(edges))
    talker = stage(run_id, "talker", inputs=(edges[0],))
    rings = Rings((thinker, talker))
    rings.create()
    yield rings, lambda: sorted(name for name in os.listdir(SHM_DIR) if run_id in name)
    rings.remove()


def in_a_thread(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def test_a_replica_is_told_of_all_rings_while_another_gets_its_own(run):
    rings, left = run
    Name.interrupt = lambda: in_a_thread(lambda: rings.renew("thinker.0", 1))
    assert len(rings.spec("talker.0", 0).inputs[0].rings) == 1
    assert Name.interrupt is None
    assert len(rings.spec("talker.0", 0).inputs[0].rings) == 2
    assert set(rings.retire("thinker.0", 0)) == {"talker", "singer"}
    assert len(left()) == 2
    assert rings.remove() == 0
    assert left() == []


@pytest.mark.parametrize(
    ("second", "raised"),
    [(OSError(errno.EMFILE, "too many open files"), OSError), (RingError("no room"), LaunchError), (None, RunEnding)],
    ids=["no descriptor", "no room", "the run has ended"],
)
def test_rings_that_cannot_all_be_made_leave_none(run, monkeypatch, second, raised):
    rings, left = run
    before = left()

    def create(spec):
        if spec.segment.endswith("0-g1"):
            return create_ring(spec)
        if second is not None:
            raise second
        rings.remove()
        return create_ring(spec)

    monkeypatch.setattr(module, "create_ring", create)
    with pytest.raises(raised):
        rings.renew("thinker.0", 1)
    assert left() == (before if second is not None else [])
    assert rings.retire("thinker.0", 1) == {}
