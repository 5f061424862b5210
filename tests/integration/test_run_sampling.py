"""What a request may say about its tokens arrives in the stages, and what they report arrives in the run folder."""

import json

import pytest

from tests.integration.cli import batch, check_trace, judged, leaves_nothing


def test_stops_and_log_probabilities(tmp_path):
    text = {"prompt": "Tell me more.", "modalities": ["text"]}
    plain = {"max_tokens": 12}
    stopping = {**plain, "stop": [" ", "never"], "min_tokens": 0, "logprobs": 2}
    biased = {**plain, "max_tokens": 4, "logit_bias": {"280": 100}, "logprobs": 0}
    lines = [
        {**text, "id": name, "sampling": {"thinker": sampling}}
        for name, sampling in (("plain", {**plain, "logprobs": 1}), ("stopping", stopping), ("biased", biased))
    ]
    with leaves_nothing():
        ended = batch(tmp_path, lines, "recipe=qwen3_omni", "model.path=tiny")
    assert ended.code == 0, ended.err
    check_trace(ended.run)
    whole = ended.text("plain")
    assert whole.count(" ") > 2
    assert ended.text("stopping") == whole.split(" ")[0]
    (token,) = set(ended.text("biased").split())
    assert ended.text("biased") == f" {token}" * 4

    def logs(name):
        return [json.loads(line) for line in (ended.run / name / "logprobs.jsonl").read_text().splitlines()]

    assert "".join(log["token"] for log in logs("plain")) == whole
    assert all(log["likely"] == [{key: log[key] for key in ("id", "token", "logprob")}] for log in logs("plain"))
    assert all("likely" not in log and log["id"] == 280 and log["logprob"] < 0 for log in logs("biased"))
    by_output = {record["output"]: record for record in ended.results["plain"]["artifacts"]}
    assert set(by_output) == {"text", "logprobs"}
    assert by_output["logprobs"]["path"] == "plain/logprobs.jsonl"


@pytest.mark.parametrize(
    ("recipe", "word", "says"),
    [
        ("qwen3_omni", "talker.logprobs=2", "talker reports no log probabilities"),
        ("synthetic", "thinker.logprobs=2", "thinker reports no log probabilities"),
        ("qwen3_omni", "talker.stop=[x]", "talker writes no text"),
    ],
)
def test_what_a_stage_cannot_do_is_refused_before_the_start(recipe, word, says):
    said = judged(f"request.sampling.{word}", recipe=recipe, prompt="hi")
    assert f"sampling.{word.split('=')[0]} (command line): {says}" in said
