"""The replicas of one stage: which of them takes the next request. Pure bookkeeping."""


class NoReplica(Exception):
    """Every replica of the stage is dead, for good."""


class QueueFull(NoReplica):
    """Every live replica has as many requests as it may have, working and waiting."""


class StagePool:
    """Chooses the live replica with the least outstanding requests, the first one on a tie; sticky per request.

    None gets more than `limit` requests at once (None: no limit).
    """

    def __init__(self, stage: str, processes: tuple[str, ...], limit: int | None = None) -> None:
        self.stage = stage
        self._limit = limit
        self._order = processes
        self._held: dict[str, set[int]] = {process: set() for process in processes}

    @property
    def alive(self) -> bool:
        return bool(self._held)

    def pick(self, uid: int) -> str:
        """The replica for this request: always the same one until `release`. NoReplica if none is alive, or
        QueueFull."""
        for process, held in self._held.items():
            if uid in held:
                return process
        if not self._held:
            raise NoReplica(f"stage {self.stage} has no live process")
        process = min(self._held, key=lambda name: len(self._held[name]))
        if self._limit is not None and len(self._held[process]) >= self._limit:
            raise QueueFull(
                f"{self._limit} requests are in each replica of stage {self.stage}, as many as it takes; try again "
                f"later, or raise deploy.stages.{self.stage}.max_queue"
            )
        self._held[process].add(uid)
        return process

    def release(self, uid: int) -> None:
        """The request is over in this stage."""
        for held in self._held.values():
            held.discard(uid)

    def lose(self, process: str) -> None:
        """The replica is dead; it is not chosen until it joins again."""
        self._held.pop(process, None)

    def join(self, process: str) -> None:
        """The replica has been started again and is ready."""
        self._held = {p: self._held.get(p, set()) for p in self._order if p in self._held or p == process}
