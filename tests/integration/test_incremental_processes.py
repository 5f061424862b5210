"""Synthetic stages over real processes, fed piece by piece: same answers as whole, bounded rings, cancels, limits."""

import pytest

from omni_cli.runtime.events import RequestAdmitted, StageSubmitted
from omni_cli.runtime.request import OmniRequest
from omni_cli.trace.summary import summarise
from stages.events import (
    InputReady,
    MessagePut,
    OutputProduced,
    Scheduled,
    StageFinished,
    StepDone,
)
from stages.messages import ChatMessage, Part, Sampling
from stages.models.synthetic.options import StageDelays, SyntheticOptions
from tests.integration.cli import omni
from tests.integration.recorded import Recording, plan_of, record
from tests.synthetic_answers import expected_audio

WORDS = "one two three four five six seven eight"
INCREMENTAL = (
    "pipeline.stages.talker.inputs.thinker=incremental",
    "pipeline.stages.code2wav.inputs.talker=incremental",
)
NARROW = ("deploy.stages.talker.inputs.thinker.slots=2", "deploy.stages.code2wav.inputs.talker.slots=2")
# Some of these requests fit, and grow out of what there is.
SCARCE = tuple(
    f"deploy.stages.{stage}.{setting}"
    for stage in ("thinker", "talker")
    for setting in ("max_batch=4", "step_tokens=6", "kv_blocks=14", "kv_block_tokens=4")
)
ROOM = 14 * 4
SLOW = SyntheticOptions(prompt_tokens=11, delay_ms=StageDelays(code2wav=4))
LENGTHS = (0, 1, 2, 3, 63, 64, 65, 127, 128, 129)


def ask(name, options=SLOW, *, text=WORDS, seed=7, outputs=("text", "audio"), sampling=None):
    return OmniRequest(
        request_id=name,
        seed=seed,
        conversation=(ChatMessage(role="user", parts=(Part(kind="text", text=text),)),),
        outputs=outputs,
        sampling=sampling or {},
        options=options,
    )


def sound(recording: Recording, name: str) -> bytes:
    payloads = recording.outputs[name]["audio"].payloads
    return b"".join(bytes(payload.tensor("audio").data) for payload in payloads)


MODES = pytest.mark.parametrize("mode", [(), INCREMENTAL], ids=["complete", "incremental"])


def check_answers(recording: Recording, requests: list[OmniRequest]) -> None:
    """Those of each request alone."""
    recording.check_ended_well()
    assert not recording.errors
    for request in requests:
        outputs, frames = recording.outputs[request.request_id], request.options.frames
        assert outputs["text"].text == WORDS
        if "audio" in request.outputs:
            assert sound(recording, request.request_id) == expected_audio(WORDS, request.seed, frames).tobytes()
            assert outputs["audio"].reason == ("empty" if frames == 0 else "stop")


@MODES
def test_every_length_under_load_ends_once_with_all_its_samples(mode):
    requests = [ask(str(n), SyntheticOptions(frames=n, delay_ms=SLOW.delay_ms), seed=n) for n in LENGTHS]
    requests.append(ask("counted"))
    recording = record(plan_of("recipe=synthetic", *mode, *NARROW), lambda session: session.all_of(requests))
    check_answers(recording, requests)


@MODES
def test_with_too_little_room_for_all_the_answers_are_the_same(mode):
    requests = [ask(str(n), SyntheticOptions(prompt_tokens=11, frames=n), seed=n) for n in range(20, ROOM - 10, 3)]
    requests.append(ask("text", outputs=("text",)))
    words = ("recipe=synthetic", *mode, *NARROW, *SCARCE)
    recording = record(plan_of(*words), lambda session: session.all_of(requests))
    check_answers(recording, requests)
    uid = recording.uids["text"]
    assert not [event for _, _, event in recording.of(MessagePut) if event.uid == uid], "text alone feeds nobody"
    steps = [event for _, _, event in recording.of(StepDone, "talker.0")]
    assert any(event.preempted for event in steps), "there was too little room"
    assert max(event.kv_blocks for event in steps) <= ROOM // 4


def test_stages_of_one_request_overlap_and_wait_for_their_input():
    delays = StageDelays(thinker=50, talker=1, code2wav=1)  # seven words more, while the first becomes sound

    async def act(session):
        await session.one(ask("streamed", SyntheticOptions(delay_ms=delays, frames=12)))

    recording = record(plan_of("recipe=synthetic", *INCREMENTAL), act)
    recording.check_ended_well()
    thinker = recording.steps("thinker.0", "streamed")
    code2wav = recording.steps("code2wav.0", "streamed")
    assert code2wav[0][1].t_ns < thinker[-1][1].t_ns, "the first sound comes before the last word"
    assert recording.outputs["streamed"]["audio"].chunks > 3


