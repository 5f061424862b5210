"""The synthetic vocoder: codec frames in, samples out."""

from stages.events import FinishReason
from stages.messages import StageRequest
from stages.models.synthetic.codes import CODE_GROUPS
from stages.models.synthetic.options import SyntheticOptions
from stages.models.synthetic.runner import State, SyntheticRunner
from stages.models.synthetic.waves import audio
from stages.runners.base import Output, RowResult
from stages.schedulers.base import Row


class Code2WavRunner(SyntheticRunner[State]):
    """One unit is one frame; a row takes as many as have come."""

    tensor = "codes"

    def warm_up(self) -> None:
        audio(bytes(CODE_GROUPS), 0, 1, self._defaults)  # fills the tables

    def start(self, request: StageRequest, options: SyntheticOptions) -> State:
        return State(request, options)

    def compute(self, row: Row, state: State) -> RowResult:
        stream, end = state.stream("talker"), row.position + row.units
        outputs: tuple[Output, ...] = ()
        if row.units:
            codes = stream.data[row.position * CODE_GROUPS : end * CODE_GROUPS]
            payload = audio(codes, row.position, row.units, state.options)
            outputs = (Output(modality="audio", units=row.units, payload=payload),)
        finished = stream.ended and end * CODE_GROUPS >= len(stream.data)
        return RowResult(uid=row.uid, units=row.units, finished=reason(end) if finished else None, outputs=outputs)


def reason(frames: int) -> FinishReason:
    """Why an audio output of that many frames ended."""
    return "stop" if frames else "empty"
