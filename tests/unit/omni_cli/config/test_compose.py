import pytest

from omni_cli.config.compose import compose
from omni_cli.config.library import Library
from omni_cli.errors import ConfigError
from tests.unit.omni_cli.config.trees import library, write

RECIPE = "recipes/mine.yaml"


def refusal(*args, **kwargs) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(*args, **kwargs)
    return str(caught.value)


# One key set at every level, and the origin that is reported for it. The order is the same for every key.
KEYS = {
    "request.timeout_s": ("request", "timeout_s", "3.0"),
    "deploy.drain_timeout_s": ("deploy", "drain_timeout_s", "3.0"),
    "trace.enabled": ("trace", "enabled", "false"),
    "model.path": (None, "model: {path", "/b}"),
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "levels", [("group",), ("group", "recipe"), ("group", "recipe", "line"), ("recipe",), ("line",), ()]
)
def test_the_command_line_beats_the_recipe_beats_the_group_for_every_key(tmp_path, monkeypatch, key, levels):
    monkeypatch.chdir(tmp_path)
    group, name, value = KEYS[key]
    leaf = key.rpartition(".")[2]
    group_file = {"request": "request/default", "deploy": "deploy/auto", "trace": "trace/default"}.get(group, "config")
    files = {}
    if "group" in levels:
        if group is None:
            from tests.unit.omni_cli.config.trees import CONFIG

            files["conf/config.yaml"] = CONFIG + f"{name}: {value}\n"
        else:
            files[f"conf/{group_file}.yaml"] = f"\n{name}: {value}\n"
    root = key.partition(".")[0]
    files[RECIPE] = f"{root}:\n  {leaf}: 4\n" if "recipe" in levels else "{}\n"
    words = ["recipe=mine", *([f"{key}='5'"] if "line" in levels else [])]
    found = compose(words, library=library(tmp_path, files))
    effective = levels[-1] if levels else None
    value = found.values.get(root, {}).get(leaf)
    match effective:
        case "line":
            assert (value, found.where(key)) == ("5", "command line")
        case "recipe":
            assert (value, found.where(key)) == (4, "recipes/mine.yaml:2")
        case "group":
            assert value in (3.0, False, "/b")
            assert found.where(key) == (f"conf/{group_file}.yaml:2" if group else "conf/config.yaml:9")
        case None:
            assert (value, found.where(key)) == (None, "schema default")


def test_the_environment_is_no_level_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("REQUEST_TIMEOUT_S", "9")
    monkeypatch.setenv("HERE", "7")
    found = compose(["recipe=mine"], library=library(tmp_path, {RECIPE: "request: {seed: '${oc.env:HERE}'}\n"}))
    assert found.values["request"] == {"seed": "7"}


def test_a_recipe_builds_on_a_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {
        "recipes/base.yaml": "defaults:\n  - override /deploy: own\nrequest: {seed: 1, timeout_s: 1.0}\n",
        "recipes/sub/mine.yaml": "defaults: [/recipe/base, _self_]\nrequest:\n  seed: 2\n",
        "conf/deploy/own.yaml": "drain_timeout_s: 5.0\n",
    }
    found = compose(["recipe=sub/mine"], library=library(tmp_path, files))
    assert found.values["request"] == {"seed": 2, "timeout_s": 1.0}
    assert found.values["deploy"] == {"drain_timeout_s": 5.0}
    assert found.choices["deploy"] == "own"
    assert found.where("request.seed") == "recipes/sub/mine.yaml:3"
    assert found.where("request.timeout_s") == "recipes/base.yaml:3"
    assert found.where("deploy.drain_timeout_s") == "conf/deploy/own.yaml:1"


@pytest.mark.parametrize("spelling", ["./own/my recipe,1.yaml", "own/my recipe,1.yaml", "{}/own/my recipe,1.yaml"])
def test_a_recipe_may_be_a_file_relative_to_the_shell(tmp_path, monkeypatch, spelling):
    monkeypatch.chdir(
        write(
            tmp_path / "work",
            {
                "own/my recipe,1.yaml": "defaults: [near]\nrequest: {seed: 2}\n",
                "own/near.yaml": "request: {voice: 'é'}\n",
            },
        )
    )
    recipe = spelling.format(tmp_path / "work")
    found = compose([], recipe, library=library(tmp_path / "lib", {}))
    assert found.values["request"] == {"seed": 2, "voice": "é"}
    assert found.choices["recipe"] == "my recipe,1"
    assert found.where("request.seed") == "own/my recipe,1.yaml:2"


def test_the_users_files_come_before_bundled_ones(tmp_path):
    own = write(
        tmp_path / "own",
        {
            "synthetic.yaml": "defaults: [override /deploy: mine]\nrequest: {seed: 1}\n",
            "recipes/deep/b.yaml": "request: {seed: 2}\n",
            "deploy/mine.yaml": "drain_timeout_s: 4.0\n",
        },
    )
    found = compose(["recipe=synthetic"], library=Library.of([own]))
    assert (found.values["request"]["seed"], found.values["deploy"]["drain_timeout_s"]) == (1, 4.0)
    assert compose(["recipe=deep/b"], library=Library.of([own])).values["request"]["seed"] == 2


