"""Reports about keys and values: who wins, what is out of range, what is mistyped, and that documents are true."""

import json
import re
import shlex
from functools import cache

import pytest
import typer

from omni_cli.app import app
from omni_cli.config.load import load_config
from omni_cli.config.overrides import expand_sweep
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import Inventory
from omni_cli.plan.explain import explain
from tests.integration.cli import ROOT, Ended, batch, check_trace, environment, judged, omni, refused

RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))

# Per key of a request: what is refused, as JSON writes it. On the command line the same words mean the same.
OUT_OF_RANGE = {
    "seed": ["9223372036854775808", "18446744073709551616", "-1", '""', "1.5"],
    "sampling.thinker.temperature": ["-1", "NaN", "1e9"],
    "sampling.thinker.top_p": ["0", "1.1"],
    "sampling.thinker.max_tokens": ["0", "-1", "1000000000", "1.5", '"8"'],
    "timeout_s": ["0", "-1", "NaN", "Infinity"],
    "synthetic.frames": ["-1", "1000000000", "1.5"],
}
CASES = [(key, value) for key, values in OUT_OF_RANGE.items() for value in values]


def nested(key: str, value: str) -> str:
    """A batch line that says `key: value`."""
    for part in reversed(key.split(".")):
        value = f'{{"{part}": {value}}}'
    return '{"prompt": "a", ' + value[1:]


@pytest.fixture(scope="module")
def out_of_range(tmp_path_factory) -> Ended:
    lines = [nested(key, value) for key, value in CASES]
    good = '{"id": "good", "prompt": "a b", "seed": 9223372036854775807, "modalities": ["text"], '
    lines.append(good + '"sampling": {"thinker": {"max_tokens": 1048576, "top_p": 1, "temperature": 0}}}')
    return batch(tmp_path_factory.mktemp("range"), lines, "recipe=synthetic")


@pytest.mark.parametrize(("key", "value"), CASES)
def test_r51_a_number_out_of_range_is_refused_by_its_key(out_of_range, key, value):
    result = out_of_range.results[f"line-{CASES.index((key, value)) + 1}"]
    assert (result["status"], result["error"]["fault"]) == ("failed", "client")
    assert result["error"]["message"].startswith(f"{key}: ")


def test_r51_the_command_line_has_the_same_ranges():
    for number in range(5):
        given = {}
        for key, values in OUT_OF_RANGE.items():
            if number < len(values):
                value = values[number].replace("NaN", "nan").replace("Infinity", "inf")
                given[key if key.startswith("synthetic") else f"request.{key}"] = value
        said = judged(*(f"{key}={value}" for key, value in given.items()), prompt="a")
        for key in given:
            assert said.count(f"{key} (command line): ") == 1


def test_r51_the_others_go_on_and_the_largest_values_cost_nothing(out_of_range):
    assert out_of_range.code == 1
    assert out_of_range.text("good") == "a b"
    admitted = [event["request_id"] for event in out_of_range.events if event["kind"] == "request_admitted"]
    assert admitted == ["good"]
    assert out_of_range.results["good"]["seed"] == 2**63 - 1
    check_trace(out_of_range.run)


@pytest.mark.parametrize("value", ["-1", "1.5"])
def test_r51_options_have_the_same_ranges(tmp_path, value):
    assert "seed" in refused("recipe=synthetic", "--prompt", "a", f"--seed={value}", cwd=tmp_path)


@pytest.mark.parametrize("line", ['{"prompt": "a", "sed": 5}', '{"prompt": "a", "request.sed": 5}'])
def test_r58_an_unknown_field_of_a_line_names_the_nearest(tmp_path, line):
    (tmp_path / "b.jsonl").write_text(line + "\n")
    assert "unknown key; the nearest is `seed`" in judged(input=str(tmp_path / "b.jsonl"))


def test_r58_an_unknown_key_names_the_nearest():
    said = judged("request.sed=5", prompt="a")
    assert said == "request.sed (command line): unknown key; the nearest is `request.seed`"


def test_r58_no_field_is_taken_and_then_ignored(tmp_path):
    fields = {"max_token": "max_tokens", "modality": "modalities", "timeout": "timeout_s"}
    lines = [json.dumps({"prompt": "a", field: 5}) for field in (*fields, "steps", "n", "stream")]
    (tmp_path / "b.jsonl").write_text("\n".join(lines))
    said = judged(input=str(tmp_path / "b.jsonl")).splitlines()[1:]
    assert [line.split(": ")[1] for line in said] == [*fields, "steps", "n", "stream"]
    for line, near in zip(said, fields.values(), strict=False):
        assert re.search(rf"unknown key; the nearest is `([a-z0-9.]+\.)?{near}`", line)


