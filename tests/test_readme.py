"""What the pages say is what happens: their commands are run, their excerpts are in the files, their options exist.

Every `sh` block of README.md and of docs is run, but for `make test`: each page's in their order, in a copy of the
checkout of the page's own. `make demo` finds a `.venv` there that needs nothing to be installed.
"""

import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from PIL import Image

from omni_cli.app import app
from omni_cli.config.load import load_config
from stages.models.cache import cache_root
from stages.models.qwen3_omni.tiny import tiny_checkpoint
from tests.integration.cli import ROOT, console_script, environment
from tests.unit.omni_cli.inputs.media_samples import sound, tone

CARDS = sorted((ROOT / "stages").rglob("MODEL_CARD.md"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *CARDS]
CARRIED = ("omni_cli", "stages", "conf", "recipes")
FILES = ("Makefile", "pyproject.toml", "constraints.txt")
RUN, EXCERPT, SHOWN = "sh", {"python", "yaml"}, {"json", "mermaid"}
NOT_RUN = "make test\n"  # it would run this test
LIMIT_S = 240

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w./]+\.(?:py|yaml))`")
_LINK = re.compile(r"\]\(([^):#]+)\)")
_COMMAND = re.compile(r"`omni ([a-z-][^`\n{]*)`")
_HEADER = re.compile(r"^#.*\s\somni (.*?)(?: \.\.\.)?$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `before` is the page up to it."""

    page: Path
    language: str
    text: str
    before: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.before.count(chr(10)) + 1}"


BLOCKS = [
    Block(page=page, language=found[1], text=found[2], before=text[: found.start()])
    for page in PAGES
    for text in [page.read_text(encoding="utf-8")]
    for found in _FENCE.finditer(text)
]


@pytest.fixture(scope="module")
def checkouts(tmp_path_factory):
    """For each page a copy of the checkout with a `.venv` and with the files that the examples name."""
    made: dict[Path, Path] = {}

    def checkout(page: Path) -> Path:
        if page not in made:
            made[page] = tmp_path_factory.mktemp(page.stem)
            furnish(made[page])
        return made[page]

    return checkout


def furnish(folder: Path) -> None:
    for name in CARRIED:
        shutil.copytree(ROOT / name, folder / name)
    for name in FILES:
        shutil.copy2(ROOT / name, folder / name)
    (folder / ".venv").mkdir()
    scripts = console_script(folder / ".venv" / "bin").parent
    python = scripts / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    (scripts / "activate").write_text(f'PATH="{scripts}:$PATH"\n', encoding="utf-8")
    (folder / ".venv" / ".ready").touch()
    Image.new("RGB", (64, 48), (200, 80, 40)).save(folder / "photo.jpg")
    (folder / "question.wav").write_bytes(sound(tone(1.0, 16_000), 16_000))
    (folder / "Qwen3-Omni-30B-A3B-Instruct").symlink_to(tiny_checkpoint(cache_root(environment())))


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == RUN and b.text != NOT_RUN], ids=str)
def test_the_commands_work(block, checkouts):
    folder = checkouts(block.page)
    scripts = folder / ".venv" / "bin"
    env = environment(PYTHONPATH=str(folder))
    env["PATH"] = f"{scripts}:{env['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_block_is_run_or_compared():
    assert sum(block.text == NOT_RUN for block in BLOCKS) == 1
    for block in BLOCKS:
        assert block.language in {RUN, *EXCERPT, *SHOWN}, block
        assert block.page != ROOT / "README.md" or block.language == RUN, block


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language in EXCERPT], ids=str)
def test_an_excerpt_stands_in_the_file_that_is_named_before_it(block):
    named = _FILE.findall(block.before)[-1]
    source = (ROOT / named).read_text(encoding="utf-8")
    assert textwrap.dedent(block.text) in textwrap.dedent(source) or block.text in source, named


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_picture_can_be_drawn_again(tmp_path):
    drawn = tmp_path / "timeline.svg"
    generator = [sys.executable, str(ROOT / "docs" / "timeline.py"), str(drawn)]
    subprocess.run(generator, cwd=tmp_path, env=environment(), check=True, timeout=LIMIT_S)
    pictures = [ElementTree.parse(path).getroot() for path in (drawn, ROOT / "docs" / "timeline.svg")]
    for picture in pictures:
        shown = "".join(picture.itertext()).replace("\N{NO-BREAK SPACE}", " ")
        for label in ("2 finished", "TTFA", "mixer.0", "audio_mix finished: 12 units", "singer -> mixer: 1 message"):
            assert label in shown


def commands() -> list[tuple[str, str]]:
    """(where, words after `omni`) of every command that a page, a recipe's header or a message of omni names."""
    found = []
    for path in (*PAGES, *sorted((ROOT / "recipes").rglob("*.yaml")), *sorted((ROOT / "omni_cli").rglob("*.py"))):
        text = path.read_text(encoding="utf-8")
        shown = path.relative_to(ROOT)
        found += [(f"{shown}: {words}", words) for words in _COMMAND.findall(text)]
        if path.suffix == ".yaml":
            found += [(f"{shown}: {words}", words) for words in _HEADER.findall(text)]
    return found


@pytest.mark.parametrize("words", [pytest.param(words, id=where) for where, words in dict(commands()).items()])
def test_a_command_that_is_named_exists_with_its_options_and_keys(words):
    command = typer.main.get_command(app)
    rest = shlex.split(words)
    if rest[0].startswith("-"):
        verb = ""
    else:
        verb, command, rest = command.resolve_command(typer.Context(command), rest)
        if hasattr(command, "commands") and rest and not rest[0].startswith("-"):
            _, command, rest = command.resolve_command(typer.Context(command), rest)
    options = {option for param in command.params for option in param.opts} | {"--help"}
    assert {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)} <= options
    keys = [word for word in rest if re.match(r"[a-z_.0-9]+=", word)]
    if verb in ("run", "plan") and "-m" not in rest and not any(word.startswith("recipe=./") for word in keys):
        load_config(keys)
