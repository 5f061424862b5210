"""The bundled configuration is a whole Qwen3-Omni-30B-A3B: the planner takes it, transformers builds its 35 billion."""

from pathlib import Path

import torch
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling

from stages.models import qwen3_omni
from stages.models.qwen3_omni.contract import check_model
from stages.models.qwen3_omni.modules import read_config
from stages.models.qwen3_omni.sizes import stage_memory

FOLDER = Path(qwen3_omni.__file__).parent / "configs" / "30b_a3b"


def test_it_serves_a_run_without_weights() -> None:
    assert check_model(str(FOLDER), "dummy") == ()
    assert check_model(str(FOLDER), "auto")


def test_parameters_of_each_stage() -> None:
    config = read_config(FOLDER)
    stages = {
        "thinker": (modeling.Qwen3OmniMoeThinkerForConditionalGeneration, config.thinker_config),
        "talker": (modeling.Qwen3OmniMoeTalkerForConditionalGeneration, config.talker_config),
        "code2wav": (modeling.Qwen3OmniMoeCode2Wav, config.code2wav_config),
    }
    with torch.device("meta"):
        counts = {
            name: sum(parameter.numel() for parameter in kind._from_config(settings).parameters())
            for name, (kind, settings) in stages.items()
        }
    talker = config.talker_config.text_config
    table = {"talker": config.thinker_config.text_config.vocab_size * talker.hidden_size}
    for name, count in counts.items():
        assert stage_memory(str(FOLDER), name, "bfloat16").weight_bytes == 2 * (count + table.get(name, 0))
    assert {name: round(count / 1e9, 2) for name, count in counts.items()} == {
        "thinker": 31.72,
        "talker": 3.32,
        "code2wav": 0.22,
    }
