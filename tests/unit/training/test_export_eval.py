"""What training writes is what `omni eval` reads."""

import sys
from collections import Counter

import pytest

from omni_cli.eval.items import Item, read_items
from training import export_eval
from training.export_eval import image_items, judge_names
from training.nano_image.drawings import shapes


def test_pictures_are_asked_for_in_the_judge_s_own_names():
    drawn = shapes()
    items, names = [Item.model_validate(line) for line in image_items(drawn, 1)], judge_names(drawn)
    assert set(Counter(item.topic for item in items).values()) == {24}
    for item in items:
        assert item.drawn["colour"] == names["colours"][names["things"].index(item.drawn["thing"])]
        assert item.drawn["right"] in (*names["things"], "")
        assert bool(item.drawn["right"]) == (item.drawn["size"] not in names["sizes"])
        assert item.drawn["background"] in names["backgrounds"]
        assert item.drawn["thing"] in item.request["prompt"]


def test_the_folder_is_made_or_refused_before_any_work(monkeypatch, tmp_path, capsys):
    shapes().save(tmp_path / "drawings.npz")

    def export(folder):
        options = ["export_eval", "image", "--drawings", str(tmp_path / "drawings.npz"), "--out", str(folder)]
        monkeypatch.setattr(sys, "argv", options)
        export_eval.main()

    export(tmp_path / "to" / "packed")
    assert read_items(tmp_path / "to" / "packed")
    monkeypatch.setattr(export_eval, "image_items", None)
    with pytest.raises(SystemExit):
        export(tmp_path / "drawings.npz")
    assert "drawings.npz: is no folder" in capsys.readouterr().err
