"""`load_format=dummy`: a configuration with ids of its own, and no other file, makes three stages that run."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from stages.messages import Sampling
from stages.models.qwen3_omni.contract import check_model
from stages.models.qwen3_omni.modules import Source, read_config, stage_module, thinker_embedding
from tests.integration.in_process import Asked, Pipeline

SHIFT = 900
IDS = ("im_start_token_id", "im_end_token_id", "system_token_id", "user_token_id", "assistant_token_id",
       "tts_pad_token_id", "tts_bos_token_id", "tts_eos_token_id", "image_token_id", "video_token_id",
       "audio_token_id", "audio_start_token_id", "audio_end_token_id", "vision_start_token_id",
       "vision_end_token_id")  # fmt: skip


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny configuration with every special id elsewhere, alone in its folder."""
    config = json.loads((tiny_folder / "config.json").read_text())
    for section in (config, config["thinker_config"], config["talker_config"]):
        section.update({name: section[name] + SHIFT for name in IDS if name in section})
    config["thinker_config"]["text_config"]["vocab_size"] = 2048
    own = tmp_path / "own"
    own.mkdir()
    (own / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("OMNI_CACHE", str(tmp_path / "cache"))
    return own


def test_the_talker_embeds_text_with_the_very_values_of_the_thinker(folder: Path) -> None:
    source = Source(folder=folder, device=torch.device("cpu"), dtype=torch.float32, dummy=True)
    config = read_config(folder)
    thinker, _ = stage_module("thinker", config, source)
    assert torch.equal(thinker_embedding(config, source), thinker.get_input_embeddings().weight)


def test_all_stages_run_from_a_configuration_alone(folder: Path) -> None:
    assert check_model(str(folder), "dummy") == ()
    pipeline = Pipeline(folder, load_format="dummy")
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    asked = Asked(
        conversation=[("user", ["What is this?", ("image", image, 0.0)])],
        thinker=Sampling(temperature=0.0, max_tokens=6, ignore_eos=True),
        talker=Sampling(temperature=0.0, max_tokens=9, ignore_eos=True),
    )
    (answer,) = pipeline.run([asked])
    assert answer.error is None, answer.error
    assert len(answer.text_ids) == 6
    assert answer.text.strip()
    assert answer.codes.shape == (4, 8)
    assert len(answer.waveform) == 8 * 1920 - 555
    assert np.isfinite(answer.waveform.numpy()).all()
