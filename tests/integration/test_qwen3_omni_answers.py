"""How an answer ends, what is reported of its tokens, and that a medium is encoded once: through the real stages."""

import os
from pathlib import Path

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"

from stages.messages import Sampling
from stages.models.qwen3_omni.encoders import FeatureCache
from tests.integration.in_process import COMPLETE, Answered, Asked, Pipeline
from tests.integration.test_qwen3_omni_parity import AUDIO, CONVERSATIONS, IMAGE, ODD_IMAGE, VIDEO, ask

STREAMED = {**COMPLETE, "thinker": "incremental", "talker": "incremental"}
END = 443


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> Pipeline:
    return Pipeline(folder)


def one(pipeline: Pipeline, kind: str = "text", *, tokens: int = 20, **thinker: object) -> Answered:
    asked = ask(CONVERSATIONS[kind], tokens, 30)
    asked.thinker = Sampling(temperature=0.0, max_tokens=tokens, **thinker)
    (answer,) = pipeline.run([asked])
    assert answer.error is None, answer.error
    return answer


class TestStop:
    @pytest.fixture(scope="class")
    def whole(self, pipeline: Pipeline) -> Answered:
        pipeline.schedule()
        return one(pipeline)

    @pytest.mark.parametrize("modes", [COMPLETE, STREAMED], ids=["whole", "streamed"])
    @pytest.mark.parametrize("cut", [(1, 9), (5, 6), (0, 3), (12, 21), (30, 31)])
    def test_a_stop_string_ends_text_and_speech(
        self, pipeline: Pipeline, whole: Answered, cut: tuple[int, int], modes: dict[str, str]
    ) -> None:
        stop = whole.text[slice(*cut)]
        kept = whole.text[: whole.text.index(stop)]
        pipeline.schedule(modes=modes)
        answer = one(pipeline, stop=("nowhere to be found", stop))
        assert answer.text == kept
        assert answer.reasons["thinker"] == "stop"
        # The talker gets the tokens that have a part of the text, and the end.
        *ids, end = answer.text_ids
        assert end == END
        assert ids == whole.text_ids[: len(ids)]
        codec = pipeline.runners["thinker"]._processor.codec
        spelled = [b"".join(map(codec.bytes_of, ids[:count])).decode() for count in range(len(ids) + 1)]
        assert spelled[-1].startswith(kept)
        assert not any(text.startswith(kept) for text in spelled[:-1])
        if ids:
            # As if the limit had ended it there, since the last token is never spoken.
            assert torch.equal(answer.codes, one(pipeline, tokens=len(ids) + 1).codes)
        else:
            assert answer.reasons["talker"] == "empty"

    def test_a_stop_string_that_does_not_come_changes_nothing(self, pipeline: Pipeline, whole: Answered) -> None:
        pipeline.schedule(modes=STREAMED)
        almost = whole.text[-3:] + "!"
        answer = one(pipeline, stop=(almost,))
        assert (answer.text, answer.text_ids) == (whole.text, whole.text_ids)
        assert torch.equal(answer.codes, whole.codes)
        assert answer.reasons == whole.reasons

    def test_a_stop_token_is_not_part_of_the_answer(self, pipeline: Pipeline, whole: Answered) -> None:
        pipeline.schedule(modes=STREAMED)
        token = whole.text_ids[3]
        first = whole.text_ids.index(token)
        answer = one(pipeline, stop_token_ids=(token,))
        assert answer.text_ids == whole.text_ids[: first + 1]
        assert answer.reasons["thinker"] == "stop"
        assert whole.text.startswith(answer.text)
        assert torch.equal(answer.codes, one(pipeline, tokens=first + 1).codes)
        later = one(pipeline, stop_token_ids=(token,), min_tokens=first + 2)
        assert len(later.text_ids) > first + 1

    def test_the_talker_has_no_text_to_stop(self, pipeline: Pipeline) -> None:
        asked = ask(CONVERSATIONS["text"], 4, 4)
        asked.talker = Sampling(stop=("x",))
        (answer,) = pipeline.run([asked])
        assert answer.error is not None
        assert answer.error.fault == "client"
        assert "talker.stop" in answer.error.message


