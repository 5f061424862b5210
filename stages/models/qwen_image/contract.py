"""What the planner knows of Qwen-Image without loading it: stages, files, sizes of pictures. Torch-free."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from stages.config import StageTuning
from stages.models.checkpoint import read_json
from stages.models.packed import unpacked
from stages.models.pipeline_folder import own_defaults, parts_memory, pipeline_kind, pipeline_problems
from stages.models.qwen_image import tiny
from stages.models.qwen_image.measured import sized, step_flops
from stages.models.random_weights import embedded
from stages.models.registry import FamilyContract, ImageContract, InputContract, StageContract

EDITED_PIXELS = 1024 * 1024  # to which a picture that is edited is scaled for the VAE
EDITS = {"QwenImageEditPipeline": (1, EDITED_PIXELS), "QwenImageEditPlusPipeline": (8, 384 * 384)}
"""How many pictures a pipeline edits at most, and how many pixels of each the text encoder sees."""
MOST_PIXELS = 2048 * 2048
# What diffusers' pipeline takes where nothing is said.
_SIDE, _STEPS, _TRUE_CFG_SCALE, _STRENGTH = 1024, 50, 4.0, 0.6
_STEP_TOKENS = 32_768
"""Latent tokens of a step: 4 guided pictures of 1024x1024, which has 4096."""
_TUNING = StageTuning(step_tokens=_STEP_TOKENS, graphs=True, compile="blocks", step_cache="none")

_PROMPT_TOKENS = 512
EDIT_TOKENS = 3072
"""Of a prompt and what is seen of its pictures."""
_PLACES = 4096  # of these and half a picture's side, in the transformer
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
    kinds = ("QwenImagePipeline", *EDITS)
    problems = pipeline_problems(path, load_format, kinds=kinds, weights=_WEIGHTS, image=image)
    config = Path(path) / "transformer" / "config.json"
    if not problems and read_json(config).get("guidance_embeds"):
        return (f"{config}: guidance_embeds: a model that was distilled with its guidance is not known",)
    processor = Path(path) / "processor"
    if not problems and image(path).least_pictures:
        either = (("tokenizer_config.json",), ("preprocessor_config.json", "processor_config.json"))
        absent = [names[0] for names in either if not any((processor / name).is_file() for name in names)]
        return tuple(f"{processor / name}: no such file" for name in absent)
    return problems


def image(model_path: str) -> ImageContract:
    """The pipeline's own defaults, or those in the folder's `omni.json`. Raises CheckpointError."""
    folder = Path(model_path)
    own = own_defaults(folder)
    vae = read_json(folder / "vae" / "config.json")
    schedule = read_json(folder / "scheduler" / "scheduler_config.json")
    edits = EDITS.get(pipeline_kind(folder))
    multiple = 2 * 2 ** len(vae.get("temperal_downsample", (False, True, True)))  # two latents to a side of a token
    return ImageContract(
        width=int(own.get("width", _SIDE)),
        height=int(own.get("height", _SIDE)),
        steps=int(own.get("steps", _STEPS)),
        multiple=multiple,
        most_pixels=MOST_PIXELS,
        most_side=2 * (_PLACES - EDIT_TOKENS) * multiple,
        # Stretching the schedule to its end divides by what the only step leaves, which is nothing.
        least_steps=2 if schedule.get("shift_terminal") else 1,
        true_cfg_scale=float(own.get("true_cfg_scale", _TRUE_CFG_SCALE)),
        negative_prompt=own.get("negative_prompt"),
        least_pictures=1 if edits else 0,
        most_pictures=edits[0] if edits else 1,
        strength=None if edits else _STRENGTH,
        one_size=bool(own.get("one_size", False)),
    )


def edited(folder: Path) -> tuple[int, int]:
    """Pixels of a picture that is edited, for the VAE and for the text encoder. Raises CheckpointError."""
    own, (_, seen) = own_defaults(folder), EDITS[pipeline_kind(folder)]
    return int(own.get("edited_pixels", EDITED_PIXELS)), int(own.get("seen_pixels", seen))


def edge_bytes(model_path: str, producer: str, consumer: str) -> int:
    """The largest payload: a picture of 8 bits a channel; else latents, and two texts before them, in float32. What is
    edited has sides of multiples of 32, which makes it at most a quarter larger."""
    if "request" in (producer, consumer):
        return MOST_PIXELS * 3
    config = read_json(Path(model_path) / "transformer" / "config.json")
    able, pixels, tokens = image(model_path), MOST_PIXELS, 0
    if producer == "text_encoder":
        tokens = 2 * (EDIT_TOKENS if able.least_pictures else _PROMPT_TOKENS)
        if able.least_pictures:
            pixels = able.most_pictures * edited(Path(model_path))[0] * 5 // 4
    latents = pixels // able.multiple**2 * int(config.get("in_channels", 64)) * 4
    return latents + tokens * int(config.get("joint_attention_dim", 3584)) * 4


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
            "text_encoder": StageContract(
                execution_type="llm_generation", tuning=StageTuning(graphs=True), memory_share=17
            ),
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
                execution_type="llm_generation",
                inputs={"denoiser": _COMPLETE},
                outputs=("image",),
                tuning=StageTuning(graphs=True),
                memory_share=2,
            ),
        },
        media=("image",),
        has_weights=True,
        check_model=check_model,
        embedded={
            "nano": lambda: unpacked(Path(__file__).parent / "nano", "nano-image"),
            "tiny": lambda: embedded(tiny.NAME, tiny.__name__),
            **{name: partial(embedded, tiny.named(kind), tiny.__name__, kind) for name, kind in tiny.EDITS.items()},
        },
        edge_bytes=edge_bytes,
        image=image,
        stage_memory=lambda path, stage, dtype: parts_memory(path, dict.fromkeys(PARTS[stage], dtype)),
        sized=sized,
        step_flops=step_flops,
        references={"diffusers, as shipped": ""},
    )
}
