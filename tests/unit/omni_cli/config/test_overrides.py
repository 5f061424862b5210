import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from omni_cli.config.overrides import classify, expand_sweep, literal
from omni_cli.config.schema import takes_text

# Texts that Hydra's grammar refuses or changes: commas, quotes, brackets, null, numbers, blanks, interpolations, CJK.
PROMPTS = [
    "", " ", "\n", "null", "true", "12", "1e3", "[a,b]", "{a: b}", "a, b", "a=b", "it's", 'say "hi"', "#1", "hi!",
    "(x", "a\nb", "ends with \\", "what?", "???", "${x}", "${oc.env:HOME}", "李明说：“你好”🙂", "é", "* bold *", "--x",
    "~", "@file", "a|b", "a;b", "a:b", "$HOME", "%d", "\\n", "a & b", "<tag>", "`ls`",
]  # fmt: skip


def only(word: str):
    overrides, problems = classify([word], takes_text)
    return overrides[0] if overrides else problems[0]


@pytest.mark.parametrize("word", ["recipe=synthetic", "+recipe=synthetic", "++recipe=synthetic", "recipe='synthetic'"])
def test_a_group_is_a_choice_whatever_its_prefix(word):
    assert only(word).for_hydra() == "recipe='synthetic'"


@pytest.mark.parametrize("prefix", ["", "+", "++"])
def test_a_dotted_key_is_forced_whatever_its_prefix(prefix):
    found = only(f"{prefix}deploy.stages.talker.devices=[[0],[1]]")
    assert found.kind == "value"
    assert found.value == [[0], [1]]
    assert found.for_hydra() == "++deploy.stages.talker.devices=[[0],[1]]"


@pytest.mark.parametrize("prefix", ["", "+", "++", "~"])
@pytest.mark.parametrize("key", ["hydra.jbo.chdir", "hydra.job.foo", "hydra", "hydra/launcher"])
def test_hydra_own_settings_are_refused(prefix, key):
    assert "refused" in only(f"{prefix}{key}=1").message


@pytest.mark.parametrize("prefix", ["", "+", "++", "~"])
@pytest.mark.parametrize("key", ["request.prompt", "prompt", "requst.prompt", "request.promt"])
@pytest.mark.parametrize("text", PROMPTS)
def test_request_text_points_to_its_option_and_never_meets_the_grammar(prefix, key, text):
    problem = only(f"{prefix}{key}={text}")
    assert "request.prompt" in problem.message
    assert "--prompt" in problem.message


@pytest.mark.parametrize(
    ("key", "option"),
    [
        ("request.prompt_file", "--prompt-file"),
        ("inputs.audio", "--audio"),
        ("request.images", "--image"),
        ("messages", "--messages"),
        ("input", "--input"),
    ],
)
def test_other_content_points_to_its_option(key, option):
    assert option in only(f"{key}=x").message


@pytest.mark.parametrize("text", [text for text in PROMPTS if "=" not in text])
def test_a_bare_text_is_told_where_prompts_go(text):
    assert "--prompt" in only(text).message


@pytest.mark.parametrize("word", ["~deploy", "~request.seed", "~request.seed=1"])
def test_deleting_is_refused(word):
    assert "deleting is not supported" in only(word).message


@pytest.mark.parametrize(
    "words",
    [
        ["request.seed=1", "request.seed=2"],
        ["request.seed=1", "+request.seed=1"],
        ["recipe=a", "recipe=b"],
        ["request.sampling.talker={top_k: 1}", "request.sampling.talker.top_k=2"],
    ],
)
def test_one_key_is_set_once(words):
    _, problems = classify(words, takes_text)
    assert "set twice" in problems[0].message


def test_a_choice_and_a_value_below_it_do_not_conflict():
    assert classify(["deploy=auto", "deploy.drain_timeout_s=3"], takes_text)[1] == ()


def test_several_values_need_a_sweep():
    assert "omni run -m" in only("request.seed=1,2").message


def test_a_value_beyond_the_grammar_shows_how_to_quote_it():
    problem = only("request.modalities=héllo")
    assert "request.modalities='héllo'" in problem.message
    assert only("request.modalities='héllo'").value == "héllo"


@pytest.mark.parametrize(
    "value", ["/data/模型", "/a,b", "12", "true", "/with space/x", "it's", "C:\\x\\", "a=b", "(", " x"]
)
def test_text_keys_keep_their_value_to_the_letter(value):
    found = only(f"model.path={value}")
    assert found.value == value.strip() if value == " x" else found.value == value
    assert OverridesParser.create().parse_override(found.for_hydra()).value() == found.value


def test_null_and_quotes_of_a_text_key_are_the_grammar():
    assert only("request.voice=null").value is None
    assert only("request.voice='a b'").value == "a b"


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.from_regex(r"[a-z]\w{0,5}", fullmatch=True).filter(lambda k: k.isascii()), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@given(PLAIN)
def test_a_literal_is_read_back_as_the_same_value(value):
    assert OverridesParser.create().parse_override(f"++k={literal(value)}").value() == value


@given(st.text())
def test_every_word_is_an_override_or_a_problem_with_a_way_out(word):
    overrides, problems = classify([word], takes_text)
    assert len(overrides) + len(problems) == 1
    assert all(problem.message for problem in problems)


@given(st.from_regex(r"[a-z]{1,8}(\.[a-z_]{1,8}){1,3}", fullmatch=True), st.integers())
def test_a_prefix_changes_nothing(key, number):
    found = [only(f"{prefix}{key}={number}") for prefix in ("", "+", "++")]
    assert len({item.for_hydra() if hasattr(item, "for_hydra") else item.message for item in found}) == 1


def test_a_sweep_is_the_product_in_order():
    jobs = expand_sweep(["recipe=a", "request.seed=1,2", "synthetic.frames=range(0,2)"])
    assert jobs == (
        ("recipe=a", "request.seed=1", "synthetic.frames=0"),
        ("recipe=a", "request.seed=1", "synthetic.frames=1"),
        ("recipe=a", "request.seed=2", "synthetic.frames=0"),
        ("recipe=a", "request.seed=2", "synthetic.frames=1"),
    )


def test_a_list_is_no_sweep():
    assert expand_sweep(["deploy.stages.talker.devices=[[0],[1]]"]) == (("deploy.stages.talker.devices=[[0],[1]]",),)
