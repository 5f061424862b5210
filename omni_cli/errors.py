"""The error tree of the control plane: every refusal and failure that a user can meet is one of these.

A message says what is wrong, where (key and file, or stage and request) and what to do. The HTTP status and
the exit code follow from `fault` and `exit_code`; nothing else decides them.
"""

import errno
from typing import Literal

Fault = Literal["client", "server"]

_REMEDIES = {
    errno.EMFILE: "this process may have no more files open; raise `ulimit -n`",
    errno.ENFILE: "this machine may have no more files open; raise fs.file-max",
}


def reason(error: OSError) -> str:
    """Why the system refused, for a person, and where it is known what to do."""
    remedy = _REMEDIES.get(error.errno or 0)
    return f"{error.strerror or error}{f': {remedy}' if remedy else ''}"


class OmniError(Exception):
    """Base of the tree. `fault` says whose error it is; `exit_code` is what the command line ends with."""

    fault: Fault = "server"
    exit_code: int = 1


class ConfigError(OmniError):
    """A key, value or file of the configuration is wrong; found before anything is planned."""

    fault = "client"
    exit_code = 2


class PlanError(OmniError):
    """The combination cannot run here, though each key is valid; found before any process is spawned."""

    fault = "client"
    exit_code = 2


class InputError(OmniError):
    """What a request holds is missing or not what it claims to be. `param` names the part at fault."""

    fault = "client"
    exit_code = 2

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class LaunchError(OmniError):
    """A stage process could not be started, or did not become ready in time."""


class RunEnding(LaunchError):
    """No process is started any more."""


class StageFailure(OmniError):
    """A stage failed a request, or died with it. `fault` is "client" if the stage blames what was asked."""

    def __init__(
        self,
        message: str,
        *,
        stage: str | None = None,
        request_id: str | None = None,
        fault: Fault = "server",
    ) -> None:
        super().__init__(message)
        self.stage = stage
        self.request_id = request_id
        self.fault = fault


class ArtifactError(OmniError):
    """A result could not be encoded or written (disk full, no permission, samples that are no sound)."""


class TraceError(OmniError):
    """A trace is absent, corrupt, of another schema version, or its file is in the way of a new one."""

    fault = "client"
    exit_code = 2
