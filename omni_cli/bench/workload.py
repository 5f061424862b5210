"""The load of `omni bench overhead`: `synthetic` without any delay, so that only the machinery is measured."""

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

_CONVERSATION = (ChatMessage(role="user", parts=(Part(kind="text", text=PROMPT),)),)


def make(number: int) -> OmniRequest:
    """Text and speech, the same each time but for its id and its seed."""
    return OmniRequest(request_id=str(number), seed=number, conversation=_CONVERSATION, outputs=OUTPUTS)
