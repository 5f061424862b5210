"""Runs requests through the engine over real stage processes, all of them at once, and looks at what is left."""

import asyncio
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from omni_cli.launch.launcher import LocalLauncher
from omni_cli.plan.model import ExecutionPlan
from omni_cli.plan.spec import stage_specs
from omni_cli.runtime.engine import OmniEngine
from omni_cli.runtime.events import Event, Listener
from omni_cli.runtime.outputs import OmniOutput, OutputAssembler
from omni_cli.runtime.request import OmniRequest, RequestError
from stages.connectors.ring import SHM_DIR
from stages.messages import ChatMessage, Part, Sampling
from stages.payload import Payload
from stages.runners.tensors import from_payload, to_payload
from tests.integration.qwen3_omni_reference import Conversation, Media

MEDIA_BYTES = 1 << 20


def greedy_request(
    name: str,
    conversation: Conversation,
    *,
    text_tokens: int,
    codec_tokens: int,
    outputs: tuple[str, ...] = ("text", "audio"),
    ignore_eos: bool = False,
) -> OmniRequest:
    """With `ignore_eos` the limits are the lengths."""
    media: dict[str, Media] = {}
    messages = []
    for role, parts in conversation:
        built = []
        for part in parts:
            if isinstance(part, str):
                built.append(Part(kind="text", text=part))
            else:
                key = f"media{len(media)}"
                media[key] = part
                built.append(Part(kind=part.kind, media=key, fps=part.fps))
        messages.append(ChatMessage(role=role, parts=tuple(built)))
    tensors = tuple(to_payload(key, torch.from_numpy(part.array)) for key, part in media.items())
    return OmniRequest(
        request_id=name,
        seed=0,
        conversation=tuple(messages),
        outputs=outputs,
        media=Payload(tensors=tensors),
        sampling={
            "thinker": Sampling(temperature=0.0, max_tokens=text_tokens, ignore_eos=ignore_eos),
            "talker": Sampling(temperature=0.0, max_tokens=codec_tokens, ignore_eos=ignore_eos),
        },
    )


@dataclass(kw_only=True)
class EngineRun:
    """What one run gave: outputs or the error by request; segments that it left and slots not returned."""

    outputs: dict[str, dict[str, OmniOutput]] = field(default_factory=dict)
    errors: dict[str, RequestError] = field(default_factory=dict)
    segments_left: set[str] = field(default_factory=set)
    live_slots: int = -1

    def waveform(self, name: str) -> torch.Tensor:
        payloads = self.outputs[name]["audio"].payloads
        return torch.cat([from_payload(payload.tensor("audio")) for payload in payloads])


def _deaf(source: str, event: Event) -> None:
    pass


def run_requests(plan: ExecutionPlan, requests: Sequence[OmniRequest], listener: Listener = _deaf) -> EngineRun:
    """Starts the plan, drives all requests at once to their ends, stops the plan."""
    run, run_id = EngineRun(), secrets.token_hex(4)
    specs = stage_specs(plan, run_id, media_bytes=MEDIA_BYTES)
    running = LocalLauncher(plan, specs, listener=listener).start()

    async def drive() -> None:
        async with OmniEngine(plan, running, listener=listener) as engine:
            await asyncio.gather(*(_one(engine, request, run) for request in requests))

    try:
        asyncio.run(drive())
    finally:
        running.stop()
        run.live_slots = running.live_slots
    run.segments_left = {name for name in os.listdir(SHM_DIR) if run_id in name}
    return run


async def _one(engine: OmniEngine, request: OmniRequest, run: EngineRun) -> None:
    assembler = OutputAssembler(request.outputs)
    try:
        async for chunk in engine.generate(request):
            assembler.add(chunk)
        run.outputs[request.request_id] = assembler.outputs
    except RequestError as error:
        run.errors[request.request_id] = error
