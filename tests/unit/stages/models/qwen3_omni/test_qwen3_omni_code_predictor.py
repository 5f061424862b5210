"""All rows' residual codes in one loop are those that transformers' code predictor gives each frame."""

from pathlib import Path
from typing import Any

import pytest
import torch

from stages.models.qwen3_omni import modules
from stages.models.qwen3_omni.code_predictor import CodePredictor
from stages.runners.sampling import SamplingParams

CPU = torch.device("cpu")
ROWS = 5
SAMPLED = SamplingParams(max_tokens=1, temperature=1.0, top_k=50, top_p=0.8)


def load(folder: Path) -> Any:
    source = modules.Source(folder=folder, device=CPU, dtype=torch.float32, dummy=False)
    return modules.stage_module("talker", modules.read_config(folder), source)[0].code_predictor


@pytest.fixture(scope="module")
def predictor(tiny_folder: Path) -> CodePredictor:
    return CodePredictor(load(tiny_folder), ROWS, params=SAMPLED, device=CPU)


@pytest.fixture(scope="module")
def frames() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden, first = torch.randn(2, ROWS, 48, generator=generator)
    return hidden, first, torch.rand(ROWS, 3, generator=generator, dtype=torch.float64)


def test_greedy_codes_are_those_of_generate(
    tiny_folder: Path, predictor: CodePredictor, frames: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> None:
    hidden, first, _ = frames
    reference = load(tiny_folder)
    with torch.inference_mode():
        codes, embeds = predictor(hidden, first, None, None)
        for row in range(ROWS):
            expected = reference.generate(
                inputs_embeds=torch.stack((hidden[row], first[row]))[None], max_new_tokens=3, do_sample=False
            )
            assert codes[row].tolist() == expected[0].tolist()
            whole = first[row] + sum(
                table(code) for table, code in zip(reference.get_input_embeddings(), codes[row], strict=True)
            )
            torch.testing.assert_close(embeds[row], whole, rtol=0, atol=1e-5)


def test_a_row_does_not_depend_on_its_company(
    predictor: CodePredictor, frames: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> None:
    hidden, first, numbers = frames
    greedy = torch.tensor([True, False, False, True, False])
    with torch.inference_mode():
        together, _ = predictor(hidden, first, numbers, greedy)
        all_drawn, _ = predictor(hidden, first, numbers, None)
        none_drawn, _ = predictor(hidden, first, None, None)
        for row in range(ROWS):
            one = slice(row, row + 1)
            alone, _ = predictor(hidden[one], first[one], numbers[one], greedy[one])
            assert torch.equal(together[one], alone)
            assert torch.equal(alone, (none_drawn if greedy[row] else all_drawn)[one])
    assert not torch.equal(all_drawn, none_drawn)


def test_draws_depend_on_their_own_numbers(
    predictor: CodePredictor, frames: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> None:
    """A number changes its own group and what follows, and nothing before."""
    hidden, first, numbers = frames
    other = numbers.clone()
    other[:, 1] = (other[:, 1] + 0.5) % 1
    with torch.inference_mode():
        before, after = predictor(hidden, first, numbers, None)[0], predictor(hidden, first, other, None)[0]
    assert torch.equal(before[:, 0], after[:, 0])
    assert not torch.equal(before[:, 1], after[:, 1])
