"""The wheels of a machine without a network are those that the constraints pin; PyAV is not among them."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_every_wheel_is_pinned(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "tools" / "collect_wheels.py"))
    pinned = script["pins"]((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    names = script["NEEDED"] + script["PINNED_TRANSFORMERS"]
    fetched, built = script["commands"](names, pinned, "3.12", tmp_path)
    assert {f"{name}=={pinned[name]}" for name in names} <= set(fetched)
    assert built[-1] == f"antlr4-python3-runtime=={pinned['antlr4-python3-runtime']}"
    assert not any(word.startswith("av==") for word in (*fetched, *built))
