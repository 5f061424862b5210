"""The tiny checkpoint: a random Qwen-Image of about 0.3 M parameters in the published layout, built once into a cache
folder. The tests run it: it is small, and `model.path=tiny` names it.

The modules' own classes know their tensors, so that a process of its own builds it: importing this module imports no
torch. Fetches nothing.
"""

import sys
from pathlib import Path
from typing import Any

from stages.models.random_weights import fill, folder_name, save

SEED = 20_240_804
# Raise it when what `write` makes of the values below changes.
_VERSION = 1

# As published, but for `shift_terminal` (0.02 there), which makes nothing of a single step.
SCHEDULER = {
    "base_image_seq_len": 256,
    "base_shift": 0.5,
    "max_image_seq_len": 8192,
    "max_shift": 0.9,
    "num_train_timesteps": 1000,
    "shift": 1.0,
    "time_shift_type": "exponential",
    "use_dynamic_shifting": True,
}
_TRANSFORMER: dict[str, Any] = {
    "num_layers": 2,
    "num_attention_heads": 2,
    "attention_head_dim": 32,
    "joint_attention_dim": 32,
    "axes_dims_rope": [8, 12, 12],
}
_VAE: dict[str, Any] = {"base_dim": 8, "z_dim": 16, "dim_mult": [1, 1, 2, 2], "num_res_blocks": 1}
TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
_VOCABULARY = 512
_TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": _VOCABULARY,
    "max_position_embeddings": 4096,
    "bos_token_id": None,
    "eos_token_id": None,
    "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e6},
}
_VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 32,
    "fullatt_block_indexes": [0],
}
_TEXT_GAIN = 3.0  # of the projections through which a picture attends to its prompt
# What a request is given that leaves it open: with the published defaults the tiny model would draw for minutes.
DEFAULTS = {"width": 128, "height": 128, "steps": 8}
NAME = folder_name(
    "qwen_image", _VERSION, SEED, SCHEDULER, _TRANSFORMER, _VAE, TOKENS, _TEXT, _VISION, _TEXT_GAIN, DEFAULTS
)
EDITS = {"tiny_edit": "QwenImageEditPipeline", "tiny_edit_plus": "QwenImageEditPlusPipeline"}
"""The pipelines of those that edit, by the name of the embedded checkpoint."""
_SMALL = {"width": 64, "height": 64, "steps": 8, "edited_pixels": 64 * 64}
_EDIT_DEFAULTS = {
    "QwenImageEditPipeline": {**_SMALL, "seen_pixels": 64 * 64},
    "QwenImageEditPlusPipeline": {**_SMALL, "seen_pixels": 48 * 48},
}


def named(kind: str) -> str:
    """The folder of a pipeline that edits."""
    return folder_name("qwen_image", NAME, kind, _EDIT_DEFAULTS[kind])


def write(folder: Path, kind: str = "QwenImagePipeline") -> None:
    """Makes every part of this pipeline and saves the whole as diffusers does."""
    import diffusers
    from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    edits = kind in _EDIT_DEFAULTS
    pipeline = getattr(diffusers, kind)(
        scheduler=FlowMatchEulerDiscreteScheduler(**SCHEDULER),
        vae=AutoencoderKLQwenImage(**_VAE),
        text_encoder=Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=_TEXT, vision_config=_VISION)),
        tokenizer=None,
        transformer=QwenImageTransformer2DModel(**_TRANSFORMER),
        **({"processor": None} if edits else {}),
    )
    for module in (pipeline.vae, pipeline.text_encoder, pipeline.transformer):
        fill(module, seed=SEED, gains={"add_": _TEXT_GAIN, "embed_tokens": 0.0})
    tokenizer = _tokenizer(pipeline.prompt_template_encode)
    pipeline.register_modules(tokenizer=tokenizer)
    if edits:
        pipeline.text_encoder.config.image_token_id = tokenizer.convert_tokens_to_ids("<|image_pad|>")
        _save_processor(folder / "processor", tokenizer)
    save(pipeline, folder, _EDIT_DEFAULTS.get(kind, DEFAULTS))


def _save_processor(folder: Path, tokenizer: Any) -> None:
    """As published: what reads pictures for the text encoder, with its own tokenizer."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    Qwen2VLImageProcessorPil().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer(template: str) -> Any:
    """Byte-level BPE that has learned the words of the pipeline's template: as in the published one each is a token,
    so that as many of them are dropped as there are before the prompt."""
    from transformers import Qwen2Tokenizer

    empty = Qwen2Tokenizer(extra_special_tokens=TOKENS)
    return empty.train_new_from_iterator([[template] * 2], vocab_size=_VOCABULARY - 8, show_progress=False)


if __name__ == "__main__":
    write(Path(sys.argv[1]), *sys.argv[2:])
