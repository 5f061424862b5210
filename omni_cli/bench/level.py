"""What one load has given: figures, a row for people, a document. Pure functions of what callers saw and stages did."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from omni_cli.bench.figure import Figure, by_key, number, spread
from omni_cli.bench.load import Load
from omni_cli.bench.report import Table
from omni_cli.bench.served import Served
from omni_cli.bench.steps import DENOISING, StageLoad, StepLog
from omni_cli.streams import say

SPREAD_NOTE = "Two numbers in a cell are the median and the 99th percentile, of fewer than 100 the largest."
_LEVELS = (
    "load", "done", "failed", "TTFT ms", "TTFA ms", "gap ms", "underruns", "pre-buffer ms", "RTF", "xRT", "requests/s",
)  # fmt: skip
_DRAWN = (
    "load", "done", "failed", "s an image", "images/s", "steps/s", "steps to join", "ms to join",
)  # fmt: skip
_RATES = ("TFLOP/s", "of peak")
_STAGES = ("load", "stage", "busy", "steps", "rows", "step ms", "between ms", "unit ms")
_NAMED = 3  # failures of a load that are told one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """FLOP of a request's denoising step, None without a formula; and the FLOP/s that its device can do, 0 if that is
    not known."""

    step_flop: int | None = None
    peak: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One load, measured: from when its first request was due to the end of its last one, `wall_s` later."""

    load: Load
    wall_s: float
    served: Sequence[Served]
    warm_up_failed: int
    prompt_tokens: Sequence[int]
    stages: Sequence[StageLoad]
    drawing: Drawing = Drawing()

    @classmethod
    def of(
        cls,
        load: Load,
        served: Sequence[Served],
        warm: Sequence[Served],
        log: StepLog,
        prefix: str,
        drawing: Drawing,
    ) -> "Level":
        """`prefix` and its number are the id under which `log` knows a request."""
        wall_s = (max(one.end_ns for one in served) - min(one.start_ns for one in served)) / 1e9
        done = {f"{prefix}{one.number}" for one in served if one.error is None}
        return cls(
            load=load,
            wall_s=wall_s,
            served=served,
            warm_up_failed=sum(one.error is not None for one in warm),
            prompt_tokens=log.prompt_tokens(done),
            stages=log.loads(wall_s, done),
            drawing=drawing,
        )

    @property
    def denoising(self) -> StageLoad | None:
        """The steps that draw; None where nothing is drawn."""
        return next((load for load in self.stages if load.unit == DENOISING and load.units), None)

    @property
    def done(self) -> Sequence[Served]:
        """Those that gave all that they were asked for: every figure is of these."""
        return [one for one in self.served if one.error is None]

    @property
    def failed(self) -> Sequence[Served]:
        return [one for one in self.served if one.error is not None]

    def figures(self) -> dict[str, Figure]:
        """By key; one without samples is left out."""
        done = self.done
        plays = [one.playback for one in done if one.sounds]
        audio_s = [one.audio_s for one in done if one.sounds]

        def each(value: Callable[[Served], float | None], scale: float = 1) -> Iterable[float]:
            return (scale * found for one in done if (found := value(one)) is not None)

        found: list[tuple[str, str, str, Iterable[float]]] = [
            ("ttft_ms", "time to first token", "ms", each(lambda one: one.ttft_s, 1e3)),
            ("ttfa_ms", "time to first audio", "ms", each(lambda one: one.ttfa_s, 1e3)),
            ("gap_ms", "gap between two pieces of sound", "ms", (1e3 * gap for one in done for gap in one.gaps_s)),
            ("underruns", "underruns of a request", "", (play.underruns for play in plays)),
            ("silence_ms", "silence in underruns of a request", "ms", (1e3 * play.silence_s for play in plays)),
            ("prebuffer_ms", "pre-buffer without underrun", "ms", (1e3 * play.prebuffer_s for play in plays)),
            ("rtf", "real-time factor", "", each(lambda one: one.rtf)),
            ("request_ms", "request", "ms", ((one.end_ns - one.start_ns) / 1e6 for one in done)),
            ("audio_s", "playing time of a request", "s", audio_s),
            ("prompt_tokens", "prompt", "tokens", [] if self.denoising else self.prompt_tokens),
            ("xrt", "seconds of sound a second", "", [sum(audio_s) / self.wall_s] if audio_s else []),
            ("requests_per_s", "requests", "1/s", [len(done) / self.wall_s]),
            *self._drawn(),
        ]
        for load in self.stages:
            name = load.stage
            found += [
                (f"{name}_{load.unit}_ms", f"{name}, a {load.unit}", "ms", load.unit_ms),
                (f"{name}_step_ms", f"{name}, a step", "ms", load.step_ms),
                (f"{name}_gap_ms", f"{name}, between two steps", "ms", load.gap_ms),
                (f"{name}_rows", f"{name}, requests in a step", "", [load.rows]),
                (f"{name}_busy", f"{name}, share of the time in steps", "", [load.busy]),
            ]
        return by_key(found)

    def _drawn(self) -> list[tuple[str, str, str, Iterable[float]]]:
        load, flop = self.denoising, self.drawing.step_flop
        if load is None:
            return []
        took = ((one.end_ns - one.start_ns) / 1e9 for one in self.done)
        rate = flop * load.units / (sum(load.step_ms) / 1e3) if flop else 0.0
        peak = self.drawing.peak
        return [
            ("image_s", "an image", "s", took),
            ("steps_per_s", "denoising steps of requests", "1/s", [load.units / self.wall_s]),
            ("join_steps", "steps until a request joins", "steps", (steps for steps, _ in load.admissions)),
            ("join_ms", "from submission to the first step", "ms", (ms for _, ms in load.admissions)),
            ("tflop_per_s", "matrix products of denoising steps", "TFLOP/s", [rate / 1e12] if rate else []),
            ("peak_share", "of the measured peak of its devices", "", [rate / peak] if rate and peak else []),
        ]

    def document(self) -> dict[str, Any]:
        """As JSON: every figure with its samples, every failure with its reason."""
        return {
            "load": asdict(self.load),
            "wall_s": self.wall_s,
            "done": len(self.done),
            "failed": [{"request": one.number, "error": one.error} for one in self.failed],
            "warm_up_failed": self.warm_up_failed,
            "figures": {key: figure.document() for key, figure in self.figures().items()},
            "counters": {load.stage: dict(load.counters) for load in self.stages},
            "steps": {load.stage: load.steps for load in self.stages},
        }

    def say_failures(self, name: str) -> None:
        if self.warm_up_failed:
            say(f"{name}: {self.warm_up_failed} of the warm-up failed")
        for one in self.failed[:_NAMED]:
            say(f"{name}: {one.error}")
        if len(self.failed) > _NAMED:
            say(f"{name}: ... and {len(self.failed) - _NAMED} more")