def test_a_package_header_places_a_group_file(tmp_path):
    files = {"conf/deploy/own.yaml": "# @package _global_\nmodel: {path: /x}\n"}
    assert compose(["deploy=own"], library=library(tmp_path, files)).values["model"] == {"path": "/x"}


def test_composition_is_a_function_of_its_arguments(tmp_path):
    lib = library(tmp_path, {RECIPE: "request: {seed: 1}\n"})
    first = compose(["recipe=mine"], library=lib)
    compose(["recipe=mine", "request.seed=2"], library=lib)
    assert compose(["recipe=mine"], library=lib).values == first.values
    assert "recipe" not in compose([], library=lib).choices


def test_interpolations_are_resolved_here(tmp_path):
    lib = library(tmp_path, {RECIPE: "request: {seed: 7}\ntrace: {enabled: '${request.seed}'}\n"})
    assert compose(["recipe=mine"], library=lib).values["trace"] == {"enabled": 7}


def test_every_value_that_leads_nowhere_is_reported_with_its_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "request:\n  seed: ???\n  voice: ${oc.env:OMNI_NOPE}\n  modalities: ['${nothing.here}']\n"
    text += "trace:\n  enabled: ${magic:1}\n"
    message = refusal(["recipe=mine"], library=library(tmp_path, {RECIPE: text}))
    assert "4 problems" in message
    assert "request.seed (recipes/mine.yaml:2): is ???" in message
    assert "request.voice (recipes/mine.yaml:3): cannot be resolved" in message
    assert "Environment variable 'OMNI_NOPE' not found" in message
    assert "request.modalities.0 (recipes/mine.yaml:4): cannot be resolved: Interpolation key 'nothing.here'" in message
    assert "trace.enabled (recipes/mine.yaml:6): cannot be resolved: Unsupported interpolation type magic" in message


def test_a_broken_file_matters_only_if_it_is_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {
        "conf/deploy/bad.yaml": "a: 1\na: 2\n",
        "recipes/bad.yaml": "x: [",
        RECIPE: "{}\n",
        "recipes/on_bad.yaml": "defaults: [override /deploy: bad]\n",
    }
    lib = library(tmp_path, files)
    compose(["recipe=mine"], library=lib)
    assert refusal(["deploy=bad"], library=lib).startswith("conf/deploy/bad.yaml:2: key `a` is written twice")
    assert refusal(["recipe=on_bad"], library=lib).startswith("conf/deploy/bad.yaml:2: key `a` is written twice")
    assert refusal(["recipe=bad"], library=lib).startswith("recipes/bad.yaml:")


@pytest.mark.parametrize(
    ("files", "words", "message"),
    [
        ({}, ["recipe=synthetc"], "recipe (command line): there is no recipe `synthetc`"),
        ({RECIPE: "{}"}, ["recipe=min"], "the nearest is `mine`"),
        ({}, ["deploy=aut"], "deploy (command line): there is no deploy `aut`; the nearest is `auto`"),
        ({}, ["recipe=./gone.yaml"], "there is no file gone.yaml"),
        (
            {RECIPE: "defaults: [override /deploy: gone]"},
            ["recipe=mine"],
            "recipes/mine.yaml:1: there is no deploy `gone`",
        ),
        ({RECIPE: "a: 1\ndefaults: [gone]"}, ["recipe=mine"], "recipes/mine.yaml:2: there is no recipe `gone`"),
        (
            {RECIPE: "defaults: [other]", "recipes/other.yaml": "defaults: [mine]"},
            ["recipe=mine"],
            "mine -> other -> mine",
        ),
        ({RECIPE: "defaults: 3"}, ["recipe=mine"], "`defaults` must be a list"),
        ({RECIPE: "defaults: [override /nogroup: x]"}, ["recipe=mine"], "cannot be composed"),
        ({RECIPE: "\nhydra: {run: {dir: x}}"}, ["recipe=mine"], "hydra (recipes/mine.yaml:2)"),
        ({}, ["recipe=[a,b]"], "takes one name"),
        ({}, ["deploy={a: 1}"], "deploy.KEY=VALUE"),
    ],
)
def test_what_cannot_be_composed_is_said_without_hydra(tmp_path, monkeypatch, files, words, message):
    monkeypatch.chdir(tmp_path)
    text = refusal(words, library=library(tmp_path, files))
    assert message in text
    assert "HYDRA_FULL_ERROR" not in text


def test_a_missing_file_shows_the_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path / "gone.yaml") in refusal(["recipe=./gone.yaml"])


def test_a_missing_configuration_folder(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        Library.of([tmp_path / "gone"])
