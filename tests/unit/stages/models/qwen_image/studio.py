"""A stage that draws, in this process: the real worker, scheduler and runner, without pipes and rings."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import torch

from stages.config import EdgeSpec, ModelSpec, StageSpec, StageTuning
from stages.connectors.inline import InlineReader, InlineWriter
from stages.events import OutputProduced, StageCancelled, StageFailed, StepDone
from stages.messages import (
    REQUEST,
    Cancel,
    ChatMessage,
    Deliver,
    ImageParams,
    Part,
    StageRequest,
    StreamMessage,
    Submit,
    Turn,
)
from stages.models.qwen_image.stepper import QwenImageStepper
from stages.payload import Payload
from stages.runners.diffusion import DiffusionRunner
from stages.runners.tensors import array_payload, from_payload
from stages.schedulers.diffusion import DiffusionScheduler
from stages.worker.loop import StageWorker


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request. Guided if it has a negative prompt."""

    prompt: str = "a red boat"
    size: tuple[int, int] = (64, 64)
    steps: int = 4
    scale: float = 4.0
    negative: str | None = None
    seed: int = 1
    sigmas: tuple[float, ...] = ()
    frames: int = 1
    picture: np.ndarray | None = None
    edited: tuple[np.ndarray, ...] = ()
    strength: float = 0.6
    preview_every: int = 0

    @property
    def brings(self) -> tuple[np.ndarray, ...]:
        return self.edited if self.picture is None else (self.picture,)

    @property
    def image(self) -> ImageParams:
        return ImageParams(
            width=self.size[0],
            height=self.size[1],
            steps=len(self.sigmas) or self.steps,
            frames=self.frames,
            true_cfg_scale=self.scale,
            negative_prompt=self.negative,
            pictures=tuple((picture.shape[1], picture.shape[0]) for picture in self.brings),
            strength=None if self.picture is None else self.strength,
            sigmas=self.sigmas,
            preview_every=self.preview_every,
        )

    def request(self, uid: int) -> StageRequest:
        turn = ChatMessage(role="user", parts=(Part(kind="text", text=self.prompt),))
        return StageRequest(
            uid=uid, seed=self.seed, inputs=(REQUEST,) if self.brings else (), consumers=(),
            outputs=("image" if self.frames == 1 else "video",), conversation=(turn,), image=self.image,
        )  # fmt: skip


MEDIA = EdgeSpec(producer=REQUEST, consumer="painter", mode="complete", connector="inline", rings=())


def delivery(uid: int, pictures: tuple[np.ndarray, ...], consumer: str = "painter") -> Deliver:
    tensors = tuple(array_payload(f"media{index}", picture) for index, picture in enumerate(pictures))
    ref, _ = InlineWriter("").put([Payload(tensors=tensors)])
    message = StreamMessage(uid=uid, producer=REQUEST, consumer=consumer, seq=0, units=1, eos=True, ref=ref)
    return Deliver(message=message)


