"""What transformers' own Qwen3-Omni answers: the reference that the staged model must equal.

Nothing from `stages` is used here. Inputs are prepared with transformers' tokenizer, image processor and feature
extractor; video frames are cut into patches here, because transformers' video processor needs torchvision.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoTokenizer,
    Qwen3OmniMoeForConditionalGeneration,
    WhisperFeatureExtractor,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import _get_feat_extract_output_lengths


@dataclass(frozen=True, kw_only=True)
class Media:
    """One attachment: `kind` is image (H x W x 3), audio (samples at 16 kHz) or video (T x H x W x 3, `fps`)."""

    kind: str
    array: np.ndarray
    fps: float = 0.0


# A conversation is a list of (role, parts); a part is a text or a Media.
Conversation = list[tuple[str, list[str | Media]]]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Greedy answer: `text_ids` [generated], `codes` [groups, frames], `waveform` [samples] float32."""

    text_ids: list[int]
    codes: torch.Tensor
    waveform: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The whole model in one process, fp32 on the CPU."""

    model: Any
    tokenizer: Any
    images: Any
    audio: Any
    template: str
    penalty: float  # of codes that are said again: an argument of transformers, here the folder's default
    known: dict[tuple[object, ...], Answer] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> Self:
        config = AutoConfig.from_pretrained(folder)
        # Image and audio in one prompt fail without it: the talker asks for an attribute it does not have.
        config.talker_config.audio_config = config.thinker_config.audio_config
        return cls(
            model=Qwen3OmniMoeForConditionalGeneration.from_pretrained(
                folder, config=config, dtype=torch.float32
            ).eval(),
            tokenizer=AutoTokenizer.from_pretrained(folder),
            images=Qwen2VLImageProcessorPil.from_pretrained(folder),
            audio=WhisperFeatureExtractor.from_pretrained(folder),
            template=(folder / "chat_template.jinja").read_text(),
            penalty=json.loads((folder / "generation_config.json").read_text()).get("talker_repetition_penalty", 1.05),
        )

    def answer(
        self, conversation: Conversation, *, text_tokens: int, codec_tokens: int, speaker: str = "ethan"
    ) -> Answer:
        """Computed once: what is asked again, by whatever test, is remembered."""
        asked = [
            (role, *(part if isinstance(part, str) else (part.kind, part.fps, part.array.tobytes()) for part in parts))
            for role, parts in conversation
        ]
        key = (*asked, text_tokens, codec_tokens, speaker)
        if key not in self.known:
            limits = {"thinker_max_new_tokens": text_tokens, "talker_max_new_tokens": codec_tokens}
            self.known[key] = self._answer(conversation, speaker=speaker, **limits)
        return self.known[key]

    def _answer(self, conversation: Conversation, **options: object) -> Answer:
        caught: list[torch.Tensor] = []
        decode = self.model.code2wav.chunked_decode

        def spy(codes: torch.Tensor, **options: Any) -> Any:
            caught.append(codes.clone())
            return decode(codes, **options)

        inputs = self.inputs(conversation)
        self.model.code2wav.chunked_decode = spy
        try:
            sequences, waveform = self.model.generate(
                **inputs,
                **options,
                thinker_eos_token_id=self.model.config.im_end_token_id,
                thinker_do_sample=False,
                talker_do_sample=False,
                talker_repetition_penalty=self.penalty,
            )
        finally:
            del self.model.code2wav.chunked_decode
        return Answer(
            text_ids=sequences[0, inputs["input_ids"].shape[1] :].tolist(),
            codes=caught[0][0],
            waveform=waveform.reshape(-1),
        )

    def inputs(self, conversation: Conversation) -> dict[str, torch.Tensor]:
        """The arguments of `generate` for one conversation."""
        messages = [
            {
                "role": role,
                "content": [
                    {"type": "text", "text": part} if isinstance(part, str) else {"type": part.kind} for part in parts
                ],
            }
            for role, parts in conversation
        ]
        text = self.tokenizer.apply_chat_template(
            messages, chat_template=self.template, tokenize=False, add_generation_prompt=True
        )
        media = [part for _, parts in conversation for part in parts if isinstance(part, Media)]
        result: dict[str, Any] = {}
        lengths: dict[str, list[int]] = {}
        if pictures := [part.array for part in media if part.kind == "image"]:
            done = self.images(images=pictures, return_tensors="pt")
            result.update(pixel_values=done["pixel_values"], image_grid_thw=done["image_grid_thw"])
            lengths["image"] = (done["image_grid_thw"].prod(-1) // 4).tolist()
        if videos := [part for part in media if part.kind == "video"]:
            patches, grids = zip(*[_patches(part.array) for part in videos], strict=True)
            result.update(pixel_values_videos=torch.cat(patches), video_grid_thw=torch.tensor(grids))
            result["video_second_per_grid"] = torch.tensor([2 / part.fps for part in videos])
            lengths["video"] = (result["video_grid_thw"].prod(-1) // 4).tolist()
        if clips := [part.array for part in media if part.kind == "audio"]:
            done = self.audio(
                clips, sampling_rate=16000, padding=True, truncation=False, return_attention_mask=True,
                return_tensors="pt",
            )  # fmt: skip
            result.update(input_features=done["input_features"], feature_attention_mask=done["attention_mask"])
            lengths["audio"] = _get_feat_extract_output_lengths(done["attention_mask"].sum(-1)).tolist()
        for kind, counts in lengths.items():
            pad = f"<|{kind}_pad|>"
            head, *tails = text.split(pad)
            text = head + "".join(pad * count + tail for count, tail in zip(counts, tails, strict=True))
        ids = self.tokenizer(text, return_tensors="pt")
        return {"input_ids": ids["input_ids"], "attention_mask": ids["attention_mask"], **result}


def _patches(frames: np.ndarray) -> tuple[torch.Tensor, list[int]]:
    """Frames T x H x W x 3 (sides a multiple of 32, so nothing is resized) -> patches [n, 3*2*16*16] and their grid."""
    if len(frames) % 2:
        frames = np.concatenate([frames, frames[-1:]])
    video = (torch.from_numpy(frames).float() / 255 - 0.5) / 0.5
    steps, height, width = len(frames) // 2, frames.shape[1] // 16, frames.shape[2] // 16
    video = video.reshape(steps, 2, height // 2, 2, 16, width // 2, 2, 16, 3)
    patches = video.permute(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(steps * height * width, -1)
    return patches.contiguous(), [steps, height, width]
