"""Modules are filled completely from a folder, or the tensors at fault are named."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from stages.errors import CheckpointError
from stages.runners.loading import Slot, build, fill_random, load_weights, read_tensor, weight_bytes

CPU = torch.device("cpu")


class Net(nn.Module):
    """A linear layer, two experts in one parameter, and a buffer that is computed, not stored."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.experts = nn.Parameter(torch.empty(2, 4, 3))
        self.register_buffer("steps", torch.arange(4, dtype=torch.float32), persistent=False)


TENSORS = {
    "net.linear.weight": torch.arange(6.0).reshape(2, 3),
    "net.linear.bias": torch.tensor([7.0, 8.0]),
    "net.experts.0": torch.full((4, 3), 10.0),
    "net.experts.1": torch.full((4, 3), 11.0),
    "other.weight": torch.zeros(1),
}


def route(name: str) -> Slot | None:
    head, _, expert = name.partition(".")
    return Slot("experts", (int(expert),)) if head == "experts" else Slot(name)


def folder_with(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    save_file(tensors, path / "model.safetensors")
    return path


def net(dtype: torch.dtype = torch.float32) -> Net:
    return build(Net, device=CPU, dtype=dtype)


def test_all_parts_arrive_and_computed_buffers_stay(tmp_path: Path) -> None:
    module = net()
    held = load_weights(module, folder_with(tmp_path, TENSORS), prefix="net.", route=route)
    assert torch.equal(module.linear.weight, TENSORS["net.linear.weight"])
    assert torch.equal(module.experts, torch.stack([TENSORS["net.experts.0"], TENSORS["net.experts.1"]]))
    assert torch.equal(module.steps, torch.arange(4.0))
    assert held == weight_bytes(module) == 4 * (6 + 2 + 24)
    assert not module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_values_are_converted_to_the_module_s_dtype(tmp_path: Path) -> None:
    module = net(torch.bfloat16)
    load_weights(module, folder_with(tmp_path, TENSORS), prefix="net.", route=route)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.bfloat16}
    assert torch.equal(module.linear.bias, torch.tensor([7.0, 8.0], dtype=torch.bfloat16))


@pytest.mark.parametrize("gone", ["net.linear.bias", "net.experts.1"])
def test_a_missing_tensor_is_named(tmp_path: Path, gone: str) -> None:
    folder = folder_with(tmp_path, {name: tensor for name, tensor in TENSORS.items() if name != gone})
    with pytest.raises(CheckpointError, match=rf"missing from the checkpoint: {gone.rstrip('.01')}"):
        load_weights(net(), folder, prefix="net.", route=route)


def test_an_unexpected_tensor_is_named_before_anything_is_read(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {**TENSORS, "net.extra.weight": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"does not have: net\.extra\.weight"):
        load_weights(net(), folder, prefix="net.", route=route)


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {**TENSORS, "net.linear.weight": torch.zeros(3, 2)})
    with pytest.raises(CheckpointError, match=r"net\.linear\.weight has shape \[3, 2\], the model needs \[2, 3\]"):
        load_weights(net(), folder, prefix="net.", route=route)


def test_other_stages_shards_are_not_opened(tmp_path: Path) -> None:
    save_file({n: t for n, t in TENSORS.items() if n.startswith("net.")}, tmp_path / "one.safetensors")
    weight_map = {name: "one.safetensors" if name.startswith("net.") else "absent.safetensors" for name in TENSORS}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    load_weights(net(), tmp_path, prefix="net.", route=route)
    with pytest.raises(CheckpointError, match=r"absent\.safetensors: no such file"):
        read_tensor(tmp_path, ["other.weight"])


def test_one_tensor_by_any_of_its_names(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, TENSORS)
    assert torch.equal(read_tensor(folder, ["new.name", "net.linear.bias"]), TENSORS["net.linear.bias"])
    with pytest.raises(CheckpointError, match=r"new\.name"):
        read_tensor(folder, ["new.name"])


def test_random_values_fill_everything_and_repeat() -> None:
    first, again, other = net(), net(), net()
    for module in (first, again, other):
        for parameter in module.parameters():
            parameter.fill_(torch.nan)
    fill_random(first, seed=1)
    fill_random(again, seed=1)
    fill_random(other, seed=2)
    for name, parameter in first.named_parameters():
        assert torch.isfinite(parameter).all(), name
        assert torch.equal(parameter, again.get_parameter(name))
    assert first.experts.std() == pytest.approx(0.02, rel=0.5)
    assert not torch.equal(first.experts, other.experts)
    assert torch.equal(first.linear.bias, torch.zeros(2))
    assert torch.equal(first.steps, torch.arange(4.0))


def test_an_embedding_that_is_the_last_layer_as_well_is_stored_once(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(**sizes, vocab_size=5, tie_word_embeddings=True)
    whole = LlamaForCausalLM(config)
    whole.save_pretrained(tmp_path)
    module = build(lambda: LlamaForCausalLM(config), device=torch.device("cpu"), dtype=torch.float32)
    assert load_weights(module, tmp_path, prefix="", route=Slot) == 4 * sum(one.numel() for one in whole.parameters())
    assert torch.equal(module.lm_head.weight, whole.model.embed_tokens.weight)
