"""The synthetic vocoder: codec frames in, samples out."""

from stages.events import FinishReason
from stages.models.synthetic.codes import CODE_GROUPS
from stages.models.synthetic.runner import State, Stream, SyntheticRunner
from stages.models.synthetic.waves import audio
from stages.runners.base import Output, RowResult
from stages.schedulers.base import Row


class Code2WavRunner(SyntheticRunner[State]):
    """One unit is one frame; a row takes as many as have come."""

    state, tensor = State, "codes"

    def warm_up(self) -> None:
        audio(bytes(CODE_GROUPS), 0, 1, self._defaults)  # fills the tables

    def compute(self, row: Row, state: State) -> RowResult:
        stream, end = state.stream("talker"), row.position + row.units
        outputs: tuple[Output, ...] = ()
        if row.units:
            codes = stream.data[row.position * CODE_GROUPS : end * CODE_GROUPS]
            payload = audio(codes, row.position, row.units, state.options)
            outputs = (Output(modality="audio", units=row.units, payload=payload),)
        finished = stream.ended and end * CODE_GROUPS >= len(stream.data)
        return RowResult(
            uid=row.uid, units=row.units, finished=reason(end, stream) if finished else None, outputs=outputs
        )


def reason(frames: int, *streams: Stream) -> FinishReason:
    """Why an audio output of that many frames ended: cut short if a stream was that it is made of."""
    if not frames:
        return "empty"
    return "length" if any(stream.reason == "length" for stream in streams) else "stop"
