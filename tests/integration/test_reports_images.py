"""What people reported of drawing servers (R07, R51, R53, R56, R57, R58, R61): refused, noted or done."""

import json

import pytest
from PIL import Image

from omni_cli.batch.options import RunOptions
from omni_cli.batch.run import judge
from omni_cli.config.image import ImageConfig
from tests.integration.cli import batch, check_trace, judged
from tests.integration.test_reports_inputs import BAD_IMAGES, IMAGES

DRAW = ("recipe=qwen_image", "model.path=tiny")


def tasks(*words: str, **options: object):
    return judge((*DRAW, *words), RunOptions(**{"prompt": "a bell", **options}))[2]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("request.image.size=513x512", "the nearest are 512x512, 528x512"),
        ("request.image.size=100000x10000", "more than 4194304"),
        ("request.image.size=1024x1024 model.path=nano", "(as 256x256); this model was trained at 64x64 alone"),
        ("request.image.steps=0", "greater than or equal to 1"),
        ("request.image.format=webp request.image.size=16384x16", "a side has 16383 pixels at most; take png"),
        ("request.image.sed=5", "unknown key"),
        ("request.image.guidance_scale=7", "unknown key"),
        ("deploy.stages.painter.graphs=true", "leave it out"),
    ],
)
def test_a_picture_that_cannot_be_drawn_is_refused_with_its_key(word, says):
    tiny = () if "model.path" in word else ("model.path=tiny",)
    message = judged(*word.split(), *tiny, recipe="qwen_image", prompt="a bell")
    assert word.split("=")[0] in message
    assert says in message


def test_several_pictures_are_requests_of_their_own_with_seeds_that_draw_them_again():
    first, second, third = tasks("request.image.n=3", "request.seed=9223372036854775806")
    assert [task.request().seed for task in (first, second, third)] == [2**63 - 2, 2**63 - 1, 0]
    assert [task.request_id for task in (first, second, third)] == ["request-0", "request-1", "request-2"]
    assert len({task.digest for task in (first, second, third)}) == 3
    assert len({task.request().seed for task in tasks("request.image.n=3")}) == 3


def test_pictures_of_a_batch_stay_out_of_each_other_s_way(tmp_path):
    lines = [{"id": "a", "prompt": "x", "image": {"n": 2}}, {"id": "a-0", "prompt": "y"}, {"prompt": ""}]
    path = tmp_path / "batch.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = tasks(prompt=None, input=str(path))
    assert [task.request_id for task in found] == ["a-0-", "a-1", "a-0", "line-3"]
    assert found[3].error is not None


def test_what_cannot_act_is_said_with_the_result():
    (task,) = tasks("request.image.negative_prompt=red, of all things", "request.image.true_cfg_scale=1.0")
    assert task.notes == ("image.negative_prompt has no effect: it acts at a true_cfg_scale of more than 1, not at 1",)
    assert task.image.negative_prompt == "red, of all things"


def test_a_picture_is_drawn_from_one_prompt_and_one_picture(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    twice = (str(tmp_path / "a.png"),) * 2
    assert "one picture at most, not from 2" in judged(recipe="qwen_image", prompt="x", images=twice)
    assert "image cannot be read by family sd3" in judged(recipe="sd3", prompt="x", images=twice[:1])
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    (tmp_path / "talk.json").write_text(json.dumps(talk))
    assert "not from a conversation" in judged(recipe="qwen_image", messages=str(tmp_path / "talk.json"))
    (task,) = tasks(images=twice[:1])
    assert task.image.strength == 0.6


OPTIONAL = {
    "size": "32x16",
    "frames": 1,
    "steps": 2,
    "true_cfg_scale": 2.5,
    "negative_prompt": "red",
    "n": 2,
    "strength": 0.5,
    "sigmas": [1.0, 0.5],
    "preview_every": 1,
    "format": "jpeg",
}
UNFIT = {"frames": 2, "size": "33x16", "format": "gif"}


def test_r07_r61_each_optional_field_and_each_odd_picture_is_drawn_or_refused_by_name(tmp_path):
    assert OPTIONAL.keys() == ImageConfig.model_fields.keys()
    small = {"size": "32x16", "steps": 1}
    lines = [{"id": f"with {name}", "prompt": "a", "image": {**small, name: set_}} for name, set_ in OPTIONAL.items()]
    lines += [{"id": f"unfit {name}", "prompt": "a", "image": {**small, name: set_}} for name, set_ in UNFIT.items()]
    for name, data in {**IMAGES, **{name: data for name, (data, _) in BAD_IMAGES.items()}}.items():
        (tmp_path / name).write_bytes(data)
        lines.append({"id": name, "prompt": "a", "images": [name], "image": {**small, "steps": 2}})
    ended = batch(tmp_path, lines, *DRAW)
    good = {*IMAGES, *(f"with {name}" for name in OPTIONAL if name != "n"), "with n-0", "with n-1"}
    bad = {**{name: said for name, (_, said) in BAD_IMAGES.items()}, **{f"unfit {name}": name for name in UNFIT}}
    results = {name: result for name, result in ended.results.items() if name in good or name in bad}
    assert results.keys() == ended.results.keys() == good | bad.keys()
    for name, result in results.items():
        if name in good:
            assert result["status"] == "finished", result
            last = result["artifacts"][-1]
            assert (last["width"], last["height"]) == (32, 16)
        else:
            assert (result["status"], result["error"]["fault"]) == ("failed", "client")
            assert bad[name] in result["error"]["message"]
    assert ended.results["with strength"]["warnings"] == [
        "image.strength has no effect without a picture to start from"
    ]
    check_trace(ended.run)


def test_r61_a_picture_to_start_from_is_seen_upright(tmp_path):
    (tmp_path / "rotated.jpg").write_bytes(IMAGES["rotated.jpg"])
    (task,) = tasks(images=(str(tmp_path / "rotated.jpg"),))
    (tensor,) = task.request().media.tensors
    assert tensor.shape == (64, 48, 3)  # stored as 48 lines of 64
