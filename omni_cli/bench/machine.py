"""What the figures were taken on. Without it they mean nothing; it never changes what is measured."""

import os
import platform
from datetime import datetime
from pathlib import Path

GIB = 1 << 30


def machine_facts(now: datetime) -> tuple[tuple[str, str], ...]:
    """(name, value) pairs for people. The load is that of the minute before."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (
        ("date", now.date().isoformat()),
        ("processor", _processor()),
        ("cores", f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}"),
        ("load before", f"{os.getloadavg()[0]:.2f}"),
        ("memory", f"{memory / GIB:.0f} GiB"),
        ("kernel", f"{platform.system()} {platform.release()}"),
        ("python", f"{platform.python_implementation()} {platform.python_version()}"),
    )


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    for line in cpuinfo.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
