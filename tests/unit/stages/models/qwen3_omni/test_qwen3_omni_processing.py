"""Conversations and media become the thinker's inputs; what the model cannot take is refused with the reason."""

import shutil
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from stages.errors import RequestRefused
from stages.messages import ChatMessage, Part
from stages.models.qwen3_omni import modules
from stages.models.qwen3_omni.contract import sized
from stages.models.qwen3_omni.processing import ModelInputs, Processor, load_processor, thin_out
from stages.models.registry import RequestSize

NOISE = np.random.default_rng(2)


@pytest.fixture(scope="module")
def processor(tiny_folder: Path) -> Processor:
    return load_processor(tiny_folder, modules.read_config(tiny_folder), dummy=False)


def encode(processor: Processor, *parts: Part, **media: np.ndarray) -> ModelInputs:
    return processor.encode((ChatMessage(role="user", parts=parts),), media)


def text(content: str) -> Part:
    return Part(kind="text", text=content)


def test_turns_are_laid_out_by_the_chat_template(processor: Processor) -> None:
    conversation = (
        ChatMessage(role="system", parts=(text("Be brief."),)),
        ChatMessage(role="user", parts=(text("Hi"), text(" there"))),
    )
    assert processor.encode(conversation, {}).input_ids.tolist() == processor.codec.encode(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("tokens", [9, 100, 513])
def test_a_request_for_measuring_has_the_prompt_that_was_asked_for(processor: Processor, tokens: int) -> None:
    size = RequestSize(prompt_tokens=tokens, text_tokens=1, frames=1)
    prompts = [str(sized(size, Random(seed))["prompt"]) for seed in (1, 2)]
    assert prompts[0] != prompts[1]
    assert [len(encode(processor, text(prompt)).input_ids) for prompt in prompts] == [tokens] * 2


@pytest.mark.parametrize(
    ("shape", "grid"),
    [((64, 96), [1, 4, 6]), ((50, 75), [1, 4, 4]), ((1, 1), [1, 2, 2]), ((900, 900), [1, 16, 16])],
)
def test_images_are_resized_to_whole_patches_within_the_limits(
    processor: Processor, shape: tuple[int, int], grid: list[int]
) -> None:
    inputs = encode(processor, Part(kind="image", media="m"), m=NOISE.integers(0, 256, (*shape, 3), dtype=np.uint8))
    assert inputs.image_grid_thw.tolist() == [grid]
    assert inputs.pixel_values.shape == (grid[1] * grid[2], 3 * 2 * 16 * 16)
    placeholder = processor.codec.encode("<|image_pad|>")[0]
    assert (inputs.input_ids == placeholder).sum() == grid[1] * grid[2] // 4


def test_a_still_video_has_the_patches_of_its_image(processor: Processor) -> None:
    picture = NOISE.integers(0, 256, (64, 32, 3), dtype=np.uint8)
    image = encode(processor, Part(kind="image", media="m"), m=picture)
    video = encode(processor, Part(kind="video", media="m", fps=1.0), m=np.stack([picture] * 4))
    assert video.video_grid_thw.tolist() == [[2, 4, 2]]
    assert video.video_second_per_grid.tolist() == [2.0]
    torch.testing.assert_close(video.pixel_values_videos[:8], image.pixel_values, rtol=0, atol=1e-6)
    torch.testing.assert_close(video.pixel_values_videos[8:], image.pixel_values, rtol=0, atol=1e-6)


def test_the_last_frame_fills_the_last_step_of_a_video(processor: Processor) -> None:
    frames = NOISE.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    odd = encode(processor, Part(kind="video", media="m", fps=2.0), m=frames)
    even = encode(processor, Part(kind="video", media="m", fps=2.0), m=np.concatenate([frames, frames[-1:]]))
    assert torch.equal(odd.pixel_values_videos, even.pixel_values_videos)


@pytest.mark.parametrize(
    ("frames", "fps", "kept", "rate"),
    [
        (5, 2.0, [0, 1, 2, 3, 4], 2.0),
        (60, 30.0, [0, 20, 39, 59], 2.0),
        (6, 30.0, [0, 2, 3, 5], 20.0),
        (3, 30.0, [0, 2], 20.0),
        (1, 30.0, [0], 30.0),
        (90, 30.0, [0, 18, 36, 53, 71, 89], 2.0),
    ],
)
def test_fast_videos_are_thinned_out(frames: int, fps: float, kept: list[int], rate: float) -> None:
    shown, shown_fps = thin_out(np.arange(frames), fps)
    assert shown.tolist() == kept
    assert shown_fps == pytest.approx(rate)


def test_long_videos_keep_768_frames() -> None:
    shown, fps = thin_out(np.arange(1536), 1.0)
    assert len(shown) == 768
    assert fps == 0.5


def test_large_videos_are_scaled_down(processor: Processor) -> None:
    frames = NOISE.integers(0, 256, (2, 400, 300, 3), dtype=np.uint8)
    inputs = encode(processor, Part(kind="video", media="m", fps=2.0), m=frames)
    (grid,) = inputs.video_grid_thw.tolist()
    assert grid[1] * grid[2] * 256 <= 128 * 128


@pytest.mark.parametrize(("samples", "tokens"), [(1, 1), (160, 1), (16_000, 13), (24_000, 20)])
def test_audio_of_any_length(processor: Processor, samples: int, tokens: int) -> None:
    clip = (0.1 * NOISE.standard_normal(samples)).astype(np.float32)
    inputs = encode(processor, Part(kind="audio", media="m"), m=clip)
    assert inputs.input_features.shape == (128, int(inputs.audio_lengths[0]))
    assert (inputs.input_ids == processor.codec.encode("<|audio_pad|>")[0]).sum() == tokens
    assert torch.isfinite(inputs.input_features).all()


@pytest.mark.parametrize(
    ("part", "media", "reason"),
    [
        (Part(kind="audio", media="m"), np.zeros(0, dtype=np.float32), "no samples"),
        (Part(kind="image", media="m"), np.zeros((1, 4000, 3), dtype=np.uint8), "4000x1"),
        (Part(kind="video", media="m", fps=1.0), np.zeros((2, 4000, 1, 3), dtype=np.uint8), "1x4000"),
        (Part(kind="video", media="m", fps=1.0), np.zeros((0, 8, 8, 3), dtype=np.uint8), "0 frames"),
        (Part(kind="video", media="m"), np.zeros((2, 8, 8, 3), dtype=np.uint8), "at 0.0/s"),
    ],
)
def test_media_that_the_model_cannot_take(processor: Processor, part: Part, media: np.ndarray, reason: str) -> None:
    with pytest.raises(RequestRefused, match=reason):
        encode(processor, part, m=media)


@pytest.mark.parametrize("kind", ["image", "audio", "video"])
def test_placeholders_in_a_text_are_refused(processor: Processor, kind: str) -> None:
    with pytest.raises(RequestRefused, match=rf"<\|{kind}_pad\|>"):
        encode(processor, text(f"what is <|{kind}_pad|>?"))


def test_the_template_may_come_in_its_older_form(tiny_folder: Path, tmp_path: Path) -> None:
    import json

    folder = Path(shutil.copytree(tiny_folder, tmp_path / "older"))
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    config = modules.read_config(folder)
    older = load_processor(folder, config, dummy=False)
    newer = load_processor(tiny_folder, config, dummy=False)
    assert torch.equal(encode(older, text("hi")).input_ids, encode(newer, text("hi")).input_ids)
