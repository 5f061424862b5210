"""Which devices get an MPS daemon: those that several processes of the plan share, where one can be started."""

from collections import Counter
from collections.abc import Mapping
from typing import Literal

from omni_cli.config.report import Problem
from omni_cli.plan.placement import Placement

KEY = "deploy.mps"
Setting = Literal["auto", "on", "off"]


def mps_devices(
    setting: Setting, placements: Mapping[str, Placement], physical: tuple[str, ...], hindered: str
) -> tuple[tuple[int, ...], list[Problem]]:
    """Positions of the devices that get a daemon, and why `on` cannot be followed. `hindered` says why no
    daemon can be started."""
    users = Counter(
        device for placement in placements.values() for replica in placement.replicas for device in set(replica)
    )
    # A slice of a device (MIG) would need a daemon of its own kind.
    shared = tuple(
        sorted(device for device, count in users.items() if count > 1 and not physical[device].startswith("MIG-"))
    )
    if setting == "on" and not shared:
        return (), [Problem(key=KEY, message="has no effect: no device is shared by two processes; leave it out")]
    if setting == "on" and hindered:
        return (), [Problem(key=KEY, message=f"is on, but {hindered}")]
    return (shared if setting != "off" and not hindered else ()), []
