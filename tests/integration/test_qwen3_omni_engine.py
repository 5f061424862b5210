"""Qwen3-Omni through the engine, over processes, as the trace tells it: streamed, batched, cancelled, text alone."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from omni_cli.trace.summary import RunSummary, summarise
from stages.events import StepDone, StepRow
from stages.messages import REQUEST, Sampling
from stages.runners.tensors import from_payload
from tests.integration.engine_run import MEDIA_BYTES, greedy_request
from tests.integration.qwen3_omni_reference import Answer, Conversation, Media, Reference
from tests.integration.recorded import Recording, Session, plan_of, record
from tests.integration.test_incremental_processes import PHASES
from tests.integration.test_qwen3_omni_parity import AUDIO, CONVERSATIONS, IMAGE

pytestmark = pytest.mark.usefixtures("warm")

TOLERANCE = 1e-4
CHUNKS = ("deploy.stages.code2wav.first_chunk_frames=3", "deploy.stages.code2wav.chunk_frames=10")
ROOM = 26 * 4  # tokens
SCARCE = tuple(
    f"deploy.stages.{stage}.{setting}"
    for stage, blocks in (("thinker", ROOM // 4), ("talker", 22))
    for setting in ("max_batch=4", "step_tokens=8", f"kv_blocks={blocks}", "kv_block_tokens=4")
)
TEXT = CONVERSATIONS["text"]


def run(folder: Path, act: object, *words: str) -> Recording:
    plan = plan_of("recipe=qwen3_omni", f"model.path={folder}", *CHUNKS, *words)
    return record(plan, act, media_bytes=64 * MEDIA_BYTES)


def check_answer(recording: Recording, name: str, reference: Reference, expected: Answer) -> None:
    """What reached the caller is what transformers answers."""
    text, audio = recording.outputs[name]["text"], recording.outputs[name]["audio"]
    assert text.text == reference.tokenizer.decode(expected.text_ids, skip_special_tokens=True), name
    assert (text.units, audio.units) == (len(expected.text_ids), expected.codes.shape[1]), name
    wave = torch.cat([from_payload(payload.tensor("audio")) for payload in audio.payloads])
    torch.testing.assert_close(wave, expected.waveform, rtol=0, atol=TOLERANCE)


def rows_of(recording: Recording, process: str, request: str) -> list[tuple[str, int, int, int, int]]:
    """What a process did for a request, step by step."""
    uid = recording.uids[request]
    rows: list[StepRow] = [row for _, step in recording.steps(process, request) for row in step.rows if row.uid == uid]
    return [(row.phase, row.position, row.units, row.start, row.tokens) for row in rows]


long = partial(greedy_request, text_tokens=96, codec_tokens=121, ignore_eos=True)
short = partial(greedy_request, text_tokens=12, codec_tokens=31)
text_alone = partial(short, conversation=CONVERSATIONS["image"], outputs=("text",))


STAGGERED = (long("first", TEXT), long("second", CONVERSATIONS["image"]), long("third", CONVERSATIONS["audio"]))


@pytest.fixture(scope="module")
def staggered(folder: Path) -> Recording:
    """Requests that come while others run; the last one wants text alone."""

    async def act(session: Session) -> None:
        await session.in_turn([*STAGGERED, text_alone("text alone")])

    return run(folder, act, "deploy.stages.thinker.step_tokens=16")


@pytest.fixture(scope="module")
def told(staggered: Recording) -> RunSummary:
    return summarise(staggered.trace())


def test_what_came_in_turn_ended_well(staggered: Recording) -> None:
    staggered.check_ended_well()
    assert not staggered.errors
    for request in STAGGERED:
        audio = staggered.outputs[request.request_id]["audio"]
        assert (audio.units, audio.reason) == (120, "length")


def test_the_first_step_of_code2wav_comes_before_the_last_of_the_thinker(
    staggered: Recording, told: RunSummary
) -> None:
    for request in STAGGERED:
        summary = told.requests[staggered.uids[request.request_id]]
        for stage in ("talker", "code2wav"):
            lead_ns = summary.lead_ns(stage)
            assert lead_ns is not None
            assert lead_ns > 0, f"{stage} of {request.request_id}"
        assert summary.ttfa_ns is not None
        assert summary.ttfa_ns < summary.stages["thinker"].end_ns - summary.admitted_ns


def test_a_step_holds_three_ages_and_one_of_them_in_prefill(told: RunSummary) -> None:
    assert told.stages["thinker"].ages >= 3
    assert told.stages["thinker"].mixed


def test_no_frame_is_computed_twice(told: RunSummary) -> None:
    code2wav = told.stages["code2wav"]
    assert code2wav.units == len(STAGGERED) * 120
    assert code2wav.frames_a_unit is not None
    assert code2wav.frames_a_unit + code2wav.counters["padding_frames"] / code2wav.units <= 1.05
    assert code2wav.counters["context_rows"] == 0


def test_a_prefill_of_the_talker_does_not_wait_until_the_thinker_is_free(
    staggered: Recording, told: RunSummary
) -> None:
    last_word_ns = told.requests[staggered.uids["first"]].stages["thinker"].steps[-1][0]
    for name in ("second", "third"):
        assert told.requests[staggered.uids[name]].stages["talker"].steps[0][0] < last_word_ns


def test_text_alone_touches_no_other_stage(staggered: Recording, told: RunSummary) -> None:
    summary = told.requests[staggered.uids["text alone"]]
    assert summary.stages.keys() == {"thinker"}
    assert summary.edges.keys() == {(REQUEST, "thinker")}
    assert "hidden_rows" in told.stages["thinker"].counters, "those of the others"


def test_a_cancel_in_any_phase_leaves_nothing_and_the_others_alone(folder: Path, reference: Reference) -> None:
    """The victim comes last, so that it is the one that is preempted; two others run beside it. Before and after all of
    them the same request runs alone, in the same steps."""
    victim = partial(greedy_request, conversation=TEXT, text_tokens=30, codec_tokens=50, ignore_eos=True)

    async def act(session: Session) -> None:
        await session.one(short("before", TEXT))
        for phase, moment in PHASES.items():
            session.cancel_at(phase, moment)
            await session.all_of([*(short(f"{phase}: {other}", TEXT) for other in (1, 2)), victim(phase)])
        await session.one(short("too long", [("user", ["word " * ROOM])]))
        await session.one(short("after", TEXT))

    recording = run(folder, act, *SCARCE)
    recording.check_ended_well()
    assert not recording.watches, "every moment has come"
    refused = recording.errors.pop("too long")
    assert refused.fault == "client"
    assert f"but the KV cache of stage 'thinker' holds {ROOM} (26 blocks of 4)" in str(refused)
    assert "raise deploy.stages.thinker.kv_blocks" in str(refused)
    assert set(recording.errors) == set(PHASES)
    assert {error.end.outcome for error in recording.errors.values()} == {"cancelled"}
    expected = reference.answer(TEXT, text_tokens=12, codec_tokens=31)
    for name in recording.outputs:
        check_answer(recording, name, reference, expected)
    for process in ("thinker.0", "talker.0"):
        assert rows_of(recording, process, "before") == rows_of(recording, process, "after")


_NOISE = np.random.default_rng(13)


def _sound(seconds: int) -> Media:
    time_s = np.arange(16_000 * seconds) / 16_000
    return Media(kind="audio", array=(0.3 * np.sin(600 * time_s * (1 + time_s / seconds))).astype(np.float32))


def _picture(width: int, height: int) -> Media:
    return Media(kind="image", array=_NOISE.integers(0, 256, (height, width, 3), dtype=np.uint8))


UNEQUAL: dict[str, Conversation] = {
    "text": TEXT,
    **{f"{seconds} s of sound": [("user", [_sound(seconds), "What is said?"])] for seconds in (1, 7, 30)},
    "a small picture": [("user", [_picture(64, 64), "What is here?"])],
    "a large picture": [("user", [_picture(1024, 768), "What is here?"])],
    "2 s of video": [
        (
            "user",
            [
                Media(kind="video", array=_NOISE.integers(0, 256, (4, 64, 64, 3), dtype=np.uint8), fps=2.0),
                "What happens?",
            ],
        )
    ],
    "sound and a picture": [("user", [AUDIO, IMAGE, "Describe both."])],
}


@pytest.fixture(scope="module")
def uneven(folder: Path) -> Recording:
    """Eight inputs of all kinds and sizes at once; before them, each by itself, text alone and a text that is cut."""
    talker = Sampling(temperature=0.0)  # its limit is the checkpoint's own
    cut = greedy_request("cut", TEXT, text_tokens=5, codec_tokens=1)
    cut = replace(cut, sampling={**cut.sampling, "talker": talker})

    async def act(session: Session) -> None:
        await session.one(text_alone("text alone"))
        await session.one(cut)
        await session.all_of([short(name, conversation) for name, conversation in UNEQUAL.items()])

    return run(folder, act, *(f"deploy.stages.{stage}.max_batch=8" for stage in ("thinker", "talker")))


def test_what_is_uneven_ran_together(uneven: Recording) -> None:
    uneven.check_ended_well()
    assert not uneven.errors
    assert max(len(step.rows) for _, _, step in uneven.of(StepDone, "thinker.0")) >= 4


@pytest.mark.parametrize("name", UNEQUAL)
def test_each_is_answered_as_alone(uneven: Recording, reference: Reference, name: str) -> None:
    check_answer(uneven, name, reference, reference.answer(UNEQUAL[name], text_tokens=12, codec_tokens=31))


def test_max_tokens_cuts_text_and_speech_at_the_same_word(uneven: Recording, reference: Reference) -> None:
    """The talker says what `generate` says of five tokens, for as long as it takes: the limit is not its own."""
    expected = reference.answer(TEXT, text_tokens=5, codec_tokens=400)
    check_answer(uneven, "cut", reference, expected)
    text, audio = uneven.outputs["cut"]["text"], uneven.outputs["cut"]["audio"]
    assert (text.units, text.reason) == (5, "length")
    assert audio.units > 5
    assert audio.reason == "stop", "of its own accord"


def test_text_alone_costs_what_it_costs_without_a_talker(uneven: Recording, folder: Path) -> None:
    """The same steps over the same tokens, and no hidden state is copied for a talker."""

    async def act(session: Session) -> None:
        await session.one(text_alone("text alone"))

    only = run(folder, act, "deploy.outputs=[text]", "deploy.stages.thinker.max_batch=8")
    only.check_ended_well()
    assert summarise(only.trace()).stages.keys() == {"thinker"}
    assert rows_of(uneven, "thinker.0", "text alone") == rows_of(only, "thinker.0", "text alone")
    assert uneven.outputs["text alone"]["text"].text == only.outputs["text alone"]["text"].text
    for _, step in uneven.steps("thinker.0", "text alone"):
        assert "hidden_rows" not in dict(step.counters)
