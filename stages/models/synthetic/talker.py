"""The synthetic talker, and the singer of `synthetic_dag`: a codec frame a row, from the text as far as it has come."""

from stages.events import FinishReason
from stages.messages import StageRequest
from stages.models.synthetic.codes import CODE_GROUPS, frame_codes, text_so_far
from stages.models.synthetic.expected import FRAMES_A_TOKEN
from stages.models.synthetic.faults import NEVER_ENDING_FRAME_S
from stages.models.synthetic.options import SyntheticOptions
from stages.models.synthetic.runner import State, SyntheticRunner
from stages.models.synthetic.tokens import TOKEN_BYTES
from stages.payload import Tensor
from stages.runners.base import RowResult
from stages.schedulers.base import Row


class TalkerState(State):
    """`text` is the checksum of the tokens that have been spoken so far."""

    __slots__ = ("seed", "text")

    def __init__(self, request: StageRequest, options: SyntheticOptions) -> None:
        super().__init__(request, options)
        self.seed = request.seed if request.sampling.seed is None else request.sampling.seed
        self.text = 0


class TalkerRunner(SyntheticRunner[TalkerState]):
    """One row is one frame. Frame n takes token n, if there is one, so it waits for it."""

    tensor = "tokens"

    def start(self, request: StageRequest, options: SyntheticOptions) -> TalkerState:
        return TalkerState(request, options)

    def compute(self, row: Row, state: TalkerState) -> RowResult:
        position, options, text = row.position, state.options, state.stream("thinker")
        # counted by tokens, the frames are known when the text has ended, and not reached before
        frames = len(text.data) // TOKEN_BYTES * FRAMES_A_TOKEN if options.frames is None else options.frames
        if position >= frames:
            if not options.never_end:
                return RowResult(uid=row.uid, units=0, finished="empty")
            self._sleep(NEVER_ENDING_FRAME_S)
        token = text.data[position * TOKEN_BYTES : (position + 1) * TOKEN_BYTES]
        if token:
            state.text = text_so_far(state.text, token)
        codes = frame_codes(self._stage, state.text, state.seed, state.request.choice, position)
        finished = None if options.never_end else _reason(position + 1, frames, state.request.sampling.max_tokens)
        tensor = Tensor(name="codes", dtype="uint8", shape=(1, CODE_GROUPS), data=memoryview(codes))
        return RowResult(
            uid=row.uid,
            units=1,
            finished=finished,
            emissions=self.emissions(state, tensor, position, finished),
        )


def _reason(done: int, frames: int, limit: int | None) -> FinishReason | None:
    if done == frames:
        return "stop"
    return "length" if done == limit else None
