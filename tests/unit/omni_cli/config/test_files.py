import pytest

from omni_cli.config.files import read_yaml
from omni_cli.errors import ConfigError
from tests.unit.omni_cli.config.trees import write


def read(tmp_path, content):
    return read_yaml(write(tmp_path, {"a.yaml": content}) / "a.yaml")


def test_data_and_lines(tmp_path):
    file = read(tmp_path, "# 字\na: 1\nb:\n  c: {d: x}\n  e: [1, 2]\n")
    assert file.data == {"a": 1, "b": {"c": {"d": "x"}, "e": [1, 2]}}
    assert file.lines == {("a",): 2, ("b",): 3, ("b", "c"): 4, ("b", "c", "d"): 4, ("b", "e"): 5}


def test_an_empty_file_is_an_empty_map(tmp_path):
    assert read(tmp_path, "# nothing\n").data == {}


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 1e-3), ("1.5", 1.5), ("7", 7), ("2026-01-02", "2026-01-02"), ("'1'", "1")]
)
def test_scalars(tmp_path, text, value):
    found = read(tmp_path, f"a: {text}").data["a"]
    assert found == value
    assert type(found) is type(value)


def test_the_package_header(tmp_path):
    assert read(tmp_path, "# @package deploy.stages\na: 1").package == "deploy.stages"
    assert read(tmp_path, "a: 1").package is None


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ("a: 1\nb: {c: 2}\na: 3\n", 3, "key `a` is written twice, first in line 1"),
        ("a:\n  b: 1\n  b: 2\n", 3, "key `a.b` is written twice, first in line 2"),
        (b"a: 1\nb: caf\xe9\n", 2, "not UTF-8 (byte 0xe9)"),
        ("a: [1\nb: 2\n", 2, "not valid YAML"),
        ("a: 1\n\tb: 2\n", 2, "not valid YAML"),
        ("- 1\n", 1, "must be a map"),
        ("1: 2\n", 1, "`1` as a key is not text"),
        ("a: !!python/object:os.system {}\n", 1, "not valid YAML"),
        ("a: \x00\n", None, "not valid YAML"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path, monkeypatch, content, line, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, content)
    assert str(caught.value).startswith("a.yaml:" if line is None else f"a.yaml:{line}: ")
    assert message in str(caught.value)


def test_an_absent_file(tmp_path):
    with pytest.raises(ConfigError, match=r"gone\.yaml: cannot be read: No such file"):
        read_yaml(tmp_path / "gone.yaml")
