"""Makes nano-image from nothing: `python -m training.nano_image.train all --out FOLDER`. One GPU.

`train` leaves in FOLDER the judge and `checkpoint/` (published layout), which is written every minute of the last
training; `score` packs the checkpoint as it is to `packed/` (for the repository), and leaves a table of scores of the
packed weights and a sheet of drawings; `all` does both.
"""

import argparse
import logging
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from stages.models.packed import unpack
from stages.models.qwen_image.judge import load as load_judge
from stages.models.random_weights import save
from training.nano_image import denoiser, judge, layout, vae
from training.nano_image.captions import SIZES, Scene, plain
from training.nano_image.drawings import BACKGROUNDS, Drawings, draw, load
from training.nano_image.scenes import Painter
from training.nano_image.score import Draw, measure, pipeline_draw
from training.pack import pack

log = logging.getLogger(__name__)
_SHARES = {"judge": 0.10, "vae": 0.25, "denoiser": 0.65}
_STEPS, _SCALE = (layout.DEFAULTS["steps"], 20), layout.DEFAULTS["true_cfg_scale"]
_JITTER = 0.02  # more, and the few values of the denoiser go into where things stand


def main() -> None:
    options = _options()
    start = time.monotonic()
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)8.0f ms  %(message)s")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    options.out.mkdir(parents=True, exist_ok=True)
    if options.part in ("all", "train"):
        train(options)
    if options.part in ("all", "score"):
        score(options)
    log.info("done after %.0f s", time.monotonic() - start)


def train(options: argparse.Namespace) -> None:
    """Judge, VAE, then text encoder and transformer."""
    drawings = (load(options.drawings) if options.drawings else draw()).few()
    drawings.save(options.out / "drawings.npz")
    log.info("%d things", len(drawings.names))
    painter = Painter(drawings, options.device, layout.SIDE, _JITTER)
    common = {"device": options.device, "seed": options.seed, "batch": options.batch, "record": not options.plain}
    seconds = {name: share * options.seconds for name, share in _SHARES.items()}
    reader = judge.train(drawings, painter, seconds=seconds["judge"], **common)
    judge.save(reader, options.out / "judge.safetensors")
    autoencoder = vae.train(drawings, painter, seconds=seconds["vae"], **common | {"batch": options.batch // 2})
    shares = judge.check(reader, drawings, painter, autoencoder, options.device)
    log.info("judge: reads both things of %.1f %%, after the VAE of %.1f %%", *(100 * share for share in shares))

    def keep(pipeline: Any) -> None:
        save(pipeline, options.out / "checkpoint", layout.DEFAULTS)

    left = {"seconds": seconds["denoiser"], "scenes": options.scenes, "keep": keep}
    keep(denoiser.train(drawings, painter, autoencoder, **left, **common))


def score(options: argparse.Namespace) -> None:
    """Of what the repository gets: the packed weights, unpacked."""
    from diffusers import QwenImagePipeline

    shutil.copyfile(options.out / "judge.safetensors", options.out / "checkpoint" / "judge.safetensors")
    size = pack(options.out / "checkpoint", options.out / "packed", coarse=("judge.safetensors",))
    log.info("packed: %.1f MB", size / 1e6)
    drawings = load(options.out / "drawings.npz")
    unpacked = options.out / "unpacked"
    unpacked.mkdir(exist_ok=True)
    unpack(options.out / "packed", unpacked)
    reader = load_judge(unpacked / "judge.safetensors").to(options.device)
    pipeline = QwenImagePipeline.from_pretrained(unpacked).to(options.device)
    _sheet(pipeline_draw(pipeline, steps=_STEPS[0], true_cfg_scale=_SCALE), drawings).save(options.out / "sheet.png")
    lines = []
    for steps in _STEPS:
        drawer = pipeline_draw(pipeline, steps=steps, true_cfg_scale=_SCALE)
        scores = measure(drawer, reader, drawings, pictures=options.pictures, seed=options.seed)
        lines += [f"{steps} steps, scale {_SCALE:g}: {score.line()}" for score in scores]
        (options.out / "scores.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    log.info("scores:\n%s", "\n".join(lines))


def _sheet(drawer: Draw, drawings: Drawings, rows: int = 8) -> Any:
    """Drawings of things spread over all names, some beside each other."""
    from PIL import Image

    things, count = len(drawings.names), rows * rows
    scenes = [
        Scene(
            thing=place * things // count,
            right=(place * things // count + things // 3) % things if place % 4 == 3 else None,
            size=0 if place % 4 == 3 else place % len(SIZES),
            background=place % len(BACKGROUNDS),
        )
        for place in range(count)
    ]
    pixels = drawer([plain(scene, drawings) for scene in scenes], range(count))
    side = pixels.shape[-1]
    sheet = Image.new("RGB", (rows * side, rows * side))
    for place, picture in enumerate(pixels.clamp(-1, 1).add(1).mul(127.5).round().byte().cpu()):
        tile = Image.fromarray(picture.permute(1, 2, 0).numpy())
        sheet.paste(tile, (place % rows * side, place // rows * side))
    return sheet


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("all", "train", "score"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--drawings", type=Path, help="what another run saved; else rendered from the emoji font")
    parser.add_argument("--seconds", type=float, default=330, help="of training, all parts together")
    parser.add_argument("--scenes", type=int, default=120_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--pictures", type=int, default=256, help="of each score")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--plain", action="store_true", help="neither compile nor record anything on the GPU")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
