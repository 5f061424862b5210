"""From a conversation with decoded media to the thinker's inputs, with transformers' tokenizer and processors.

Needs no torchvision: images go through the Pillow image processor, video frames through a few lines of numpy with the
same arithmetic. Reads files of the checkpoint only; media arrive as arrays.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from transformers import AutoTokenizer, WhisperFeatureExtractor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import _get_feat_extract_output_lengths

from stages.errors import CheckpointError, RequestRefused
from stages.messages import ChatMessage, Part
from stages.models.cache import cache_root
from stages.models.checkpoint import read_json
from stages.models.qwen3_omni.text import StandInCodec, TokenCodec
from stages.models.qwen3_omni.tiny import tiny_checkpoint

Array = npt.NDArray[Any]

# The feature extractor's window needs this many samples; a shorter clip is followed by silence.
_MIN_AUDIO_SAMPLES = 400
# Pixels a frame, as transformers' Qwen3OmniMoeProcessor sets them where a checkpoint gives none.
_VIDEO_SIZE = {"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32}
# How Qwen's own utilities thin a video out: to 2 frames a second, but not below 4 nor above 768 frames.
_VIDEO_FPS = 2.0
_VIDEO_FRAMES = (4, 768)
# The image limits of the published checkpoints.
_PUBLISHED_PIXELS = {"min_pixels": 56 * 56, "max_pixels": 16384 * 28 * 28}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInputs:
    """The thinker's inputs for one request, on the CPU; None where there is no such medium.

    `input_ids` [n] with one placeholder a media token. `pixel_values` and `pixel_values_videos` [patches, values]
    float32 with their grids [media, 3] (time, height, width in patches); `video_second_per_grid` [videos], the seconds
    that one step in time covers. `input_features` [mel bins, frames of all clips], `audio_lengths` [clips] in frames.
    """

    input_ids: torch.Tensor
    pixel_values: torch.Tensor | None = None
    image_grid_thw: torch.Tensor | None = None
    pixel_values_videos: torch.Tensor | None = None
    video_grid_thw: torch.Tensor | None = None
    video_second_per_grid: torch.Tensor | None = None
    input_features: torch.Tensor | None = None
    audio_lengths: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoProcessing:
    """How frames become patches; the numbers are the checkpoint's."""

    patch: int
    temporal_patch: int
    merge: int
    min_pixels: int
    max_pixels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, frames: Array) -> tuple[Array, tuple[int, int, int]]:
        """uint8 [frames, height, width, 3] -> float32 [patches, 3 * temporal patch * patch * patch] and the grid.

        Frames are resized (bicubic) so that both sides are whole merged patches and the pixels of a frame lie within
        the limits; the last frame is repeated to fill the last step in time. Layout as in transformers'
        Qwen2VLVideoProcessor.patchify.
        """
        height, width = smart_resize(
            *frames.shape[1:3],
            factor=self.patch * self.merge,
            min_pixels=self.min_pixels,
            max_pixels=self.max_pixels,
        )
        if (height, width) != frames.shape[1:3]:
            resized = [Image.fromarray(f).resize((width, height), Image.Resampling.BICUBIC) for f in frames]
            frames = np.stack([np.asarray(frame) for frame in resized])
        if short := -len(frames) % self.temporal_patch:
            frames = np.concatenate([frames, np.repeat(frames[-1:], short, axis=0)])
        mean, std = np.array(self.mean, dtype=np.float32), np.array(self.std, dtype=np.float32)
        scaled: Array = (frames.astype(np.float32) / np.float32(255) - mean) / std
        grid = (len(frames) // self.temporal_patch, height // self.patch, width // self.patch)
        blocks = scaled.reshape(
            grid[0], self.temporal_patch,
            grid[1] // self.merge, self.merge, self.patch,
            grid[2] // self.merge, self.merge, self.patch,
            3,
        )  # fmt: skip
        return blocks.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(math.prod(grid), -1), grid


def audio_tokens(frames: int, n_window: int) -> int:
    """Tokens that a clip of so many mel frames has."""
    return int(_get_feat_extract_output_lengths(torch.tensor(frames), n_window))


def thin_out(frames: Array, fps: float) -> tuple[Array, float]:
    """The frames that the model is shown, evenly spaced, and their rate.

    A video at 2 frames a second or less is shown whole, up to 768 frames; of a faster one an even number of frames is
    kept, as `smart_nframes` of qwen-vl-utils does.
    """
    least, most = _VIDEO_FRAMES
    if fps <= _VIDEO_FPS and len(frames) <= most:
        return frames, fps
    count = int(min(max(len(frames) * _VIDEO_FPS / fps, least), most, len(frames)))
    count = max(count - count % 2, 1)
    chosen = np.linspace(0, len(frames) - 1, count).round().astype(int)
    return frames[chosen], fps * count / len(frames)


Template = Callable[[list[dict[str, Any]]], str]
"""Renders messages, as chat templates take them, with the header of the answer at the end."""


class Processor:
    """Tokenizer, chat template and media processors, put together for one model."""

    def __init__(
        self, config: Any, *, codec: TokenCodec, template: Template, images: Any, audio: Any, video: VideoProcessing
    ) -> None:
        self.codec = codec
        self._template = template
        self._images = images
        self._audio = audio
        self._video = video
        thinker = config.thinker_config
        self._tokens = {
            "image": thinker.image_token_id,
            "video": thinker.video_token_id,
            "audio": thinker.audio_token_id,
        }
        self._n_window = thinker.audio_config.n_window

    def encode(self, conversation: Sequence[ChatMessage], media: Mapping[str, Array]) -> ModelInputs:
        """The inputs of a conversation. `media` holds the arrays that its parts name (see `stages.messages.Part`).

        Raises RequestRefused for media that the model cannot take and for text that contains media placeholders.
        """
        parts = [part for message in conversation for part in message.parts]
        counts: dict[str, list[int]] = {"image": [], "video": [], "audio": []}
        fields: dict[str, torch.Tensor] = {}
        if images := [media[part.media] for part in parts if part.kind == "image"]:
            done = self._encode_images(images)
            fields.update(pixel_values=done["pixel_values"], image_grid_thw=done["image_grid_thw"])
            counts["image"] = (done["image_grid_thw"].prod(-1) // self._images.merge_size**2).tolist()
        if videos := [part for part in parts if part.kind == "video"]:
            fields.update(self._encode_videos(videos, media))
            counts["video"] = (fields["video_grid_thw"].prod(-1) // self._video.merge**2).tolist()
        if clips := [media[part.media] for part in parts if part.kind == "audio"]:
            fields.update(self._encode_audio(clips))
            counts["audio"] = [audio_tokens(frames, self._n_window) for frames in fields["audio_lengths"].tolist()]
        ids = self._expand(self._prompt_ids(conversation), counts)
        return ModelInputs(input_ids=torch.tensor(ids), **fields)

    def _prompt_ids(self, conversation: Sequence[ChatMessage]) -> list[int]:
        """The conversation and the header of the answer; one placeholder a medium."""
        messages = [
            {
                "role": message.role,
                "content": [
                    {"type": "text", "text": part.text} if part.kind == "text" else {"type": part.kind}
                    for part in message.parts
                ],
            }
            for message in conversation
        ]
        return self.codec.encode(self._template(messages))

    def _expand(self, ids: list[int], counts: Mapping[str, list[int]]) -> list[int]:
        """Repeats each placeholder for as many tokens as its medium has."""
        left = {token: iter(counts[kind]) for kind, token in self._tokens.items()}
        kinds = {token: kind for kind, token in self._tokens.items()}
        expanded: list[int] = []
        for token in ids:
            repeat = next(left[token], None) if token in left else 1
            if repeat is None:
                raise RequestRefused(
                    f"the conversation has more {kinds[token]} placeholders than {kinds[token]} inputs: a text "
                    f"contains {self.codec.name(token)!r}; remove it"
                )
            expanded.extend([token] * repeat)
        if unused := [kinds[token] for token, rest in left.items() if next(rest, None) is not None]:
            raise CheckpointError(f"the chat template of the checkpoint places no {' or '.join(unused)} input")
        return expanded

    def _encode_images(self, images: list[Array]) -> dict[str, torch.Tensor]:
        for image in images:
            _refuse_uneven("an image", *image.shape[:2])
        done: dict[str, torch.Tensor] = self._images(
            images=images, input_data_format="channels_last", return_tensors="pt"
        )
        return done

    def _encode_videos(self, parts: Sequence[Part], media: Mapping[str, Array]) -> dict[str, torch.Tensor]:
        patches, grids, seconds = [], [], []
        for part in parts:
            frames = media[part.media]
            if not len(frames) or part.fps <= 0:
                raise RequestRefused(f"a video needs frames and a rate, got {len(frames)} frames at {part.fps}/s")
            _refuse_uneven("a video", *frames.shape[1:3])
            kept, fps = thin_out(frames, part.fps)
            values, grid = self._video(kept)
            patches.append(torch.from_numpy(np.ascontiguousarray(values)))
            grids.append(grid)
            seconds.append(self._video.temporal_patch / fps)
        return {
            "pixel_values_videos": torch.cat(patches),
            "video_grid_thw": torch.tensor(grids),
            "video_second_per_grid": torch.tensor(seconds),
        }

    def _encode_audio(self, clips: list[Array]) -> dict[str, torch.Tensor]:
        if not all(len(clip) for clip in clips):
            raise RequestRefused("an audio input has no samples")
        padded = [np.pad(clip, (0, max(0, _MIN_AUDIO_SAMPLES - len(clip)))) for clip in clips]
        done = self._audio(
            padded,
            sampling_rate=self._audio.sampling_rate,
            padding=True,
            truncation=False,
            return_attention_mask=True,
            return_tensors="pt",
        )
        mask = done["attention_mask"].bool()
        return {
            "input_features": done["input_features"].permute(0, 2, 1)[mask].T.contiguous(),
            "audio_lengths": mask.sum(-1),
        }


def load_processor(folder: Path, config: Any, *, dummy: bool) -> Processor:
    """The processor of a checkpoint. With `dummy`, a folder that holds a config.json alone gets a stand-in for the
    rest: the tiny checkpoint's tokenizer and template, and the published pixel limits."""
    stand_in = dummy and not (folder / "tokenizer_config.json").exists()
    files = tiny_checkpoint(cache_root(os.environ)) if stand_in else folder
    tokenizer = AutoTokenizer.from_pretrained(files)
    if stand_in:
        vision = config.thinker_config.vision_config
        images = Qwen2VLImageProcessorPil(
            **_PUBLISHED_PIXELS,
            image_mean=[0.5] * 3,
            image_std=[0.5] * 3,
            patch_size=vision.patch_size,
            temporal_patch_size=vision.temporal_patch_size,
            merge_size=vision.spatial_merge_size,
        )
        audio = WhisperFeatureExtractor(feature_size=config.thinker_config.audio_config.num_mel_bins)
    else:
        images = Qwen2VLImageProcessorPil.from_pretrained(folder)
        audio = WhisperFeatureExtractor.from_pretrained(folder)
    return Processor(
        config,
        codec=StandInCodec(tokenizer, config) if stand_in else TokenCodec(tokenizer),
        template=partial(_render, tokenizer, _chat_template(files, tokenizer)),
        images=images,
        audio=audio,
        video=_video_processing(folder, images),
    )


def _refuse_uneven(what: str, height: int, width: int) -> None:
    if min(height, width) * 200 < max(height, width):
        raise RequestRefused(f"{what} of {width}x{height} pixels: one side is over 200 times the other")


def _render(tokenizer: Any, template: str, messages: list[dict[str, Any]]) -> str:
    return str(
        tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=True)
    )


def _chat_template(folder: Path, tokenizer: Any) -> str:
    """The template as a file of its own, in either published form, or from the tokenizer's configuration."""
    if (folder / "chat_template.jinja").exists():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    if (folder / "chat_template.json").exists():
        return str(read_json(folder / "chat_template.json")["chat_template"])
    if isinstance(tokenizer.chat_template, str):
        return tokenizer.chat_template
    raise CheckpointError(
        f"{folder}: no chat template (chat_template.jinja, chat_template.json or tokenizer_config.json)"
    )


def _video_processing(folder: Path, images: Any) -> VideoProcessing:
    """The video processor's numbers: those of `video_preprocessor_config.json` or `processor_config.json` where they
    are given, else the image processor's, with the pixel limits that transformers' processor sets for video."""
    given: dict[str, Any] = {}
    if (folder / "video_preprocessor_config.json").exists():
        given = read_json(folder / "video_preprocessor_config.json")
    elif (folder / "processor_config.json").exists():
        given = read_json(folder / "processor_config.json").get("video_processor", {})
    size = given.get("size") or _VIDEO_SIZE
    return VideoProcessing(
        patch=given.get("patch_size", images.patch_size),
        temporal_patch=given.get("temporal_patch_size", images.temporal_patch_size),
        merge=given.get("merge_size", images.merge_size),
        min_pixels=size["shortest_edge"],
        max_pixels=size["longest_edge"],
        mean=tuple(given.get("image_mean", images.image_mean)),
        std=tuple(given.get("image_std", images.image_std)),
    )
