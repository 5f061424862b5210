import pytest

from omni_cli.completion import complete


@pytest.fixture
def candidates(capsys):
    def ask(*words: str) -> list[str]:
        assert complete([str(len(words)), "omni", *words]) == 0
        return [line for line in capsys.readouterr().out.split("\n") if line]

    return ask


def test_verbs_and_options(candidates):
    assert "plan " in candidates("")
    assert candidates("pl") == ["plan "]
    assert "--explain " in candidates("plan", "--")
    assert "--force " in candidates("recipe", "cp", "--")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["plan", "rec"], ["recipe="]),
        (["plan", "recipe=synthetic_"], ["recipe=synthetic_dag "]),
        (["plan", "deploy=qwen3_omni/gpu1"], ["deploy=qwen3_omni/gpu1 "]),
        (["plan", "recipe=synthetic", "deploy.st"], ["deploy.stages."]),
        (["plan", "recipe=synthetic", "deploy.stages.ta"], ["deploy.stages.talker."]),
        (["plan", "recipe=synthetic", "+deploy.stages.talker.dev"], ["+deploy.stages.talker.devices="]),
        (["plan", "recipe=synthetic", "synthetic.fail.kind=o"], ["synthetic.fail.kind=oom "]),
        (["plan", "recipe=synthetic", "deploy.stages.talker.inputs.thinker.connector=s"],
         ["deploy.stages.talker.inputs.thinker.connector=shm "]),
        (["plan", "trace.enabled="], ["trace.enabled=true ", "trace.enabled=false "]),
        (["recipe", "show", "synthetic_"], ["synthetic_dag "]),
        (["doctor", "x"], []),
    ],
)  # fmt: skip
def test_words_of_a_verb(candidates, words, found):
    assert candidates(*words) == found


def test_files_of_recipes(candidates, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "sub").mkdir()
    assert candidates("plan", "recipe=./") == ["recipe=./mine.yaml ", "recipe=./sub/"]


@pytest.mark.parametrize(
    "words", [["plan", "recipe='"], ["plan", "=["], ["nonsense", "--"], ["plan", "a=1", "a=2", "deploy.st"], []]
)
def test_it_never_raises(candidates, words):
    candidates(*words)
    assert complete(["x"]) == 0
    assert complete([]) == 0
