"""The model families by short name, and the contract that each declares. Nothing here imports torch."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from random import Random
from typing import TYPE_CHECKING, Any

from stages.config import EdgeMode, ExecutionType, StageSpec, StageTuning
from stages.errors import CheckpointError
from stages.messages import ImageParams
from stages.payload import Payload

if TYPE_CHECKING:  # a plan needs none of a stage's machinery
    from stages.runners.base import ModelRunner
    from stages.worker.channel import Inbox, Outbox

# short name -> package below stages.models with `contract.py` (CONTRACTS) and `stage.py` (build_runner)
_PACKAGES = {
    "synthetic": "synthetic",
    "synthetic_dag": "synthetic",
    "qwen3_omni": "qwen3_omni",
    "qwen_image": "qwen_image",
    "wan": "wan",
    "sd3": "sd3",
}
FAMILIES = tuple(_PACKAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputContract:
    """How a stage may be fed by one producer: the modes it offers, the preferred one first.

    On an incremental edge a row at position p > 0 may run if more than p + `lookahead_units` units have come, or the
    end; the first row needs one unit. `on_device`: the producer hands tensors over where it has computed them, on its
    device.
    """

    modes: tuple[EdgeMode, ...]
    lookahead_units: int = 0
    on_device: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContract:
    """What a stage of a family is and can do.

    `inputs` maps each possible producer to its input contract. `streams` says whether it can emit while it runs
    (else it may only feed complete edges). `sampled` says whether `request.sampling.<stage>` means anything,
    `logprobs` whether it reports log probabilities with its text.
    `guidance_parallel` says that a replica may have two devices, the second of which predicts with negative prompts.
    `max_batch` is the largest batch its runner takes, None for no limit. `max_units_a_row` is the most units that one
    row of an `llm_generation` step gives it, None for all that are there. `memory_share` is the stage's need of device
    memory relative to the family's other stages, for a deployment that leaves the fractions to the planner.
    `encodes` and `decodes` say of a `diffusion` stage whether it turns prompts into embeddings and latents into media
    itself, between its steps. `tuning` has the defaults of the deploy keys that mean something to the stage; those that
    are None do not.
    """

    execution_type: ExecutionType
    inputs: Mapping[str, InputContract] = field(default_factory=dict)
    streams: bool = True
    outputs: tuple[str, ...] = ()
    sampled: bool = False
    logprobs: bool = False
    tensor_parallel: bool = False
    guidance_parallel: bool = False
    max_batch: int | None = None
    max_units_a_row: int | None = None
    encodes: bool = True
    decodes: bool = True
    tuning: StageTuning = field(default_factory=StageTuning)
    memory_share: float = 1.0


ONE_SIZE_PIXELS = 16
"""A larger picture would hold up those of others for long, for what has no sense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageContract:
    """Which pictures a checkpoint draws, and what a request gets that leaves something open. Sizes in pixels.

    Width and height are multiples of `multiple`, at most `most_side` (None: any), and their product is `most_pixels` at
    most. `true_cfg_scale` is None for a model without guidance: then it reads no negative prompt either;
    `negative_prompt` is what a request gets that has none, and None leaves it without guidance. `least_steps` is what
    the noise schedule needs, and `sigmas` whether it takes levels of a request's own. A request brings `least_pictures`
    to `most_pictures`: one to start from, of which `strength` is the model's own, or, where that is None, such as are
    edited; `default_size` is of these. Videos have `frames`, one and then multiples of `frame_multiple`,
    `most_frames` at most; pictures have 1. With `one_size` the checkpoint was trained at its own width and height
    alone: at others it draws no sense, and at most ONE_SIZE_PIXELS times as many pixels.
    """

    width: int
    height: int
    steps: int
    multiple: int
    most_pixels: int
    most_side: int | None = None
    least_steps: int = 1
    true_cfg_scale: float | None = None
    negative_prompt: str | None = None
    sigmas: bool = True
    strength: float | None = None
    least_pictures: int = 0
    most_pictures: int = 0
    frames: int = 1
    frame_multiple: int = 1
    most_frames: int = 1
    one_size: bool = False

    @property
    def largest(self) -> int:
        """Pixels of the largest picture that is drawn."""
        return min(self.most_pixels, ONE_SIZE_PIXELS * self.width * self.height) if self.one_size else self.most_pixels

    def default_size(self, pictures: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Width and height; what is edited keeps the shape of the last of its pictures."""
        if not self.least_pictures or not pictures:
            return self.width, self.height
        return fitted(self.width * self.height, *pictures[-1])


def fitted(pixels: int, width: int, height: int) -> tuple[int, int]:
    """Width and height of so many pixels in the shape of another size, each rounded to a multiple of 32.

    Source: `calculate_dimensions` in diffusers 0.42, pipelines/qwenimage/pipeline_qwenimage_edit.py.
    """
    ratio = width / height
    across = math.sqrt(pixels * ratio)
    down = across / ratio
    return max(1, round(across / 32)) * 32, max(1, round(down / 32)) * 32


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """What a replica of a stage holds: its weights, and a KV cache of so many bytes a token (0: it has none).

    A sequence has `context_tokens` at most. Further devices of the replica hold `further_bytes` of weights each; None:
    as many as the first.
    """

    weight_bytes: int
    kv_token_bytes: int = 0
    context_tokens: int = 0
    further_bytes: int | None = None

    def weights_of(self, index: int) -> int:
        """Bytes of weights on the replica's device at `index`."""
        return self.weight_bytes if not index or self.further_bytes is None else self.further_bytes


# What a device keeps for a step's own tensors, and what a KV cache may take of a CPU's memory.
KV_HEADROOM_BYTES = 1 << 30
CPU_KV_BYTES = 2 << 30


def step_bytes(execution_type: ExecutionType, tuning: StageTuning) -> int:
    """What a device keeps for a stage's steps. Graphs of denoising steps are captured later, into memory of their
    own, since the first step of a kind runs without."""
    return KV_HEADROOM_BYTES * (2 if execution_type == "diffusion" and tuning.graphs else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSize:
    """How large a request for measuring is: tokens of its prompt, all that the template adds included, tokens of text,
    frames of audio."""

    prompt_tokens: int
    text_tokens: int
    frames: int


Feed = tuple[tuple[int, Payload], ...]
"""What a stage gets of one request from its only producer, message by message: the units in each, and its payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceOptions:
    """How `run_reference` answers a request (`StageRequest.options`): `limits` in tokens by sampled stage, all of them
    reached; `experts` is the implementation that it is held to, empty for whatever it ships with."""

    limits: Mapping[str, int]
    experts: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyContract:
    """What the planner knows of a family without loading it.

    `media` are the input modalities beside text. `check_model(path, load_format)` are the problems of a checkpoint
    folder, each one line that names path or file; none if it can be loaded. `options` is the frozen dataclass type of
    the family's own root node and request extension, or None. `edge_bytes(model_path, producer, consumer)` is the
    largest payload that the default ring of an edge must hold; consumer `request` is the output ring. `embedded` are
    the checkpoints that `model.path` can name, the default first: each builds or finds its folder and returns it
    (CheckpointError, OSError). `voices(model_path)` lists the speakers. `stage_memory(model_path, stage, dtype)` is
    what a stage will hold, by formula; a KeyError: the checkpoint's configuration lacks a field.
    `step_bytes(model_path, stage, dtype, rows, context)` is what a step of so many rows, each behind `context` tokens,
    has to read at the least. `sized(size, draw)` is a request of exactly that size, as a line of a batch would ask for
    it, `feed(model_path, stage, size, draw)` what a later stage would get of one; what is in them is drawn.
    `step_flops(model_path, image, prompt_tokens)` is the FLOP of one request's denoising step, of a prompt as `sized`
    counts it. `references` names the ways in which `run_reference` can answer the same requests without stages, with
    what each is held to (`ReferenceOptions.experts`); the answers are held against the first.
    """

    name: str
    stages: Mapping[str, StageContract]
    media: tuple[str, ...]
    has_weights: bool
    options: type[Any] | None = None
    check_model: Callable[[str, str], tuple[str, ...]] | None = None
    embedded: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    voices: Callable[[str], tuple[str, ...]] | None = None
    stage_memory: Callable[[str, str, str], StageMemory] | None = None
    image: Callable[[str], ImageContract] | None = None
    edge_bytes: Callable[[str, str, str], int] = lambda model, producer, consumer: 4 << 20
    step_bytes: Callable[[str, str, str, int, int], int] | None = None
    sized: Callable[[RequestSize, Random], Mapping[str, Any]] | None = None
    feed: Callable[[str, str, RequestSize, Random], Feed] | None = None
    step_flops: Callable[[str, ImageParams, int], int] | None = None
    references: Mapping[str, str] = field(default_factory=dict)

    def memory(self, model_path: str, stage: str, dtype: str) -> StageMemory:
        """All 0 where there is no formula, or the checkpoint lacks what it needs: loading names that."""
        try:
            if self.stage_memory is not None and model_path:
                return self.stage_memory(model_path, stage, dtype)
        except (KeyError, CheckpointError):
            pass
        return StageMemory(weight_bytes=0)


def contract(family: str) -> FamilyContract:
    """The family's contract; torch-free. KeyError for an unknown family."""
    module = import_module(f"stages.models.{_PACKAGES[family]}.contract")
    found: FamilyContract = module.CONTRACTS[family]
    return found


def options_node(family: str) -> str:
    """The root node of a family's own options in the configuration: families of one package share it."""
    return _PACKAGES.get(family, family)


def build_runner(spec: StageSpec) -> "ModelRunner":
    """The runner of one stage; called inside the stage process only."""
    module = import_module(f"stages.models.{_PACKAGES[spec.family]}.stage")
    runner: ModelRunner = module.build_runner(spec)
    return runner


def run_reference(spec: StageSpec, inbox: "Inbox", outbox: "Outbox") -> None:
    """The family's model without stages, in place of a worker; called in a process of its own only."""
    module = import_module(f"stages.models.{_PACKAGES[spec.family]}.reference")
    module.run(spec, inbox, outbox)
