"""What the OpenAPI document says of answers beyond what FastAPI finds by itself: errors, and bodies that are not JSON.

It must not decide anything: `errors` does.
"""

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

Responses = dict[int | str, dict[str, Any]]


class ErrorDetail(BaseModel):
    """`param` is the part of the request that is wrong, if one is."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorDetail


def declared(*statuses: int) -> Responses:
    """That a route answers with these errors."""
    return {status: {"model": ErrorBody, "description": HTTPStatus(status).phrase} for status in statuses}


def content(*media_types: str) -> Responses:
    """That a route answers with one of these."""
    return {200: {"content": {media_type: {} for media_type in media_types}}}


OF_A_BODY = declared(400, 404, 413)
"""Of every route that takes a body."""
OF_A_CALL = declared(400, 404, 413, 429, 500, 503, 504)
"""Of every route that asks the engine."""


class App(FastAPI):
    """FastAPI says of every body that it may be answered with 422; here that is a 400."""

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        return document
