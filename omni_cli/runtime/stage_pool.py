"""The replicas of one stage: which of them takes the next request. Pure bookkeeping."""


class NoReplica(Exception):
    """Every replica of the stage is dead."""


class StagePool:
    """Chooses the live replica with the least outstanding requests, the first one on a tie; sticky per request."""

    def __init__(self, stage: str, processes: tuple[str, ...]) -> None:
        self.stage = stage
        self._held: dict[str, set[int]] = {process: set() for process in processes}

    def pick(self, uid: int) -> str:
        """The replica for this request: always the same one until `release`. NoReplica if none is alive."""
        for process, held in self._held.items():
            if uid in held:
                return process
        if not self._held:
            raise NoReplica(f"stage {self.stage} has no live process")
        process = min(self._held, key=lambda name: len(self._held[name]))
        self._held[process].add(uid)
        return process

    def release(self, uid: int) -> None:
        """The request is over in this stage."""
        for held in self._held.values():
            held.discard(uid)

    def lose(self, process: str) -> None:
        """The replica is dead; it is not chosen again."""
        self._held.pop(process, None)