@pytest.mark.parametrize("stop", [(), ("no such text",)])
def test_log_probabilities(pipeline: Pipeline, stop: tuple[str, ...]) -> None:
    """They come with the text that they belong to, however long it was held back."""
    pipeline.schedule()
    answer = one(pipeline, logprobs=3, stop=stop)
    joined = {name: torch.cat([log[name] for log in answer.logs]) for name in answer.logs[0] if "token" not in name}
    ids = [token for log in answer.logs for token in log["token_ids"].tolist()]
    assert ids == [token for token in answer.text_ids if token != END]
    assert joined["likely_ids"].shape == joined["likely_logprobs"].shape == (len(ids), 3)
    # Greedy, and nothing is suppressed: the token is the likeliest.
    assert joined["likely_ids"][:, 0].tolist() == ids
    assert torch.equal(joined["likely_logprobs"][:, 0], joined["logprobs"])
    assert (joined["likely_logprobs"].diff(dim=1) <= 0).all()
    assert (joined["likely_logprobs"].exp().sum(1) < 1).all()
    spelled, codec = [], pipeline.runners["thinker"]._processor.codec
    for log in answer.logs:
        data, begin = bytes(log["token_bytes"].tolist()), 0
        for token, end in zip(
            log["token_ids"].tolist() + log["likely_ids"].flatten().tolist(), log["token_ends"], strict=True
        ):
            assert data[begin:end] == codec.bytes_of(token)
            begin = int(end)
        spelled.append(data[: log["token_ends"][len(log["token_ids"]) - 1]])
    assert b"".join(spelled).decode() == answer.text
    assert not one(pipeline).logs


class TestEncoders:
    def run(
        self, pipeline: Pipeline, asked: list[Asked], arrivals: list[int]
    ) -> tuple[list[dict[str, int]], list[Answered]]:
        """What each of the thinker's steps counted."""
        thinker = pipeline.runners["thinker"]
        counted = []
        execute = thinker.execute

        def spy(rows: object) -> object:
            results = execute(rows)
            counted.append(dict(thinker.counters()))
            return results

        thinker.execute = spy
        try:
            answers = pipeline.run(asked, arrivals=arrivals)
        finally:
            del thinker.execute
        return counted, answers

    def test_each_medium_once_one_a_step_while_others_decode(self, pipeline: Pipeline) -> None:
        pipeline.schedule()
        talk = ask(CONVERSATIONS["text"], 30, 4)
        first = ask([("user", [VIDEO, "Before", IMAGE, "after", ODD_IMAGE, AUDIO])], 6, 12)
        second = ask([("user", [IMAGE, ODD_IMAGE]), ("assistant", ["Yes."]), ("user", [IMAGE, AUDIO, "?"])], 6, 12)
        alone = [pipeline.run([asked])[0] for asked in (talk, first, second)]
        pipeline.runners["thinker"]._features = FeatureCache(1 << 20)
        counted, answers = self.run(pipeline, [talk, first, second], [0, 2, 3])
        assert max(step.get("encoded_media", 0) for step in counted) == 1
        assert sum(step.get("encoded_media", 0) for step in counted) == 4
        assert sum(step.get("reused_media", 0) for step in counted) == 4
        # Who decodes has a row in each of those steps.
        rows = pipeline.steps["thinker"]
        encoding = [step for step, counts in enumerate(counted) if counts.get("encoded_media")]
        assert all(any(row.uid == 0 and row.phase == "decode" for row in rows[step]) for step in encoding)
        for answer, own in zip(answers, alone, strict=True):
            assert answer.text_ids == own.text_ids
            assert torch.equal(answer.codes, own.codes)

    def test_a_medium_that_cannot_be_encoded_fails_its_request_alone(
        self, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pipeline.schedule()
        pipeline.runners["thinker"]._features = FeatureCache(1 << 20)
        encoders = pipeline.runners["thinker"]._thinker.encoders
        encode = encoders.encode

        def broken(medium: object) -> object:
            if medium.kind == "video":
                raise RuntimeError("the tower fell")
            return encode(medium)

        monkeypatch.setattr(encoders, "encode", broken)
        good = ask(CONVERSATIONS["image"], 4, 6)
        fine, failed, other = pipeline.run([good, ask(CONVERSATIONS["video"], 4, 6), good])
        assert failed.error is not None
        assert "the tower fell" in failed.error.message
        assert fine.text_ids == other.text_ids != []
