"""The fan-in of `synthetic_dag`: frames of talker and singer, moved by the text, become one sound."""

from dataclasses import dataclass

from stages.models.synthetic.code2wav import reason
from stages.models.synthetic.codes import CODE_GROUPS, CODEBOOK_SIZE, text_so_far
from stages.models.synthetic.runner import State, Stream, SyntheticRunner
from stages.models.synthetic.tokens import TOKEN_BYTES
from stages.models.synthetic.waves import SILENCE, audio
from stages.payload import Payload
from stages.runners.base import Output, RowResult
from stages.schedulers.base import Row


def mixed_codes(talker: bytes | None, singer: bytes | None, text: int) -> bytes:
    """A frame of the mixer: talker and singer take turns, each code moved by the text. None is silent."""
    frame = bytearray((SILENCE,) * CODE_GROUPS)
    for group in range(CODE_GROUPS):
        source = singer if group % 2 else talker
        if source is not None:
            frame[group] = (source[group] ^ text) & (CODEBOOK_SIZE - 1)
    return bytes(frame)


@dataclass(slots=True)
class MixerState(State):
    """`text` is the checksum of the tokens up to the frame that was mixed last."""

    text: int = 0


class MixerRunner(SyntheticRunner[MixerState]):
    """One unit is one frame. Ends with the longer of its two voices; where one is over, its half is silent."""

    state = MixerState

    def warm_up(self) -> None:
        audio(bytes(CODE_GROUPS), 0, 1, self._defaults)  # fills the tables

    def take(self, state: MixerState, stream: Stream, payload: Payload) -> None:
        stream.data += payload.tensors[0].data  # tokens of the thinker, codes of the others

    def compute(self, row: Row, state: MixerState) -> RowResult:
        voices = (state.stream("talker"), state.stream("singer"))
        tokens = state.stream("thinker").data
        frames = max(len(voice.data) for voice in voices) // CODE_GROUPS
        end = min(row.position + row.units, frames)
        mixed = bytearray()
        for frame in range(row.position, end):
            if token := tokens[frame * TOKEN_BYTES : (frame + 1) * TOKEN_BYTES]:
                state.text = text_so_far(state.text, token)
            talker, singer = (
                bytes(voice.data[frame * CODE_GROUPS : (frame + 1) * CODE_GROUPS]) or None for voice in voices
            )
            mixed += mixed_codes(talker, singer, state.text)
        units = end - row.position
        outputs: tuple[Output, ...] = ()
        if units:
            payload = audio(mixed, row.position, units, state.options)
            outputs = (Output(modality="audio_mix", units=units, payload=payload),)
        finished = end == frames and all(voice.ended for voice in voices)
        return RowResult(
            uid=row.uid, units=units, finished=reason(frames, *voices) if finished else None, outputs=outputs
        )