def test_a_step_holds_requests_of_different_ages_one_of_them_in_prefill():
    old = SyntheticOptions(prompt_tokens=3, frames=40, delay_ms=StageDelays(thinker=3))
    new = SyntheticOptions(prompt_tokens=30, frames=4, delay_ms=StageDelays(thinker=3))
    tight = ("deploy.stages.thinker.step_tokens=8", "deploy.stages.thinker.kv_blocks=60")

    async def act(session):
        late = [ask(f"late {number}", new) for number in (0, 1)]
        await session.in_turn([ask("early", old, text=WORDS * 4), *late])

    recording = record(plan_of("recipe=synthetic", *tight, *INCREMENTAL), act)
    recording.check_ended_well()
    assert not recording.errors
    thinker = summarise(recording.trace()).stages["thinker"]
    assert thinker.ages == 3
    assert thinker.mixed


def step_of(process, **has):
    def moment(source, event, uid):
        if source != process or not isinstance(event, StepDone):
            return False
        rows = [row for row in event.rows if row.uid == uid]
        return any(all(getattr(row, name) == value for name, value in has.items()) for row in rows)

    return moment


def heard(kind, source="", **has):
    def moment(origin, event, uid):
        return (
            isinstance(event, kind)
            and event.uid == uid
            and (not source or origin == source)
            and all(getattr(event, name) == value for name, value in has.items())
        )

    return moment


PHASES = {
    "admitted": heard(RequestAdmitted),
    "given to the thinker": heard(StageSubmitted, stage="thinker"),
    "ready in the thinker": heard(InputReady, "thinker.0"),
    "first step of the thinker": heard(Scheduled, "thinker.0"),
    "in the middle of the prompt": step_of("thinker.0", phase="prefill", units=0),
    "first word": heard(OutputProduced, modality="text", seq=0),
    "preempted": lambda source, event, uid: isinstance(event, StepDone) and uid in event.preempted,
    "given to the talker": heard(StageSubmitted, stage="talker"),
    "ready in the talker": heard(InputReady, "talker.0"),
    "in the middle of the talker's prompt": step_of("talker.0", phase="prefill", units=0),
    "third frame": step_of("talker.0", position=3),
    "given to code2wav": heard(StageSubmitted, stage="code2wav"),
    "first step of code2wav": heard(Scheduled, "code2wav.0"),
    "first sound": heard(OutputProduced, modality="audio", seq=0),
    "thinker finished": heard(StageFinished, "thinker.0"),
    "talker finished": heard(StageFinished, "talker.0"),
    "text has ended": heard(OutputProduced, modality="text", eos=True),
}


def test_a_cancel_in_any_phase_leaves_nothing_and_the_others_alone():
    """The victim comes last, so that it is the one that is preempted; two others run beside it."""
    beside = SyntheticOptions(prompt_tokens=11, frames=30, delay_ms=SLOW.delay_ms)
    after = ask("after", seed=99)

    async def act(session):
        for number, (phase, moment) in enumerate(PHASES.items()):
            session.cancel_at(phase, moment)
            neighbours = [ask(f"{phase}: {other}", beside, seed=number) for other in (1, 2)]
            await session.all_of([*neighbours, ask(phase, beside, seed=number)])
        await session.one(after)

    recording = record(plan_of("recipe=synthetic", *INCREMENTAL, *NARROW, *SCARCE), act)
    assert not recording.watches, "every moment has come"
    assert {name for name, error in recording.errors.items() if error.end.outcome == "cancelled"} == set(PHASES)
    assert set(recording.errors) == set(PHASES)
    for number, phase in enumerate(PHASES):
        for other in (1, 2):
            assert sound(recording, f"{phase}: {other}") == expected_audio(WORDS, number, 30).tobytes()
    assert sound(recording, "after") == expected_audio(WORDS, 99).tobytes()
    tokens = len(WORDS.split())
    assert sum(row.units for _, event in recording.steps("thinker.0", "after") for row in event.rows) == tokens
    assert len(recording.steps("talker.0", "after")) == 2 + 3 * tokens - 1, "the prompt in two chunks, then every step"
    recording.check_ended_well()


@MODES
def test_a_limit_says_so_up_to_the_result(mode):
    limits = {"thinker": Sampling(max_tokens=5), "talker": Sampling(max_tokens=4)}

    async def act(session):
        await session.all_of([ask("cut", sampling=limits), ask("whole")])

    recording = record(plan_of("recipe=synthetic", *mode), act)
    recording.check_ended_well()
    assert {m: output.reason for m, output in recording.outputs["cut"].items()} == dict.fromkeys(
        ("text", "audio"), "length"
    )
    assert {m: output.reason for m, output in recording.outputs["whole"].items()} == dict.fromkeys(
        ("text", "audio"), "stop"
    )


def test_a_limit_stands_in_the_results_of_a_run(tmp_path):
    words = ("recipe=synthetic", *INCREMENTAL, "request.sampling.talker.max_tokens=4", "--prompt", WORDS)
    (result,) = omni("run", *words, cwd=tmp_path).results.values()
    assert {a["output"]: a["finish_reason"] for a in result["artifacts"]} == {"text": "stop", "audio": "length"}
