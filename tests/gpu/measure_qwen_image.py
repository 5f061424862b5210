"""Seconds a guided picture takes on this machine's GPUs: diffusers' pipeline as it ships and omni's stage, each way of
running its steps, in one process on the same random weights of the published size.

    python -m tests.gpu.measure_qwen_image --out measured.json

takes about 200 s on two H200 (on one, what needs a second is left out). `--tiny` only tries the script, on the CPU.
"""

import argparse
import gc
import json
import math
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from diffusers.models.transformers.transformer_qwenimage import QwenDoubleStreamAttnProcessor2_0
from torch.profiler import ProfilerActivity, profile

from stages.config import ModelSpec, StageTuning
from stages.connectors import inline
from stages.models import qwen_image
from stages.models.cache import built_once
from stages.models.qwen_image import tiny
from stages.models.qwen_image.attention import JointAttention
from stages.models.qwen_image.stepper import QwenImageStepper
from tests.unit.stages.models.qwen_image.studio import Asked, Studio

PUBLISHED = Path(qwen_image.__file__).parent / "configs" / "20b"
PROMPT, NEGATIVE = "0123456789" * 6, "0123456789"  # texts of unequal lengths, a token a digit
OTHERS = PROMPT[::-1], NEGATIVE[::-1]  # of the same lengths


class Shared(QwenImageStepper):
    """Loads once, for several runners."""

    held = 0

    def load(self, devices, dtype):
        self.held = self.held or super().load(devices, dtype)
        return self.held


