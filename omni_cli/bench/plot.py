"""Draws the levels of `omni bench run` as SVG: one panel a figure, the loads from left to right. Text in, text out."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

from omni_cli.bench.figure import Figure, number
from omni_cli.bench.level import Level

_PANELS = (
    ("ttft_ms", "time to first token, ms"),
    ("ttfa_ms", "time to first audio, ms"),
    ("gap_ms", "gap between pieces of sound, ms"),
    ("rtf", "real-time factor"),
    ("xrt", "seconds of sound a second"),
    ("requests_per_s", "requests a second"),
)
_LEGEND = "blue: median, orange: 99th percentile; from left to right: requests at once, or arrivals a second"
_ACROSS, _WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 3, 300, 190, 50, 34, 34
_STYLE = "text{font:11px sans-serif;fill:#222}.t{font-weight:bold}.a{stroke:#999}polyline{fill:none;stroke-width:1.5}"
_MEDIAN, _P99 = "#1f6fb4", "#d1762b"


@dataclass(frozen=True, slots=True)
class _Panel:
    """One figure's place: `top` is the value at its upper edge; the lower one is 0."""

    x: float
    y: float
    top: float
    loads: int

    def across(self, index: int) -> float:
        room = _WIDTH - _LEFT - 20
        return self.x + _LEFT + (room / 2 if self.loads == 1 else index * room / (self.loads - 1))

    def up(self, value: float) -> float:
        return self.y + _HEIGHT - _BOTTOM - value / self.top * (_HEIGHT - _TOP - _BOTTOM)


def draw(levels: Sequence[Level]) -> str:
    """A figure that no level has, has no panel."""
    found = [level.figures() for level in levels]
    shown = [(key, title) for key, title in _PANELS if any(key in figures for figures in found)]
    parts = []
    for place, (key, title) in enumerate(shown):
        figures = [figures.get(key) for figures in found]
        x, y = place % _ACROSS * _WIDTH, place // _ACROSS * _HEIGHT
        top = max(figure.quantile(0.99) for figure in figures if figure is not None) or 1
        panel = _Panel(x, y, top, len(levels))
        parts += [_text(x + _LEFT, y + 16, title, "t"), *_axes(panel, [str(level.load) for level in levels])]
        for colour, share in ((_P99, 0.99), (_MEDIAN, 0.5)):
            parts.append(_line(panel, figures, colour, share))
    width, bottom = _ACROSS * _WIDTH, -(-len(shown) // _ACROSS) * _HEIGHT
    parts.append(_text(_LEFT, bottom + 12, _LEGEND))
    height = bottom + 24
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"><style>{_STYLE}</style>'
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="#fff"/>', *parts, "</svg>", ""])


def _axes(panel: _Panel, loads: Sequence[str]) -> list[str]:
    bottom, right = panel.up(0), panel.x + _WIDTH - 20
    lines = [
        f'<line class="a" x1="{panel.x + _LEFT}" y1="{panel.up(v):.1f}" x2="{right}" y2="{panel.up(v):.1f}"/>'
        for v in (0, panel.top)
    ]
    marks = [_text(panel.x + 4, panel.up(value) + 4, number(value)) for value in (0, panel.top)]
    names = [
        _text(panel.across(i) - 8, bottom + 16, load.removesuffix(" at once").replace(" a second", "/s"))
        for i, load in enumerate(loads)
    ]
    return [*lines, *marks, *names]


def _line(panel: _Panel, figures: Sequence[Figure | None], colour: str, share: float) -> str:
    points = [
        (panel.across(index), panel.up(figure.quantile(share)))
        for index, figure in enumerate(figures)
        if figure is not None
    ]
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline stroke="{colour}" points="{path}"/>{dots}'


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{html.escape(text)}</text>'
