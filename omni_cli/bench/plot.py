"""Draws the levels of `omni bench run` as SVG: one panel a figure, the loads from left to right. Text in, text out."""

import html
from collections.abc import Sequence

from omni_cli.bench.figure import Figure, number
from omni_cli.bench.level import Level

_PANELS = (
    ("ttft_ms", "time to first token, ms"),
    ("ttfa_ms", "time to first audio, ms"),
    ("gap_ms", "gap between pieces of sound, ms"),
    ("rtf", "real-time factor"),
    ("image_s", "seconds an image"),
    ("join_ms", "from submission to the first step, ms"),
    ("steps_per_s", "denoising steps a second"),
    ("xrt", "seconds of sound a second"),
    ("requests_per_s", "requests a second"),
)
_LEGEND = "blue: median, orange: 99th percentile; from left to right: requests at once, or arrivals a second"
_ACROSS, _WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 3, 300, 190, 50, 34, 34
_STYLE = "text{font:11px sans-serif;fill:#222}.t{font-weight:bold}.a{stroke:#999}polyline{fill:none;stroke-width:1.5}"
_MEDIAN, _P99 = "#1f6fb4", "#d1762b"


def draw(levels: Sequence[Level]) -> str:
    """A figure that no level has, has no panel."""
    found = [level.figures() for level in levels]
    loads = [str(level.load).removesuffix(" at once").replace(" a second", "/s") for level in levels]
    shown = [(key, title) for key, title in _PANELS if any(key in figures for figures in found)]
    width, bottom = _ACROSS * _WIDTH, -(-len(shown) // _ACROSS) * _HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 24}"><style>{_STYLE}</style>',
        f'<rect width="{width}" height="{bottom + 24}" fill="#fff"/>',
    ]
    for place, (key, title) in enumerate(shown):
        x, y = place % _ACROSS * _WIDTH, place // _ACROSS * _HEIGHT
        parts += _panel(x, y, title, loads, [figures.get(key) for figures in found])
    return "\n".join([*parts, _text(_LEFT, bottom + 12, _LEGEND), "</svg>", ""])


def _panel(x: float, y: float, title: str, loads: Sequence[str], figures: Sequence[Figure | None]) -> list[str]:
    """From 0 to the largest 99th percentile of any load."""
    left, right, bottom = x + _LEFT, x + _WIDTH - 20, y + _HEIGHT - _BOTTOM
    top = max(figure.quantile(0.99) for figure in figures if figure is not None) or 1
    gap = (right - left) / max(len(loads) - 1, 1)
    across = [left + gap / 2] if len(loads) == 1 else [left + index * gap for index in range(len(loads))]

    def up(value: float) -> float:
        return bottom - value / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [_text(left, y + 16, title, "t")]
    for value in (0, top):
        parts.append(f'<line class="a" x1="{left}" y1="{up(value):.1f}" x2="{right}" y2="{up(value):.1f}"/>')
        parts.append(_text(x + 4, up(value) + 4, number(value)))
    parts += [_text(at - 8, bottom + 16, load) for at, load in zip(across, loads, strict=True)]
    for colour, share in ((_P99, 0.99), (_MEDIAN, 0.5)):
        points = [(at, up(f.quantile(share))) for at, f in zip(across, figures, strict=True) if f is not None]
        path = " ".join(f"{at:.1f},{high:.1f}" for at, high in points)
        parts.append(f'<polyline stroke="{colour}" points="{path}"/>')
        parts += [f'<circle cx="{at:.1f}" cy="{high:.1f}" r="2.5" fill="{colour}"/>' for at, high in points]
    return parts


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{html.escape(text)}</text>'
