"""`omni doctor`: looks at what a run stands on, and says of each thing whether it is well and what to do if it is not.

It starts nothing, imports no torch and changes nothing, but for the segments of dead runs that `--clean` removes.
"""

import os
import platform
import resource
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

import typer

from omni_cli.launch.rings import stale_segments
from omni_cli.plan.devices import no_peer_access
from stages.connectors.ring import SHM_DIR

app = typer.Typer()

GIB = 1 << 30
SHM_STOP_BYTES = 16 << 20  # no pipeline's rings fit
SHM_WARN_BYTES = 1 << 30
FILES_STOP, FILES_WARN = 128, 1024


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `stop`: a run would not start. `remedy` says what to do about a warn or a stop."""

    name: str
    state: Literal["ok", "warn", "stop"]
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{self.state:<5} {self.name:<17} {self.text}"
        return f"{line}\n{'':<23} -> {self.remedy}" if self.remedy else line


@app.command()
def doctor(
    clean: bool = typer.Option(False, "--clean", help="Remove the shared-memory segments of dead runs."),
) -> None:
    """Look at versions, devices, limits and leftovers. Exits with 1 if something would stop a run."""
    stops = 0
    for finding in findings(clean):
        typer.echo(str(finding))
        stops += finding.state == "stop"
    if stops:
        typer.echo(f"{stops} of these would stop a run")
        raise typer.Exit(1)


def findings(clean: bool) -> Iterator[Finding]:
    yield python(sys.version_info[:3])
    yield from packages(requirements(), installed)
    usable = len(os.sched_getaffinity(0))  # in a container often fewer than the machine has
    yield Finding("processors", "ok", f"{usable} usable of {os.cpu_count()}")
    yield from devices()
    yield shared_memory(*_shm_bytes())
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield leftovers(stale_segments(remove=clean), cleaned=clean)


def python(release: tuple[int, ...]) -> Finding:
    text = f"{'.'.join(map(str, release))} on {platform.system()} {platform.machine()}"
    if release < (3, 11):
        return Finding("python", "stop", text, "install Python 3.11 or newer")
    return Finding("python", "ok", text)


def requirements() -> list[str]:
    """What omni requires, as it was installed or, in a source tree that is not installed, as it says itself."""
    try:
        return requires("omni-stages") or []
    except PackageNotFoundError:
        source = Path(__file__).parents[2] / "pyproject.toml"
        found: list[str] = tomllib.loads(source.read_text())["project"]["dependencies"]
        return found


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def packages(required: list[str], installed: Callable[[str], str | None]) -> Iterator[Finding]:
    """A finding a required package; those of extras are nobody's need here."""
    from packaging.requirements import Requirement  # not behind --help

    for line in required:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        found = installed(requirement.name)
        remedy = f'pip install "{requirement.name}{requirement.specifier}"'
        if found is None:
            yield Finding(requirement.name, "stop", "is not installed", remedy)
        elif not requirement.specifier.contains(found, prereleases=True):
            text = f"{found}, needed is {requirement.specifier}"
            yield Finding(requirement.name, "stop", text, remedy)
        else:
            yield Finding(requirement.name, "ok", found)


def devices() -> Iterator[Finding]:
    """GPUs as the driver's own library (NVML) sees them; no CUDA context is opened."""
    try:
        import pynvml
    except ImportError:
        return  # said among the packages
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield no_driver(str(error), Path("/dev/nvidiactl").exists())
        return
    try:
        yield from gpus(pynvml, installed("torch") or "")
    finally:
        pynvml.nvmlShutdown()


def no_driver(reason: str, device_files: bool) -> Finding:
    if device_files:
        remedy = "its device files are there, its library is not: give the container the driver (--gpus all)"
        return Finding("gpu", "warn", f"cannot be asked: {reason}", remedy)
    return Finding("gpu", "ok", f"none ({reason}): stages run on the CPU")


def gpus(nvml: Any, torch_version: str) -> Iterator[Finding]:
    """A finding a GPU, one on peer access where there are several, one if torch cannot use them."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    for index, handle in enumerate(handles):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        text = f"{nvml.nvmlDeviceGetName(handle)}, {memory.free / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
        yield Finding(f"gpu {index}", "ok", text)
    if len(handles) > 1:
        yield peer_access(
            [
                f"{a}->{b}"
                for a, b in permutations(range(len(handles)), 2)
                if no_peer_access(nvml, handles[a], handles[b])
            ]
        )
    if handles and torch_version.endswith("+cpu"):
        remedy = "install a build of torch for CUDA (pytorch.org/get-started)"
        yield Finding("gpu", "warn", f"torch {torch_version} cannot use them", remedy)


def peer_access(lacking: Sequence[str]) -> Finding:
    if not lacking:
        return Finding("peer access", "ok", "between all GPUs")
    remedy = "place stages that feed each other on GPUs that reach each other; else data goes through the host"
    return Finding("peer access", "warn", f"not for {', '.join(lacking)}", remedy)


def _shm_bytes() -> tuple[int, int]:
    """Size and free space, 0 where it is absent or not ours to write."""
    if not os.access(SHM_DIR, os.W_OK):
        return 0, 0
    stat = os.statvfs(SHM_DIR)
    return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize


def shared_memory(size: int, free: int) -> Finding:
    text = f"{size / GIB:.2f} GiB, {free / GIB:.2f} GiB free"
    if free >= SHM_WARN_BYTES:
        return Finding(SHM_DIR, "ok", text)
    remedy = (
        "rings between stages live there: make it larger (in a container --shm-size=4g, else mount -o "
        f"remount,size=4g {SHM_DIR}) or the rings smaller (deploy.stages.*.inputs.*)"
    )
    return Finding(SHM_DIR, "stop" if free < SHM_STOP_BYTES else "warn", text, remedy)


def open_files(limit: int) -> Finding:
    if limit == resource.RLIM_INFINITY or limit >= FILES_WARN:
        text = "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
        return Finding("open files", "ok", text)
    state: Literal["warn", "stop"] = "stop" if limit < FILES_STOP else "warn"
    return Finding("open files", state, f"{limit} at most", f"ulimit -n {FILES_WARN * 4}")


def leftovers(segments: list[str], *, cleaned: bool) -> Finding:
    names = ", ".join(segments)
    if cleaned or not segments:
        text = f"removed {names}" if segments else "nothing to remove" if cleaned else "no segments of dead runs"
        return Finding("leftovers", "ok", text)
    remedy = "omni doctor --clean, or the next run, removes them"
    text = f"{len(segments)} segments of dead runs: {names}"
    return Finding("leftovers", "warn", text, remedy)
