"""The staged Qwen3-Omni answers exactly what transformers' own `generate` answers: greedy, fp32, on the CPU.

Also the requests on which `generate` itself fails, and that a request does not depend on its company.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"

from stages.messages import Sampling
from tests.integration.in_process import Answered, Asked, Pipeline
from tests.integration.qwen3_omni_reference import Conversation, Media, Reference

_NOISE = np.random.default_rng(7)
IMAGE = Media(kind="image", array=_NOISE.integers(0, 256, (64, 96, 3), dtype=np.uint8))
ODD_IMAGE = Media(kind="image", array=_NOISE.integers(0, 256, (50, 75, 3), dtype=np.uint8))
VIDEO = Media(kind="video", array=_NOISE.integers(0, 256, (5, 64, 64, 3), dtype=np.uint8), fps=2.0)
_SECONDS = np.arange(24_000) / 16_000
AUDIO = Media(kind="audio", array=(0.3 * np.sin(2770 * _SECONDS * (1 + _SECONDS))).astype(np.float32))
# Shorter than the audio tower's window, so that the tower's padding of one depends on the other.
CLIPS = [Media(kind="audio", array=AUDIO.array[:samples]) for samples in (5_000, 9_000)]
# A step in time is no whole number of positions.
SLOW_VIDEO = Media(kind="video", array=VIDEO.array, fps=1.6)

# Found by trying: the tiny model answers these two with the end token at once.
_OTHER_NOISE = np.random.default_rng(0)
_OTHER_NOISE.integers(0, 256, (64, 96, 3), dtype=np.uint8)
SILENCING = (
    Media(kind="image", array=_OTHER_NOISE.integers(0, 256, (50, 70, 3), dtype=np.uint8)),
    Media(kind="video", array=_OTHER_NOISE.integers(0, 256, (5, 64, 64, 3), dtype=np.uint8), fps=2.0),
)

CONVERSATIONS: dict[str, Conversation] = {
    "text": [("user", ["Name three colours."])],
    "image": [("user", [ODD_IMAGE, "What is here?"])],
    "audio": [("user", [AUDIO, "What is said?"])],
    "video": [("user", [VIDEO, "What happens?"])],
    "short clips": [("user", [CLIPS[0], "Is this the same as", CLIPS[1], "?"])],
    "slow video": [("user", [SLOW_VIDEO, IMAGE, "What happens?"])],
    "image and audio": [("user", [IMAGE, AUDIO, "Describe both."])],
    "several turns": [
        ("system", ["Answer briefly."]),
        ("user", ["Look at this.", IMAGE]),
        ("assistant", [" the moon rose."]),
        ("user", ["And here?", ODD_IMAGE, AUDIO]),
    ],
}
LIMITS = {"short": (6, 16), "medium": (20, 48), "long": (96, 240)}
# What is long goes on as what is of medium length does, whatever was asked; it takes most of the time.
CASES = [
    (kind, size) for kind in CONVERSATIONS for size in LIMITS if size != "long" or kind in ("text", "several turns")
]


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> Pipeline:
    return Pipeline(folder)


def ask(conversation: Conversation, text_tokens: int, codec_tokens: int, **options: object) -> Asked:
    return Asked(
        conversation=[
            (role, [part if isinstance(part, str) else (part.kind, part.array, part.fps) for part in parts])
            for role, parts in conversation
        ],
        thinker=Sampling(temperature=0.0, max_tokens=text_tokens),
        talker=Sampling(temperature=0.0, max_tokens=codec_tokens),
        **options,
    )


def one(pipeline: Pipeline, asked: Asked) -> Answered:
    (answer,) = pipeline.run([asked])
    assert answer.error is None, answer.error
    return answer


@pytest.mark.parametrize(("kind", "size"), CASES)
def test_equal_to_generate(pipeline: Pipeline, reference: Reference, kind: str, size: str) -> None:
    text_tokens, codec_tokens = limits = LIMITS[size]
    expected = reference.answer(CONVERSATIONS[kind], text_tokens=text_tokens, codec_tokens=codec_tokens)
    answer = one(pipeline, ask(CONVERSATIONS[kind], *limits))
    assert answer.text_ids == expected.text_ids
    assert answer.text == reference.tokenizer.decode(expected.text_ids, skip_special_tokens=True)
    assert torch.equal(answer.codes, expected.codes)
    assert torch.equal(answer.waveform, expected.waveform)
    ended = expected.text_ids[-1] == reference.model.config.im_end_token_id
    assert answer.reasons["thinker"] == ("stop" if ended else "length")
    # Every token but the last makes a frame, so a full set of frames means that the limit ended the speech.
    at_limit = expected.codes.shape[1] == codec_tokens - 1
    assert answer.reasons["talker"] == answer.reasons["code2wav"] == ("length" if at_limit else "stop")


def test_the_cases_above_stop_in_every_way(pipeline: Pipeline) -> None:
    short = one(pipeline, ask(CONVERSATIONS["text"], *LIMITS["short"]))
    long = one(pipeline, ask(CONVERSATIONS["text"], *LIMITS["long"]))
    assert short.reasons == {"thinker": "length", "talker": "length", "code2wav": "length"}
    assert long.reasons == {"thinker": "stop", "talker": "stop", "code2wav": "stop"}


@pytest.mark.parametrize("speaker", ["Chelsie", "AIDEN"])
def test_speakers_by_any_spelling(pipeline: Pipeline, reference: Reference, speaker: str) -> None:
    expected = reference.answer(CONVERSATIONS["text"], text_tokens=6, codec_tokens=16, speaker=speaker)
    answer = one(pipeline, ask(CONVERSATIONS["text"], 6, 16, voice=speaker))
    assert torch.equal(answer.codes, expected.codes)
    assert not torch.equal(answer.codes, one(pipeline, ask(CONVERSATIONS["text"], 6, 16)).codes)


def test_prompt_without_text(pipeline: Pipeline, reference: Reference) -> None:
    conversation: Conversation = [("user", [IMAGE])]
    expected = reference.answer(conversation, text_tokens=8, codec_tokens=20)
    answer = one(pipeline, ask(conversation, 8, 20))
    assert answer.text_ids == expected.text_ids
    assert torch.equal(answer.waveform, expected.waveform)


def test_text_alone(pipeline: Pipeline, reference: Reference) -> None:
    expected = reference.answer(CONVERSATIONS["text"], text_tokens=20, codec_tokens=4)
    answer = one(pipeline, ask(CONVERSATIONS["text"], 20, 4, modalities=("text",)))
    assert answer.text == reference.tokenizer.decode(expected.text_ids, skip_special_tokens=True)
    assert set(answer.reasons) == {"thinker"}


class TestWhereGenerateFails:
    """Requests on which `generate` raises. What is expected here is omni's own decision."""

    def test_an_empty_answer_is_silence(self, pipeline: Pipeline, reference: Reference) -> None:
        conversation: Conversation = [("user", [*SILENCING, "both"])]
        with pytest.raises(RuntimeError, match="size of tensor"):
            reference.answer(conversation, text_tokens=8, codec_tokens=20)
        answer = one(pipeline, ask(conversation, 8, 20))
        assert answer.text == ""
        assert len(answer.text_ids) == 1
        assert answer.waveform.numel() == 0
        assert answer.reasons == {"thinker": "stop", "talker": "empty", "code2wav": "empty"}

    def test_a_single_token_is_spoken(self, pipeline: Pipeline, reference: Reference) -> None:
        with pytest.raises(RuntimeError, match="size of tensor"):
            reference.answer(CONVERSATIONS["text"], text_tokens=1, codec_tokens=12)
        answer = one(pipeline, ask(CONVERSATIONS["text"], 1, 12))
        assert answer.text_ids == one(pipeline, ask(CONVERSATIONS["text"], 2, 12)).text_ids[:1]
        assert answer.codes.shape == (4, 11)
        # `generate` speaks all but the last token, so the first of two is spoken as the only one is.
        assert torch.equal(answer.codes, one(pipeline, ask(CONVERSATIONS["text"], 2, 12)).codes)

    def test_a_talker_limit_of_one_is_silence(self, pipeline: Pipeline, reference: Reference) -> None:
        with pytest.raises(RuntimeError, match="non-empty TensorList"):
            reference.answer(CONVERSATIONS["text"], text_tokens=6, codec_tokens=1)
        answer = one(pipeline, ask(CONVERSATIONS["text"], 6, 1))
        assert answer.waveform.numel() == 0
        assert answer.reasons["code2wav"] == "empty"

    def test_speech_without_a_user_turn_is_refused(self, pipeline: Pipeline, reference: Reference) -> None:
        conversation: Conversation = [("system", ["Say hello."])]
        with pytest.raises(RuntimeError):
            reference.answer(conversation, text_tokens=6, codec_tokens=12)
        (answer,) = pipeline.run([ask(conversation, 6, 12)])
        assert answer.error is not None
        assert answer.error.fault == "client"
        assert "user message" in answer.error.message
        assert one(pipeline, ask(conversation, 6, 12, modalities=("text",))).text

    def test_an_unknown_speaker_is_refused_with_the_list(self, pipeline: Pipeline, reference: Reference) -> None:
        with pytest.raises(NotImplementedError):
            reference.answer(CONVERSATIONS["text"], text_tokens=6, codec_tokens=12, speaker="nobody")
        (answer,) = pipeline.run([ask(CONVERSATIONS["text"], 6, 12, voice="nobody")])
        assert answer.error is not None
        assert answer.error.fault == "client"
        assert all(name in answer.error.message for name in ("nobody", "ethan", "chelsie", "aiden"))


