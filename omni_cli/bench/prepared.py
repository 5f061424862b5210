"""What every measurement begins with: its configuration, its plan, the machine. Starts nothing."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from omni_cli.bench.report import Facts, Report, Table
from omni_cli.config.library import RECIPE
from omni_cli.config.load import LoadedConfig, load_config
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import visible_devices
from omni_cli.plan.model import ExecutionPlan
from omni_cli.streams import say

_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The ordinary plan for the words of `command`, and what it will be carried by."""

    command: str
    now: datetime
    loaded: LoadedConfig
    plan: ExecutionPlan
    machine: Facts

    @classmethod
    def of(cls, words: Sequence[str], command: str) -> "Prepared":
        """Raises OmniError for what is refused."""
        now = datetime.now().astimezone()
        loaded, inventory = load_config(words), visible_devices()
        if RECIPE not in loaded.origins.choices:
            say(f"no recipe was given (recipe=NAME): this is pipeline {loaded.pipeline}")
        machine = (*machine_facts(now), *(("gpu", device.name) for device in inventory.devices))
        return cls(command=command, now=now, loaded=loaded, plan=build_plan(loaded, inventory), machine=machine)

    def report(
        self,
        section: Sequence[str],
        tables: Sequence[Table],
        details: Mapping[str, Any],
        notes: Sequence[str] = (),
        machine: Facts = (),
    ) -> Report:
        """`section` is the verb and whatever else, beside recipe and deployment, tells its section from others."""
        verb, *more = section
        return Report(
            command=self.command,
            name=" ".join(("omni bench", verb, self.loaded.recipe, self.loaded.origins.choices["deploy"], *more)),
            digest=self.plan.digest,
            machine=(*self.machine, *machine),
            tables=tables,
            details=details,
            notes=notes,
        )


def machine_facts(now: datetime) -> Facts:
    """What the figures were taken on; without it they mean nothing. The load is that of the minute before."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (
        ("date", now.date().isoformat()),
        ("processor", _processor()),
        ("cores", f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}"),
        ("load before", f"{os.getloadavg()[0]:.2f}"),
        ("memory", f"{memory / _GIB:.0f} GiB"),
        ("kernel", f"{platform.system()} {platform.release()}"),
        ("python", f"{platform.python_implementation()} {platform.python_version()}"),
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
