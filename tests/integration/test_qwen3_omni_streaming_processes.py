"""Speech streamed through three processes: whole and once, whatever its length and however slow code2wav is."""

import dataclasses
import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from omni_cli.config.load import load_config
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import Inventory
from omni_cli.runtime.events import Event
from omni_cli.runtime.request import OmniRequest
from stages.events import LeaseReleased, MessagePut, OutputProduced, ProcessReady, StageFinished, StepDone
from tests.integration.engine_run import EngineRun, greedy_request, run_requests
from tests.integration.in_process import Pipeline
from tests.integration.test_qwen3_omni_parity import CONVERSATIONS, ask

pytestmark = pytest.mark.usefixtures("warm")

FIRST, THEN = 3, 10
SLOTS = 2
# Around the first chunk, around the first two, and far more than the ring holds.
FRAMES = (0, 1, FIRST - 1, FIRST, FIRST + 1, FIRST + THEN - 1, FIRST + THEN, FIRST + THEN + 1, 60, 60, 60, 90)
TEXT_TOKENS = 96
WORDS = (
    "recipe=qwen3_omni",
    "pipeline.stages.talker.inputs.thinker=incremental",
    "pipeline.stages.code2wav.inputs.talker=incremental",
    f"deploy.stages.code2wav.first_chunk_frames={FIRST}",
    f"deploy.stages.code2wav.chunk_frames={THEN}",
    f"deploy.stages.code2wav.inputs.talker.slots={SLOTS}",
    f"deploy.stages.talker.max_batch={len(FRAMES)}",
)


@dataclass
class SlowCode2Wav:
    """Stops code2wav's process whenever it has made a sound, until the talker has no slot left to put a frame into."""

    frames: int
    heard: list[tuple[str, Event]] = field(default_factory=list)
    pid: int = 0
    stopped: bool = False
    stops: int = 0
    waiting: int = 0  # messages from the talker that code2wav has not read
    put: int = 0

    def __call__(self, source: str, event: Event) -> None:
        self.heard.append((source, event))
        match event:
            case ProcessReady(pid=pid) if source == "code2wav.0":
                self.pid = pid
            case MessagePut(message=message) if source == "talker.0" and message.lease is not None:
                self.waiting += 1
                self.put += message.units
            case LeaseReleased() if source == "code2wav.0":
                self.waiting -= 1
            case OutputProduced(modality="audio") if not self.stopped and self.frames - self.put > 4 * SLOTS:
                os.kill(self.pid, signal.SIGSTOP)
                self.stopped = True
                self.stops += 1
        if self.stopped and self.waiting == SLOTS:
            os.kill(self.pid, signal.SIGCONT)
            self.stopped = False


@dataclass(frozen=True)
class Streamed:
    run: EngineRun
    slow: SlowCode2Wav

    def of(self, source: str, kind: type) -> list[Event]:
        return [event for heard, event in self.slow.heard if heard == source and isinstance(event, kind)]


@pytest.fixture(scope="module")
def streamed(folder: Path) -> Streamed:
    plan = build_plan(load_config([*WORDS, f"model.path={folder}"]), Inventory())
    slow = SlowCode2Wav(sum(FRAMES))
    run = run_requests(plan, [speech(index, frames) for index, frames in enumerate(FRAMES)], slow)
    return Streamed(run, slow)


def speech(index: int, frames: int) -> OmniRequest:
    """So many frames, whatever the model would say."""
    lengths = {"text_tokens": TEXT_TOKENS, "codec_tokens": frames + 1, "ignore_eos": True}
    return greedy_request(f"{index}", CONVERSATIONS["text"], outputs=("audio",), **lengths)


def test_all_samples_of_every_length(streamed: Streamed, folder: Path) -> None:
    pipeline = Pipeline(folder, tuning={"code2wav": {"decode": "exact"}})
    longest = ask(CONVERSATIONS["text"], TEXT_TOKENS, max(FRAMES) + 1)
    longest.thinker = dataclasses.replace(longest.thinker, ignore_eos=True)
    longest.talker = dataclasses.replace(longest.talker, ignore_eos=True)
    (whole,) = pipeline.run([longest])
    assert not streamed.run.errors
    for index, frames in enumerate(FRAMES):
        output = streamed.run.outputs[f"{index}"]["audio"]
        assert output.units == frames
        assert output.reason == ("length" if frames else "empty")
        if frames:
            # The same request with another limit: its samples are the beginning of the longest one's.
            wave = streamed.run.waveform(f"{index}")
            assert len(wave) == frames * 1920 - 555
            torch.testing.assert_close(wave, whole.waveform[: len(wave)], rtol=0, atol=1e-4)


def test_every_stream_ends_once(streamed: Streamed) -> None:
    last = Counter(event.uid for event in streamed.of("code2wav.0", OutputProduced) if event.eos)
    finished = Counter(event.uid for event in streamed.of("code2wav.0", StageFinished))
    assert len(last) == len(FRAMES)
    assert set(last.values()) == {1}
    assert finished == last


def test_code2wav_was_slow_and_the_talker_waited_for_it(streamed: Streamed) -> None:
    assert streamed.slow.stops > 3
    assert not streamed.slow.stopped
    waiting = most = 0
    for source, event in streamed.slow.heard:
        waiting += source == "talker.0" and isinstance(event, MessagePut) and event.message.lease is not None
        waiting -= source == "code2wav.0" and isinstance(event, LeaseReleased)
        most = max(most, waiting)
    assert most == SLOTS


def test_sound_comes_before_the_talker_has_ended(streamed: Streamed) -> None:
    first_sound: dict[int, int] = {}
    for event in streamed.of("code2wav.0", OutputProduced):
        first_sound.setdefault(event.uid, event.t_ns)
    ends = {event.uid: event for event in streamed.of("talker.0", StageFinished)}
    long = [uid for uid, event in ends.items() if event.units > FIRST + THEN + 2]
    assert len(long) >= 4
    assert all(first_sound[uid] < ends[uid].t_ns for uid in long)


def test_no_frame_is_decoded_twice(streamed: Streamed) -> None:
    steps = streamed.of("code2wav.0", StepDone)
    counted: Counter[str] = Counter()
    for step in steps:
        counted.update(dict(step.counters))
    assert counted["frames_computed"] == sum(row.units for step in steps for row in step.rows) == sum(FRAMES)
    assert counted["context_rows"] == 0


def test_nothing_is_left(streamed: Streamed) -> None:
    assert streamed.run.segments_left == set()
    assert streamed.run.live_slots == 0
