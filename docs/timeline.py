"""Draws `docs/timeline.svg`: what `omni trace show` prints of a real run of two requests. `make picture` calls it."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from omni_cli.trace.reader import TraceReader
from omni_cli.trace.show import show
from omni_cli.trace.summary import summarise

WIDTH = 128
REQUESTS = (
    {"id": "first", "prompt": "Two requests share five stages", "seed": 1},
    {"id": "second", "prompt": "and both sing", "seed": 2},
)
# One request a stage at a time, so that the second has to wait for its turn and each kind of time shows.
WORDS = (
    "recipe=synthetic_dag",
    "synthetic.frames=12",
    *(
        f"synthetic.delay_ms.{stage}={delay}"
        for stage, delay in {"thinker": 8, "talker": 12, "singer": 18, "code2wav": 40, "mixer": 60}.items()
    ),
    *(f"deploy.stages.{stage}.max_batch=1" for stage in ("thinker", "talker", "singer", "code2wav", "mixer")),
)

# rich's own frame, without the fonts that it would load from elsewhere.
FRAME = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg"
xml:space="preserve">
<style>
.{unique_id}-matrix {{ font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: {char_height}px;
line-height: {line_height}px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def run(folder: Path) -> Path:
    """Runs the requests; returns the run's trace."""
    batch = folder / "batch.jsonl"
    batch.write_text("".join(json.dumps(request) + "\n" for request in REQUESTS), encoding="utf-8")
    command = [sys.executable, "-m", "omni_cli", "run", *WORDS, "--input", str(batch), "--out", str(folder / "run")]
    subprocess.run([*command, "--quiet"], check=True)
    return folder / "run" / "trace.jsonl"


def draw(trace: Path) -> str:
    """The picture as SVG."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True, color_system="truecolor")
        summary = summarise(TraceReader(trace))
        console.print(Text("$ omni trace show latest"))
        show(console, summary, list(summary.requests.values()))
        return console.export_svg(title="omni", theme=SVG_EXPORT_THEME, code_format=FRAME, unique_id="omni")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        Path(sys.argv[1]).write_text(draw(run(Path(made))), encoding="utf-8")
