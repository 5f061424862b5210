"""What the planner knows of Stable Diffusion 3 without loading it: its one stage, files, sizes. Torch-free."""

from collections.abc import Mapping
from pathlib import Path

from stages.config import StageTuning
from stages.errors import CheckpointError
from stages.models.checkpoint import read_json
from stages.models.pipeline_folder import own_defaults, parts_memory, pipeline_problems
from stages.models.random_weights import embedded
from stages.models.registry import FamilyContract, ImageContract, StageContract
from stages.models.sd3 import tiny

PIPELINE = "StableDiffusion3Pipeline"
MOST_PIXELS = 2048 * 2048
# What diffusers' pipeline takes where nothing is said.
_STEPS, _GUIDANCE_SCALE = 28, 7.0
_STEP_TOKENS = 32_768
"""Latent tokens of a step: 4 guided pictures of 1024x1024, which has 4096."""
_WEIGHTS = ("transformer", "vae", "text_encoder", "text_encoder_2")


def check_model(path: str, load_format: str) -> tuple[str, ...]:
    """Problems of a checkpoint folder, a line each."""
    try:
        parts = weights(path)
    except CheckpointError as error:
        return (str(error),)
    return pipeline_problems(path, load_format, kinds=(PIPELINE,), weights=parts, image=image)


def weights(path: str) -> tuple[str, ...]:
    """The parts that have some. T5 may be absent, if the folder's index says so. Raises CheckpointError."""
    index = Path(path) / "model_index.json"
    has_t5 = index.is_file() and (read_json(index).get("text_encoder_3") or [None])[0] is not None
    return (*_WEIGHTS, "text_encoder_3") if has_t5 else _WEIGHTS


def image(model_path: str) -> ImageContract:
    """The pipeline's own defaults, or those in the folder's `omni.json`. Raises CheckpointError."""
    folder = Path(model_path)
    own = own_defaults(folder)
    transformer = read_json(folder / "transformer" / "config.json")
    vae = read_json(folder / "vae" / "config.json")
    scale = 2 ** (len(vae.get("block_out_channels", (64,))) - 1)
    multiple = scale * int(transformer.get("patch_size", 2))
    side = int(transformer.get("sample_size", 128)) * scale
    return ImageContract(
        width=int(own.get("width", side)),
        height=int(own.get("height", side)),
        steps=int(own.get("steps", _STEPS)),
        multiple=multiple,
        most_pixels=MOST_PIXELS,
        most_side=int(transformer.get("pos_embed_max_size", 96)) * multiple,
        true_cfg_scale=_GUIDANCE_SCALE,
        negative_prompt="",
    )


CONTRACTS: Mapping[str, FamilyContract] = {
    "sd3": FamilyContract(
        name="sd3",
        stages={
            "painter": StageContract(
                execution_type="diffusion",
                guidance_parallel=True,
                outputs=("image",),
                tuning=StageTuning(step_tokens=_STEP_TOKENS, compile="blocks"),
            ),
        },
        media=(),
        has_weights=True,
        check_model=check_model,
        embedded={"tiny": lambda: embedded(tiny.NAME, tiny.__name__)},
        edge_bytes=lambda model, producer, consumer: MOST_PIXELS * 3,
        image=image,
        stage_memory=lambda path, stage, dtype: parts_memory(path, dict.fromkeys(weights(path), dtype)),
    )
}
