"""What training writes is what `omni eval` reads."""

from collections import Counter

from omni_cli.eval.items import Item
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
