"""`omni eval`: items from the checkpoint's folder, answers by `omni run`, a table of scores."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
from PIL import Image

from omni_cli.artifacts.atomic import write_text
from omni_cli.artifacts.records import ResultRecord
from omni_cli.artifacts.results import read_results
from omni_cli.artifacts.run_folder import RunFolder
from omni_cli.batch.options import RunOptions
from omni_cli.batch.run import run_once
from omni_cli.bench.prepared import Prepared
from omni_cli.bench.report import Report
from omni_cli.eval.items import Item, choose, read_items
from omni_cli.eval.judges import RATE, Judges
from omni_cli.eval.scores import HEADER, SHORT, Answer, all_scores
from omni_cli.streams import say

_FIRST = 8  # spoken items that are asked again, one at a time: streamed as before, and not


def evaluate(
    words: tuple[str, ...],
    command: str,
    only: str | None,
    count: int | None,
    seed: int,
    out: Path | None,
    *,
    check: bool,
    quiet: bool,
) -> tuple[Report, int]:
    """The scores, which the run folder has as `eval.json`, and 1 if a request failed or, with `check`, if a score has
    not reached its bar or could not be taken; else 0. `quiet` is `omni run`'s. Raises OmniError for what is refused."""
    prepared = Prepared.of(words, command)
    stages, model = prepared.plan.stages, Path(prepared.plan.model.path)
    items = choose(read_items(model), only, count, seed)
    first = [(number, item) for number, item in items if item.group == "speech" and item.topic != SHORT][:_FIRST]
    alone = [f"deploy.stages.{stage.name}.max_batch=1" for stage in stages]
    edges = ((stage.name, edge) for stage in stages for edge in stage.inputs)
    whole = [
        f"pipeline.stages.{to}.inputs.{edge.producer}=complete" for to, edge in edges if edge.mode == "incremental"
    ]
    folder = RunFolder.claim(out) if out else RunFolder.create(recipe=prepared.loaded.recipe, started_at=prepared.now)
    together, code = _asked(words, folder.path / "together", items, seed, quiet)
    singles, second = _asked((*words, *alone), folder.path / "alone", first, seed, quiet)
    unstreamed, third = _asked((*words, *alone, *whole), folder.path / "whole", first if whole else [], seed, quiet)
    if not quiet:
        say("judging")
    scores = all_scores(together, singles, unstreamed, Judges(model))
    report = Report(
        command=command,
        name=f"omni eval {prepared.loaded.recipe}",
        digest=prepared.plan.digest,
        machine=prepared.machine,
        tables=[(HEADER, [score.row() for score in scores])],
        details={"scores": {score.name: score.document() for score in scores}},
    )
    report.write(folder.path / "eval.json")
    below = [f"{score.name}: {score.row()[1]}" for score in scores if check and score.met is False]
    for line in below:
        say(f"below its bar: {line}")
    if not quiet:
        say(f"files: {folder.path}")
    return report, int(bool(code or second or third or below))


def _asked(
    words: tuple[str, ...], folder: Path, items: Sequence[tuple[int, Item]], seed: int, quiet: bool
) -> tuple[list[Answer], int]:
    """The answers that `omni run` writes into `folder`, and its exit code. In every run item n of the file has the
    n-th seed."""
    if not items:
        return [], 0
    ids = [f"{item.group}-{number}" for number, item in items]
    lines = [
        {"id": name, "modalities": item.outputs, "seed": seed + number, **item.request}
        for name, (number, item) in zip(ids, items, strict=True)
    ]
    path = folder.with_suffix(".jsonl")
    write_text(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    if not quiet:
        say(f"{folder.name}: {len(lines)} requests")
    code = run_once(words, RunOptions(input=str(path), out=str(folder), quiet=quiet), resumable=False)
    records = {record.request_id: record for record in read_results(folder / "results.jsonl")}
    return [_read(item, folder, records[name]) for name, (_, item) in zip(ids, items, strict=True)], code


def _read(item: Item, folder: Path, record: ResultRecord) -> Answer:
    found: dict[str, Any] = {}
    for artifact in record.artifacts:
        path = folder / (artifact.path or "")
        match artifact.output if artifact.path else "":
            case "text":
                found["text"] = path.read_text(encoding="utf-8")
            case "audio":
                samples, rate_hz = soundfile.read(path, dtype="float32")
                found |= {"sound": soxr.resample(samples, rate_hz, RATE), "duration_s": len(samples) / rate_hz}
            case "image":
                with Image.open(path) as image:
                    found["pixels"] = np.array(image.convert("RGB"))
    return Answer(item=item, **found)
