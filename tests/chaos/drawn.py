"""What happens in a round, drawn from its seed alone: who asks for what, and what is done to them in which phase."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from omni_cli.runtime.events import Event, LeaseGranted, StageSubmitted
from stages.events import LeaseReleased, MessagePut, Scheduled

FIRST, PUT, LAST, GET, CONSUMED = PHASES = (
    "before the first message", "during put", "after the last put", "during get", "after consume",
)  # fmt: skip
MEDIA_BYTES = 6_000
CANCEL, LEAVE, SLOW, STOP, RAISE, KILL = ACTIONS = ("cancel", "leave", "slow", "stop", "raise", "kill")


@dataclass(frozen=True, kw_only=True)
class Act:
    """`what` is done when request number `request` is in `phase` in `stage`, to it or to a `replica` of the stage;
    `wait_s` is how long a stop lasts."""

    what: str
    request: int
    stage: str
    phase: str
    replica: int = 0
    wait_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request, with a picture of `media_bytes`. `slow_s` is what its caller takes for each piece."""

    seed: int
    words: int
    outputs: tuple[str, ...]
    frames: int
    payload_bytes: int
    media_bytes: int
    slow_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Round:
    number: int
    deadly: bool
    asks: tuple[Ask, ...]
    acts: tuple[Act, ...]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where acts can happen: the stages of a pipeline, those that feed another, those that are fed."""

    stages: tuple[str, ...]
    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    outputs: tuple[str, ...]


def draw(seed: int, number: int, place: Place, *, deadly: bool) -> Round:
    """Round `number` of the run with that seed; a `deadly` one kills a stage."""
    random = Random(f"{seed}/{number}")
    count = random.randint(2, 6)
    acts = [_act(random, place, random.choice(ACTIONS[:-1]), count) for _ in range(random.randint(1, 3))]
    if deadly:
        acts.append(_act(random, place, KILL, count))
    concerned, slow = {act.request for act in acts}, {act.request for act in acts if act.what == SLOW}
    asks = tuple(
        Ask(
            seed=random.randrange(1000),
            words=random.randint(1, 12),
            outputs=place.outputs if index in concerned else tuple(random.sample(place.outputs, 1)),
            frames=random.choice((1, 7, 40) if index in concerned else (0, 7, 40)),
            payload_bytes=random.choice((0, 0, 9_000, 60_000)),
            media_bytes=random.choice((0, 0, MEDIA_BYTES // 2, MEDIA_BYTES)),
            slow_s=0.002 if index in slow else 0.0,
        )
        for index in range(count)
    )
    return Round(number=number, deadly=deadly, asks=asks, acts=tuple(acts))


def _act(random: Random, place: Place, what: str, requests: int) -> Act:
    phase = random.choice(PHASES)
    stages = place.stages if phase in (FIRST, PUT) else place.producers if phase == LAST else place.consumers
    return Act(
        what=what,
        request=random.randrange(requests),
        stage=random.choice(stages),
        phase=phase,
        replica=random.randrange(2),
        wait_s=random.choice((0.0, 0.002, 0.02)),
    )


def moments(source: str, event: Event) -> Iterator[tuple[str, int, str]]:
    """(phase, request's uid, stage) that begins with this event."""
    stage = source.rpartition(".")[0]
    if isinstance(event, StageSubmitted):
        yield FIRST, event.uid, event.stage
    elif isinstance(event, Scheduled):
        yield PUT, event.uid, stage
    elif isinstance(event, MessagePut):
        yield (LAST if event.message.eos else PUT), event.uid, stage
    elif isinstance(event, LeaseGranted):
        yield GET, event.uid, event.reader.rpartition(".")[0]
    elif isinstance(event, LeaseReleased):
        yield CONSUMED, event.uid, stage
