"""POST /tokenize: the ids that the model's own tokenizer makes of a text, or of a conversation with its template.

The stage that reads the prompt tells them: it has the tokenizer, and counts media as it will read them.
"""

from contextlib import AsyncExitStack, aclosing
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from omni_cli.runtime.request import OmniRequest
from omni_cli.server.leaving import unless_client_leaves
from omni_cli.server.openapi import OF_A_CALL
from omni_cli.server.prepare import Preparer
from omni_cli.server.protocol import TokenizeRequest
from omni_cli.server.service import Service
from omni_cli.server.system import TheService, TheTraceparent, check_model, require_output

router = APIRouter()


@router.post("/tokenize", responses=OF_A_CALL)
async def tokenize(
    body: TokenizeRequest, request: Request, service: TheService, traceparent: TheTraceparent
) -> dict[str, Any]:
    """`max_model_len` is null where the recipe has no longest sequence."""
    check_model(service, body.model)
    require_output(service, "text", request.url.path)
    preparer: Preparer = request.app.state.preparer
    prepared = await preparer.tokens(body, traceparent)
    ids, context = await unless_client_leaves(request, _tokens(service, prepared.requests[0]))
    return {"tokens": ids, "count": len(ids), "max_model_len": context}


async def _tokens(service: Service, asked: OmniRequest) -> tuple[list[int], int | None]:
    ids: list[int] = []
    context: int | None = None
    async with AsyncExitStack() as held:
        await service.enter([asked], held)
        async with aclosing(service.chunks(asked)) as chunks:
            async for chunk in chunks:
                if chunk.payload is not None:
                    ids += chunk.payload.tensor("token_ids").data.cast("i").tolist()
                    context = dict(chunk.payload.meta).get("context_tokens")  # type: ignore[assignment]
    return ids, context
