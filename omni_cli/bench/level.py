"""What one load has given, as figures: pure functions of what callers saw and stages stamped."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from omni_cli.bench.figure import Figure
from omni_cli.bench.served import Served
from omni_cli.bench.steps import StageLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`requests` in all: by `callers`, each of whom waits for an answer before the next request, or, where `rate` is
    given, `rate` a second on average, whoever waits."""

    requests: int
    callers: int = 0
    rate: float | None = None

    @property
    def most_at_once(self) -> int:
        """Requests of the warm-up: what comes at once, or in one second."""
        return min(self.requests, self.callers if self.rate is None else max(1, round(self.rate)))

    def __str__(self) -> str:
        return f"{self.callers} at once" if self.rate is None else f"{self.rate:g} a second"


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One load, measured: from its first request to the end of its last one, `wall_s` later."""

    load: Load
    wall_s: float
    served: tuple[Served, ...]
    warm_up_failed: int
    prompt_tokens: tuple[int, ...]
    stages: tuple[StageLoad, ...]

    @property
    def done(self) -> tuple[Served, ...]:
        """Those that gave all that they were asked for: every figure is of these."""
        return tuple(one for one in self.served if one.error is None)

    @property
    def failed(self) -> tuple[Served, ...]:
        return tuple(one for one in self.served if one.error is not None)

    def figures(self) -> dict[str, Figure]:
        """By key; one without samples is left out."""
        done = self.done
        plays = [one.playback for one in done if one.sounds]
        audio_s = sum(one.audio_s for one in done)
        found = [
            _figure("ttft_ms", "time to first token", "ms", _each(done, lambda one: one.ttft_s), 1e3),
            _figure("ttfa_ms", "time to first audio", "ms", _each(done, lambda one: one.ttfa_s), 1e3),
            _figure(
                "gap_ms", "gap between two pieces of sound", "ms", (gap for one in done for gap in one.gaps_s), 1e3
            ),
            _figure("underruns", "underruns of a request", "", (play.underruns for play in plays)),
            _figure("silence_ms", "silence in underruns of a request", "ms", (play.silence_s for play in plays), 1e3),
            _figure("prebuffer_ms", "pre-buffer without underrun", "ms", (play.prebuffer_s for play in plays), 1e3),
            _figure("rtf", "real-time factor", "", _each(done, lambda one: one.rtf)),
            _figure("request_ms", "request", "ms", ((one.end_ns - one.start_ns) / 1e9 for one in done), 1e3),
            _figure("audio_s", "playing time of a request", "s", (one.audio_s for one in done if one.sounds)),
            _figure("prompt_tokens", "prompt", "tokens", self.prompt_tokens),
            _figure("xrt", "seconds of sound a second", "", [audio_s / self.wall_s] if audio_s else []),
            _figure("requests_per_s", "requests", "1/s", [len(done) / self.wall_s]),
        ]
        for stage in self.stages:
            found += stage_figures(stage)
        return {figure.key: figure for figure in found if figure is not None}


def stage_figures(stage: StageLoad) -> list[Figure | None]:
    name = stage.stage
    return [
        _figure(f"{name}_{stage.unit}_ms", f"{name}, a {stage.unit}", "ms", stage.unit_ms),
        _figure(f"{name}_step_ms", f"{name}, a step", "ms", stage.step_ms),
        _figure(f"{name}_gap_ms", f"{name}, between two steps", "ms", stage.gap_ms),
        _figure(f"{name}_rows", f"{name}, requests in a step", "", [stage.rows]),
        _figure(f"{name}_busy", f"{name}, share of the time in steps", "", [stage.busy]),
    ]


def _each(done: Sequence[Served], value: Callable[[Served], float | None]) -> Iterable[float]:
    return (found for one in done if (found := value(one)) is not None)


def _figure(key: str, title: str, unit: str, samples: Iterable[float], scale: float = 1) -> Figure | None:
    found = tuple(sample * scale for sample in samples)
    return Figure(key=key, title=title, unit=unit, samples=found) if found else None
