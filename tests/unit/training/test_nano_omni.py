"""nano-omni: what is written here of transformers' arithmetic equals it, and its layout is the published one."""

import copy
import random
import re
from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch.nn import functional as F
from transformers import AutoImageProcessor

from stages.models.qwen3_omni.talker_prompt import PromptBuilder, TalkerInputs
from stages.models.qwen3_omni.tiny_config import model_config
from stages.models.qwen3_omni.tiny_weights import weights
from training.nano_image.captions import Scene
from training.nano_image.drawings import BACKGROUNDS, shapes
from training.nano_image.scenes import Painter
from training.nano_omni import codec, dialogues, layout, talker, thinker, train
from training.nano_omni.perception import GRIDS, Features, framed, in_shape, masked, patches
from training.pack import pack

TOPICS = {"capital", "sum", "colour", "opposite", "calendar", "counting", "spelling", "saying", "name", "unknown"}


def test_dialogues_are_held_out_or_not_and_of_every_topic():
    chance = random.Random(4)
    for unseen in (False, True):
        found = [dialogues.draw_dialogue(chance, unseen=unseen) for _ in range(300)]
        assert {one.topic for one in found} == TOPICS | (set() if unseen else {"small talk"})
        assert all(len(one.turns) % 2 == 0 for one in found)
        assert all(dialogues.held_out(one) == unseen for one in found if one.topic != "small talk")
    for _ in range(100):
        heard = dialogues.draw_heard(chance, unseen=False)
        assert heard.medium == "audio"
        assert heard.answer == heard.heard or heard.topic == "hearing a question"


def test_a_chat_is_about_anything_and_what_it_shows_lies_where_it_says():
    chance = random.Random(7)
    scene = Scene(thing=0, right=None, size=0, background=0)
    look = dialogues.Dialogue(topic="seeing", turns=("What is this?", "I see a cat."), scene=scene)
    topics = set()
    for _ in range(400):
        last = dialogues.draw_dialogue(chance, unseen=True)
        chat = dialogues.draw_chat(chance, last, 270)
        topics.add((len(chat.turns) > 2, chat.topic))
        assert chat.turns[-1] in (last.answer, "I do not know that.")
        if chat.answer.startswith("Your name is"):
            assert chat.answer[13:-1] in [turn for turn in chat.turns if turn.startswith("Nice to meet")][-1]
        after = dialogues.draw_chat(chance, last, 270, first=look)
        assert (after.turns[:2], after.shown_at, after.medium) == (look.turns, 0, "image")
        before = dialogues.draw_chat(chance, look, 270)
        assert (before.turns[before.shown_at :], before.scene) == (look.turns, scene)
        assert max(map(dialogues.length, (chat.turns[:-4], before.turns))) <= 270
    assert {topic for later, topic in topics if later} == TOPICS


def test_what_is_typed_loosely_asks_for_the_same():
    asked = dialogues.Dialogue(topic="", turns=("Say: Two Cats.", "Two Cats.", "What is Tom + 2?", "Four."))
    found = {dialogues.loosely(random.Random(seed), asked).turns[::2] for seed in range(30)}
    assert found == {
        ("say: Two Cats.", "what is tom + 2?"), ("Say: Two Cats.", "What is Tom + 2"),
        ("say: Two Cats.", "what is tom + 2"),
        ("Say: Two Cats.", "What is tom + 2?"), ("Say: Two Cats.", "What is tom + 2"),
    }  # fmt: skip


def test_every_fact_is_taught_in_some_words():
    chance, makers = random.Random(6), [maker for _, maker in dialogues.SPOKEN if "sum" not in maker.__name__]
    drawn = [maker(chance) for maker in makers for _ in range(4000)]
    facts = [one for one in drawn if one.topic in ("colour", "counting", "capital", "opposite", "calendar", "spelling")]
    assert {one.answer for one in facts} == {one.answer for one in facts if not dialogues.held_out(one)}


def test_a_masked_sound_lacks_a_band_and_a_moment():
    found = masked(torch.ones(40, 128, 500)) == 0
    bands, moments = found.all(2), found.all(1)
    assert torch.equal(found, bands[:, :, None] | moments[:, None])
    assert 10 < bands.sum(1).amax() <= 20
    assert 4 < moments.sum(1).amax() <= 10


@pytest.fixture(scope="module")
def tokenizer():
    chance = random.Random(5)
    drawn = [dialogues.draw_dialogue(chance, unseen=False) for _ in range(1500)]
    return layout.tokenizer([turn for one in drawn for turn in one.turns])


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(0)
    return layout.model(tokenizer).eval()


