"""Keeps one measured section of a Markdown page: everything between its two marks, and nothing else."""

import re
from pathlib import Path

from omni_cli.artifacts.atomic import write_text


def replace_section(text: str, name: str, section: str) -> str:
    """`text` with the section called `name` replaced, or, if it has none, with it at the end."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    block = f"{begin}\n{section.strip()}\n{end}"
    found = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if found.search(text):
        return found.sub(lambda match: block, text, count=1)
    return f"{text.rstrip()}\n\n{block}\n".lstrip("\n")


def write_section(path: Path, name: str, section: str) -> None:
    """Raises ArtifactError if the page cannot be written."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    write_text(path, replace_section(text, name, section))
