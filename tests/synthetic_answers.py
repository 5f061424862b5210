"""What the synthetic families must answer, computed in one go from the request.

It shares the code of single frames with the stages, and none of what brings frames from stage to stage.
"""

from array import array

from stages.models.synthetic.codes import FRAMES_A_TOKEN, frame_codes, text_so_far
from stages.models.synthetic.mixer import mixed_codes
from stages.models.synthetic.options import SyntheticOptions
from stages.models.synthetic.tokens import TOKEN_BYTES, pack, tokenize
from stages.models.synthetic.waves import samples


def expected_audio(text: str, seed: int, frames: int | None = None, choice: int = 0) -> "array[float]":
    """The samples of output `audio` for the text of output `text`: float32, 1920 a frame."""
    return _sound(_codes("talker", text, seed, frames, choice))


def expected_mix(text: str, seed: int, frames: int | None = None, choice: int = 0) -> "array[float]":
    """The samples of output `audio_mix` of `synthetic_dag`."""
    prefixes = _prefixes(text)
    talker, singer = (_codes(stage, text, seed, frames, choice) for stage in ("talker", "singer"))
    mixed = [
        mixed_codes(said, sung, prefixes[min(frame, len(prefixes) - 1)])
        for frame, (said, sung) in enumerate(zip(talker, singer, strict=True))
    ]
    return _sound(mixed)


def _prefixes(text: str) -> list[int]:
    packed, checksum, prefixes = pack(tokenize(text)), 0, []
    for start in range(0, len(packed), TOKEN_BYTES):
        checksum = text_so_far(checksum, packed[start : start + TOKEN_BYTES])
        prefixes.append(checksum)
    return prefixes or [0]


def _codes(stage: str, text: str, seed: int, frames: int | None, choice: int) -> list[bytes]:
    prefixes = _prefixes(text)
    count = FRAMES_A_TOKEN * len(tokenize(text)) if frames is None else frames
    return [frame_codes(stage, prefixes[min(frame, len(prefixes) - 1)], seed, choice, frame) for frame in range(count)]


def _sound(frames: list[bytes]) -> "array[float]":
    sound = array("f")
    sound.frombytes(samples(b"".join(frames), 0, len(frames), SyntheticOptions()))
    return sound
