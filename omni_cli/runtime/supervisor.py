"""Holds the way to every live process, and carries out what `Replicas` orders: a new life, an end, memory given back.

It belongs to one event loop and decides nothing.
"""

import asyncio
from collections.abc import Callable, Iterable

from omni_cli.errors import LaunchError, RunEnding
from omni_cli.runtime.processes import Processes
from omni_cli.runtime.replicas import Condemn, Order, Retire, Start
from omni_cli.runtime.stage_client import Received, StageClient
from stages.messages import Attach, Command, Detach, Turn


class Supervisor:
    """`clients` has one for each replica, of its latest life. `started(process, generation)` and
    `not_started(process, generation, cause, final)` hear what became of a `Start`, `failed` of an error of the
    runtime."""

    def __init__(
        self,
        processes: Processes,
        *,
        clock: Callable[[], int],
        on_receive: Callable[[StageClient, Received], None],
        started: Callable[[str, int], None],
        not_started: Callable[[str, int, str, bool], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._processes = processes
        self._started = started
        self._not_started = not_started
        self._clock = clock
        self._on_receive = on_receive
        self._failed = failed
        self._closing = False
        self._starting: set[asyncio.Task[None]] = set()
        self.clients = {handle.process: StageClient(handle, on_receive) for handle in processes.replicas}

    def start(self) -> None:
        for client in self.clients.values():
            client.start()

    async def close(self) -> None:
        """No life begins from here on, and no ring is made for one."""
        self._closing = True
        await asyncio.gather(*self._starting)

    def carry_out(self, orders: Iterable[Order]) -> None:
        for order in orders:
            if isinstance(order, Start):
                if self._closing:
                    continue
                task = asyncio.ensure_future(self._begin(order))
                self._starting.add(task)
                task.add_done_callback(self._starting.discard)
            elif isinstance(order, Condemn):
                self.clients[order.process].handle.condemn(order.why)
            elif isinstance(order, Retire):
                self._retire(order)

    async def _begin(self, order: Start) -> None:
        try:
            await asyncio.to_thread(self._processes.renew, order.process, order.generation)
            if not self._closing:
                self._spawn(order)
        except (LaunchError, OSError) as error:
            self._not_started(order.process, order.generation, str(error), isinstance(error, RunEnding))
        except Exception as error:
            self._failed(error)

    def _spawn(self, order: Start) -> None:
        handle = self._processes.start_again(order.process, order.generation)
        client = self.clients[order.process] = StageClient(handle, self._on_receive)
        self._started(order.process, order.generation)
        for consumer, ring in handle.written.items():  # in time: what refers to it is said to them later
            self._tell(consumer, Attach(producer=handle.stage, ring=ring))
        client.start()

    def _retire(self, order: Retire) -> None:
        producer = self.clients[order.process].handle.stage
        for consumer, ring in self._processes.retire(order.process, order.generation).items():
            self._tell(consumer, Detach(producer=producer, segment=ring.segment))

    def _tell(self, stage: str, command: Command) -> None:
        """All replicas of a stage; one that is dead finds out when it is started again."""
        for client in self.clients.values():
            if client.handle.stage == stage:
                client.send(Turn(commands=(command,), sent_ns=self._clock()))
