"""What the planner knows of Wan without loading it: its one stage, files, sizes and lengths of videos. Torch-free."""

from collections.abc import Mapping
from pathlib import Path

from stages.config import StageTuning
from stages.models.checkpoint import read_json
from stages.models.pipeline_folder import own_defaults, parts_memory, pipeline_problems
from stages.models.random_weights import embedded
from stages.models.registry import FamilyContract, ImageContract, StageContract
from stages.models.wan import tiny

PIPELINE = "WanPipeline"
FPS = 16.0
# What diffusers' pipeline takes where nothing is said.
_WIDTH, _HEIGHT, _FRAMES, _STEPS, _GUIDANCE_SCALE = 832, 480, 81, 50, 5.0
_MOST_PIXELS, _MOST_FRAMES = 1280 * 720, 81
EXACT = ("time_embedder", "scale_shift_table", "norm1", "norm2", "norm3")
"""Modules of the transformer that diffusers leaves in float32."""
VAE_DTYPE = "float32"  # the published recipe decodes so, whatever the rest is
_STEP_TOKENS = 151_200
"""Latent tokens of a step: one guided video of 1280x720 and 81 frames, which has 75600."""
_WEIGHTS = ("transformer", "vae", "text_encoder")


def check_model(path: str, load_format: str) -> tuple[str, ...]:
    """Problems of a checkpoint folder, a line each."""
    problems = pipeline_problems(path, load_format, kinds=(PIPELINE,), weights=_WEIGHTS, image=video)
    if problems:
        return problems
    index = read_json(Path(path) / "model_index.json")
    if index.get("boundary_ratio") is not None or index.get("expand_timesteps"):
        return (f"{Path(path) / 'model_index.json'}: a Wan with two transformers or a timestep a token is not known",)
    return ()


def video(model_path: str) -> ImageContract:
    """The pipeline's own defaults, or those in the folder's `omni.json`. Raises CheckpointError."""
    folder = Path(model_path)
    own = own_defaults(folder)
    vae = read_json(folder / "vae" / "config.json")
    transformer = read_json(folder / "transformer" / "config.json")
    return ImageContract(
        width=int(own.get("width", _WIDTH)),
        height=int(own.get("height", _HEIGHT)),
        steps=int(own.get("steps", _STEPS)),
        multiple=int(vae.get("scale_factor_spatial", 8)) * int(transformer.get("patch_size", (1, 2, 2))[1]),
        most_pixels=int(own.get("most_pixels", _MOST_PIXELS)),
        true_cfg_scale=_GUIDANCE_SCALE,
        negative_prompt="",
        sigmas=False,
        frames=int(own.get("frames", _FRAMES)),
        frame_multiple=int(vae.get("scale_factor_temporal", 4)),
        most_frames=int(own.get("most_frames", _MOST_FRAMES)),
    )


def edge_bytes(model_path: str, producer: str, consumer: str) -> int:
    """The largest payload: a video, 8 bits a channel."""
    able = video(model_path)
    return able.most_pixels * able.most_frames * 3


CONTRACTS: Mapping[str, FamilyContract] = {
    "wan": FamilyContract(
        name="wan",
        stages={
            "painter": StageContract(
                execution_type="diffusion",
                guidance_parallel=True,
                outputs=("video",),
                tuning=StageTuning(step_tokens=_STEP_TOKENS, compile="blocks", step_cache="none"),
            ),
        },
        media=(),
        has_weights=True,
        check_model=check_model,
        embedded={"tiny": lambda: embedded(tiny.NAME, tiny.__name__)},
        edge_bytes=edge_bytes,
        image=video,
        stage_memory=lambda path, stage, dtype: parts_memory(
            path, {**dict.fromkeys(_WEIGHTS, dtype), "vae": VAE_DTYPE}, EXACT
        ),
    )
}
