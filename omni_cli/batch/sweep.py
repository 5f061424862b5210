"""`omni run -m`: a run for every combination of values, each a process of its own, with a status and a log each."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from omni_cli.artifacts.atomic import write_text
from omni_cli.artifacts.run_folder import RunFolder
from omni_cli.batch.options import RunOptions
from omni_cli.batch.run import judge
from omni_cli.config.files import shown
from omni_cli.config.overrides import expand_sweep
from omni_cli.errors import ConfigError
from omni_cli.launch.job import Job
from omni_cli.launch.signals import Interrupted, Interrupts
from omni_cli.streams import say

JobStatus = Literal["waiting", "running", "finished", "failed", "refused", "interrupted"]

_ENDS: dict[int, JobStatus] = {0: "finished", 2: "refused", 129: "interrupted", 130: "interrupted", 143: "interrupted"}


@dataclass(slots=True, kw_only=True)
class JobRecord:
    """An entry of `sweep.json`. The run is in the folder `name`, what it said in `<name>.log`."""

    name: str
    overrides: list[str]
    status: JobStatus = "waiting"
    exit_code: int | None = None


def run_sweep(words: Sequence[str], options: RunOptions) -> int:
    """Runs the jobs one after the other and says how each ended; returns 1 if any did not finish.

    Every job's configuration, plan and requests are checked before the first one starts. Raises OmniError.
    """
    if options.out is not None or options.resume is not None:
        raise ConfigError("-m takes neither --out nor --resume: every job has a folder of its own")
    if "-" in (options.prompt_file, options.messages, options.input):
        raise ConfigError("-m cannot give stdin to every job; name a file")
    jobs = expand_sweep(words)
    recipes = [judge(job, options)[0].recipe for job in jobs]
    folder = RunFolder.create(recipe=f"sweeps/{recipes[0]}", started_at=datetime.now().astimezone()).path
    records = [JobRecord(name=f"job-{number}", overrides=list(job)) for number, job in enumerate(jobs)]
    try:
        with Interrupts() as interrupts:
            for record in records:
                _run(record, records, folder, options, interrupts)
    finally:
        say(f"files: {shown(folder)}")
    return 0 if all(record.status == "finished" for record in records) else 1


def _run(
    record: JobRecord, records: Sequence[JobRecord], folder: Path, options: RunOptions, interrupts: Interrupts
) -> None:
    record.status = "running"
    _write(records, folder)
    command = ["run", *record.overrides, *options.argv(), "--out", str(folder / record.name)]
    job = Job(command, folder / f"{record.name}.log")
    interrupts.register(job)
    try:
        record.exit_code = job.wait()
        record.status = _ENDS.get(record.exit_code, "failed")
    except Interrupted:
        record.status = "interrupted"
        raise
    finally:
        _write(records, folder)
        say(f"{record.name} of {len(records)}: {record.status}: {' '.join(record.overrides)}")


def _write(records: Sequence[JobRecord], folder: Path) -> None:
    jobs = [asdict(record) for record in records]
    write_text(folder / "sweep.json", json.dumps(jobs, indent=2, ensure_ascii=False) + "\n")
