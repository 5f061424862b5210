"""What a request wants drawn, against what the deployed checkpoint can draw: refused, completed, or noted as idle."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from omni_cli.config.image import ImageConfig
from omni_cli.config.report import Problem
from omni_cli.plan.model import ExecutionPlan
from stages.messages import ChatMessage, ImageParams
from stages.models.registry import ImageContract
from stages.payload import Payload, Tensor

_MOST_SIDE = {"webp": 16_383, "jpeg": 65_500}
"""Of a file, in pixels: libwebp's WEBP_MAX_DIMENSION, libjpeg's JPEG_MAX_DIMENSION."""

_MOST_LAST = 0.999
"""Of a schedule that is stretched to its end: by what its last level is below 1, all of them are divided."""


def drawing_problems(plan: ExecutionPlan, asked: ImageConfig, prefix: str) -> Iterator[Problem]:
    """What the model cannot draw; each key stands behind `prefix`."""
    able = plan.image
    if able is None:
        if asked != ImageConfig():
            message = f"pipeline `{plan.pipeline}` draws no pictures; leave it out"
            yield Problem(key=f"{prefix}image", message=message)
        return
    if asked.pixels is not None and (message := _unfit(*asked.pixels, able)):
        yield Problem(key=f"{prefix}image.size", message=message)
    if asked.frames is not None and (message := _unfit_frames(asked.frames, able)):
        yield Problem(key=f"{prefix}image.frames", message=message)
    width, height = asked.pixels or (able.width, able.height)
    most = _MOST_SIDE.get(asked.format)
    if most is not None and max(width, height) > most and able.most_frames == 1:
        message = f"{asked.format} has no room for {width}x{height}: a side has {most} pixels at most; take png"
        yield Problem(key=f"{prefix}image.format", message=message)
    if asked.sigmas and not able.sigmas:
        yield Problem(
            key=f"{prefix}image.sigmas", message="the noise schedule of this checkpoint takes no other levels"
        )
    steps = len(asked.sigmas) or asked.steps
    if steps is not None and steps < able.least_steps:
        message = f"is {steps}; the noise schedule of this checkpoint needs {able.least_steps} steps at least"
        yield Problem(key=f"{prefix}image.{'sigmas' if asked.sigmas else 'steps'}", message=message)
    elif asked.sigmas and able.least_steps > 1 and asked.sigmas[-1] > _MOST_LAST:
        message = f"ends with {asked.sigmas[-1]:g}; the noise schedule of this checkpoint needs {_MOST_LAST:g} or less"
        yield Problem(key=f"{prefix}image.sigmas", message=message)


def content_problems(able: ImageContract, conversation: Sequence[ChatMessage]) -> Iterator[Problem]:
    """What this model cannot draw from."""
    if len(conversation) != 1 or conversation[0].role != "user":
        yield Problem(key="messages", message="a picture is drawn from one prompt, not from a conversation")
    pictures = sum(part.kind == "image" for turn in conversation for part in turn.parts)
    least, most = able.least_pictures, able.most_pictures
    if pictures > most and not least:
        yield Problem(key="images", message=f"a picture is drawn from one picture at most, not from {pictures}")
    elif not least <= pictures <= most:
        edits = "one picture" if most == 1 else f"{least} to {most} pictures"
        yield Problem(key="images", message=f"this model edits {edits}, and {pictures or 'none'} came with the prompt")


def _unfit(width: int, height: int, able: ImageContract) -> str:
    """Why the model cannot draw this size, and the two nearest that it can; empty if it can."""
    if width * height > able.largest:
        side = int(able.largest**0.5)
        trained = f"; this model was trained at {able.width}x{able.height} alone" if able.one_size else ""
        return f"{width}x{height} has {width * height} pixels, more than {able.largest} (as {side}x{side}){trained}"
    if able.most_side is not None and max(width, height) > able.most_side:
        return f"{width}x{height}: a side has {able.most_side} pixels at most"
    if not (width % able.multiple or height % able.multiple):
        return ""
    # Only one side is made longer where both were too much.
    ups = ((False, False), (True, True), (True, False), (False, True))
    sizes = [(_near(width, able.multiple, right), _near(height, able.multiple, down)) for right, down in ups]
    near = [f"{size[0]}x{size[1]}" for size in dict.fromkeys(sizes) if not _unfit(*size, able)][:2]
    nearest = f"; the nearest are {', '.join(near)}" if near else ""
    return f"{width}x{height}: width and height must be multiples of {able.multiple}{nearest}"


def _unfit_frames(frames: int, able: ImageContract) -> str:
    if able.most_frames == 1 and frames != 1:
        return f"is {frames}; this model draws single pictures"
    if frames > able.most_frames:
        return f"is {frames}; at most {able.most_frames} are drawn"
    below = (frames - 1) // able.frame_multiple * able.frame_multiple + 1
    if below == frames:
        return ""
    return f"is {frames}; it is 1 more than a multiple of {able.frame_multiple}: {below}, {below + able.frame_multiple}"


def _near(side: int, multiple: int, up: bool) -> int:
    """The next multiple below or above; a side that is one stays."""
    if side % multiple == 0:
        return side
    return max(1 + up, side // multiple + up) * multiple


def drawing(
    able: ImageContract, asked: ImageConfig, media: Sequence[Tensor] = (), *, previews: bool = True
) -> tuple[ImageParams, tuple[str, ...]]:
    """A request without problems, with everything decided; and what it sets in vain. `media` are the pictures that it
    brings, `previews` says that the stage which denoises can also decode."""
    pictures = tuple((tensor.shape[1], tensor.shape[0]) for tensor in media)
    width, height = asked.pixels or able.default_size(pictures)
    scale = able.true_cfg_scale if asked.true_cfg_scale is None else asked.true_cfg_scale
    params = ImageParams(
        width=width,
        height=height,
        steps=len(asked.sigmas) or asked.steps or able.steps,
        frames=asked.frames or able.frames,
        true_cfg_scale=scale if able.true_cfg_scale is not None and scale is not None else 1.0,
        negative_prompt=able.negative_prompt if asked.negative_prompt is None else asked.negative_prompt,
        pictures=pictures,
        strength=(asked.strength or able.strength) if pictures and able.strength is not None else None,
        sigmas=asked.sigmas,
        preview_every=(asked.preview_every or 0) if previews else 0,
    )
    return params, tuple(_idle(able, asked, params))


def shows_previews(plan: ExecutionPlan) -> bool:
    """Whether the stage that makes the pictures is the one that denoises them."""
    return any(plan.stage(stage).execution_type == "diffusion" for stage in plan.outputs.values())


def _idle(able: ImageContract, asked: ImageConfig, params: ImageParams) -> Iterator[str]:
    if able.one_size and (params.width, params.height) != (able.width, able.height):
        trained = f"{able.width}x{able.height}"
        yield f"image.size: this model was trained at {trained} alone; what it draws at another size has no sense"
    if asked.negative_prompt is not None and not params.guided:
        why = "this model knows no guidance" if able.true_cfg_scale is None else (
            f"it acts at a true_cfg_scale of more than 1, not at {params.true_cfg_scale:g}"
        )  # fmt: skip
        yield f"image.negative_prompt has no effect: {why}"
    if asked.true_cfg_scale is not None and asked.true_cfg_scale > 1 and not params.guided:
        yield "image.true_cfg_scale has no effect without image.negative_prompt, which may be empty"
    if asked.strength is not None and params.strength is None:
        where = "on a model that edits" if able.least_pictures else "without a picture to start from"
        yield f"image.strength has no effect {where}"
    if asked.preview_every is not None and not params.preview_every:
        yield "image.preview_every has no effect: the stage that denoises does not decode"
    if params.preview_every >= params.taken:
        yield f"image.preview_every has no effect: the picture is done after {params.taken} steps"
    if asked.format != "png" and able.most_frames > 1:
        yield "image.format has no effect on a video, which is an mp4"
    if asked.sigmas and asked.steps is not None and asked.steps != len(asked.sigmas):
        yield f"image.steps has no effect beside image.sigmas, which has {len(asked.sigmas)} levels"


def warnings_of(payload: Payload) -> tuple[str, ...]:
    """What the stage that made it says beside it."""
    return tuple(line for name, value in payload.meta if name == "warning" for line in str(value).splitlines())


def drawn_after(payload: Payload) -> int | None:
    """After how many steps a preview was made; None of what is done."""
    return next((int(value) for name, value in payload.meta if name == "step"), None)


def generation(
    params: ImageParams, prompt: str, seed: int | None, plan: ExecutionPlan, step: int | None = None
) -> dict[str, str]:
    """What a picture's or video's file says about itself: all that it takes to draw it again; of one that is not done,
    after which step it is."""
    known = {
        "preview": None if step is None else f"after step {step}",
        "prompt": prompt,
        "negative_prompt": params.negative_prompt if params.guided else None,
        "true_cfg_scale": f"{params.true_cfg_scale:g}" if params.guided else None,
        "seed": seed,
        "size": f"{params.width}x{params.height}",
        "frames": params.frames if plan.image is not None and plan.image.most_frames > 1 else None,
        "steps": params.steps,
        "strength": params.strength,
        "sigmas": json.dumps(params.sigmas) if params.sigmas else None,
        "model": Path(plan.model.path).name,
        "recipe": plan.recipe,
        "software": "omni",
    }
    return {name: str(value) for name, value in known.items() if value is not None}
