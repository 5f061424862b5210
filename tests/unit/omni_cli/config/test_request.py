import re

import pytest

from omni_cli.config.load import load_config
from omni_cli.config.request import request_line
from omni_cli.errors import InputError

WORDS = ("recipe=synthetic", "request.seed=1", "request.sampling.talker={top_k: 3, top_p: 0.5}", "synthetic.frames=7")
LOADED = load_config(WORDS)


def refusal(line) -> list[str]:
    with pytest.raises(InputError) as caught:
        request_line(line, LOADED)
    return str(caught.value).splitlines()


def test_a_line_is_laid_over_the_defaults_key_by_key():
    found = request_line(
        {
            "id": "a",
            "prompt": "嗨",
            "sampling": {"talker": {"top_k": 9}, "thinker": {"temperature": 0}},
            "modalities": ["text"],
            "synthetic": {"delay_ms": {"talker": 2}},
            "timeout_s": 3,
        },
        LOADED,
    )
    assert (found.id, found.prompt, found.request.seed, found.request.timeout_s) == ("a", "嗨", 1, 3)
    assert found.request.modalities == ("text",)
    talker = found.request.sampling["talker"]
    assert (talker.top_k, talker.top_p) == (9, 0.5)
    assert found.request.sampling["thinker"].message().temperature == 0
    assert (found.options.frames, found.options.delay_ms.talker) == (7, 2)


def test_the_keys_of_a_map_of_tokens_may_be_texts():
    given = {"logit_bias": {"5": -1.5, "12": 3}, "stop": ["."], "stop_token_ids": [7]}
    asked = request_line({"prompt": "x", "sampling": {"thinker": given}}, LOADED).request.sampling["thinker"].message()
    assert asked.logit_bias == ((5, -1.5), (12, 3.0))
    assert (asked.stop, asked.stop_token_ids) == ((".",), (7,))
    assert refusal({"sampling": {"thinker": {"logit_bias": {"x": 1}}}})[0].startswith("sampling.thinker.logit_bias")


def test_null_means_absent():
    nothing = dict.fromkeys(("id", "seed", "modalities", "sampling", "images", "synthetic", "messages"))
    assert request_line({"prompt": "x", **nothing}, LOADED) == request_line({"prompt": "x"}, LOADED)


def test_content_is_taken_as_it_is():
    text = "a, b='c' ${oc.env:HOME} ???\n null"
    assert request_line({"prompt": text}, LOADED).prompt == text
    assert request_line({"prompt": "  "}, LOADED).prompt == "  "
    messages = [{"role": "user", "content": "x"}]
    assert request_line({"messages": messages, "images": ["a b.png"]}, LOADED).messages == messages


@pytest.mark.parametrize(
    ("line", "problems"),
    [
        ({"sed": 5}, ["sed: unknown key; the nearest is `seed`"]),
        ({"max_token": 5}, ["max_token: unknown key; the nearest is `sampling.talker.max_tokens`"]),
        ({"request.seed": 5}, ["request.seed: unknown key; the nearest is `seed`"]),
        ({"promt": "x"}, ["promt: unknown key; the nearest is `prompt`"]),
        (
            {"sampling": {"tlaker": {"top_k": 1}}},
            ["sampling.tlaker.top_k: unknown key; the nearest is `sampling.talker.top_k`"],
        ),
        ({"synthetic": {"frams": 1}}, ["synthetic.frams: unknown key; the nearest is `synthetic.frames`"]),
        (
            {"seed": -1, "timeout_s": 0},
            ["seed: should be greater than or equal to 0; got -1", "timeout_s: should be greater than 0; got 0"],
        ),
        ({"synthetic": 3}, ["synthetic: must be a map of the family's options; got 3"]),
        ({"prompt": 3}, ["prompt: should be text; got 3"]),
        ({"images": "a.png"}, ["images: should be a list; got 'a.png'"]),
        ({"prompt": "x", "messages": []}, ["prompt: cannot stand beside `messages`; put it there as the last turn"]),
        ([1], ["must be an object with keys and values, not list"]),
        ("x", ["must be an object with keys and values, not str"]),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_line(line, problems):
    assert sorted(refusal(line)) == sorted(problems)


@pytest.mark.parametrize(("line", "param"), [({"seed": "x"}, "seed"), ({"modalities": ["text", ""]}, "modalities[1]")])
def test_the_error_names_its_parameter(line, param):
    with pytest.raises(InputError, match=f"^{re.escape(param)}: ") as caught:
        request_line(line, LOADED)
    assert caught.value.param == param


def test_the_same_ranges_hold_as_on_the_command_line():
    assert refusal({"sampling": {"thinker": {"temperature": 1e9}}}) == [
        "sampling.thinker.temperature: should be less than or equal to 10; got 1000000000.0"
    ]
