"""The replicas of one stage: which of them takes the next request, and who waits for one. Pure bookkeeping."""


class NoReplica(Exception):
    """Every replica of the stage is dead, for good."""


class QueueFull(Exception):
    """As many requests have come to the stage as its replicas take, working and waiting."""


class StagePool:
    """Chooses the live replica with the least outstanding requests, the first one on a tie; sticky per request.

    None gets more than `limit` requests at once (None: no limit).
    """

    def __init__(self, stage: str, processes: tuple[str, ...], limit: int | None = None) -> None:
        self.stage = stage
        self._limit = limit
        self._order = processes
        self._held: dict[str, set[int]] = {process: set() for process in processes}
        self.waiting: set[int] = set()

    @property
    def alive(self) -> bool:
        return bool(self._held)

    @property
    def has_room(self) -> bool:
        """Whether a live replica takes one more."""
        return any(self._limit is None or len(held) < self._limit for held in self._held.values())

    def let_in(self, uid: int) -> None:
        """A new request waits from now on, or is one too many: QueueFull. While none lives, as many wait as the first
        to return takes at once: one left over could fill the ring that another one is fed through."""
        come = sum(map(len, self._held.values())) + len(self.waiting)
        if self._limit is not None and come >= self._limit * max(1, len(self._held)):
            raise QueueFull(
                f"{come} requests are in stage {self.stage} or wait for it, as many as it takes ({self._limit} a "
                f"replica); try again later, or raise deploy.stages.{self.stage}.max_queue"
            )
        self.waiting.add(uid)

    def pick(self, uid: int) -> str:
        """The replica for this request: always the same one until `release`. Ask only if one `has_room`."""
        self.waiting.discard(uid)
        for process, held in self._held.items():
            if uid in held:
                return process
        process = min(self._held, key=lambda name: len(self._held[name]))
        self._held[process].add(uid)
        return process

    def release(self, uid: int) -> None:
        """The request is over in this stage, or waits for it no more."""
        self.waiting.discard(uid)
        for held in self._held.values():
            held.discard(uid)

    def lose(self, process: str) -> None:
        """The replica is dead; it is not chosen until it joins again."""
        self._held.pop(process, None)

    def join(self, process: str) -> None:
        """The replica has been started again and is ready."""
        self._held = {p: self._held.get(p, set()) for p in self._order if p in self._held or p == process}
