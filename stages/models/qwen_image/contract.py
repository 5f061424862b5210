"""What the planner knows of Qwen-Image without loading it: stages, files, sizes of pictures. Torch-free."""

from collections.abc import Mapping
from pathlib import Path

from stages.config import StageTuning
from stages.models.checkpoint import read_json
from stages.models.pipeline_folder import own_defaults, parts_memory, pipeline_problems
from stages.models.qwen_image import tiny
from stages.models.qwen_image.measured import sized, step_flops
from stages.models.random_weights import embedded
from stages.models.registry import FamilyContract, ImageContract, InputContract, StageContract

PIPELINE = "QwenImagePipeline"
MOST_PIXELS = 2048 * 2048
# What diffusers' pipeline takes where nothing is said.
_SIDE, _STEPS, _TRUE_CFG_SCALE, _STRENGTH = 1024, 50, 4.0, 0.6
_STEP_TOKENS = 32_768
"""Latent tokens of a step: 4 guided pictures of 1024x1024, which has 4096."""
_TUNING = StageTuning(step_tokens=_STEP_TOKENS, compile="blocks", step_cache="none")

_PROMPT_TOKENS = 512
_COMPLETE = InputContract(modes=("complete",))
_WEIGHTS = ("transformer", "vae", "text_encoder")
PARTS = {
    "painter": _WEIGHTS,
    "text_encoder": ("text_encoder", "vae"),  # which reads a picture to start from
    "denoiser": ("transformer",),
    "vae": ("vae",),
}
"""What each stage loads."""


def check_model(path: str, load_format: str) -> tuple[str, ...]:
    """Problems of a checkpoint folder, a line each."""
    problems = pipeline_problems(path, load_format, kind=PIPELINE, weights=_WEIGHTS, image=image)
    config = Path(path) / "transformer" / "config.json"
    if not problems and read_json(config).get("guidance_embeds"):
        return (f"{config}: guidance_embeds: a model that was distilled with its guidance is not known",)
    return problems


def image(model_path: str) -> ImageContract:
    """The pipeline's own defaults, or those in the folder's `omni.json`. Raises CheckpointError."""
    folder = Path(model_path)
    own = own_defaults(folder)
    vae = read_json(folder / "vae" / "config.json")
    schedule = read_json(folder / "scheduler" / "scheduler_config.json")
    return ImageContract(
        width=int(own.get("width", _SIDE)),
        height=int(own.get("height", _SIDE)),
        steps=int(own.get("steps", _STEPS)),
        # The VAE's scale, and two latents to a side of a token.
        multiple=2 * 2 ** len(vae.get("temperal_downsample", (False, True, True))),
        most_pixels=MOST_PIXELS,
        # Stretching the schedule to its end divides by what the only step leaves, which is nothing.
        least_steps=2 if schedule.get("shift_terminal") else 1,
        true_cfg_scale=float(own.get("true_cfg_scale", _TRUE_CFG_SCALE)),
        negative_prompt=own.get("negative_prompt"),
        strength=_STRENGTH,
    )


def edge_bytes(model_path: str, producer: str, consumer: str) -> int:
    """The largest payload: a picture of 8 bits a channel; else latents, and two texts before them, in float32."""
    if "request" in (producer, consumer):
        return MOST_PIXELS * 3
    config = read_json(Path(model_path) / "transformer" / "config.json")
    latents = MOST_PIXELS // image(model_path).multiple ** 2 * int(config.get("in_channels", 64)) * 4
    texts = 2 * _PROMPT_TOKENS * int(config.get("joint_attention_dim", 3584)) * 4
    return latents + texts if producer == "text_encoder" else latents


CONTRACTS: Mapping[str, FamilyContract] = {
    "qwen_image": FamilyContract(
        name="qwen_image",
        stages={
            "painter": StageContract(
                execution_type="diffusion",
                guidance_parallel=True,
                outputs=("image",),
                tuning=_TUNING,
                memory_share=60,
            ),
            "text_encoder": StageContract(execution_type="llm_generation", memory_share=17),
            "denoiser": StageContract(
                execution_type="diffusion",
                guidance_parallel=True,
                inputs={"text_encoder": _COMPLETE},
                streams=False,
                encodes=False,
                decodes=False,
                tuning=_TUNING,
                memory_share=42,
            ),
            "vae": StageContract(
                execution_type="llm_generation", inputs={"denoiser": _COMPLETE}, outputs=("image",), memory_share=2
            ),
        },
        media=("image",),
        has_weights=True,
        check_model=check_model,
        embedded={"tiny": lambda: embedded(tiny.NAME, tiny.__name__)},
        edge_bytes=edge_bytes,
        image=image,
        stage_memory=lambda path, stage, dtype: parts_memory(path, dict.fromkeys(PARTS[stage], dtype)),
        sized=sized,
        step_flops=step_flops,
        references={"diffusers, as shipped": ""},
    )
}
