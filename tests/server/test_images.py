"""Pictures over HTTP, as OpenAI's client asks for them: R07, R51, R53, R56, R57, R61 of the reports, with the
tiny Qwen-Image."""

import asyncio
import base64
import io

import httpx
import numpy as np
import openai
import pytest
from PIL import Image

from omni_cli.server.protocol import ImageRequest
from tests.integration.test_reports_inputs import BAD_IMAGES, IMAGES
from tests.server.chromium import chromium
from tests.server.serving import refused, serving
from tests.server.test_sdk import untyped

PATH = "/v1/images/generations"
SMALL = {"size": "64x32", "steps": 3}


@pytest.fixture(scope="module")
def painter(tmp_path_factory):
    words = ("recipe=qwen_image", "model.path=tiny", "request.image.preview_every=1")
    with serving(*words, cwd=tmp_path_factory.mktemp("painter")) as one:
        yield one


def drawn(server, **body) -> dict:
    done = httpx.post(f"{server.url}{PATH}", json={"prompt": "a bell", **SMALL, **body}, timeout=60)
    assert done.status_code == 200, done.text
    return done.json()


def picture(entry: dict) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(entry["b64_json"])))


def test_the_client_s_own_call_draws_with_a_seed_that_draws_it_again(painter):
    options = {"base_url": f"{painter.url}/v1", "api_key": "none", "max_retries": 0}
    asked = {"model": "qwen_image", "prompt": "a bell", "size": "64x32", "extra_body": {"seed": 5, "steps": 3}}

    async def again() -> openai.types.ImagesResponse:
        async with openai.AsyncOpenAI(**options) as client:
            return await client.images.generate(**asked)

    first, second = openai.OpenAI(**options).images.generate(**asked), asyncio.run(again())
    assert set(untyped(first)) == {".data[].seed", ".warnings"}  # our extensions
    assert (first.usage.input_tokens, first.usage.output_tokens, first.usage.total_tokens) == (10, 8, 18)
    assert first.data[0].b64_json == second.data[0].b64_json
    assert picture(first.data[0].model_dump()).size == (64, 32)
    assert (first.size, first.output_format, first.background) == ("64x32", "png", "opaque")
    assert drawn(painter, seed=5)["data"][0]["b64_json"] == first.data[0].b64_json
    assert len({drawn(painter, **seed)["data"][0]["b64_json"] for seed in ({}, {"seed": None}, {"seed": 5})}) == 3


def test_several_pictures_have_seeds_of_their_own(painter):
    several = drawn(painter, n=3, seed=7)["data"]
    assert [entry["seed"] for entry in several] == [7, 8, 9]
    assert len({entry["b64_json"] for entry in several}) == 3
    alone = drawn(painter, seed=8)["data"][0]
    assert np.abs(np.asarray(picture(alone)).astype(int) - np.asarray(picture(several[1]))).max() <= 1


@pytest.mark.parametrize(("form", "magic"), [("png", b"\x89PNG"), ("jpeg", b"\xff\xd8"), ("webp", b"RIFF")])
def test_a_picture_has_the_format_that_was_asked_for(painter, form, magic):
    (entry,) = drawn(painter, output_format=form, output_compression=80)["data"]
    assert base64.b64decode(entry["b64_json"]).startswith(magic)
    if form == "png":
        assert picture(entry).text["seed"] == str(entry["seed"])


