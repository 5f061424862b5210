"""The same figures as a table, as JSON and as a section of a page."""

import json
from pathlib import Path

import pytest

from omni_cli.bench.figure import Aim, Figure
from omni_cli.bench.report import Report, aims, replace_section
from omni_cli.errors import ArtifactError

FIGURES = (
    Figure(
        key="hop", title="one hop", unit="us", samples=(10.0, 20.04, 0.5, 400.0), aim=Aim(kind="at most", limit=100)
    ),
    Figure(key="cpu", title="CPU time", unit="us", samples=(1234.5,)),
)


def report(name: str = "a", note: str = "Noted.") -> Report:
    return Report(
        command="omni bench overhead",
        name=name,
        digest="0123456789abcdef" * 4,
        machine=(("date", "2026-01-02"), ("cores", "2 usable of 4")),
        tables=[aims(FIGURES)],
        details={"figures": {figure.key: figure.document() for figure in FIGURES}},
        notes=(note,),
    )


def test_a_row_has_the_median_its_spread_the_aim_and_whether_it_is_met() -> None:
    assert aims(FIGURES)[1] == [
        ("one hop", "15.0 us", "0.50 to 20.0", "0.50 to 400", "at most 100 us", "met"),
        ("CPU time", "1234 us", "1234 to 1234", "1234 to 1234", "", ""),
    ]


def test_json_keeps_every_sample_in_order() -> None:
    written = json.loads(report().json())
    assert (written["command"], written["plan_digest"]) == ("omni bench overhead", "0123456789abcdef" * 4)
    assert written["machine"] == {"date": "2026-01-02", "cores": "2 usable of 4"}
    hop, cpu = written["figures"]["hop"], written["figures"]["cpu"]
    assert hop["samples"] == [10.0, 20.04, 0.5, 400.0]
    assert (hop["aim"], hop["met"], hop["unit"]) == ({"kind": "at most", "limit": 100}, True, "us")
    assert [hop[key] for key in ("p1", "p25", "median", "p75", "p99")] == [0.5, 0.5, 15.02, 20.04, 400.0]
    assert (cpu["aim"], cpu["met"], cpu["median"]) == (None, None, 1234.5)


def test_the_page_has_the_command_the_notes_the_table_and_the_machine() -> None:
    lines = report().markdown().splitlines()
    assert lines[0] == "Measured by `omni bench overhead`. Noted."
    assert lines[2] == f"| {' | '.join(aims(FIGURES)[0])} |"
    assert lines[4].startswith("| one hop | 15.0 us |")
    assert lines[-1] == "Plan `0123456789abcdef`. Machine: date 2026-01-02; cores 2 usable of 4."


def test_only_the_section_between_the_marks_is_replaced() -> None:
    page = "# Title\n\n<!-- a: begin -->\nold\n<!-- a: end -->\n\n<!-- b: begin -->\nB\n<!-- b: end -->\nAfter.\n"
    new = replace_section(page, "a", "new \\1 text\n")
    assert new == page.replace("old", "new \\1 text")
    assert replace_section(new, "a", "new \\1 text\n") == new


def test_a_page_without_the_section_gets_it_at_the_end(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    report("a", "One.").put_into(page)
    report("b", "Two.").put_into(page)
    report("a", "Three.").put_into(page)
    text = page.read_text()
    assert text.startswith("<!-- a: begin -->\nMeasured by `omni bench overhead`. Three.\n")
    assert text.endswith("\n<!-- b: end -->\n")
    assert "One." not in text
    assert text.index("<!-- a: end -->") < text.index("<!-- b: begin -->")


@pytest.mark.parametrize("put", [Report.put_into, Report.write])
def test_a_place_that_cannot_be_written_is_named(put, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    place = tmp_path / "absent" / "page.md"
    with pytest.raises(ArtifactError, match=str(place)):
        put(report(), place)
