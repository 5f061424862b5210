"""The tiny Qwen3-Omni as three processes on one GPU: the tokens of the CPU reference, and no CUDA in the parent.

The reference runs in this parent, in fp32 on the CPU. The GPU adds in another order, so waveforms are close, not equal;
the tiny model's best and second-best tokens are further apart than that difference.
"""

from functools import partial
from pathlib import Path

import pytest
import torch

from omni_cli.config.load import load_config
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import visible_devices
from stages.models.qwen3_omni.tiny import tiny_checkpoint
from tests.integration.engine_run import greedy_request, run_requests
from tests.integration.qwen3_omni_reference import Reference
from tests.integration.test_qwen3_omni_parity import CONVERSATIONS

pytestmark = pytest.mark.gpu

TEXT_TOKENS, CODEC_TOKENS = 20, 48
ask = partial(greedy_request, text_tokens=TEXT_TOKENS, codec_tokens=CODEC_TOKENS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("omni_cache"))


@pytest.mark.skipif(not len(visible_devices()), reason="needs a GPU")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_three_processes_on_one_gpu(folder: Path, dtype: str) -> None:
    before = torch.cuda.is_initialized()  # by another test
    small = [f"deploy.stages.{stage}={{max_batch: 4, step_tokens: 256}}" for stage in ("thinker", "talker")]
    words = ["recipe=qwen3_omni", "deploy=qwen3_omni/gpu1", f"model.path={folder}", f"model.dtype={dtype}", *small]
    plan = build_plan(load_config(words), visible_devices())
    assert {replica.devices for stage in plan.stages for replica in stage.replicas} == {(0,)}
    run = run_requests(plan, [ask(*item) for item in CONVERSATIONS.items()])
    assert not run.errors
    assert torch.cuda.is_initialized() == before
    assert run.segments_left == set()
    for kind in CONVERSATIONS:
        waveform = run.waveform(kind)
        assert torch.isfinite(waveform).all()
        assert waveform.std() > 0.01
        assert run.outputs[kind]["text"].text
    if dtype == "float32":
        reference = Reference.load(folder)
        for kind, conversation in CONVERSATIONS.items():
            expected = reference.answer(conversation, text_tokens=TEXT_TOKENS, codec_tokens=CODEC_TOKENS)
            text = reference.tokenizer.decode(expected.text_ids, skip_special_tokens=True)
            assert run.outputs[kind]["text"].text == text
            torch.testing.assert_close(run.waveform(kind), expected.waveform, rtol=0, atol=1e-3)
