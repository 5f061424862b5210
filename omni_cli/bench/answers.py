"""What crossed inline edges, by request: the ids and codes of an answer, to be held against those of another one."""

from collections import defaultdict

from omni_cli.runtime.events import Event, RequestAdmitted
from stages.events import MessagePut
from stages.payload import view

COMPARED = ("generated_ids", "codes")


class Answers:
    """A listener. Of requests that are announced it keeps those whose id is `prefix` and a number; a request that is
    not has its uid for a number. One number may have several answers."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._numbers: dict[int, int | None] = {}
        self._found: dict[tuple[int, int], dict[str, bytes]] = defaultdict(lambda: defaultdict(bytes))

    def __call__(self, source: str, event: Event) -> None:
        if isinstance(event, RequestAdmitted):
            number = event.request_id.removeprefix(self._prefix)
            measured = event.request_id.startswith(self._prefix) and number.isdecimal()
            self._numbers[event.uid] = int(number) if measured else None
        elif isinstance(event, MessagePut) and event.message.ref is not None and event.message.ref.inline is not None:
            self._put(event)

    def _put(self, event: MessagePut) -> None:
        number, ref = self._numbers.get(event.uid, event.uid), event.message.ref
        if number is None or ref is None or ref.inline is None:
            return
        for tensor in view(ref.tensors, ref.meta, memoryview(ref.inline)).tensors:
            if tensor.name in COMPARED:
                self._found[event.uid, number][tensor.name] += bytes(tensor.data)

    def agreement(self, expected: "Answers") -> tuple[int, int]:
        """How many answers are those that `expected` has for their number, and how many have one there."""
        known = {number: tensors for (_, number), tensors in expected._found.items()}
        pairs = [(tensors, known[number]) for (_, number), tensors in self._found.items() if number in known]
        return sum(dict(own) == dict(theirs) for own, theirs in pairs), len(pairs)
