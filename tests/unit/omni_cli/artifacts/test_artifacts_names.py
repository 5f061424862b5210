import re
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from omni_cli.artifacts.names import safe_name

ANY_ID = st.text(st.characters(), max_size=200)  # surrogates included: JSON can carry them
ASKEW = [
    "",
    ".",
    "..",
    "/",
    "../../etc/passwd",
    "a/b",
    "con",
    "NUL",
    "logs",
    "x" * 5000,
    "日本語",
    "a\0b",
    "-rf",
    "~",
    "\ud800",
]


@given(ANY_ID)
@example("x" * 5000)
@example("\ud800")
def test_a_name_is_one_harmless_path_component(identifier: str) -> None:
    name = safe_name(identifier)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_~-]{0,72}", name)
    assert Path("run", name).parent == Path("run")
    assert safe_name(identifier) == name


@given(st.lists(st.one_of(ANY_ID, st.sampled_from(ASKEW)), unique=True, max_size=30))
def test_different_ids_have_different_names(identifiers: list[str]) -> None:
    assert len({safe_name(identifier) for identifier in identifiers}) == len(identifiers)


@given(ANY_ID)
def test_a_name_given_as_an_id_does_not_meet_the_original(identifier: str) -> None:
    name = safe_name(identifier)
    assert (safe_name(name) == name) == (name == identifier)


def test_askew_ids() -> None:
    names = [safe_name(identifier) for identifier in ASKEW]
    assert len(set(names)) == len(ASKEW)
    assert not set(names) & set(ASKEW)


def test_plain_ids_name_themselves() -> None:
    for identifier in ("0", "req-17", "Chat_3", "a" * 64):
        assert safe_name(identifier) == identifier


def test_what_is_readable_stays_readable() -> None:
    assert re.fullmatch(r"etc_passwd~[0-9a-f]{32}", safe_name("../../etc/passwd"))
    assert re.fullmatch(r"id~[0-9a-f]{32}", safe_name("日本語"))
