"""The deployments that are disturbed, what is asked of them, and what each request answers undisturbed."""

from array import array
from dataclasses import dataclass
from zlib import crc32

from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.outputs import OmniOutput
from omni_cli.runtime.request import OmniRequest
from stages.messages import ChatMessage, Part, Sampling
from stages.models.synthetic.options import DagFail, DagOptions, Fail, SyntheticOptions
from stages.payload import Payload, Tensor
from tests.chaos.drawn import Ask, Place
from tests.integration.recorded import plan_of
from tests.synthetic_answers import expected_audio, expected_mix

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_NARROW = ("slots=2", "ring_bytes=131072")  # the largest drawn payload fits twice
SIZES = (1, 2, 3)
_TOLERANCE = 1e-4  # of a waveform that was batched otherwise


@dataclass(frozen=True)
class Ground:
    """`recipe` with `words`; `torch` where its stages hold a model."""

    name: str
    recipe: str
    words: tuple[str, ...]
    torch: bool = False

    def plan(self) -> ExecutionPlan:
        """Every death is followed by a start at once, however many there are."""
        stages = plan_of(f"recipe={self.recipe}").stages
        again = ("restarts=1000", "restart_window_s=0.001")
        words = [f"deploy.stages.{stage.name}.{setting}" for stage in stages for setting in again]
        return plan_of(f"recipe={self.recipe}", *self.words, *words)

    def request(self, name: str, ask: Ask, raises: tuple[str, int] | None) -> OmniRequest:
        """`raises` is the stage, and the unit, where the model's own code fails."""
        user = ChatMessage(role="user", parts=(Part(kind="text", text=WORDS[0] if self.torch else _text(ask)),))
        if self.torch:
            limits = {"thinker": _greedy(4 * _size(ask)), "talker": _greedy(6 * _size(ask))}
            voice = "nobody's" if raises else None  # refused by the talker, when its input begins to come
            return OmniRequest(
                request_id=name,
                seed=0,
                conversation=(user,),
                outputs=ask.outputs,
                sampling=limits,
                voice=voice,
                timeout_s=60,
            )
        picture = Part(kind="image", media="picture")
        user = ChatMessage(role="user", parts=(*user.parts, picture)) if ask.media_bytes else user
        kind, options = (DagFail, DagOptions) if "dag" in self.recipe else (Fail, SyntheticOptions)
        stage, at = raises or (None, 0)
        return OmniRequest(
            request_id=name,
            seed=ask.seed,
            conversation=(user,),
            outputs=ask.outputs,
            media=_picture(ask),
            timeout_s=60,
            options=options(
                frames=ask.frames,
                payload_bytes=ask.payload_bytes,
                prompt_tokens=5,
                fail=kind(stage=stage, at=at, kind="oom" if ask.seed % 2 else "raise"),
            ),
        )

    def undisturbed(self, size: int, place: Place) -> OmniRequest:
        ask = Ask(seed=0, words=size - 1, outputs=place.outputs, frames=7, payload_bytes=0, media_bytes=0)
        return self.request(f"of size {size}", ask, None)

    def wrong(self, ask: Ask, outputs: dict[str, OmniOutput], undisturbed: dict[int, dict[str, OmniOutput]]) -> str:
        """What differs from the undisturbed answer; empty if nothing does."""
        for modality, output in outputs.items():
            if self.torch:
                reference = undisturbed[_size(ask)][modality]
                same = reference.text == output.text and _near(_sound(reference), _sound(output))
            elif modality == "text":
                same = output.text == _answer(ask)
            else:
                expected = expected_audio if modality == "audio" else expected_mix
                same = _sound(output) == expected(_answer(ask), ask.seed, ask.frames)
            if not same:
                return f"{modality} differs from the undisturbed one"
        return ""


def _size(ask: Ask) -> int:
    """What a model's undisturbed answer depends on: few, so that few have to be known."""
    return 1 + ask.words % len(SIZES)


def _text(ask: Ask) -> str:
    return " ".join(WORDS[: ask.words])


def _picture(ask: Ask) -> Payload:
    if not ask.media_bytes:
        return Payload()
    data = memoryview(bytes((ask.seed % 256,)) * ask.media_bytes)
    return Payload(tensors=(Tensor(name="picture", dtype="uint8", shape=(ask.media_bytes,), data=data),))


def _answer(ask: Ask) -> str:
    """What was said, and the checksum of what was shown."""
    shown = "".join(f"[image:{crc32(tensor.data):08x}]" for tensor in _picture(ask).tensors)
    return _text(ask) + shown


def _greedy(tokens: int) -> Sampling:
    return Sampling(temperature=0.0, max_tokens=tokens, ignore_eos=True)


def _sound(output: OmniOutput) -> "array[float]":
    sound = array("f")
    for payload in output.payloads:
        for tensor in payload.tensors:
            if tensor.name == "audio":
                sound.frombytes(tensor.data)
    return sound


def _near(a: "array[float]", b: "array[float]") -> bool:
    return len(a) == len(b) and all(abs(x - y) <= _TOLERANCE for x, y in zip(a, b, strict=True))


def _edges(mode: str, *edges: str) -> tuple[str, ...]:
    words = []
    for edge in edges:
        producer, _, consumer = edge.partition(">")
        words += [f"pipeline.stages.{consumer}.inputs.{producer}={mode}"]
        words += [f"deploy.stages.{consumer}.inputs.{producer}.{setting}" for setting in _NARROW]
    return tuple(words)


_CHAIN = ("thinker>talker", "talker>code2wav")
_DAG = (*_CHAIN, "thinker>singer", "talker>mixer", "singer>mixer", "thinker>mixer")
_SCARCE = tuple(
    f"deploy.stages.{stage}.{setting}"
    for stage in ("thinker", "talker")
    for setting in ("max_batch=4", "step_tokens=6", "kv_blocks=20", "kv_block_tokens=4")
)

_TWICE = tuple(f"deploy.stages.{stage}.replicas=2" for stage in ("talker", "code2wav"))
_MEDIA = ("deploy.stages.thinker.inputs.request.slots=2",)

LIGHT = (
    Ground("streamed", "synthetic", (*_edges("incremental", *_CHAIN), *_SCARCE, *_MEDIA)),
    Ground("dag", "synthetic_dag", (*_edges("incremental", *_DAG), *_MEDIA)),
    Ground("replicas", "synthetic", (*_edges("complete", *_CHAIN), *_MEDIA, *_TWICE)),
)
MODEL = Ground(
    "qwen3_omni",
    "qwen3_omni",
    (
        "model.path=tiny",
        "deploy.stages.talker.inputs.thinker.slots=2",
    ),
    torch=True,
)


def place_of(plan: ExecutionPlan) -> Place:
    return Place(
        stages=tuple(stage.name for stage in plan.stages),
        producers=tuple(s.name for s in plan.stages if any(e.consumer != "request" for e in s.consumers)),
        consumers=tuple(s.name for s in plan.stages if any(e.producer != "request" for e in s.inputs)),
        outputs=tuple(plan.outputs),
    )
