"""Chunks of code2wav, computed in separate steps, are transformers' `chunked_decode` sample by sample."""

from pathlib import Path
from typing import Any

import pytest
import torch

from stages.models.qwen3_omni import modules
from stages.models.qwen3_omni.code2wav import Code2Wav


@pytest.fixture(scope="module")
def module(tiny_folder: Path) -> Any:
    source = modules.Source(folder=tiny_folder, device=torch.device("cpu"), dtype=torch.float32, dummy=False)
    return modules.code2wav_module(modules.read_config(tiny_folder), source)[0]


@pytest.mark.parametrize("frames", [1, 2, 299, 300, 301, 326, 640])
def test_equal_to_chunked_decode(module: Any, frames: int) -> None:
    codes = torch.randint(0, 64, (frames, 4), generator=torch.Generator().manual_seed(frames), dtype=torch.int32)
    expected = module.chunked_decode(codes.T[None].long(), chunk_size=300, left_context_size=25)
    code2wav = Code2Wav(module, device=torch.device("cpu"))
    pieces, start = [], 0
    while start < frames:
        wave, start = code2wav.chunk(codes, start)
        pieces.append(wave)
    assert torch.equal(torch.cat(pieces), expected.reshape(-1))
    # Each chunk drops 555 samples at its end.
    assert len(torch.cat(pieces)) == frames * 1920 - 555 * len(pieces)


def test_the_tiny_waveform_is_audible_and_not_clipped(module: Any) -> None:
    codes = torch.randint(0, 64, (50, 4), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    wave, _ = Code2Wav(module, device=torch.device("cpu")).chunk(codes, 0)
    assert 0.02 < wave.std() < 0.3
    assert wave.abs().max() < 0.95
