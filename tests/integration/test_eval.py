"""`omni eval` on real processes: a table, a document, a run folder, exit codes."""

import json
from pathlib import Path

from tests.integration.cli import leaves_nothing, omni


def test_a_table_of_what_was_answered(tmp_path: Path) -> None:
    """The synthetic pipeline answers with the question. Its sound is none that a judge would praise."""
    lines = [
        {"group": "text", "topic": topic, "answer": answer, "request": {"prompt": "yes"}}
        for topic, answer in (("echo", "yes"), ("echo", "no"))
    ]
    speech = {
        "group": "speech",
        "topic": "templates",
        "answer": "yes",
        "duration_s": 60.0,
        "request": {"prompt": "yes"},
    }
    (tmp_path / "eval.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, speech]))
    with leaves_nothing():
        done = omni("eval", "recipe=synthetic", "--out", "run", "--json", "--check", "-q", cwd=tmp_path)
    assert done.code == 1, done.err  # below its bar
    assert "below its bar: text: 50.0 %" in done.err
    assert all(line.startswith(("below its bar: ", "warning: ")) for line in done.err.splitlines()), done.err
    found = json.loads(done.out)
    assert found == json.loads((tmp_path / "run" / "eval.json").read_text())
    assert found["scores"]["text"] == {"value": 0.5, "of": 2, "bar": 0.95, "met": False}
    assert found["scores"]["speech: duration"]["value"] == 1.0
    for name in ("together", "alone"):
        assert (tmp_path / "run" / name / "speech-2" / "audio.wav").exists()
