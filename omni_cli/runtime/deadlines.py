"""When each request's time is up, the earliest first. Asked at every turn of the loop, so it never looks at all."""

import heapq


class Deadlines:
    """Times in ns by request. What was taken back or replaced is passed over when its turn comes."""

    def __init__(self) -> None:
        self._due: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def set(self, uid: int, at_ns: int) -> None:
        self._due[uid] = at_ns
        heapq.heappush(self._heap, (at_ns, uid))
        if len(self._heap) > 2 * len(self._due) + 64:
            self._heap = [(at, uid) for uid, at in self._due.items()]
            heapq.heapify(self._heap)

    def clear(self, uid: int) -> None:
        """May be called for a request that has none."""
        self._due.pop(uid, None)

    def next_ns(self) -> int | None:
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ns: int) -> list[int]:
        """The requests whose time is up, the earliest first; each is given once."""
        due = []
        while (at_ns := self.next_ns()) is not None and at_ns <= now_ns:
            uid = self._heap[0][1]
            del self._due[uid]
            due.append(uid)
        return due
