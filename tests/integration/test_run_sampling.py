"""What a request may say about its tokens arrives in the stages, and what they report arrives in the run folder."""

import json

import pytest

from tests.integration.cli import batch, check_trace, leaves_nothing, omni


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
        ended = batch(tmp_path, lines, "recipe=qwen3_omni")
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


@pytest.mark.parametrize(("recipe", "stage"), [("qwen3_omni", "talker"), ("synthetic", "thinker")])
def test_a_stage_that_reports_nothing_says_so(tmp_path, recipe, stage):
    words = (f"recipe={recipe}", f"request.sampling.{stage}.logprobs=2", "--prompt", "hi")
    ended = omni("run", *words, cwd=tmp_path)
    assert ended.code == 2
    assert f"sampling.{stage}.logprobs" in ended.err
    assert f"{stage} reports no log probabilities" in ended.err