def test_guidance_acts_or_says_that_it_does_not(painter):
    plain = drawn(painter, seed=1)
    assert plain["warnings"] == []
    guided = drawn(painter, seed=1, negative_prompt="red", true_cfg_scale=4.0)
    assert guided["warnings"] == []
    assert guided["data"] != plain["data"]
    idle = drawn(painter, seed=1, negative_prompt="red", true_cfg_scale=1.0)
    assert idle["data"] == plain["data"]
    (note,) = drawn(painter, seed=1, true_cfg_scale=4.0)["warnings"]
    assert note == "true_cfg_scale has no effect without negative_prompt, which may be empty"
    assert "negative_prompt has no effect" in idle["warnings"][0]
    other = drawn(painter, seed=1, guidance_scale=7, quality="high", style="vivid", output_compression=50)
    assert other["data"] == plain["data"]
    assert [note.split()[0] for note in other["warnings"]] == [
        "quality",
        "style",
        "guidance_scale",
        "output_compression",
    ]
    assert drawn(painter, prompt="sea " * 2000, negative_prompt="sea " * 1000)["warnings"] == [
        f"the {name} has {tokens} tokens, of which the first 512 count"
        for name, tokens in (("prompt", 6006), ("negative prompt", 3006))
    ]


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("size", "513x512", "512x512, 528x512"),
        ("size", "4096x4096", "more than 4194304"),
        ("size", "0x512", "each from 1 to 16384"),
        ("size", "-16x512", "each from 1 to 16384"),
        ("size", "100000x10000", "each from 1 to 16384"),
        ("size", "512", "WIDTHxHEIGHT"),
        ("n", 0, "1"),
        ("n", 1000, "10"),
        ("steps", 0, "1"),
        ("steps", -1, "1"),
        ("steps", 1.5, ""),
        ("steps", "8", ""),
        ("steps", 10**6, "1000"),
        ("seed", 2**63, ""),
        ("seed", 2**64, ""),
        ("seed", -1, ""),
        ("seed", 1.5, ""),
        ("seed", "", ""),
        ("true_cfg_scale", -1, ""),
        ("negative_prompt", ["red", "blue"], ""),
        ("negative_prompt", "x" * 100_001, "100000"),
        ("sigmas", [1.5], ""),
        ("response_format", "url", "b64_json"),
        ("output_format", "svg", "webp"),
        ("output_format", "webp", "16383"),
        ("background", "transparent", "opaque"),
        ("partial_images", 1, "stream=true"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_its_name(painter, field, value, says):
    before = painter.took_on()
    wide = {"size": "16384x16"} if value == "webp" else {}
    error = refused(painter, path=PATH, prompt="a bell", **{field: value, **wide})
    assert error["param"].partition("[")[0] == field
    assert says in error["message"]
    assert "image." not in error["message"]
    assert painter.took_on() == before


def test_a_picture_is_streamed_with_what_it_is_on_its_way(painter):
    client = openai.OpenAI(base_url=f"{painter.url}/v1", api_key="none", max_retries=0)
    asked = {"model": "qwen_image", "prompt": "a bell", "size": "64x32", "extra_body": {"seed": 5, "steps": 9}}
    events = list(client.images.generate(**asked, stream=True, partial_images=2))
    assert [event.type.rpartition(".")[2] for event in events] == ["partial_image", "partial_image", "completed"]
    assert [event.partial_image_index for event in events[:2]] == [0, 1]
    (only,) = client.images.generate(**asked, stream=True)  # whatever the recipe says of previews
    assert only.b64_json == events[2].b64_json
    (whole,) = client.images.generate(**asked).data
    assert events[2].b64_json == whole.b64_json
    assert len({event.b64_json for event in events}) == 3
    told = [picture(event.model_dump()).text.get("preview") for event in events]
    assert told == ["after step 3", "after step 6", None]
    assert events[2].usage.total_tokens == 18
    assert refused(painter, path=PATH, prompt="a bell", stream=True, n=2)["param"] == "n"


def test_auto_is_the_checkpoint_s_own_size(painter):
    assert drawn(painter, size="auto")["size"] == "128x128"
    assert picture(drawn(painter, size="48X32")["data"][0]).size == (48, 32)


def test_r21_a_client_that_leaves_ends_its_picture_and_nobody_else_s(painter):
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{painter.url}{PATH}", json={"prompt": "a bell", "size": "256x256", "steps": 1000}, timeout=1)
    assert drawn(painter)["size"] == "64x32"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/audio/speech", {"input": "hi", "voice": "default"}),
    ],
)
def test_a_recipe_that_only_draws_says_so_elsewhere(painter, path, body):
    assert "not supported by recipe" in refused(painter, path=path, **body)["message"]


def test_the_page_draws(painter, tmp_path):
    with chromium(tmp_path) as page:
        page.open(painter.url)
        page.until("$('model').textContent === 'qwen_image'")
        page.run("$('prompt').value = 'a bell'; $('form').requestSubmit()")
        assert page.until("document.querySelector('.answer img')?.naturalWidth") > 0
        assert page.until("document.querySelector('.answer').dataset.end") == "finished"
        assert page.said == []


OPTIONAL = {
    "model": "qwen_image", "n": 2, "size": "32x16", "response_format": "b64_json", "output_format": "webp",
    "output_compression": 50, "background": "opaque", "quality": "high", "style": "natural", "moderation": "low",
    "partial_images": 1, "user": "me", "seed": 3, "negative_prompt": "red", "steps": 2, "true_cfg_scale": 2.0,
    "guidance_scale": 3.0, "sigmas": [1.0, 0.5], "timeout_s": 30.0,
}  # fmt: skip


def test_r07_each_optional_field_is_followed_or_refused_by_name_streamed_or_not(painter):
    assert OPTIONAL.keys() == ImageRequest.model_fields.keys() - {"prompt", "stream"}
    refusals = set()
    for stream in (False, True):
        for name, value in OPTIONAL.items():
            body = {"prompt": "a bell", **SMALL, name: value, "stream": stream}
            done = httpx.post(f"{painter.url}{PATH}", json=body, timeout=30)
            if done.status_code == 400:
                assert done.json()["error"]["param"] == name
                refusals.add((name, stream))
            else:
                assert done.status_code == 200, done.text
                assert "completed" in done.text if stream else len(done.json()["data"]) == body.get("n", 1)
    assert refusals == {("partial_images", False), ("n", True)}