def test_company_changes_nothing(pipeline: Pipeline) -> None:
    """All kinds at once, greedy and sampled, more than there are places in the batch, equal to each alone."""
    asked = [
        Asked(
            conversation=ask(conversation, 1, 1).conversation,
            thinker=Sampling(temperature=temperature, max_tokens=10 + index),
            talker=Sampling(temperature=temperature, max_tokens=30 - index),
            seed=index,
        )
        for index, conversation in enumerate(CONVERSATIONS.values())
        for temperature in (0.0, 0.8)
    ]
    together = pipeline.run(asked)
    for request, answer in zip(asked, together, strict=True):
        alone = one(pipeline, request)
        assert answer.text_ids == alone.text_ids
        assert torch.equal(answer.codes, alone.codes)
        assert torch.equal(answer.waveform, alone.waveform)


def test_a_failing_request_leaves_the_others_alone(pipeline: Pipeline) -> None:
    good = ask(CONVERSATIONS["text"], 6, 16)
    bad = ask([("user", ["<|image_pad|> is not an image", IMAGE])], 6, 16)
    first, failed, last = pipeline.run([good, bad, good])
    assert failed.error is not None
    assert failed.error.fault == "client"
    assert "<|image_pad|>" in failed.error.message
    assert first.text_ids == last.text_ids == one(pipeline, good).text_ids


def test_the_seed_decides_what_is_drawn(pipeline: Pipeline) -> None:
    def drawn(seed: int) -> Answered:
        return one(
            pipeline,
            Asked(
                conversation=ask(CONVERSATIONS["text"], 1, 1).conversation,
                thinker=Sampling(temperature=1.0, max_tokens=12),
                talker=Sampling(max_tokens=24),
                seed=seed,
            ),
        )

    first, again, other = drawn(3), drawn(3), drawn(4)
    assert first.text_ids == again.text_ids
    assert torch.equal(first.codes, again.codes)
    assert first.text_ids != other.text_ids
    assert not np.array_equal(first.codes[1:], other.codes[1:])
