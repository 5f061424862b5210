"""Collects as wheels what a machine without a network lacks to run omni, at the pinned versions.

    python tools/collect_wheels.py wheels                       # for Python 3.12 on x86-64 Linux
    python -m pip install --no-index --no-deps wheels/*.whl     # there

The machine has its own torch, numpy and Triton. PyAV is left out: it is imported only when a video is read.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What omni itself and its configuration need beyond the usual software of a GPU machine.
NEEDED = (
    "annotated-types",
    "cffi",
    "diffusers",
    "hydra-core",
    "importlib-metadata",
    "omegaconf",
    "pycparser",
    "pydantic",
    "pydantic-core",
    "soundfile",
    "soxr",
    "typing-extensions",
    "typing-inspection",
)
PINNED_TRANSFORMERS = ("transformers", "tokenizers", "huggingface-hub")
# Published without a wheel; pure Python, so that one built here runs anywhere.
BUILT = ("antlr4-python3-runtime",)
GLIBC = (17, 27, 28, 31, 34)


def pins(text: str) -> dict[str, str]:
    """Versions by name, from a constraints file."""
    return dict(re.findall(r"^([a-z0-9][a-z0-9.-]*)==(\S+)$", text, flags=re.MULTILINE))


def commands(names: tuple[str, ...], pinned: dict[str, str], python: str, into: Path) -> list[list[str]]:
    """The pip calls that fetch `names` for `python` and build those without a wheel. KeyError: a name has no pin."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in reversed(GLIBC)] + ["manylinux2014_x86_64"]
    target = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    target += [word for platform in platforms for word in ("--platform", platform)]
    wanted = [f"{name}=={pinned[name]}" for name in names]
    built = [f"{name}=={pinned[name]}" for name in BUILT]
    return [
        [*pip, "download", "--no-deps", *target, "--dest", str(into), *wanted],
        [*pip, "wheel", "--no-deps", "--wheel-dir", str(into), *built],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("into", type=Path, help="folder for the wheels")
    parser.add_argument("--python", default="3.12", help="version of Python there (3.12)")
    parser.add_argument("--transformers", action="store_true", help="the pinned transformers as well")
    options = parser.parse_args()
    pinned = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    names = NEEDED + (PINNED_TRANSFORMERS if options.transformers else ())
    options.into.mkdir(parents=True, exist_ok=True)
    for command in commands(names, pinned, options.python, options.into):
        if (code := subprocess.run(command, check=False).returncode) != 0:
            sys.exit(code)


if __name__ == "__main__":
    main()
