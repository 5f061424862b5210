"""The same figures as a table, as JSON and as a section of a page."""

import json
from pathlib import Path

import pytest

from omni_cli.bench.figure import Aim, Figure, Measured
from omni_cli.bench.page import replace_section, write_section
from omni_cli.bench.report import HEADER, document, markdown, rows
from omni_cli.errors import ArtifactError

OVERHEAD = Measured(
    digest="0123456789abcdef" * 4,
    machine=(("date", "2026-01-02"), ("cores", "2 usable of 4")),
    figures=(
        Figure(
            key="hop_us",
            title="one hop",
            unit="us",
            samples=(10.0, 20.04, 0.5, 400.0),
            aim=Aim(kind="at most", limit=100),
        ),
        Figure(key="cpu_us", title="CPU time", unit="us", samples=(1234.5,)),
    ),
)


def test_a_row_has_the_median_its_spread_the_aim_and_whether_it_is_met() -> None:
    assert rows(OVERHEAD.figures) == [
        ("one hop", "15.0 us", "0.50 to 20.0", "0.50 to 400", "at most 100 us", "met"),
        ("CPU time", "1234 us", "1234 to 1234", "1234 to 1234", "", ""),
    ]


def test_json_keeps_every_sample_in_order() -> None:
    written = json.loads(json.dumps(document(OVERHEAD)))
    assert written["plan_digest"] == OVERHEAD.digest
    assert written["machine"] == {"date": "2026-01-02", "cores": "2 usable of 4"}
    hop, cpu = written["figures"]["hop_us"], written["figures"]["cpu_us"]
    assert hop["samples"] == [10.0, 20.04, 0.5, 400.0]
    assert (hop["aim"], hop["met"], hop["unit"]) == ({"kind": "at most", "limit": 100}, True, "us")
    assert (cpu["aim"], cpu["met"], cpu["median"]) == (None, None, 1234.5)


def test_the_page_has_the_table_the_machine_and_the_command() -> None:
    lines = markdown(OVERHEAD, "omni bench overhead --write x.md").splitlines()
    assert lines[0] == "Measured by `omni bench overhead --write x.md`."
    assert lines[2] == f"| {' | '.join(HEADER)} |"
    assert lines[4].startswith("| one hop | 15.0 us |")
    assert lines[-1] == "Plan `0123456789abcdef`. Machine: date 2026-01-02; cores 2 usable of 4."


def test_only_the_section_between_the_marks_is_replaced() -> None:
    page = "# Title\n\n<!-- a: begin -->\nold\n<!-- a: end -->\n\n<!-- b: begin -->\nB\n<!-- b: end -->\nAfter.\n"
    new = replace_section(page, "a", "new \\1 text\n")
    assert new == page.replace("old", "new \\1 text")
    assert replace_section(new, "a", "new \\1 text\n") == new


def test_a_page_without_the_section_gets_it_at_the_end(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    write_section(page, "a", "one")
    assert page.read_text() == "<!-- a: begin -->\none\n<!-- a: end -->\n"
    write_section(page, "b", "two")
    write_section(page, "a", "three")
    assert page.read_text() == "<!-- a: begin -->\nthree\n<!-- a: end -->\n\n<!-- b: begin -->\ntwo\n<!-- b: end -->\n"


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    page = tmp_path / "absent" / "page.md"
    with pytest.raises(ArtifactError, match=str(page)):
        write_section(page, "a", "one")
