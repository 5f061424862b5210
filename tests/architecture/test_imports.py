"""What is not imported where: torch in the control plane, anything slow behind `--help`, omni_cli in a stage."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.cli import ROOT, console_script, environment

HEAVY = {"torch", "transformers", "diffusers"}
SLOW = HEAVY | {"hydra", "omegaconf", "fastapi", "uvicorn"}
CONTROL = {"omni_cli", "typer", "click", "rich", "hydra", "omegaconf", "pydantic", "fastapi", "yaml"}

HELP_S = 0.3  # what `omni --help` shall take; `omni bench` measures it, a test only bounds it

# Imports a package with all that is in it, and prints the names of all modules that are imported then.
_IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    found = importlib.import_module(name)
    for module in pkgutil.walk_packages(getattr(found, "__path__", ()), name + "."):
        importlib.import_module(module.name)
print(*sys.modules, file=sys.stderr)
"""

# Runs a command line and prints the names of all modules that are imported at its end.
_RUN = """
import contextlib, sys
from omni_cli.app import main
with contextlib.suppress(SystemExit):
    main(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
"""

# A sitecustomize: every Python process that finds it says at its end, under its own name, what it had imported.
_SITECUSTOMIZE = """
import atexit, os, sys
def tell():
    with open("/proc/self/comm") as comm:
        name = comm.read().strip()
    with open(os.path.join(os.environ["MODULES_FOLDER"], name), "w") as file:
        file.write(" ".join(sys.modules))
atexit.register(tell)
"""


def modules(code: str, *arguments: str) -> set[str]:
    """The top-level packages that a fresh interpreter has imported after the code."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
    return packages(done.stderr)


def packages(names: str) -> set[str]:
    return {name.partition(".")[0] for name in names.split()}


@pytest.mark.parametrize(
    "imported",
    [
        ("omni_cli.config", "omni_cli.plan"),
        ("omni_cli.runtime", "omni_cli.trace"),
        ("omni_cli.launch", "omni_cli.artifacts"),
        ("stages.schedulers", "stages.connectors", "stages.worker"),
        ("stages.models.registry", *(f"stages.models.{path.parent.name}.contract" for path in
                                     sorted((ROOT / "stages/models").glob("*/contract.py")))),
    ],
    ids=lambda imported: imported[0],
)  # fmt: skip
def test_torch_is_not_imported_by(imported):
    found = modules(_IMPORT_ALL, *imported)
    assert found & {"omni_cli", "stages"}
    assert found & HEAVY == set()


VERBS = (
    "run",
    "serve",
    "plan",
    "recipe",
    "recipe cp",
    "trace",
    "trace show",
    "bench overhead",
    "bench run",
    "bench stage",
    "bench compare",
    "eval",
    "doctor",
)


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_imports_nothing_slow(verb):
    found = modules(_RUN, *verb.split(), "--help")
    assert found & SLOW == set()
    if not verb:
        assert found & {"pydantic", "numpy", "stages"} == set()


def test_help_answers_at_once():
    """Time of the processor, so that a busy machine does not matter much; the bound is three times the aim."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "omni_cli", "--help"], cwd=ROOT, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3 * HELP_S


def test_a_synthetic_stage_knows_neither_torch_nor_the_control_plane(tmp_path: Path):
    """Started through the console script: spawn could run that script again in every stage, and import what it does."""
    site, told = tmp_path / "site", tmp_path / "told"
    for folder in (site, told):
        folder.mkdir()
    (site / "sitecustomize.py").write_text(_SITECUSTOMIZE, encoding="utf-8")
    script = console_script(tmp_path / "bin")
    env = environment(PYTHONPATH=f"{site}:{ROOT}", MODULES_FOLDER=str(told))
    command = [str(script), "run", "recipe=synthetic_dag", "--prompt", "who is there"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {path.name: packages(path.read_text(encoding="utf-8")) for path in told.iterdir()}
    parents = {name for name in found if not name.startswith("omni:")}
    assert {"omni_cli", "typer", "hydra", "pydantic"} <= set().union(*(found.pop(name) for name in parents))
    plan = json.loads(next(tmp_path.glob("outputs/*/*/plan.json")).read_text(encoding="utf-8"))
    assert set(found) == {f"omni:{stage['name']}.0"[:15] for stage in plan["stages"]}
    for name, imported in found.items():
        assert "stages" in imported, name
        assert imported & (HEAVY | CONTROL | {"numpy"}) == set(), name
