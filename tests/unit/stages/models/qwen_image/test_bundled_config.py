"""The bundled configuration is a whole Qwen-Image: the planner takes it and knows its 28.8 billion parameters."""

from pathlib import Path

import torch
from diffusers import AutoencoderKLQwenImage, QwenImageTransformer2DModel
from transformers import AutoConfig, AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from stages.models import qwen_image
from stages.models.checkpoint import read_json
from stages.models.pipeline_folder import own_defaults
from stages.models.qwen_image.contract import CONTRACTS, check_model

FOLDER = Path(qwen_image.__file__).parent / "configs" / "20b"


def test_it_serves_a_run_without_weights_and_says_how_large_it_is():
    assert check_model(str(FOLDER), "dummy") == ()
    assert check_model(str(FOLDER), "auto")
    with torch.device("meta"):
        modules = {
            "transformer": QwenImageTransformer2DModel.from_config(read_json(FOLDER / "transformer" / "config.json")),
            "vae": AutoencoderKLQwenImage.from_config(read_json(FOLDER / "vae" / "config.json")),
            "text_encoder": Qwen2_5_VLForConditionalGeneration(AutoConfig.from_pretrained(FOLDER / "text_encoder")),
        }
    counts = {part: sum(each.numel() for each in module.parameters()) for part, module in modules.items()}
    assert {part: round(count / 1e9, 2) for part, count in counts.items()} == {
        "transformer": 20.43, "vae": 0.13, "text_encoder": 8.29,
    }  # fmt: skip
    assert own_defaults(FOLDER)["parameters"] == counts
    formula = CONTRACTS["qwen_image"].stage_memory
    assert formula(str(FOLDER), "painter", "bfloat16").weight_bytes == 2 * sum(counts.values())
    assert formula(str(FOLDER), "denoiser", "bfloat16").weight_bytes == 2 * counts["transformer"]
    stand_in = AutoTokenizer.from_pretrained(FOLDER / "tokenizer")  # of bytes; the published one is large
    assert 5 < len(stand_in("a red boat").input_ids) < 12
