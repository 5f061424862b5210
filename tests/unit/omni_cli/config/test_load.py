import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_cli.config.load import load_config, validated
from omni_cli.config.nearest import CALLED_ELSEWHERE, nearest
from omni_cli.config.overrides import classify
from omni_cli.config.schema import OmniConfig, takes_text
from omni_cli.errors import ConfigError
from stages.models.synthetic.options import SyntheticOptions

TREE = load_config(["recipe=synthetic"]).keys
KEYS = TREE.valid()


def refusal(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(["recipe=synthetic", *words])
    return str(caught.value)


@pytest.mark.parametrize("prefix", ["", "+"])
@pytest.mark.parametrize(
    ("word", "nearest_key"),
    [
        ("request.sed=5", "request.seed"),
        ("requst.sed=5", "request.seed"),
        ("request.max_token=5", "request.sampling.talker.max_tokens"),
        ("deploy.talker.devices=[[0]]", "deploy.stages.talker.devices"),
        ("talker.devices=[[0]]", "deploy.stages.talker.devices"),
        ("deploy.stages.tlaker.max_batch=2", "deploy.stages.talker.max_batch"),
        ("deploy.stages.talker.memory_fractoin=0.2", "deploy.stages.talker.memory_fraction"),
        ("seed=1", "request.seed"),
        ("request.sampling.thinker.temprature=1", "request.sampling.thinker.temperature"),
        ("synthetic.delay_ms.tinker=3", "synthetic.delay_ms.thinker"),
        ("synthetic.frame=3", "synthetic.frames"),
        ("deploy.stages.talker.inputs.thinkr.connector=shm", "deploy.stages.talker.inputs.thinker.connector"),
        ("modle.path=/x", "model.path"),
        ("trace.enable=true", "trace.enabled"),
    ],
)
def test_an_unknown_or_misplaced_key_names_the_nearest(prefix, word, nearest_key):
    message = refusal(prefix + word)
    assert message.startswith(f"{word.partition('=')[0]} (command line)")
    assert f"`{nearest_key}`" in message


def test_settings_of_code2wav_sampling_do_not_exist():
    assert "unknown key" in refusal("request.sampling.code2wav.top_k=1")
    assert "recipee (command line): unknown key; the nearest is `recipe`" in refusal("recipee=synthetic")


def slips(key: str) -> set[str]:
    """What one slip makes of a key: a letter left out, doubled, or swapped with the next."""
    places = range(len(key))
    return (
        {key[:at] + key[at + 1 :] for at in places}
        | {key[: at + 1] + key[at:] for at in places}
        | {key[:at] + key[at : at + 2][::-1] + key[at + 2 :] for at in places}
    )


# `top_` is one slip away from `top_k` as well as from `top_p`: any such key will do.
@given(st.sampled_from(KEYS), st.data())
def test_a_slip_of_the_finger_finds_a_key_that_it_may_have_been(key, data):
    typed = data.draw(st.sampled_from(sorted(slips(key))))
    found = nearest(typed, KEYS)
    assert found is not None
    assert typed in slips(found)


def test_a_name_that_other_tools_have_for_a_key_names_it():
    assert TREE.suggest("request.image.width") == TREE.suggest("height") == "request.image.size"
    for name, meant in CALLED_ELSEWHERE.items():
        assert TREE.suggest(f"request.{name}").rpartition(".")[2] == meant


def test_nothing_similar_has_no_suggestion():
    assert nearest("zzz", KEYS) is None


NUMBERS = [
    ("request.seed", ["0", "9223372036854775807"], ["-1", "9223372036854775808", "''", "1.5", "'8'", "true"]),
    ("request.timeout_s", ["0.5", "3"], ["0", "-1", "nan", "inf", "'3'", "true"]),
    ("request.sampling.thinker.temperature", ["0", "0.7", "10"], ["-1", "nan", "inf", "1e9", "'1'", "true"]),
    ("request.sampling.thinker.top_p", ["1", "0.1"], ["0", "1.1", "-0.1", "nan"]),
    ("request.sampling.thinker.min_p", ["0", "0.1"], ["1", "-0.1", "nan"]),
    ("request.sampling.thinker.top_k", ["0", "50"], ["-1", "1.5", "true"]),
    ("request.sampling.thinker.repetition_penalty", ["1", "1.05"], ["0", "-1", "nan"]),
    ("request.sampling.thinker.max_tokens", ["1", "1048576"], ["0", "-1", "1.5", "1000000000", "true", "'8'"]),
    ("request.sampling.thinker.min_tokens", ["0", "3"], ["-1", "0.5"]),
    ("request.sampling.thinker.seed", ["0"], ["-1", "18446744073709551616"]),
    ("request.sampling.thinker.ignore_eos", ["true"], ["1", "'yes'"]),
    ("request.sampling.thinker.presence_penalty", ["-2", "0.5"], ["2.1", "'1'", "nan"]),
    ("request.sampling.thinker.frequency_penalty", ["-2", "0.5"], ["-3", "true"]),
    ("request.sampling.thinker.logit_bias", ["{}", "{5: -100, 7: 0.5}"], ["{5: 101}", "{x: 1}", "{-1: 1}"]),
    ("request.sampling.thinker.stop", ["[]", "['.', 'end of it']"], ["['']", "[5]", "'.'"]),
    ("request.sampling.thinker.stop_token_ids", ["[]", "[0, 5]"], ["[-1]", "[a]", "5"]),
    ("request.sampling.thinker.logprobs", ["0", "20"], ["-1", "21", "true"]),
    ("deploy.stages.talker.max_batch", ["1"], ["0", "-1", "1.5"]),
    ("deploy.stages.talker.memory_fraction", ["0.5", "1"], ["0", "1.1", "nan"]),
    ("deploy.stages.talker.startup_timeout_s", ["0.1"], ["0", "-3", "inf"]),
    ("deploy.stages.talker.threads", ["1"], ["0"]),
    ("deploy.stages.talker.devices", ["[[0]]", "[[0],[1]]", "cpu", "null"], ["0", "[0]", "[[-1]]", "[['0']]", "gpu"]),
    ("deploy.stages.talker.devices", [], ["[[0.5]]", "[[true]]", "[[0],1]", "{a: 1}"]),
    ("deploy.stages.talker.inputs.thinker.slots", ["1"], ["0"]),
    ("deploy.stages.talker.inputs.thinker.ring_bytes", ["4096"], ["10", "-1"]),
    ("deploy.stages.talker.inputs.thinker.connector", ["shm", "inline"], ["pigeon", "3"]),
    ("deploy.drain_timeout_s", ["1"], ["0", "-1"]),
    ("request.modalities", ["[text]", "null"], ["text", "3", "[3]", "['']"]),
    ("request.voice", ["Ethan", "null"], []),
    ("model.load_format", ["dummy"], ["fast"]),
    ("model.dtype", ["bfloat16"], ["int8"]),
    ("trace.enabled", ["false"], ["1", "maybe"]),
    ("synthetic.frames", ["0", "3"], ["-1", "1.5"]),
    ("synthetic.delay_ms.talker", ["2"], ["-1", "nan"]),
    ("synthetic.fail.kind", ["oom"], ["fire"]),
]  # fmt: skip


def judge(key: str, text: str) -> list[str]:
    """What the schema says to one value, without composing files for it."""
    (override,), _ = classify([f"{key}={text}"], takes_text)
    root, *rest = key.split(".")
    value = override.value
    for part in reversed(rest):
        value = {part: value}
    if root == "synthetic":
        found = validated(SyntheticOptions, value, (root,))[1]
    else:
        found = validated(OmniConfig, {"pipeline": {"family": "synthetic"}, root: value}, ())[1]
    return [problem.key for problem in found]


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, good, _ in NUMBERS for value in good])
def test_a_value_in_range_is_taken(key, value):
    assert judge(key, value) == []


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, _, bad in NUMBERS for value in bad])
def test_a_value_out_of_range_or_of_another_type_is_refused_with_its_key(key, value):
    (problem,) = judge(key, value)
    assert problem.startswith(key)


