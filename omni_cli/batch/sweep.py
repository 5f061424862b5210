"""`omni run -m`: a run for every combination of values, each a process of its own, with a status and a log each."""

import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from omni_cli.artifacts.atomic import write_text
from omni_cli.artifacts.run_folder import RunFolder
from omni_cli.batch.options import RunOptions
from omni_cli.config.load import load_config
from omni_cli.config.overrides import expand_sweep
from omni_cli.errors import ConfigError
from omni_cli.launch.signals import Interrupts
from omni_cli.streams import say

STATUS = {0: "finished", 1: "failed", 2: "refused"}


def run_sweep(words: Sequence[str], options: RunOptions) -> int:
    """Runs the jobs one after the other and says how each ended; returns 1 if any did not finish.

    Every job's configuration is checked before the first one starts. Raises ConfigError.
    """
    if options.out is not None or options.resume is not None or options.prompt_file == "-":
        raise ConfigError("-m takes neither --out nor --resume nor --prompt-file -: every job has its own folder")
    jobs = expand_sweep(words)
    recipes = [load_config(job).recipe for job in jobs]
    folder = RunFolder.create(recipe=f"sweeps/{recipes[0]}", started_at=datetime.now().astimezone())
    statuses: list[dict[str, object]] = []
    with Interrupts():
        for number, job in enumerate(jobs):
            code = _run_job(job, options, folder.path / f"job-{number}")
            statuses.append({"job": number, "overrides": list(job), "status": STATUS.get(code, f"exit code {code}")})
            write_text(folder.path / "sweep.json", json.dumps(statuses, indent=2) + "\n")
            say(f"job {number} of {len(jobs)}: {statuses[-1]['status']}: {' '.join(job)}")
    say(f"files: {folder.path}")
    return 0 if all(status["status"] == "finished" for status in statuses) else 1


def _run_job(job: Sequence[str], options: RunOptions, folder: Path) -> int:
    """One job, its stdout and stderr in `<folder>.log`. A signal to this process reaches it, and is waited for."""
    command = [sys.executable, "-m", "omni_cli", "run", *job, *options.argv(), "--out", str(folder)]
    with (
        open(f"{folder}.log", "w", encoding="utf-8") as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            raise