def test_pictures_become_the_image_processors_patches():
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    picture = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    processor = Qwen2VLImageProcessorPil(
        min_pixels=32 * 32, max_pixels=256 * 256, image_mean=[0.5] * 3, image_std=[0.5] * 3,
        patch_size=16, temporal_patch_size=2, merge_size=2,
    )  # fmt: skip
    right = processor(images=[picture], input_data_format="channels_last", return_tensors="pt")["pixel_values"]
    found = patches(torch.from_numpy(picture).permute(2, 0, 1)[None].float() / 127.5 - 1)
    torch.testing.assert_close(found, right)


def test_sounds_become_the_feature_extractors_features():
    from transformers import WhisperFeatureExtractor

    sound = np.random.default_rng(0).normal(0, 0.1, 16_077).astype(np.float32)
    right = WhisperFeatureExtractor(feature_size=128)(
        [sound], sampling_rate=16_000, padding=True, truncation=False, return_attention_mask=True, return_tensors="pt"
    )
    mask = right["attention_mask"].bool()
    torch.testing.assert_close(
        Features()(torch.from_numpy(sound)), right["input_features"].permute(0, 2, 1)[mask].T, atol=1e-5, rtol=0
    )


def test_whole_batches_give_what_transformers_gives_one_by_one(tokenizer, model):
    generator = torch.Generator().manual_seed(1)
    writer = thinker.Writer(tokenizer)
    scene = Scene(thing=0, right=None, size=0, background=0)
    one = dialogues.Dialogue
    talks = [
        one(topic="", turns=("Hello.", "Hi.")),
        one(topic="", turns=("My name is Tom.", "Yes.", "Who am I?", "Tom.")),
    ]
    looks = [
        one(topic="", turns=("What is this?", "A cat.", "Hi.", "Hello."), scene=scene),
        one(topic="", turns=("Hello.", "Hi.", "What is this?", "A cat."), scene=scene, shown_at=2),
    ]
    listens = [
        one(topic="", turns=("", "Hello."), heard="hello"),
        one(topic="", turns=("Who?", "I.", "What?", "Hi."), heard="hi", shown_at=2),
    ]
    pixels, wide = (
        torch.randint(256, (2, 3, *size), generator=generator, dtype=torch.uint8) for size in ((128, 128), (96, 160))
    )
    sounds = [torch.randint(-9000, 9000, (size,), generator=generator, dtype=torch.int16) for size in (20_400, 37_000)]
    parts = [
        thinker.lines_of(writer, talks, "cpu"),
        thinker.lines_of(writer, looks, "cpu", pixels=pixels),
        thinker.lines_of(writer, looks, "cpu", pixels=wide),
        thinker.lines_of(writer, listens, "cpu", sounds=sounds),
    ]
    whole, columns = thinker.Thinker(model.thinker), thinker.width_of(parts)
    with torch.no_grad():
        groups = [whole.group(lines, torch.arange(2), columns, vary=False) for lines in parts]
        logits, _ = whole(groups)
        for group, found in zip(groups, logits, strict=True):
            for row in range(2):
                answer = group.answers[row][group.answers[row] >= 0]
                start = int(group.first[row])
                ids = group.ids[row : row + 1, : start + len(answer)]
                assert ids[0, start:].tolist() == answer.tolist()
                fields = {}
                if group.pixels is not None:
                    fields["pixel_values"] = patches(group.pixels[row : row + 1])
                    fields["image_grid_thw"] = torch.tensor([[1, *(side // 16 for side in group.pixels.shape[-2:])]])
                if group.features is not None:
                    frames = len(sounds[row]) // 160
                    assert (ids == writer.pads["audio"]).sum() == group.tokens[row]
                    fields["input_features"] = group.features[row : row + 1, :, :frames]
                    fields["feature_attention_mask"] = torch.ones(1, frames, dtype=torch.long)
                right = model.thinker(input_ids=ids, attention_mask=torch.ones_like(ids), **fields).logits
                torch.testing.assert_close(
                    found[row, : len(answer)], right[0, start - 1 : -1], atol=2e-4, rtol=1e-3
                )  # fmt: skip


def test_a_step_of_the_thinker_changes_all_but_its_table(tokenizer, model):
    module = copy.deepcopy(model.thinker)
    asked = [dialogues.Dialogue(topic="hearing", turns=("", "Yes."), heard="Yes.")]
    sound = torch.randint(-99, 99, (9000,), dtype=torch.int16)
    parts = {"audio": thinker.lines_of(thinker.Writer(tokenizer), asked, "cpu", sounds=[sound])}
    thinker.train(module, parts, seconds=1e-3, batch=4, device="cpu", seed=1, keep=lambda: None, again=True)
    table, *learnt = ("model.language_model.embed_tokens", "model.audio_tower.conv_out", "lm_head")
    same = {one: torch.equal(module.get_submodule(one).weight, model.thinker.get_submodule(one).weight)
            for one in (table, *learnt)}  # fmt: skip
    assert same == {table: True, **dict.fromkeys(learnt, False)}


def test_answers_are_those_of_transformers_greedy_generation(tokenizer, model):
    writer = thinker.Writer(tokenizer)
    asked = [dialogues.Dialogue(topic="", turns=(text, "Yes, I do know that.")) for text in ("Hello.", "Who are you?")]
    lines = thinker.lines_of(writer, asked, "cpu")
    for found, (prompt, answer) in zip(
        thinker.answered(model.thinker, lines, writer.end), writer.lines(asked), strict=True
    ):
        right = model.thinker.generate(
            input_ids=torch.tensor([prompt]), max_new_tokens=len(answer), do_sample=False, eos_token_id=writer.end
        )[0, len(prompt) :].tolist()
        assert found == [one for one in right if one != writer.end]


def test_scores_count_words_and_cap_what_is_wrong():
    asked = [dialogues.Dialogue(topic="hearing", turns=("", text), heard=text) for text in ("One two.", "Yes.")]
    found = thinker.scores(asked, ["One too.", "Yes it is so."])
    assert found[:2] == ["audio: 0.0 % exact (hearing 0 of 2)", "heard words: 33.3 % of 3"]


def test_all_experts_at_once_are_the_modules_own_sum(model):
    block = model.talker.model.layers[0].mlp
    hidden = torch.randn(1, 7, block.gate.hidden_dim)
    with torch.no_grad():
        found = block(hidden)
        block.experts.config._experts_implementation = "eager"
        try:
            torch.testing.assert_close(found, block(hidden))
        finally:
            block.experts.config._experts_implementation = "all"


def test_the_rows_of_an_answer_are_those_of_the_stage_that_speaks(tokenizer, model, monkeypatch):
    losses = talker.losses
    writer = thinker.Writer(tokenizer)
    user, answer = writer.user("Say: yes"), writer.encode("Yes.")
    codes = torch.randint(layout.CODES, (2, layout.GROUPS, 3))
    spoken = talker.Spoken(user=tuple(user), answer=tuple(answer), speaker=layout.VOICES["ethan"], codes=codes)
    both = talker.sentences_of(model.config, writer.newline, [spoken])
    rows = both.said([0], [1], both.text.shape[1])
    assert torch.equal(rows.codes[0, -3:], codes[1].T)
    table = model.thinker.get_input_embeddings().weight.detach()
    speaker = talker.Talker(model.talker, table)
    ids = torch.tensor([*user, *writer.encode("<|im_start|>assistant\n")])
    with torch.no_grad():
        given = speaker._embedded(rows.codes)[0] + model.talker.text_projection(table)[rows.text[0]]
        builder = PromptBuilder(model.talker, model.talker.text_projection(table), model.config)
        prompt = builder.build(TalkerInputs(prompt_ids=ids), answer[0], layout.VOICES["ethan"])
    torch.testing.assert_close(given[: len(user) + 9], prompt.embeds)
    assert rows.first.tolist() == [len(user) + 8]
    config = model.config
    assert rows.text[0, -3:].tolist() == [*answer[1:], config.tts_eos_token_id, config.tts_pad_token_id][:3]
    # The talker hears what it has to say as loudly as what it has said.
    assert 0.1 < model.talker.text_projection(table).std().item() < 0.4
    talker.begin(model.talker, torch.randn(layout.GROUPS, layout.CODES, 8) / 2 ** torch.arange(16.0)[:, None, None])
    assert abs(speaker._embedded(rows.codes)[0, -3:].std().item() / 0.2 - 1) < 0.5
    first, others = talker.losses(speaker, rows, config.talker_config.codec_eos_token_id, noise=False)
    assert 5 < first.item() < 9
    assert 5 < others.item() < 8
    eos = config.talker_config.codec_eos_token_id
    (said,) = talker.speak(speaker.eval(), rows, eos)
    assert said.shape == (3, layout.GROUPS)
    heard = rows.codes.clone()
    heard[0, rows.first[0] + 1 :] = said
    with torch.no_grad():
        hidden = speaker(rows.text, heard)[0, rows.first[0] : -1]
        assert torch.equal(speaker.first_codes(hidden).argmax(-1).clamp(max=layout.CODES - 1), said[:, 0])
        assert torch.equal(speaker.other_codes(hidden, said).argmax(-1), said[:, 1:])
    speaker.train()
    again = replace(spoken, codes=torch.stack([spoken.codes[0], said.T.to(torch.int16)]))
    assert "said freely 100.0 %" in talker.score(speaker, talker.sentences_of(config, writer.newline, [again]), eos)
    shown: list[torch.Tensor] = []
    monkeypatch.setattr(talker, "losses", lambda *given, **kw: (shown.append(given[1].codes), losses(*given, **kw))[1])
    kept: list[bool] = []
    projections = (model.talker.text_projection, model.talker.hidden_projection)
    before = [part.linear_fc1.weight.clone() for part in projections]
    talker.train(
        model.talker, table, config, writer.newline, [spoken] * 2, held=[spoken], keep=lambda: kept.append(True),
        seconds=0.001, batch=8, device="cpu", seed=0, record=True,
    )  # fmt: skip
    assert {tuple(row[-1].tolist()) for row in shown[0]} == {tuple(way[:, -1].tolist()) for way in codes}
    changed = [not torch.equal(part.linear_fc1.weight, old) for part, old in zip(projections, before, strict=True)]
    assert changed == [True, False]
    assert kept == [True]


def test_an_answer_is_spoken_whatever_the_user_said_before(tokenizer):
    writer, chance = thinker.Writer(tokenizer), random.Random(3)
    asked, other = [("Say: yes",)], [("My name is Tom.", "Who am I?")]
    found = {train.user_rows(writer, chance, asked, other) for _ in range(200)}
    texts = {tuple(token for token in rows if token != talker.NONE) for rows in found}
    right, wrong = (tuple(token for turn in turns for token in writer.user(turn)) for turns in (asked[0], other[0]))
    assert texts == {right, wrong, wrong + right, wrong + wrong}
    media = {rows for rows in found if talker.NONE in rows}
    assert media
    assert {rows[rows.index(talker.NONE) - 1] for rows in media} == {writer.newline}  # behind the last turn's head


def test_what_the_talker_has_said_is_disturbed_and_nothing_else():
    torch.manual_seed(3)
    codes = torch.randint(layout.CODES, (200, 30, layout.GROUPS))
    codes[:, 10:12, 0], codes[:, 10:12, 1:], codes[:, 12:14] = 555, talker.NONE, talker.NONE
    changed = talker.disturbed(codes) != codes
    assert not changed[:, 10:14].any()
    first, last = changed[:, 14:, 0].float().mean(1), changed[:, 14:, -1].float().mean(1)
    assert 0.1 < first.mean() < 0.3
    assert 0.4 < last.mean() < 0.6
    assert last.amin() < 0.1 < 0.9 < last.amax()  # sentences differ


def test_code2wav_gives_for_codes_what_was_trained_on_vectors(model):
    torch.manual_seed(1)
    trained = codec.Codec(model.code2wav).eval()
    trained.codebooks.vectors.normal_()
    sound = torch.randn(1, 4 * layout.FRAME) * 0.1
    with torch.no_grad():
        vectors, codes, _ = trained.codebooks(trained.encoder(sound), torch.tensor([layout.GROUPS]))
        drawn = trained.decode(vectors)
        trained.finish()
        assert codes.shape == (1, layout.GROUPS, 4)
        assert drawn.shape == (1, 4 * layout.FRAME - 555)
        torch.testing.assert_close(model.code2wav(codes)[:, 0], drawn.clamp(-1, 1), atol=2e-4, rtol=0)
        whole = (torch.randn(9 * layout.FRAME) * 3000).to(torch.int16)
        found = trained.coded(whole, [4, 1, 4])
        for one, piece in zip(found, whole.split([frames * layout.FRAME for frames in (4, 1, 4)]), strict=True):
            later = F.pad(piece[None].float() / 32768, (3 * layout.FRAME // 8, 0))[:, : len(piece)]
            assert torch.equal(one[0].long(), trained.codes(piece[None].float() / 32768)[0])
            assert torch.equal(one[3].long(), trained.codes(later)[0])


def test_parts_of_different_data_are_not_packed_together(tokenizer, model, tmp_path):
    options = Namespace(out=tmp_path, seed=1)
    table = model.thinker.get_input_embeddings().weight.detach()
    train._keep(options, "fresh", {"tokenizer": tokenizer, "table": table})
    for name, part in {"thinker": model.thinker, "talker": model.talker, "codec": model.code2wav}.items():
        train._keep(options, name, {"weights": part.state_dict(), "fresh": train._fingerprint(options)})
    train.pack_all(options)
    assert (tmp_path / "packed" / "packed.safetensors").exists()
    others = Namespace(out=tmp_path / "packed")
    train._keep(others, "fresh", {"tokenizer": layout.tokenizer(["other words"] * 9), "table": table})
    other = {"weights": model.thinker.state_dict(), "fresh": train._fingerprint(others)}
    train._keep(options, "thinker", other)
    with pytest.raises(ValueError, match=r"thinker\.pickle was not trained with the tokenizer"):
        train.pack_all(options)
    with pytest.raises(ValueError, match=r"thinker\.pickle was trained with another tokenizer"):
        train._resume(model.thinker, tmp_path / "thinker.pickle", train._fingerprint(options))
    train._resume(model.thinker, tmp_path / "thinker.pickle", train._fingerprint(others))


def test_the_folder_has_the_published_names(tokenizer, model, tmp_path):
    def pattern(names):
        return {re.sub(r"\d+", "N", name) for name in names}

    layout.save(tmp_path / "whole", model, tokenizer)
    with safe_open(tmp_path / "whole" / "model.safetensors", "pt") as file:
        assert pattern(file.keys()) == pattern(weights(model_config(512)))
    assert pack(tmp_path / "whole", tmp_path / "packed") < 18e6
    scaling = AutoImageProcessor.from_pretrained(tmp_path / "whole")
    for side in (64, 128, 300):  # as large as it has learned, whatever it is given
        assert scaling(np.zeros((side, side, 3), np.uint8), return_tensors="pt").image_grid_thw.tolist() == [[1, 8, 8]]
    for height, width in ((64, 48), (48, 96), (360, 640), (100, 40), (90, 110), (1000, 600), (64, 40), (70, 30)):
        (grid,) = scaling(np.zeros((height, width, 3), np.uint8), return_tensors="pt").image_grid_thw.tolist()
        assert (grid[1] // 2, grid[2] // 2) in GRIDS


def test_a_picture_in_another_frame_keeps_its_ground_and_its_sides():
    torch.manual_seed(2)
    pixels = torch.full((20, 3, 128, 128), -1.0)
    pixels[:, 0, 48:80, 48:80] = pixels[:, 1, 48:80, 8:40] = 1.0
    for grid in GRIDS[::3]:
        found = framed(pixels, grid)
        assert found.shape == (20, 3, 32 * grid[0], 32 * grid[1])
        right, left = ((found[:, colour] > 0).float() for colour in (0, 1))
        assert (torch.cat([found[:, :, 0], found[:, :, -1]], -1) == -1).all()
        centres = [(part.mean(1) * torch.arange(part.shape[-1])).sum(1) / part.mean(1).sum(1) for part in (left, right)]
        assert (centres[0] < centres[1]).all()
        shapes = right.amax(1).sum(1) / right.amax(2).sum(1) * grid[0] / grid[1]
        assert shapes.amax() / shapes.amin() > 1.25  # from drawn out to in shape


def test_a_picture_of_another_shape_has_things_of_their_own_shape_far_apart():
    drawn, generator = shapes(), torch.Generator().manual_seed(3)
    things = {"thing": drawn.names.index("red circle"), "background": list(BACKGROUNDS).index("white"), "size": 0}
    pair = Scene(**things, right=drawn.names.index("green circle"))
    scenes = [pair] * 12 + [Scene(**things, right=None)]
    for grid in GRIDS[::5]:
        found = in_shape(Painter(drawn, "cpu"), scenes, generator, grid)
        assert found.shape == (13, 3, 32 * grid[0], 32 * grid[1])
        red, green = ((found.argmax(1) == channel) & (found.amin(1) < 0) for channel in (0, 1))
        assert not green[-1].any()
        sides = [[part.any(axis).sum(1).float() for axis in (1, 2)] for part in (red, green[:-1])]
        for wide, high in sides:
            assert 0.7 < (wide / high).amin() < 0.95 < 1.05 < (wide / high).amax() < 1.35
        left, right = (
            (part.any(1) * torch.arange(32 * grid[1])).sum(1) / part.any(1).sum(1) / (32 * grid[1])
            for part in (red[:-1], green[:-1])
        )
        torch.testing.assert_close(torch.stack([left, right]).mean(1), torch.tensor([0.26, 0.74]), atol=0.02, rtol=0)
        assert not (red | green)[:-1, :, 16 * grid[1]].any() or grid[1] < 4  # they do not touch