EDITS = "/v1/images/edits"


def edited(server, *files: bytes, status: int = 200, **fields: object) -> dict:
    form = {name: str(value) for name, value in {"prompt": "a bell", "steps": 2, "size": "64x32", **fields}.items()}
    named = [("image", ("any name", data)) for data in files] or [("prompt", (None, form.pop("prompt")))]
    done = httpx.post(f"{server.url}{EDITS}", data=form, files=named, timeout=60)
    assert done.status_code == status, done.text
    return done.json() if status == 200 else done.json()["error"]


def test_a_picture_is_drawn_from_another_one(painter):
    client = openai.OpenAI(base_url=f"{painter.url}/v1", api_key="none", max_retries=0)
    own = {"seed": 5, "steps": 4, "strength": 0.5}
    asked = {"model": "qwen_image", "prompt": "a bell", "size": "64x32", "extra_body": own}
    rgba = IMAGES["rgba.png"]
    first = client.images.edit(image=rgba, **asked)
    assert first.data[0].b64_json == client.images.edit(image=[rgba], **asked).data[0].b64_json
    assert first.warnings == [
        "image: transparency composited over white",
        "the given picture is 64x48 and was scaled to 64x32",
    ]
    shown = picture(first.data[0].model_dump())
    assert (shown.size, shown.text["strength"], shown.text["seed"]) == ((64, 32), "0.5", "5")
    assert first.data[0].b64_json != client.images.edit(image=IMAGES["cmyk.jpg"], **asked).data[0].b64_json
    events = list(client.images.edit(image=rgba, **asked, stream=True, partial_images=1))
    assert [event.type for event in events] == ["image_edit.partial_image", "image_edit.completed"]
    assert events[-1].b64_json == first.data[0].b64_json
    (_, second) = edited(painter, rgba, n=2, seed=5, input_fidelity="high")["data"]
    assert second["seed"] == 6


def test_pictures_are_edited_in_their_order_and_counted(tmp_path):
    with serving("recipe=qwen_image", "model.path=tiny_edit_plus", cwd=tmp_path) as editor:
        client = openai.OpenAI(base_url=f"{editor.url}/v1", api_key="none", max_retries=0)
        pair = [IMAGES["rgba.png"], IMAGES["cmyk.jpg"]]
        asked = {"model": "qwen_image", "prompt": "a bell", "extra_body": {"seed": 5, "steps": 2}}
        one, other = (client.images.edit(image=files, **asked) for files in (pair, pair[::-1]))
        assert one.data[0].b64_json != other.data[0].b64_json
        read = one.usage.input_tokens_details
        assert one.usage.input_tokens - read.text_tokens == read.image_tokens > 0
        with pytest.raises(openai.BadRequestError, match="edits 1 to 8 pictures, and none came"):
            client.images.generate(model="qwen_image", prompt="a bell")


@pytest.mark.parametrize("name", IMAGES)
def test_r61_an_odd_picture_is_taken(painter, name):
    assert picture(edited(painter, IMAGES[name])["data"][0]).size == (64, 32)


@pytest.mark.parametrize(
    ("files", "fields", "param", "says"),
    [
        *(((data,), {}, "image", said) for data, said in BAD_IMAGES.values()),
        ((), {}, "image", "a file is needed"),
        ((), {"image": "data:image/png;base64,AAAA"}, "image", "is a file here"),
        ((IMAGES["1x1.png"],) * 2, {}, "image", "one picture at most, not from 2"),
        ((IMAGES["1x1.png"],), {"strength": 2}, "strength", "less than or equal to 1"),
        ((IMAGES["1x1.png"],), {"steps": "x"}, "steps", "whole number"),
        ((IMAGES["1x1.png"],), {"steps": "[" * 100_000}, "steps", "whole number"),
        ((IMAGES["1x1.png"],), {"prompt": " "}, "prompt", ""),
        ((IMAGES["1x1.png"],), {"mask": "x"}, "mask", "is not known here"),
        ((IMAGES["1x1.png"],), {"size": "65x32"}, "size", "64x32, 80x32"),
    ],
)
def test_r61_what_is_no_picture_and_no_wish_is_refused_with_its_name(painter, files, fields, param, says):
    before = painter.took_on()
    error = edited(painter, *files, status=400, **fields)
    assert error["param"] == param
    assert says in error["message"]
    assert painter.took_on() == before
