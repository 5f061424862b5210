"""The code2wav stage without processes: its scheduler and its runner, fed as a talker would feed them."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.config import ModelSpec, StageSpec, StageTuning
from stages.messages import StageRequest
from stages.models.qwen3_omni.code2wav_runner import Code2WavRunner
from stages.payload import Payload
from stages.runners.base import RowResult
from stages.runners.tensors import from_payload, to_payload
from stages.schedulers.base import Row, RowProgress
from stages.schedulers.registry import create_scheduler

EXACT = StageTuning(first_chunk_frames=4, chunk_frames=10, decode="exact")
TRANSFORMERS = StageTuning(first_chunk_frames=4, chunk_frames=10, decode="transformers")


class Stage:
    """One code2wav stage; `waves`, `reasons` and `errors` by request."""

    def __init__(self, folder: Path, tuning: StageTuning, *, max_batch: int = 4) -> None:
        spec = StageSpec(
            run_id="test", family="qwen3_omni", stage="code2wav", replica=0, generation=0,
            execution_type="llm_generation", model=ModelSpec(path=str(folder), load_format="auto", dtype="float32"),
            devices=(), max_batch=max_batch, memory_fraction=0.1, threads=1, inputs=(), consumers=(),
            outputs=("audio",), tuning=tuning,
        )  # fmt: skip
        self.runner = Code2WavRunner(spec)
        self.runner.load()
        self.runner.warm_up()
        self.max_batch = max_batch
        self.tuning = tuning
        self.clear()

    def clear(self) -> None:
        self.scheduler = create_scheduler("llm_generation", self.max_batch, 300, tuning=self.tuning)
        self.waves: dict[int, list[torch.Tensor]] = {}
        self.units: dict[int, list[int]] = {}
        self.reasons: dict[int, str] = {}
        self.errors: dict[int, str] = {}
        self.counts: dict[str, int] = {}

    def begin(self, uid: int, mode: str = "incremental") -> None:
        request = StageRequest(uid=uid, seed=0, inputs=("talker",), consumers=(), outputs=("audio",))
        self.runner.begin(request)
        self.scheduler.add(request, {"talker": mode})
        self.waves[uid] = []
        self.units[uid] = []

    def feed(self, uid: int, codes: torch.Tensor, reason: str | None = None) -> None:
        meta = (("finish_reason", reason),) if reason else ()
        payload = Payload(tensors=(to_payload("codes", codes),), meta=meta)
        self.runner.feed(uid, "talker", payload, reason is not None)
        self.scheduler.extend(uid, "talker", len(codes), reason is not None)

    def step(self) -> int:
        """The rows of the step; 0 if nothing can run."""
        output = self.scheduler.schedule({}, frozenset())
        if output is None:
            return 0
        results = self.runner.execute(output.rows)
        self.scheduler.update(
            tuple(
                RowProgress(uid=r.uid, units=r.units, finished=r.finished, failed=r.error is not None) for r in results
            )
        )
        for name, count in self.runner.counters():
            self.counts[name] = self.counts.get(name, 0) + count
        for result in results:
            self.settle(result)
        return len(results)

    def settle(self, result: RowResult) -> None:
        uid = result.uid
        for output in result.outputs:
            assert output.payload is not None
            assert output.payload.scalar("sample_rate_hz") == 24000
            self.waves[uid].append(from_payload(output.payload.tensor("audio")))
            self.units[uid].append(output.units)
        if result.error is not None:
            self.errors[uid] = result.error.message
        if result.finished is not None:
            assert uid not in self.reasons
            self.reasons[uid] = result.finished
        if result.finished is not None or result.error is not None:
            self.runner.end(uid)

    def wave(self, uid: int) -> torch.Tensor:
        return torch.cat([torch.empty(0), *self.waves[uid]])


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> Stage:
    return Stage(tiny_folder, EXACT)


@pytest.fixture
def stage(loaded: Stage) -> Stage:
    loaded.clear()
    return loaded


def some_codes(frames: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 64, (frames, 4), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


def one_pass(stage: Stage, codes: torch.Tensor) -> torch.Tensor:
    module: Any = stage.runner._decoder._stream._module
    with torch.inference_mode():
        wave: torch.Tensor = module(codes.T[None].long())
    return wave.reshape(-1)


@pytest.mark.parametrize("seed", range(3))
def test_many_requests_in_any_order_are_exact(stage: Stage, seed: int) -> None:
    """More requests than places, frames coming in by ones and by bursts, complete and incremental streams at once."""
    draw = random.Random(seed)
    codes = {uid: some_codes(draw.choice((1, 3, 4, 5, 13, 14, 15, 24, 60, 90)), seed=uid) for uid in range(9)}
    fed = dict.fromkeys(codes, 0)
    for uid in codes:
        stage.begin(uid, draw.choice(("complete", "incremental")))
    while fed:
        uid = draw.choice(sorted(fed))
        end = min(fed[uid] + draw.choice((1, 1, 2, 5, 17)), len(codes[uid]))
        last = end == len(codes[uid])
        stage.feed(uid, codes[uid][fed[uid] : end], "stop" if last else None)
        fed[uid] = end
        if last:
            del fed[uid]
        if draw.random() < 0.4:
            stage.step()
    while stage.step():
        pass
    assert stage.reasons == dict.fromkeys(codes, "stop")
    for uid, whole in codes.items():
        torch.testing.assert_close(stage.wave(uid), one_pass(stage, whole), rtol=0, atol=1e-4)
        assert sum(stage.units[uid]) == len(whole)
    assert stage.counts["frames_computed"] == sum(map(len, codes.values()))
    assert stage.counts["context_rows"] == 0


def test_the_first_sound_comes_with_the_first_chunk(stage: Stage) -> None:
    stage.begin(0)
    codes = some_codes(30)
    steps = []
    for frame in range(30):
        stage.feed(0, codes[frame : frame + 1], "length" if frame == 29 else None)
        while stage.step():
            steps.append(frame + 1)
    assert steps == [4, 14, 24, 30]
    assert stage.units[0] == [4, 10, 10, 6]
    assert [len(wave) for wave in stage.waves[0]] == [4 * 1920 - 555, 19200, 19200, 6 * 1920]
    assert stage.reasons == {0: "length"}
    torch.testing.assert_close(stage.wave(0), one_pass(stage, codes), rtol=0, atol=1e-4)


def test_the_end_may_come_after_the_last_frame_was_decoded(stage: Stage) -> None:
    stage.begin(0)
    stage.feed(0, some_codes(4))
    assert stage.step() == 1
    assert stage.reasons == {}
    stage.feed(0, some_codes(0), "stop")
    assert stage.step() == 1
    assert stage.reasons == {0: "stop"}
    assert stage.units[0] == [4]


@pytest.mark.parametrize("mode", ["complete", "incremental"])
@pytest.mark.parametrize("reason", ["empty", "length"])
def test_no_frames_are_silence(stage: Stage, mode: str, reason: str) -> None:
    stage.begin(0, mode)
    stage.feed(0, some_codes(0), reason)
    stage.step()
    assert stage.reasons == {0: "empty"}
    assert stage.waves[0] == []


def test_a_bad_code_fails_its_request_alone(stage: Stage) -> None:
    for uid in range(3):
        stage.begin(uid)
        codes = some_codes(4, seed=uid)
        if uid == 1:
            codes[2, 3] = 64
        stage.feed(uid, codes, "stop")
    assert stage.step() == 3
    assert stage.reasons == {0: "stop", 2: "stop"}
    assert "codebook of 64" in stage.errors[1]
    torch.testing.assert_close(stage.wave(2), one_pass(stage, some_codes(4, seed=2)), rtol=0, atol=1e-4)


def test_a_step_out_of_order_is_an_error(stage: Stage) -> None:
    stage.begin(0)
    stage.feed(0, some_codes(8))
    for position, units in ((4, 4), (0, 9)):
        (result,) = stage.runner.execute((Row(uid=0, phase="forward", position=position, units=units),))
        assert result.error is not None
        assert f"frames {position} to {position + units} were scheduled" in result.error.message
    stage.runner.end(0)


def test_an_ended_request_leaves_nothing(stage: Stage) -> None:
    for _ in range(3):
        for uid in range(5):
            stage.begin(uid)
            stage.feed(uid, some_codes(9))
        while stage.step():
            pass
        for uid in range(5):  # given up in the middle
            stage.runner.end(uid)
            stage.scheduler.abort(uid)
    states = stage.runner._decoder._states
    assert len(states) == 0
    assert len(states._rows) == 8


def test_transformers_chunks_are_bitwise_and_counted(tiny_folder: Path) -> None:
    stage = Stage(tiny_folder, TRANSFORMERS)
    codes = {uid: some_codes(frames, seed=uid) for uid, frames in enumerate((20, 340))}
    for uid, whole in codes.items():
        stage.begin(uid)
        for start in range(0, len(whole), 17):
            stage.feed(uid, whole[start : start + 17], "stop" if start + 17 >= len(whole) else None)
            stage.step()
    while stage.step():
        pass
    module = stage.runner._decoder._module
    for uid, whole in codes.items():
        with torch.inference_mode():
            expected = module.chunked_decode(whole.T[None].long(), chunk_size=300, left_context_size=25)
        assert torch.equal(stage.wave(uid), expected.reshape(-1))
    assert stage.units == {0: [20], 1: [300, 40]}
    assert stage.counts == {"frames_computed": 360, "context_rows": 25, "padding_frames": 0, "eager_runs": 3}