def test_a_value_out_of_range_is_refused_with_its_place():
    assert refusal("request.sampling.thinker.temperature=nan", "request.seed=-1").splitlines()[1:] == [
        "  request.seed (command line): should be greater than or equal to 0; got -1",
        "  request.sampling.thinker.temperature (command line): should be a finite number; got nan",
    ]


def test_limits_of_tokens_are_in_order():
    message = refusal("request.sampling.thinker={min_tokens: 5, max_tokens: 4}")
    assert "request.sampling.thinker (command line): min_tokens (5) is more than max_tokens (4)" in message


def test_all_problems_at_once_each_on_a_line():
    message = refusal("requst.sed=1", "request.seed=-1", "deploy.stages.foo.threads=1", "synthetic.frames=-1")
    lines = message.splitlines()
    assert lines[0] == "4 problems in the configuration:"
    assert len(lines) == 5


def test_an_unknown_family_names_the_nearest():
    assert "there is no model family `synthetc`; the nearest is `synthetic`" in refusal("pipeline.family=synthetc")


def test_an_unknown_stage_of_the_topology_is_told_once():
    message = refusal("pipeline.stages.foo={execution_type: llm_ar, inputs: {talker: complete}}")
    assert (
        message
        == "pipeline.stages.foo (command line): family `synthetic` has no stage `foo`; it has thinker, talker, code2wav"
    )


def test_another_familys_node_is_unknown():
    with pytest.raises(ConfigError, match="unknown key"):
        load_config(["recipe=qwen3_omni", "synthetic.frames=1"])


def test_two_families_share_the_node_of_their_package():
    loaded = load_config(["recipe=synthetic_dag", "synthetic.delay_ms.mixer=3"])
    assert loaded.options.delay_ms.mixer == 3


def test_every_key_has_a_description():
    def models(model):
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"
            for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
                if hasattr(kind, "model_fields"):
                    models(kind)

    models(OmniConfig)


def test_text_keys_are_keys():
    assert all(takes_text(key) for key in KEYS if key in ("model.path", "request.voice"))
    assert {"model.path", "request.voice"} <= set(KEYS)