class Measurement:
    def __init__(self, arguments: argparse.Namespace) -> None:
        inline.INLINE_MAX_BYTES = 1 << 30  # pictures stay within this process
        self.small = arguments.tiny
        self.folder = built_once(Path(arguments.cache), tiny.NAME, tiny.write) if self.small else PUBLISHED
        self.gpus = () if self.small else tuple(str(index) for index in range(torch.cuda.device_count()))
        self.dtype = "float32" if self.small else "bfloat16"
        # side, steps, and the steps of a try
        self.works = [(64, 6, 3), (32, 4, 2)] if self.small else [(1024, 50, 10), (512, 20, 10)]
        self.out = Path(arguments.out)
        self.start = time.perf_counter()
        self.found: list[dict[str, object]] = []
        self.exact: dict[tuple[int, str], np.ndarray] = {}

    def stepper(self) -> Shared:
        model = ModelSpec(path=str(self.folder), load_format="dummy", dtype=self.dtype)
        return Shared(model, graphs=not self.small, ahead=True)

    def studio(self, stepper: Shared, gpus: tuple[str, ...], places: int = 1, **tuning: object) -> Studio:
        """Loaded, warmed up, compiled."""
        begin = time.perf_counter()
        model = {"load_format": "dummy", "dtype": self.dtype}
        studio = Studio(self.folder, stepper=stepper, tuning=StageTuning(**tuning), gpus=gpus, places=places, **model)
        print(f"ready after {time.perf_counter() - begin:.1f} s: {tuning}", flush=True)
        return studio

    def note(self, way: str, side: int, steps: int, seconds: float, **more: object) -> None:
        """A row is written as soon as it is known."""
        row = {"way": way, "side": side, "steps": steps, "seconds": round(seconds, 3), "step_ms": 1e3 * seconds / steps}
        self.found.append({**row, **more})
        print(f"{time.perf_counter() - self.start:6.1f} s  {self.found[-1]}", flush=True)
        self.out.write_text(json.dumps(self.found, indent=2) + "\n")

    def clock(self) -> float:
        for index in range(len(self.gpus)):
            torch.cuda.synchronize(index)
        return time.perf_counter()

    def ours(self, way: str, studio: Studio, *, brief: bool = False, known: bool = False) -> None:
        prompt, negative = OTHERS if known else (PROMPT, NEGATIVE)
        for side, steps, few in self.works:
            asked = Asked(prompt=prompt, negative=negative, size=(side, side), steps=few if brief else steps)
            # Other texts, as those that are known are not encoded again, and other lengths, so that no graph has them.
            studio.draw(Asked(prompt=prompt[1:], negative=negative[1:], size=(side, side), steps=2))
            begin = self.clock()
            session = studio.draw(asked)
            seconds, drawn = self.clock() - begin, session.drawn[0]
            if drawn.pixels is None:
                self.note(way, side, asked.steps, seconds, error=drawn.error)
                continue
            exact = self.exact.setdefault((side, prompt), drawn.pixels) if not brief else drawn.pixels
            said = dict(drawn.payload.meta).get("warning", "")
            counters = [dict(step.counters) for step in session.steps if step.counters]
            self.note(way, side, asked.steps, seconds, psnr=psnr(drawn.pixels, exact), said=said, last=counters[-1])

    def theirs(self, stepper: Shared) -> None:
        """As shipped: with the mask, two forwards a step."""
        pipeline = stepper.pipeline
        pipeline.transformer.set_attn_processor(QwenDoubleStreamAttnProcessor2_0())
        pipeline.set_progress_bar_config(disable=True)
        for side, steps, _ in self.works:
            for number in (2, steps):
                begin = self.clock()
                pipeline(
                    PROMPT, negative_prompt=NEGATIVE, true_cfg_scale=4.0, width=side, height=side,
                    num_inference_steps=number, generator=torch.Generator().manual_seed(1), output_type="np",
                )  # fmt: skip
            self.note("diffusers, as shipped", side, steps, self.clock() - begin)

    def attempt(self, work: Callable[..., None], *arguments: object) -> None:
        """What fails leaves the rest its turn."""
        try:
            work(*arguments)
        except Exception:
            traceback.print_exc()

    def run(self) -> None:
        self.attempt(self.one_device, self.stepper())
        gc.collect()
        if self.gpus:
            torch.cuda.empty_cache()
        if self.small or len(self.gpus) > 1:
            self.attempt(self.two_devices)

    def two_devices(self) -> None:
        both = self.studio(self.stepper(), self.gpus[:2], 2, graphs=not self.small)
        self.ours("omni, graphs, two devices", both)
        both.runner.close()

    def graphs(self, stepper: Shared) -> None:
        """Texts of lengths that no graph has yet, and texts of lengths that one has; what is in the graphs."""
        studio = self.studio(stepper, self.gpus[:1], graphs=True)
        self.ours("omni, graphs", studio)
        self.ours("omni, graphs, lengths that were there before", studio, known=True)
        for graphs in studio.runner._predictor._graphs.values():
            for key, known in graphs._known.items():
                if known.captured is None:
                    continue
                begin = self.clock()
                for _ in range(10):
                    known.captured.replay()
                print(f"{key}: {1e2 * (self.clock() - begin):.2f} ms a replay")
                with profile(activities=[ProfilerActivity.CUDA]) as seen:
                    known.captured.replay()
                    self.clock()
                print(seen.key_averages().table(sort_by="self_device_time_total", row_limit=15))

    def one_device(self, stepper: Shared) -> None:
        first = self.gpus[:1]
        plain = self.studio(stepper, first)
        self.attempt(self.theirs, stepper)
        stepper.pipeline.transformer.set_attn_processor(JointAttention())
        self.ours("omni, without graphs", plain, brief=True)
        if not self.small:
            self.attempt(self.graphs, stepper)
        stepper._modulation, stepper._ragged = None, False
        self.ours("omni, diffusers' blocks compiled", self.studio(stepper, first, compile="blocks"))
        # Last, since its hooks stay on the blocks, which are compiled already.
        self.ours("omni, compiled blocks, step cache", self.studio(stepper, first, step_cache="first_block"))


def psnr(pixels: np.ndarray, exact: np.ndarray) -> float | None:
    """dB against the picture without compiling; None if it is the same. Pictures of random weights are noise."""
    error = float(np.square(pixels.astype(float) - exact).mean())
    return round(10 * math.log10(255**2 / error), 1) if error else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", required=True, help="file for the figures, JSON")
    parser.add_argument("--tiny", action="store_true", help="the tiny model, on the CPU")
    parser.add_argument("--cache", default="outputs", help="folder for the tiny model")
    Measurement(parser.parse_args()).run()