def gradient(width: int, height: int) -> np.ndarray:
    """A picture to start from."""
    rows, columns = np.mgrid[0:height, 0:width]
    return np.stack([rows * 255 // height, columns * 255 // width, (rows + columns) % 256], axis=-1).astype(np.uint8)


@dataclass(kw_only=True)
class Drawn:
    """What became of a request: its last latents before they were decoded, the picture, or the error."""

    latents: torch.Tensor | None = None
    pixels: np.ndarray | None = None
    payload: Payload | None = None
    payloads: list[Payload] = field(default_factory=list)
    error: str = ""


@dataclass(kw_only=True)
class Session:
    """Everything that a run said: `steps` as events, `gauges` at the end."""

    drawn: dict[int, Drawn] = field(default_factory=dict)
    steps: list[StepDone] = field(default_factory=list)
    gauges: tuple[tuple[str, int], ...] = ()
    cancelled: set[int] = field(default_factory=set)

    def counts(self) -> Counter:
        return Counter(row.uid for step in self.steps for row in step.rows if row.phase == "denoise")


class Studio:
    """With `gpus`, on these; else on the CPU, on as many devices as `places`, which are all the same one."""

    def __init__(
        self,
        folder: Path,
        *,
        joined: bool = True,
        max_batch: int = 8,
        stepper=None,
        tuning: StageTuning | None = None,
        places: int = 1,
        gpus: tuple[str, ...] = (),
        load_format: str = "auto",
        dtype: str = "float32",
    ) -> None:
        model = ModelSpec(path=str(folder), load_format=load_format, dtype=dtype)
        self.spec = StageSpec(
            run_id="test", family="qwen_image", stage="painter", replica=0, generation=0, execution_type="diffusion",
            model=model, devices=gpus, max_batch=max_batch, memory_fraction=0.9, threads=1, inputs=(MEDIA,),
            consumers=(), outputs=("image",), tuning=tuning or StageTuning(),
        )  # fmt: skip
        self.stepper = stepper or QwenImageStepper(model)
        devices = [] if gpus else [torch.device("cpu")] * places
        backend = "inductor" if gpus else "eager"
        self.runner = DiffusionRunner(self.spec, self.stepper, joined=joined, backend=backend, devices=devices)
        self.facts = dict(self.runner.load())
        self.runner.warm_up()

    def draw(self, *asked: Asked, arrivals=(), leaving=None, max_batch=None) -> Session:
        """All of them, each after as many steps of the stage as `arrivals` says. `leaving` cancels some of them after
        so many steps of the stage."""
        scheduler = DiffusionScheduler(max_batch or self.spec.max_batch, self.runner.denoising)
        self.worker = StageWorker(self.spec, self.runner, scheduler, {REQUEST: InlineReader()}, {}, count().__next__)
        session = Session(drawn={uid: Drawn() for uid in range(len(asked))})
        coming = dict(enumerate(arrivals or [0] * len(asked)))
        leaving = dict(leaving or {})
        turn, busy = 0, True
        while busy or coming or leaving:
            due = [uid for uid, at in coming.items() if at <= turn]
            commands = [Submit(request=asked[uid].request(uid)) for uid in due]
            commands += [delivery(uid, asked[uid].brings) for uid in due if asked[uid].brings]
            commands += [Cancel(uid=uid) for uid, at in leaving.items() if at <= turn]
            coming = {uid: at for uid, at in coming.items() if at > turn}
            leaving = {uid: at for uid, at in leaving.items() if at > turn}
            self.worker.apply(Turn(commands=tuple(commands), sent_ns=0))
            self._look(session)
            busy = self.worker.step()
            self._hear(session)
            turn += 1
        session.gauges = scheduler.gauges()
        return session

    def _look(self, session: Session) -> None:
        for uid, picture in self.runner._pictures.items():
            if picture.canvas is not None:
                session.drawn[uid].latents = picture.canvas.latents

    def _hear(self, session: Session) -> None:
        report = self.worker.take_report()
        for event in report.events if report else ():
            if isinstance(event, StepDone):
                session.steps.append(event)
            elif isinstance(event, OutputProduced) and event.ref is not None:
                payload = InlineReader().get(event.ref)
                session.drawn[event.uid].payload = payload
                session.drawn[event.uid].payloads.append(payload)
                session.drawn[event.uid].pixels = from_payload(payload.tensor(event.modality)).numpy()
            elif isinstance(event, StageFailed):
                session.drawn[event.uid].error = event.error.message
            elif isinstance(event, StageCancelled):
                session.cancelled.add(event.uid)


def replays(session: Session) -> list[tuple[int, int]]:
    """Of each denoising step: forwards that were replays of a graph, and that were not."""
    counts = [dict(step.counters) for step in session.steps if step.rows[0].phase == "denoise"]
    return [(each.get("graph_replays", 0), each.get("eager_runs", 0)) for each in counts]
