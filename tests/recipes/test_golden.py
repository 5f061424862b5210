"""Every bundled recipe and deploy file is composed, validated and planned, and the plan is the one on file.

`make golden` (OMNI_UPDATE_GOLDEN=1) writes the plans anew; look at the difference before it is committed.
"""

import json
import os
from pathlib import Path

import pytest

from omni_cli.config.library import RECIPE, Library, bundled
from omni_cli.config.load import load_config
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import Inventory

GOLDEN = Path(__file__).parent / "golden"
LIBRARY = Library.of()
RECIPES = sorted(name for name in LIBRARY.choices(RECIPE) if not name.startswith("smoke/"))
# Deploy files of a pipeline stand in a folder of its name; the name of the file ends in the number of its GPUs.
DEPLOYS = sorted(name for name in LIBRARY.choices("deploy") if "/" in name)

CASES = [(f"{name.replace('/', '.')}.{gpus}gpu", (f"recipe={name}",), gpus) for name in RECIPES for gpus in (0, 1, 2)]
CASES += [
    (f"deploy.{name.replace('/', '.')}", (f"pipeline={name.split('/')[0]}", f"deploy={name}"), int(name[-1]))
    for name in DEPLOYS
]


def planned(words: tuple[str, ...], gpus: int) -> str:
    loaded = load_config(words)
    if loaded.family.has_weights:  # of the smallest checkpoint, so that no plan changes with an embedded default
        loaded = load_config((*words, "model.path=tiny"))
    plan = build_plan(loaded, Inventory.imagined(gpus)).model_dump(mode="json")
    if plan["model"]["path"]:
        plan["model"]["path"] = "<tiny checkpoint>"
    return json.dumps(plan, indent=2, ensure_ascii=False) + "\n"


@pytest.mark.parametrize(("name", "words", "gpus"), CASES, ids=[name for name, _, _ in CASES])
def test_the_plan_is_the_one_on_file(name, words, gpus):
    path = GOLDEN / f"{name}.json"
    found = planned(words, gpus)
    if os.environ.get("OMNI_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert path.is_file(), f"no plan on file for {name}; `make golden` writes it"
    assert json.loads(found) == json.loads(path.read_text(encoding="utf-8"))


def test_no_plan_on_file_is_left_over():
    assert sorted(path.stem for path in GOLDEN.glob("*.json")) == sorted(name for name, _, _ in CASES)


@pytest.mark.parametrize("name", sorted(LIBRARY.choices(RECIPE)))
def test_every_recipe_says_what_it_is_how_to_run_it_and_what_it_was_verified_on(name):
    text = LIBRARY.choices(RECIPE)[name].read_text(encoding="utf-8")
    for word in ("# What:", "# Run:", "# Verified on:"):
        assert word in text, f"{name} has no `{word}` in its header"


def test_recipes_and_conf_are_plain_data():
    for path in (*bundled("conf").rglob("*"), *bundled("recipes").rglob("*")):
        assert path.is_dir() or path.suffix in (".yaml", ".jsonl", ".json"), path
