"""How the source is cut and named: short files and functions, folders with a role, a word about each module."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = sorted(path for package in ("omni_cli", "stages", "training") for path in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
WRITTEN = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "conf/**/*.yaml", "recipes/**/*.yaml", "Makefile", ".ci/run", "pyproject.toml")
    for path in ROOT.glob(pattern)
)

FILE_LINES = 420
FUNCTION_LINES = 65
KERNEL_LINES = 140  # a Triton kernel is one straight program

_NO_NOUN = re.compile(r"(^|_)(utils?|helpers?|commons?|misc)(_|$)")
_UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")
_MACHINE_PATH = re.compile(r"(?<![\w.$}])/(home|root|tmp|work)/")


def long_files() -> Iterator[str]:
    for path in (*PRODUCT, *TESTS):
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > FILE_LINES:
            yield f"{shown(path)} has {lines} lines"


def long_functions() -> Iterator[str]:
    for path in (*PRODUCT, *TESTS):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > (KERNEL_LINES if "cuda" in path.parts else FUNCTION_LINES):
                    yield f"{shown(path)}:{node.lineno} {node.name} has {lines} lines"


def names_without_a_role() -> Iterator[str]:
    for path in (*PRODUCT, *TESTS):
        if any(_NO_NOUN.search(part) for part in path.relative_to(ROOT).with_suffix("").parts):
            yield shown(path)


def modules_without_a_word() -> Iterator[str]:
    yield from (shown(path) for path in PRODUCT if not ast.get_docstring(parsed(path)))


def bare_excepts_and_asserts() -> Iterator[str]:
    for path in PRODUCT:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Assert) or (isinstance(node, ast.ExceptHandler) and node.type is None):
                yield f"{shown(path)}:{node.lineno}"


def unfinished_words() -> Iterator[str]:
    yield from matches(_UNFINISHED, (*PRODUCT, *TESTS, *WRITTEN))


def machine_paths() -> Iterator[str]:
    yield from matches(_MACHINE_PATH, (*PRODUCT, *TESTS, *WRITTEN))


def folders_that_are_no_package() -> Iterator[str]:
    """Without `__init__.py` two test files of one name cannot be imported in one run."""
    yield from (shown(folder) for folder in sorted({path.parent for path in TESTS}) if not is_package(folder))


RULES = (
    long_files,
    long_functions,
    names_without_a_role,
    modules_without_a_word,
    bare_excepts_and_asserts,
    unfinished_words,
    machine_paths,
    folders_that_are_no_package,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_there_are_no(rule):
    assert len(PRODUCT) > 100
    assert list(rule()) == []


def matches(pattern: re.Pattern[str], paths: tuple[Path, ...]) -> Iterator[str]:
    for path in paths:
        if path != Path(__file__):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                if pattern.search(line):
                    yield f"{shown(path)}:{number}: {line.strip()}"


def is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))
