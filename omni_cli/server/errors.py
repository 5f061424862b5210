"""One shape for every error over HTTP, and one place that decides its status.

The body is OpenAI's: {"error": {"message", "type", "param", "code"}}. Client faults are 400 to 429, server faults 500
to 504; a message never holds a traceback.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omni_cli.config.report import worded
from omni_cli.errors import InputError, OmniError, StageFailure
from omni_cli.runtime.request import RequestError

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_UNION_BRANCH = re.compile(r"(str|int|bool|float)$|[A-Z]|(list|literal)\[|tagged-union|function-|constrained-|is-inst")
_PART_TAG = re.compile(r"text|(image|audio|video)_url|(in|out)put_(text|audio|image)")
# How a request's failure inside the engine reads over HTTP, by the kind of its error.
_SERVER_FAULTS = {
    "DeadlineExceeded": (504, "timeout"),
    "ProcessDied": (503, "stage_died"),
    "NoReplica": (503, "no_stage"),
    "QueueFull": (429, "overloaded"),
}


@dataclass(slots=True)
class ApiError(Exception):
    """An answer that is an error. `retry_after_s` becomes a Retry-After header."""

    status: int
    message: str
    code: str
    param: str | None = None
    retry_after_s: int | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def all_headers(self) -> dict[str, str]:
        retry = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        return {**self.headers, **retry}


def bad_request(message: str, *, param: str | None = None, code: str = "invalid_value") -> ApiError:
    return ApiError(400, message, code, param)


def invalid(problems: Sequence[Mapping[str, Any]]) -> ApiError:
    """What pydantic found in a body, as its `errors()` lists it. Of a union it lists all branches: the one that got
    furthest is the one that was meant."""
    problem = max(problems, key=lambda found: (len(found["loc"]), not found["type"].endswith("_type")))
    if problem["type"] == "json_invalid":
        return bad_request(f"the body is not JSON: {problem['ctx']['error']}", code="invalid_json")
    if isinstance(problem["input"], bytes):
        return bad_request("the body is read with Content-Type: application/json only", code="invalid_content_type")
    unknown = problem["type"] == "extra_forbidden"
    param = _param(problem["loc"]) or None
    message = f"{param or 'body'}: {'is not known here' if unknown else worded(problem)}"
    return bad_request(message, param=param, code="unknown_parameter" if unknown else "invalid_value")


def _param(loc: Sequence[str | int]) -> str:
    """`messages[0].content`; what pydantic adds to say which type of a union it tried is left out."""
    path = ""
    for before, part in zip(("", *loc), loc, strict=False):
        if isinstance(part, int):
            path += f"[{part}]"
        elif isinstance(before, int) and _PART_TAG.fullmatch(part):
            continue
        elif part != "body" and not _UNION_BRANCH.match(part):
            path += f".{part}" if path else part
    return path


def api_error(error: Exception) -> ApiError:
    """What a client is told of an exception. Anything but our own errors is a 500 without details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InputError):
        return bad_request(str(error), param=error.param)
    if isinstance(error, RequestError):
        return _request_error(error)
    if isinstance(error, StageFailure):
        return ApiError(500 if error.fault == "server" else 400, str(error), "stage_failed")
    if isinstance(error, OmniError):
        return ApiError(400 if error.fault == "client" else 500, str(error), "failed")
    return ApiError(500, f"internal error ({type(error).__name__}); the server's log has the details", "internal_error")


def _request_error(error: RequestError) -> ApiError:
    cause = error.end.error
    if cause is None:
        return ApiError(503, f"{error}: the server is shutting down", "draining")  # nobody else cancels a live client's
    if cause.fault == "client":
        return bad_request(f"stage {cause.stage}: {cause.message}", code=cause.kind)
    status, code = _SERVER_FAULTS.get(cause.kind, (500, "stage_failed"))
    message = f"stage {cause.stage or '?'}: {cause.kind}: {cause.message}"
    return ApiError(status, message, code, retry_after_s=1 if status == 429 else None)
