"""The synthetic thinker: says the last user turn again, token by token, with a tag where a medium stands.

The tag holds the medium's checksum, so that a medium that is lost or altered shows in the text, and so in the audio.
"""

import zlib
from dataclasses import dataclass, field

from stages.errors import RequestRefused, StageError
from stages.messages import ChatMessage, Part
from stages.models.synthetic.runner import State, Stream, SyntheticRunner, ended
from stages.models.synthetic.tokens import TOKEN_BYTES, TOKEN_WIDTH, pack, token_id, tokenize
from stages.payload import NO_BYTES, Payload, Tensor
from stages.runners.base import Output, RowResult
from stages.runners.token_list import token_list
from stages.schedulers.base import Row


def echo(conversation: tuple[ChatMessage, ...], media: dict[str, int]) -> str:
    """The answer: the last user turn, a medium as `[kind:checksum]`. `media` has the CRC-32 of each medium's bytes."""
    for message in reversed(conversation):
        if message.role == "user":
            return "".join(_said(part, media) for part in message.parts)
    raise RequestRefused("the conversation has no user turn to answer")


def _said(part: Part, media: dict[str, int]) -> str:
    if part.kind == "text":
        return part.text
    if part.media not in media:
        raise StageError(f"medium {part.media!r} has not arrived; there are {sorted(media)}")
    return f"[{part.kind}:{media[part.media]:08x}]"


@dataclass(slots=True)
class ThinkerState(State):
    """`tokens` are those of the answer, and `packed` the same for the stages that are fed; made when it first runs."""

    media: dict[str, int] = field(default_factory=dict)
    tokens: list[str] | None = None
    packed: memoryview = NO_BYTES


class ThinkerRunner(SyntheticRunner[ThinkerState]):
    """One row is one token."""

    state = ThinkerState

    def take(self, state: ThinkerState, stream: Stream, payload: Payload) -> None:
        for tensor in payload.tensors:
            state.media[tensor.name] = zlib.crc32(tensor.data)

    def compute(self, row: Row, state: ThinkerState) -> RowResult:
        if state.tokens is None:
            state.tokens = tokenize(echo(state.request.conversation, state.media))
            state.packed = memoryview(pack(state.tokens))
        if state.request.tokenize is not None:
            return token_list(state.request, [token_id(token) for token in state.tokens], None)
        if not state.tokens:
            return RowResult(uid=row.uid, units=0, finished="empty")
        position, done = row.position, row.position + 1
        limit = state.request.sampling.max_tokens
        finished = ended(done, len(state.tokens), limit)
        start = position * TOKEN_BYTES
        data = state.packed[start : start + TOKEN_BYTES]
        tokens = Tensor(name="tokens", dtype="int32", shape=(1, TOKEN_WIDTH), data=data)
        outputs: tuple[Output, ...] = ()
        if state.request.outputs:
            outputs = (Output(modality="text", units=1, text=state.tokens[position]),)
        return RowResult(
            uid=row.uid,
            units=1,
            finished=finished,
            emissions=self.emissions(state, tokens, position, finished),
            outputs=outputs,
        )
