"""The wheel carries conf and recipes and works without the checkout; what is installed is what is pinned."""

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.integration.cli import ROOT, environment

# What torch's CUDA builds bring; the constraints are those of its CPU build.
_CUDA = re.compile(r"(nvidia|cuda|triton)\b(?!-ml-py)")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built offline, by what is installed."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(build, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that pip has put the wheel into, with the console script `bin/omni`."""
    site = tmp_path_factory.mktemp("site")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(wheel)], capture_output=True, check=True)
    return site


def test_the_wheel_holds_the_packages_their_data_and_the_licence(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    (metadata,) = (top for top in tops if top.endswith(".dist-info"))
    assert tops == {"omni_cli", "stages", metadata}
    assert {f"{metadata}/licenses/LICENSE", "omni_cli/server/static/index.html"} <= set(names)
    kept = [path for path in (ROOT / "stages").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {str(path.relative_to(ROOT)) for path in kept} <= set(names)
    for folder in ("conf", "recipes"):
        data = {f"omni_cli/{path.relative_to(ROOT)}" for path in (ROOT / folder).rglob("*") if path.is_file()}
        assert data == {name for name in names if name.startswith(f"omni_cli/{folder}/")}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--version",), "omni 0"),
        (("plan", "recipe=synthetic", "--explain"), "{site}/omni_cli/conf/pipeline/synthetic.yaml:2"),
        (("recipe", "validate", "synthetic", "synthetic_dag"), "synthetic_dag: ok, 5 stages"),
        (("run", "recipe=synthetic", "--prompt", "from a wheel"), "from a wheel\n"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_an_installed_omni_works_outside_the_checkout(installed, tmp_path, words, expected):
    env = environment(PYTHONPATH=str(installed), COLUMNS="300")
    command = [str(installed / "bin" / "omni"), *words]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert expected.format(site=installed) in done.stdout


def test_everything_that_is_needed_is_pinned():
    """Directly or by what is needed, so that two set-ups of one commit are alike."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    names = [canonical(pin.name) for pin in pins]
    assert all(str(pin.specifier).startswith("==") for pin in pins)
    assert len(names) == len(set(names))
    assert set(names) == {name for name in closure(project_requirements()) if not _CUDA.match(name)}


def project_requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [Requirement(line) for line in (*project["dependencies"], *project["optional-dependencies"]["dev"])]


def closure(wanted: list[Requirement]) -> set[str]:
    """The names of all distributions that these lead to, among those that are installed."""
    found: set[str] = set()
    seen: set[str] = set()
    while wanted:
        requirement = wanted.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        found.add(canonical(requirement.name))
        try:
            lines = requires(requirement.name) or []
        except PackageNotFoundError:
            pytest.fail(f"{requirement.name} is needed and not installed")
        for needed in map(Requirement, lines):
            if applies(needed, requirement.extras):
                wanted.append(needed)
    return found


def applies(needed: Requirement, extras: set[str]) -> bool:
    return needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
