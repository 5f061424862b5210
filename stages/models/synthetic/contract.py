"""What the planner knows of the synthetic families: stages without weights, for fault and load tests. Torch-free.

`synthetic` is a chain: thinker -> talker -> code2wav, with the outputs `text` (thinker) and `audio` (code2wav).
`synthetic_dag` has every kind of edge:

    thinker -> talker -> code2wav           outputs: text (thinker), audio (code2wav), audio_mix (mixer)
    thinker -> singer                       fan-out of thinker, and of talker
    talker, singer -> mixer                 fan-in
    thinker ---------> mixer                skips a stage

Every edge can be fed whole or piece by piece, and gives the same result either way.
"""

from collections.abc import Mapping
from random import Random
from string import ascii_lowercase
from typing import Any

from stages.config import StageTuning
from stages.models.registry import FamilyContract, InputContract, RequestSize, StageContract
from stages.models.synthetic.options import DagOptions, SyntheticOptions
from stages.models.synthetic.tokens import TOKEN_WIDTH

MEDIA = ("image", "audio", "video")
MAX_FRAMES_A_ROW = 64  # of code2wav and mixer: a step's piece of audio is at most 64 * 1920 samples

_EITHER = InputContract(modes=("incremental", "complete"))
_AHEAD = InputContract(modes=("incremental", "complete"), lookahead_units=1)
# no KV cache unless `kv_blocks` is given
_LANGUAGE = StageTuning(step_tokens=2048, kv_block_tokens=16, kv_blocks=0)


def _language(*producers: str, outputs: tuple[str, ...] = (), contract: InputContract = _EITHER) -> StageContract:
    inputs = dict.fromkeys(producers, contract)
    return StageContract(execution_type="llm_ar", inputs=inputs, outputs=outputs, sampled=True, tuning=_LANGUAGE)


def _codec(*producers: str, output: str) -> StageContract:
    inputs = dict.fromkeys(producers, _EITHER)
    return StageContract(
        execution_type="llm_generation", inputs=inputs, outputs=(output,), max_units_a_row=MAX_FRAMES_A_ROW
    )


def _edge_bytes(model_path: str, producer: str, consumer: str) -> int:
    """Room for decoded media on the way in, for 64 frames of samples on the way out, for codes in between."""
    if producer == "request":
        return 16 << 20
    return 2 << 20 if consumer == "request" else 1 << 20


def _sized(size: RequestSize, draw: Random) -> Mapping[str, Any]:
    """The answer is the prompt, so this has as many words, each a token with the blank before it."""
    words = ("".join(draw.choices(ascii_lowercase, k=TOKEN_WIDTH - 2)) for _ in range(size.text_tokens))
    own = {"frames": size.frames, "prompt_tokens": size.prompt_tokens}
    return {"prompt": " ".join(words), "synthetic": own}


CONTRACTS: Mapping[str, FamilyContract] = {
    "synthetic": FamilyContract(
        name="synthetic",
        stages={
            "thinker": _language(outputs=("text",)),
            "talker": _language("thinker"),
            "code2wav": _codec("talker", output="audio"),
        },
        media=MEDIA,
        has_weights=False,
        options=SyntheticOptions,
        edge_bytes=_edge_bytes,
        sized=_sized,
    ),
    "synthetic_dag": FamilyContract(
        name="synthetic_dag",
        stages={
            "thinker": _language(outputs=("text",)),
            "talker": _language("thinker"),
            "singer": _language("thinker", contract=_AHEAD),  # sings a token only if it knows the next one
            "code2wav": _codec("talker", output="audio"),
            "mixer": _codec("talker", "singer", "thinker", output="audio_mix"),
        },
        media=MEDIA,
        has_weights=False,
        options=DagOptions,
        edge_bytes=_edge_bytes,
        sized=_sized,
    ),
}
