"""A private MPS daemon, so that the stage processes of one GPU run side by side where they would take turns.

It has folders of its own and ends with the run; any other daemon of the machine is left alone, and so is every setting
of the GPU. It must not know what runs under it.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from omni_cli.errors import LaunchError
from omni_cli.plan.devices import MPS_CONTROL
from stages.worker.bootstrap import die_with

_START_S = 10.0  # until the daemon listens
_STOP_S = 5.0  # after its last client has gone
_POLL_S = 0.01
_PREFIX = "omni-mps-"


class MpsDaemon:
    """Serves devices, given as physical ids with their UUIDs. `client` is what makes a child process use it.

    To be started by a thread that lives as long as the daemon shall; it ends with that thread, whatever ends it.
    """

    def __init__(self, uuids: Mapping[str, str]) -> None:
        """LaunchError if the daemon does not come up."""
        self._uuids = uuids
        self._stopped = False
        _remove_stale()
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = _locked(self._folder)
        self._folders = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._folder),
            "CUDA_MPS_LOG_DIRECTORY": str(self._folder),
        }
        self._environment = os.environ | self._folders | {"CUDA_VISIBLE_DEVICES": ",".join(uuids.values())}
        try:
            self._process = subprocess.Popen(
                [MPS_CONTROL, "-f"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C is ours to handle
                preexec_fn=partial(die_with, os.getpid(), signal.SIGTERM),
            )
        except OSError as error:
            self._remove()
            raise LaunchError(f"{MPS_CONTROL} cannot be started: {error}; deploy.mps=off does without it") from error
        try:
            self._await_socket()
        except BaseException:
            self.stop()
            raise

    def client(self, devices: Sequence[str]) -> dict[str, str | None]:
        """What differs in the environment of a process on these devices; nothing unless all of them are served.

        By UUID, because under a daemon that does not serve all devices of a machine an index means another one.
        """
        if not devices or not set(devices) <= self._uuids.keys():
            return {}
        return {**self._folders, "CUDA_VISIBLE_DEVICES": ",".join(self._uuids[device] for device in devices)}

    def _await_socket(self) -> None:
        due_s = time.monotonic() + _START_S
        while not (self._folder / "control").exists():
            if self._process.poll() is not None or time.monotonic() > due_s:
                log = self._folder / "control.log"
                said = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
                raise LaunchError(
                    f"{MPS_CONTROL} did not come up{': ' + said[0] if said else ''}; deploy.mps=off does without it"
                )
            time.sleep(_POLL_S)

    def kill(self) -> None:
        """At once, its server included. Takes no lock, waits for nothing."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def stop(self) -> None:
        """Once its clients have gone. A second call does nothing."""
        if self._stopped:
            return
        self._stopped = True
        if self._process.poll() is None:
            try:
                subprocess.run(
                    [MPS_CONTROL],
                    input=b"quit\n",
                    env=self._environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=_STOP_S,
                    check=False,
                )
                self._process.wait(_STOP_S)
            except (OSError, subprocess.TimeoutExpired):
                self.kill()
                self._process.wait()
        self.kill()  # a server that has outlived it
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)


def _locked(folder: Path) -> int:
    """A descriptor whose lock says that the folder is in use. Raises OSError if it is already."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_stale() -> None:
    """Folders of runs that were killed: nobody holds their lock, and their daemons have ended with them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # a live one, or another user's
            descriptor = _locked(folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)
