"""Which connector carries an edge: the configured one where it can, else the planner's choice, each with its reason."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from omni_cli.config.report import Problem
from omni_cli.config.schema import DeployConfig, EdgeConfig
from omni_cli.plan.devices import Inventory
from omni_cli.plan.graph import Graph
from omni_cli.plan.placement import Placement
from stages.config import Connector
from stages.messages import REQUEST
from stages.models.registry import FamilyContract


@dataclass(frozen=True, slots=True, kw_only=True)
class Carriers:
    """Judges the edges of one deployment by where their two ends are."""

    family: FamilyContract
    placements: Mapping[str, Placement]
    inventory: Inventory

    def choose(self, producer: str, consumer: str, setting: EdgeConfig) -> tuple[Connector, str]:
        """The connector, and why. `cuda_ipc` saves the way of tensors on a device through the host; a message without
        any is as fast by `shm`."""
        if setting.connector is not None:
            return setting.connector, "as configured"
        if REQUEST in (producer, consumer):
            return "shm", "to or from the parent"
        stage = self.family.stages.get(consumer)
        if stage is None or producer not in stage.inputs or not stage.inputs[producer].on_device:
            return "shm", "no contract asks for more"
        obstacle = self.obstacle(producer, consumer)
        if obstacle:
            return "shm", obstacle
        ways = [f"{a} -> {b} by peer access" if a != b else f"both on {a}" for a, b in self._pairs(producer, consumer)]
        return "cuda_ipc", ", ".join(dict.fromkeys(ways))

    def obstacle(self, producer: str, consumer: str) -> str:
        """Why the consumer cannot read the producer's device; empty if it can."""
        if REQUEST in (producer, consumer):
            return "the parent is one end of it, and opens no GPU"
        for name in (producer, consumer):
            if any(not replica for replica in self.placements[name].replicas):
                return f"`{name}` is on the CPU"
        for source, reader in self._pairs(producer, consumer):
            if source != reader and (why := self.inventory.no_peer_access(reader, source)):
                return f"device {reader} cannot read device {source}: {why}"
        return ""

    def _pairs(self, producer: str, consumer: str) -> Iterator[tuple[int, int]]:
        """Devices of every replica with every replica; a replica hands over on its first."""
        for source in self.placements[producer].replicas:
            for reader in self.placements[consumer].replicas:
                yield source[0], reader[0]

    def problems(self, graph: Graph, deploy: DeployConfig) -> Iterator[Problem]:
        """Edges for which `cuda_ipc` was asked for in vain."""
        for name in graph.stages:
            setting, key = deploy.stage(name), f"deploy.stages.{name}"
            for producer, edge in setting.inputs.items():
                if producer == REQUEST or producer in graph.stages:
                    yield from self._problem(producer, name, edge, f"{key}.inputs.{producer}")
            yield from self._problem(name, REQUEST, setting.output, f"{key}.output")

    def _problem(self, producer: str, consumer: str, setting: EdgeConfig, key: str) -> Iterator[Problem]:
        if setting.connector == "cuda_ipc" and (obstacle := self.obstacle(producer, consumer)):
            message = f"is cuda_ipc, but {obstacle}; set it to shm"
            if REQUEST not in (producer, consumer):
                message += f", or give `{producer}` and `{consumer}` one device, or devices with peer access"
            yield Problem(key=f"{key}.connector", message=message)
