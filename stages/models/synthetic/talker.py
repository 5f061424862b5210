"""The synthetic talker, and the singer of `synthetic_dag`: a codec frame a row, from the text as far as it has come."""

from dataclasses import dataclass

from stages.models.synthetic.codes import CODE_GROUPS, FRAMES_A_TOKEN, frame_codes, text_so_far
from stages.models.synthetic.faults import NEVER_ENDING_FRAME_S
from stages.models.synthetic.runner import State, SyntheticRunner, ended
from stages.models.synthetic.tokens import TOKEN_BYTES
from stages.payload import Tensor
from stages.runners.base import RowResult
from stages.schedulers.base import Row


@dataclass(slots=True)
class TalkerState(State):
    """`text` is the checksum of the tokens that have been spoken so far."""

    text: int = 0


class TalkerRunner(SyntheticRunner[TalkerState]):
    """One row is one frame. Frame n takes token n, if there is one, so it waits for it."""

    state, tensor = TalkerState, "tokens"

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
        request = state.request
        codes = frame_codes(self._stage, state.text, request.own_seed, request.choice, position)
        finished = None if options.never_end else ended(position + 1, frames, request.sampling.max_tokens)
        tensor = Tensor(name="codes", dtype="uint8", shape=(1, CODE_GROUPS), data=memoryview(codes))
        return RowResult(
            uid=row.uid,
            units=1,
            finished=finished,
            emissions=self.emissions(state, tensor, position, finished),
        )
