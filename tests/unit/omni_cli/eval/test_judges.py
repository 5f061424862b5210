"""What is the same word, the end of speech, and noise; the judges of sound only where their packages are."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from omni_cli.errors import InputError
from omni_cli.eval.judges import RATE, Judges, voiced
from stages.models.qwen_image.judge import Judge

JUDGES = Judges(Path())
TEXT = st.text(st.sampled_from("ab1 ,.-'é20"), max_size=24)


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ("Twenty plus zero is twenty.", "20 + 0 = 20"),
        ("Nine, ten, eleven.", "9 10 11"),
        ("7 - 3", "seven, three"),
        ("Seven minus three is four.", "7-3=4"),
        ("One, two, three.", "1-2-3"),
        ("Five, six, seven, eight.", "5678"),
        ("OK", "Okay."),
        ("A gray colour", "a grey color"),
        ("S, T, A, R.", "S-T-A-R."),
        ("S, T, A, R.", "STAR"),
        ("It’s fine", "it's FINE!"),
    ],
)
def test_the_same_is_the_same(said: str, heard: str) -> None:
    right, of = JUDGES.words(said, heard)
    assert right == of > 0


@given(TEXT, TEXT)
def test_errors_are_capped(said: str, heard: str) -> None:
    assert JUDGES.words("the sky is blue", "the sky blue now") == (2, 4)
    assert JUDGES.words("bye now", "bye " * 200) == (0, 2)
    right, of = JUDGES.words(said, heard)
    assert 0 <= right <= of


def test_the_nearest_text_is_found_by_letters() -> None:
    assert JUDGES.nearest("for teen", ["Four.", "Fourteen.", "Ten."]) == "Fourteen."


@pytest.mark.parametrize(
    ("levels", "speech", "quiet"),
    [
        ((0.5,) * 6 + (0.0,) * 20, 6, True),
        ((0.5,) * 6 + (0.2,) * 4 + (0.0,) * 16, 6, True),  # the last sound dies away
        ((0.5,) * 6 + (0.1,) * 20, 6, False),
        ((0.5,) * 6, 6, False),  # cut off
        ((0.0,) * 6, 0, False),
    ],
)
def test_where_speech_ends(levels: tuple[float, ...], speech: int, quiet: bool) -> None:
    window = 512
    sound = np.concatenate([level * np.sin(np.arange(window) / 5, dtype=np.float32) for level in levels])
    found = voiced(sound, [(0, speech * window)] if speech else [])
    assert (found.spoken, found.ends_quiet) == (speech > 0, quiet)


def test_silence_and_noise_are_no_speech() -> None:
    pytest.importorskip("faster_whisper", reason="pip install 'omni-stages[eval]'")
    pytest.importorskip("speechmos", reason="pip install 'omni-stages[eval]'")
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, RATE).astype(np.float32)
    for sound in (noise, np.zeros(RATE, np.float32)):
        assert not JUDGES.silero(sound).spoken
        assert JUDGES.dnsmos(sound) < 2


def test_a_judge_of_pictures_has_names_for_what_it_sees(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        JUDGES.pictures(np.zeros((64, 64, 3), np.uint8))
    torch.manual_seed(0)
    judge = Judge(2, 3, 1, 2)
    for head, right in zip(judge.heads, (1, 2, 0, 1), strict=True):
        head.bias.data[right] = 100.0
    save_file({name: values.half() for name, values in judge.state_dict().items()}, tmp_path / "judge.safetensors")
    names = {"things": ["cat", "red star"], "colours": ["", "red"], "sizes": ["small"], "backgrounds": ["blue", "gray"]}
    (tmp_path / "judge.json").write_text(json.dumps(names))
    seen = Judges(tmp_path).pictures(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))
    assert seen == {"thing": "red star", "right": "", "colour": "red", "size": "small", "background": "gray"}
    os.truncate(tmp_path / "judge.safetensors", 1000)
    with pytest.raises(InputError, match=r"judge\.safetensors: are no judge of pictures"):
        Judges(tmp_path).pictures(np.zeros((64, 64, 3), np.uint8))
