"""The load of `omni bench overhead`: `synthetic` without any delay, so that only the machinery is measured."""

import itertools
import time

from omni_cli.bench.load import closed_loop
from omni_cli.errors import StageFailure
from omni_cli.runtime.engine import OmniEngine
from omni_cli.runtime.request import OmniRequest
from stages.messages import ChatMessage, Part

CONCURRENCY = 32
FRAMES = 8
PROMPT = "one two three four five six seven eight"  # eight tokens of the synthetic tokenizer
OUTPUTS = ("text", "audio")
UNITS = {"text": len(PROMPT.split()), "audio": FRAMES}

WORDS = (
    "recipe=synthetic",
    *(f"deploy.stages.{stage}.max_batch={CONCURRENCY}" for stage in ("thinker", "talker", "code2wav")),
    f"synthetic.frames={FRAMES}",
)


class Workload:
    """A closed loop of `CONCURRENCY` callers over one engine: each asks for text and speech, and then again."""

    def __init__(self, engine: OmniEngine) -> None:
        self._engine = engine
        self._numbers = itertools.count()
        self._conversation = (ChatMessage(role="user", parts=(Part(kind="text", text=PROMPT),)),)

    async def block(self, requests: int) -> float:
        """Seconds from the first request's admission to the last one's end. OmniError if one fails."""
        start = time.perf_counter()
        await closed_loop(requests, CONCURRENCY, lambda number, due_ns: self._one(next(self._numbers)))
        return time.perf_counter() - start

    async def _one(self, number: int) -> None:
        request = OmniRequest(request_id=str(number), seed=number, conversation=self._conversation, outputs=OUTPUTS)
        units = dict.fromkeys(OUTPUTS, 0)
        async for chunk in self._engine.generate(request):
            units[chunk.modality] += chunk.units
        if units != UNITS:
            raise StageFailure(f"request {number} gave {units} where {UNITS} was asked for", request_id=str(number))
