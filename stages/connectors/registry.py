"""The connectors by short name: opens the two ends of an edge. Rings are created by the parent before, see `ring`."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from stages.config import EdgeSpec, RingSpec
from stages.connectors.base import ConnectorReader, ConnectorWriter
from stages.connectors.cuda_ipc import CudaIpcReader, CudaIpcWriter
from stages.connectors.device_memory import cuda_memory
from stages.connectors.inline import InlineReader, InlineWriter
from stages.connectors.shm import ShmReader, ShmWriter
from stages.messages import REQUEST


class Connector(NamedTuple):
    """How to open the two ends, as `open_writer` and `open_reader`."""

    writer: Callable[[EdgeSpec, str, Iterator[int]], ConnectorWriter]
    reader: Callable[[EdgeSpec], ConnectorReader]


def _inline_writer(edge: EdgeSpec, owner: str, numbers: Iterator[int]) -> InlineWriter:
    if edge.consumer == REQUEST:
        return InlineWriter(f"deploy.stages.{edge.producer}.output.connector")
    return InlineWriter(f"deploy.stages.{edge.consumer}.inputs.{edge.producer}.connector")


def _own_ring(edge: EdgeSpec) -> RingSpec:
    if len(edge.rings) != 1:
        raise ValueError(f"edge {edge.producer} -> {edge.consumer}: a producer has one ring, not {len(edge.rings)}")
    return edge.rings[0]


CONNECTORS: Mapping[str, Connector] = {
    "inline": Connector(_inline_writer, lambda edge: InlineReader()),
    "shm": Connector(
        lambda edge, owner, numbers: ShmWriter(_own_ring(edge), owner, numbers),
        lambda edge: ShmReader(edge.rings),
    ),
    "cuda_ipc": Connector(
        lambda edge, owner, numbers: CudaIpcWriter(_own_ring(edge), owner, numbers, cuda_memory()),
        lambda edge: CudaIpcReader(edge.rings, cuda_memory),
    ),
}


def open_writer(edge: EdgeSpec, owner: str, numbers: Iterator[int]) -> ConnectorWriter:
    """The producer's end, of the process `owner`. `numbers` is its one counter: (owner, number) is unique in a run.

    Raises KeyError for an unknown connector, FileNotFoundError if the ring is not there.
    """
    return CONNECTORS[edge.connector].writer(edge, owner, numbers)


def open_reader(edge: EdgeSpec) -> ConnectorReader:
    """The consumer's end; raises like `open_writer`."""
    return CONNECTORS[edge.connector].reader(edge)