# What a user types, and what the refusal has to name. In processes of their own: the exit code is part of it.
MISTAKES = {
    "r78": (["+requst.prompt=hi"], "request.prompt"),
    "r79": (["request.seed=1", "request.seed=2"], "request.seed (command line): is set twice"),
    "r79-option": (["--seed", "1", "--seed", "2"], "--seed is given twice"),
    "r88": (["hydra.jbo.chdir=true"], "hydra.jbo.chdir (command line): Hydra's own settings"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_r78_r79_r88_a_slip_is_refused_with_what_was_meant(tmp_path, name):
    words, said = MISTAKES[name]
    assert said in refused("recipe=synthetic", "--prompt", "hi", *words, cwd=tmp_path)


def test_r78_r79_r88_other_spellings_of_the_same_slips():
    assert "request.prompt" in judged("requst.prompt=hi", prompt="a")
    assert "unknown key; the nearest is `request.seed`" in judged("+requst.sed=5", prompt="a")
    assert "--seed and request.seed are both given" in judged("request.seed=2", prompt="a", seed=1)
    assert "set twice" in judged("+request.seed=1", "++request.seed=1", prompt="a")
    assert "hydra.job.foo (command line): Hydra's own settings" in judged("+hydra.job.foo=1", prompt="a")
    assert "hydra.run.dir (command line): Hydra's own settings" in judged("~hydra.run.dir", prompt="a")


def test_r88_hydras_node_is_refused_in_a_recipe_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("defaults: [synthetic]\nhydra: {jbo: {chdir: true}}\n")
    said = judged(recipe="./mine.yaml", prompt="a")
    assert "hydra" in said
    assert "mine.yaml:2" in said


# One key, set on several levels: the words, the variables, what wins and where it was written.
LEVELS = {
    "a recipe over the schema": (["recipe=mine"], {}, "float16", "mine.yaml:2"),
    "the command line": (
        ["recipe=other", "synthetic.dtype=float32"],
        {"SAMPLES": "float16"},
        "float32",
        "command line",
    ),
}


@pytest.mark.parametrize("level", LEVELS)
def test_r76_the_value_that_wins_is_the_one_that_the_stage_reports(tmp_path, monkeypatch, level):
    (tmp_path / "mine.yaml").write_text("defaults: [synthetic]\nsynthetic: {dtype: float16}\n")
    (tmp_path / "other.yaml").write_text("defaults: [mine]\nsynthetic: {dtype: '${oc.env:SAMPLES}'}\n")
    words, variables, dtype, place = LEVELS[level]
    for name, value in {**variables, "OMNI_CONFIG_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    loaded = load_config(words)
    (line,) = [line for line in explain(loaded, build_plan(loaded, Inventory())) if line.key == "synthetic.dtype"]
    assert line.value == dtype
    assert line.origin.endswith(place)
    env = environment(OMNI_CONFIG_DIR=str(tmp_path))
    ended = omni("run", *words, "--prompt", "a", "--modalities", "text", cwd=tmp_path, env=env)
    assert ended.code == 0, ended.err
    (ready,) = [event for event in ended.events if event["kind"] == "process_ready"]
    assert dict(ready["facts"])["dtype"] == dtype


def documented() -> list[tuple[str, str]]:
    """Every line `omni ...` of the documents' shell blocks and of the recipes' headers, with its place."""
    found = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for block in re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S):
            found += [(path, line) for line in block.replace("\\\n", " ").splitlines()]
    for path in RECIPES:
        header = re.match(r"(#.*\n)*", path.read_text(encoding="utf-8")).group()
        found += [(path, re.sub(r"^#\s*(Run:)?\s*", "", line)) for line in header.splitlines()]
    lines = [(path, line.strip().removeprefix("$ ")) for path, line in found]
    return [(str(path.relative_to(ROOT)), line) for path, line in lines if line.startswith("omni ")]


PUBLISHED = (f"model.path={ROOT}/stages/models/qwen_image/configs/20b", "model.load_format=dummy")


@pytest.mark.parametrize(("place", "line"), documented())
def test_r77_every_documented_command_exists(place, line):
    """Its verb and options are known, and its words make a plan (on two GPUs that may be imagined)."""
    words = [word for word in shlex.split(line.partition(" | ")[0], comments=True)[1:] if word != "..."]
    assert words, place
    if words[0].startswith("--"):
        return
    group = typer.main.get_command(app)
    with group.make_context("omni", words, resilient_parsing=True) as context:
        name, command, rest = group.resolve_command(context, words)
        with command.make_context(name, rest, parent=context) as parsed:
            given = parsed.params.get("words") or []
    if name in ("run", "plan"):
        kept = tuple(word for word in given if not word.startswith(("model.path=", "recipe=./")))
        # nano-image, which the recipe has without it, draws none of the published checkpoint's sizes.
        plan_words((*kept, *PUBLISHED) if "model.path=/models/Qwen-Image" in given else kept)


@cache
def plan_words(words: tuple[str, ...]) -> None:
    bundled = {f"recipe={recipe.relative_to(ROOT / 'recipes').with_suffix('')}" for recipe in RECIPES}
    if {word for word in words if word.startswith("recipe=")} <= bundled:  # else one of the reader's own
        for job in expand_sweep(words):
            build_plan(load_config(job), Inventory.imagined(2))


def test_r77_there_are_documented_commands():
    verbs = {line.split()[1] for _, line in documented()}
    assert {"run", "plan", "recipe"} <= verbs
