"""What a start on a GPU promises: no lazy work left for the first request, and a plain word where memory is short."""

import asyncio
import secrets
import time
from pathlib import Path

import pynvml
import pytest
import torch

from omni_cli.config.load import load_config
from omni_cli.errors import LaunchError
from omni_cli.launch.launcher import LocalLauncher
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import device_uuid, visible_devices
from omni_cli.plan.spec import stage_specs
from omni_cli.runtime.engine import OmniEngine
from stages.events import StepDone
from stages.models.qwen3_omni.tiny import tiny_checkpoint
from tests.gpu.test_accuracy import FOLDER
from tests.integration.engine_run import greedy_request
from tests.integration.launch_plans import Heard

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not len(visible_devices()), reason="needs a GPU")]

# Few graphs of the tiny model, whose kernels have to be compiled.
SMALL = [f"deploy.stages.{stage}={{max_batch: 2, step_tokens: 128}}" for stage in ("thinker", "talker")]
LEFT_BYTES, MEMORY_BACK_S, SLOWER = 20 << 30, 5.0, 1.5


def test_the_first_request_is_no_slower_and_all_steps_are_graphs(tmp_path: Path) -> None:
    words = ["recipe=qwen3_omni", "deploy=qwen3_omni/gpu1", f"model.path={tiny_checkpoint(tmp_path)}", *SMALL]
    plan = build_plan(load_config([*words, "deploy.stages.code2wav.max_batch=2"]), visible_devices())
    heard = Heard()
    running = LocalLauncher(plan, stage_specs(plan, secrets.token_hex(4)), listener=heard).start()

    async def times() -> list[float]:
        found = []
        async with OmniEngine(plan, running, listener=heard) as engine:
            for number in range(5):
                start = time.perf_counter()
                request = greedy_request(str(number), [("user", ["hello there"])], text_tokens=20, codec_tokens=48)
                async for _ in engine.generate(request):
                    pass
                found.append(time.perf_counter() - start)
        return found

    try:
        seconds = asyncio.run(times())
    finally:
        running.stop()
    assert seconds[0] <= SLOWER * seconds[4], seconds
    paths = [dict(event.counters) for event in heard.of(StepDone) if isinstance(event, StepDone)]
    assert len(paths) > 5 * 48
    assert [counts for counts in paths if "eager_runs" in counts or not counts.get("graph_replays")] == []


def test_a_model_too_large_for_what_is_free_says_so_and_leaves_nothing() -> None:
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(device_uuid(visible_devices().devices[0].physical))

    def used() -> int:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)

    words = ["recipe=qwen3_omni", "deploy=qwen3_omni/gpu1", f"model.path={FOLDER}", "model.load_format=dummy"]
    plan = build_plan(load_config(words), visible_devices())
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(free - LEFT_BYTES, dtype=torch.uint8, device="cuda")
    try:
        before = used()
        launch = LocalLauncher(plan, stage_specs(plan, secrets.token_hex(4)), listener=Heard())
        message = r"stage thinker needs [\d.]+ GiB.* of [\d.]+ GiB free.*deploy\.stages\.thinker\.devices"
        with pytest.raises(LaunchError, match=message):
            launch.start()
        due = time.monotonic() + MEMORY_BACK_S
        while used() - before > 64 << 20:
            assert time.monotonic() < due, f"{(used() - before) >> 20} MiB are still held"
    finally:
        del held
        torch.cuda.empty_cache()