def tables(levels: Sequence[Level]) -> tuple[Table, Table]:
    """A row for each load; a row for each stage under it, with a column for each counter."""
    drawn = any(level.denoising for level in levels)
    counters = counter_names(load for level in levels for load in level.stages)
    stages = [row for level in levels for row in _stages(level, counters)]
    rates = any("tflop_per_s" in level.figures() for level in levels)
    header = _LEVELS if not drawn else _DRAWN + _RATES * rates
    rows = [_drawn_row(level)[: len(header)] if drawn else _row(level) for level in levels]
    return (header, rows), ((*_STAGES, *counters), stages)


def counter_names(loads: Iterable[StageLoad]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for load in loads for name in load.counters))


def counted(load: StageLoad, names: Iterable[str]) -> tuple[str, ...]:
    """The cells of its counters."""
    return tuple(str(load.counters.get(name, "-")) for name in names)


def _drawn_row(level: Level) -> tuple[str, ...]:
    found = level.figures()
    share = found.get("peak_share")
    return (
        str(level.load),
        str(len(level.done)),
        str(len(level.failed)),
        spread(found.get("image_s")),
        *(number(found[key].median) if key in found else "-" for key in ("requests_per_s", "steps_per_s")),
        *(spread(found.get(key)) for key in ("join_steps", "join_ms")),
        number(found["tflop_per_s"].median) if "tflop_per_s" in found else "-",
        "-" if share is None else f"{share.median:.0%}",
    )


def _row(level: Level) -> tuple[str, ...]:
    found = level.figures()
    return (
        str(level.load),
        str(len(level.done)),
        str(len(level.failed)),
        *(spread(found.get(key)) for key in ("ttft_ms", "ttfa_ms", "gap_ms")),
        f"{sum(found['underruns'].samples):.0f}" if "underruns" in found else "-",
        number(max(found["prebuffer_ms"].samples)) if "prebuffer_ms" in found else "-",
        spread(found.get("rtf")),
        *(number(found[key].median) if key in found else "-" for key in ("xrt", "requests_per_s")),
    )


def _stages(level: Level, counters: Sequence[str]) -> list[tuple[str, ...]]:
    found = level.figures()
    return [
        (
            str(level.load),
            load.stage,
            f"{load.busy:.0%}",
            str(load.steps),
            number(load.rows),
            *(spread(found.get(f"{load.stage}_{key}_ms")) for key in ("step", "gap")),
            f"{spread(found.get(f'{load.stage}_{load.unit}_ms'))} a {load.unit.split('_')[-1]}"
            if load.unit_ms
            else "-",
            *counted(load, counters),
        )
        for load in level.stages
    ]
