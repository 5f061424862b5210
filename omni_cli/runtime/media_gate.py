"""Where a request's decoded media enter the first stages: all of them at once, or not yet."""

from collections.abc import Mapping

from omni_cli.runtime.processes import MediaPort
from omni_cli.runtime.router import Route
from stages.lease import Lease
from stages.messages import REQUEST, StreamMessage
from stages.payload import Payload


def is_media(lease: Lease) -> bool:
    """Whether the slot lies in an input ring, which the control plane itself owns (`request.<stage>`)."""
    return lease.owner.startswith(f"{REQUEST}.")


class MediaGate:
    """Puts media into the input rings and takes their slots back."""

    def __init__(self, ports: Mapping[str, MediaPort]) -> None:
        self._ports = ports

    def put(self, uid: int, route: Route, media: Payload) -> list[StreamMessage] | None:
        """The messages for the entry stages that take media; None if there is no room now, and nothing was put.

        Raises PayloadTooLarge if the media can never fit.
        """
        messages: list[StreamMessage] = []
        for stage in route.entries:
            if REQUEST not in route.stages[stage].inputs:
                continue
            put = self._ports[stage].put((media,))
            if put is None:
                for message in messages:
                    self.reclaim(message.lease)
                return None
            ref, lease = put
            messages.append(
                StreamMessage(uid=uid, producer=REQUEST, consumer=stage, seq=0, units=1, eos=True, ref=ref, lease=lease)
            )
        return messages

    def reclaim(self, lease: Lease | None) -> None:
        if lease is not None:
            self._ports[lease.owner.partition(".")[2]].reclaim(lease)
