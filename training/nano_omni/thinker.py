"""The thinker with its towers, trained on dialogues: in text alone, about a picture, and about a sound.

What is heard is in addition read, letter by letter, from the audio tower itself by connectionist temporal
classification (Graves et al., 2006), and what is seen is named from each half of the vision tower, through heads that
are not kept: a tower that already spells or names is listened to at once.

Everything lies on the device beforehand and every step has the same shapes, so that the host never waits for it.
"""

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rapidfuzz.distance import Levenshtein
from torch.nn import functional as F

from training.budget import moments
from training.nano_omni import perception
from training.nano_omni.dialogues import Dialogue, Medium, words_of
from training.nano_omni.perception import HOP, Features, grid_of, hear, heard_tokens, picture_tokens, positions, see
from training.repeat import Step

log = logging.getLogger(__name__)
_RATE = 1.2e-3
_OWN = 0.3  # weight of what the towers read and name themselves
_LETTERS = "abcdefghijklmnopqrstuvwxyz "
_LETTERS_A_TOKEN = 3  # that the tower's own reading can have, blanks included: speech has some 14 a second
_SHARES = {"none": 0.5, "image": 0.15, "framed": 0.1, "audio": 0.25}
_AGAIN = 0.5  # of the rate, for weights that have been trained before
_FASTEST, _SLOWEST = 1.06, 0.94
_AROUND = 1600  # samples of silence before and after a sound, at most


class Writer:
    """Dialogues as token ids, in the chat template's words."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.newline = self._one("\n")
        self.end = self._one("<|im_end|>")
        self.pads: dict[Medium, int] = {"image": self._one("<|image_pad|>"), "audio": self._one("<|audio_pad|>")}
        self._placeholders: dict[Medium, str] = {
            "none": "",
            "image": "<|vision_start|><|image_pad|><|vision_end|>",
            "audio": "<|audio_start|><|audio_pad|><|audio_end|>",
        }

    def encode(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer(text).input_ids
        return found

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids))

    def user(self, text: str) -> list[int]:
        """A whole user turn."""
        return self.encode(f"<|im_start|>user\n{text}<|im_end|>\n")

    def lines(self, dialogues: Sequence[Dialogue]) -> list[tuple[list[int], list[int]]]:
        """Of each what comes before the answer, with one token for the medium, and the answer with its end."""
        prompts = self._tokenizer([self._text(one) for one in dialogues]).input_ids
        answers = self._tokenizer([one.answer for one in dialogues]).input_ids
        return [(prompt, [*answer, self.end]) for prompt, answer in zip(prompts, answers, strict=True)]

    def _text(self, dialogue: Dialogue) -> str:
        turns = list(dialogue.turns[:-1])
        turns[dialogue.shown_at] = self._placeholders[dialogue.medium] + turns[dialogue.shown_at]
        roles = ("user", "assistant")
        text = "".join(f"<|im_start|>{roles[at % 2]}\n{turn}<|im_end|>\n" for at, turn in enumerate(turns))
        return text + "<|im_start|>assistant\n"

    def _one(self, token: str) -> int:
        (found,) = self.encode(token)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Dialogues of one medium on the device. `ids` [n, longest], filled up with ends, one token for the medium, which
    is in column `media` [n] (None: there is none); `first` [n]: the answer's first column; `answers` [n, longest
    answer], with its end, -100 behind it; media: `pixels` uint8 [n, 3, height, width] and `things` [n, 2], left and
    right; or `samples` int16, all sounds, of which one begins at `starts` and has `lengths` [n]; `letters` [n, most],
    as indices from 1, and `lettered` [n]; `longest_samples`, known to the host."""

    ids: Any
    first: Any
    answers: Any
    media: Any = None
    pixels: Any = None
    things: Any = None
    samples: Any = None
    starts: Any = None
    lengths: Any = None
    letters: Any = None
    lettered: Any = None
    longest_samples: int = 0


def lines_of(
    writer: Writer, dialogues: Sequence[Dialogue], device: str, *, pixels: Any = None, sounds: Sequence[Any] = ()
) -> Lines:
    """`pixels` uint8 [n, 3, height, width] or `sounds`, int16 tensors at HEARD_RATE, belong to the dialogues in
    order."""
    medium, written = dialogues[0].medium, writer.lines(dialogues)
    longest = max(len(prompt) + len(answer) for prompt, answer in written)
    most = max(len(answer) for _, answer in written)
    fields: dict[str, Any] = {}
    if medium != "none":
        fields["media"] = torch.tensor([prompt.index(writer.pads[medium]) for prompt, _ in written])
    if medium == "audio":
        lengths = torch.tensor([len(one) for one in sounds])
        spelled = [[1 + _LETTERS.index(one) for one in text.heard.lower() if one in _LETTERS] for text in dialogues]
        fields |= {
            "samples": torch.cat([*sounds, torch.zeros(1, dtype=torch.int16)]),
            "starts": lengths.cumsum(0) - lengths,
            "lengths": lengths,
            "letters": torch.nn.utils.rnn.pad_sequence([torch.tensor(one) for one in spelled], batch_first=True),
            "lettered": torch.tensor([len(one) for one in spelled]),
        }
    if medium == "image":
        scenes = [one.scene for one in dialogues if one.scene is not None]
        things = [[one.thing, one.thing if one.right is None else one.right] for one in scenes]
        fields["things"] = torch.tensor(things)
    fields |= {
        "ids": torch.tensor([[*a, *b] + [writer.end] * (longest - len(a) - len(b)) for a, b in written]),
        "first": torch.tensor([len(prompt) for prompt, _ in written]),
        "answers": torch.tensor([answer + [-100] * (most - len(answer)) for _, answer in written]),
    }
    on_device = {name: value.to(device) for name, value in fields.items()}
    if pixels is not None:
        on_device["pixels"] = pixels.to(device)
    return Lines(longest_samples=max(map(len, sounds), default=0), **on_device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows of one medium: `ids` [rows, columns] with all of the medium's tokens, `first`, `answers`, `media` as in
    Lines; `pixels` float32 in [-1, 1] and `things`; or `features` with `tokens` [rows] for each, `letters` and
    `lettered`."""

    ids: Any
    first: Any
    answers: Any
    media: Any
    pixels: Any = None
    things: Any = None
    features: Any = None
    tokens: Any = None
    letters: Any = None
    lettered: Any = None


class Thinker(torch.nn.Module):
    """transformers' thinker, whole batches at once; for training, with heads that read its towers."""

    def __init__(self, module: Any, things: int = 1) -> None:
        super().__init__()
        self.module, self.features = module, Features()
        self.block = perception.seen_block
        audio, vision = module.config.audio_config, module.config.vision_config
        self.spelling = torch.nn.Linear(audio.output_dim, _LETTERS_A_TOKEN * (1 + len(_LETTERS)))
        self.naming = torch.nn.Linear(vision.out_hidden_size, things)

    def group(self, lines: Lines, rows: Any, columns: int, *, vary: bool) -> Group:
        """Those rows of `lines`; what is heard is made a little different each time with `vary`."""
        count, tokens, heard = len(rows), 1, None
        fields: dict[str, Any] = {}
        if lines.pixels is not None:
            tokens = picture_tokens(*lines.pixels.shape[-2:])
            fields = {"pixels": lines.pixels[rows].float() / 127.5 - 1, "things": lines.things[rows]}
        elif lines.samples is not None:
            features, frames = self._sounds(lines, rows, vary=vary)
            heard = heard_tokens(frames)
            fields = {"features": features, "tokens": heard}
            fields |= {"letters": lines.letters[rows], "lettered": lines.lettered[rows]}
        device = rows.device
        many = torch.full((count, 1), tokens, device=device) if heard is None else heard[:, None]
        source, media = torch.arange(columns, device=device).expand(count, -1), None
        if lines.media is not None:
            media = lines.media[rows]
            source = torch.where(source < media[:, None] + many, source.minimum(media[:, None]), source - many + 1)
        ids = lines.ids[rows].gather(1, source.clamp(max=lines.ids.shape[1] - 1))
        first = lines.first[rows] + many[:, 0] - 1
        return Group(ids=ids, first=first, answers=lines.answers[rows], media=media, **fields)

    def _sounds(self, lines: Lines, rows: Any, *, vary: bool) -> tuple[Any, Any]:
        """Features [rows, bins, whole chunks of frames] and how many frames of each are real."""
        count, device = len(rows), rows.device
        chance = torch.rand(5, count, device=device) if vary else torch.zeros(5, count, device=device)
        speed = _SLOWEST + (_FASTEST - _SLOWEST) * chance[0] if vary else torch.ones(count, device=device)
        before, after = (chance[1] * _AROUND).floor(), (chance[2] * _AROUND).floor()
        length = lines.lengths[rows]
        total = (before + length / speed + after).floor()
        most = round(lines.longest_samples / _SLOWEST) + 2 * _AROUND
        chunk = 100 * HOP
        most = -(-most // chunk) * chunk
        place = (torch.arange(most, device=device) - before[:, None]) * speed[:, None]
        inside = (place >= 0) & (place < length[:, None] - 1)
        whole = place.floor().clamp(min=0).minimum(length[:, None] - 2.0)
        at = lines.starts[rows][:, None] + whole.long()
        part = (place - whole).clamp(0, 1)
        sound = (lines.samples[at] * (1 - part) + lines.samples[at + 1] * part) * inside / 32768.0
        if vary:
            noise = 10 ** (-4 + 2 * chance[4][:, None]) * torch.randn_like(sound)
            sound = sound * (0.4 + 0.8 * chance[3][:, None]) + noise
        frames = (total / HOP).floor().long()
        features = perception.masked(self.features(sound)) if vary else self.features(sound)
        real = torch.arange(features.shape[-1], device=device) < frames[:, None]
        return features * real[:, None], frames

    def forward(self, groups: Sequence[Group]) -> tuple[list[Any], list[Any]]:
        """Of each group logits [rows, longest answer, ids] of its answers, and what its tower gave. All are of as many
        columns; rows see only those before them, so that what fills them up needs no mask."""
        core = self.module.model
        embeds, places, deep, towers = [], [], [], []
        columns = groups[0].ids.shape[1]
        layers = len(core.visual.config.deepstack_visual_indexes)
        for one in groups:
            found = core.language_model.embed_tokens(one.ids)
            place = torch.arange(columns, device=one.ids.device).expand(len(one.ids), -1)
            where, added, tower = place.expand(3, -1, -1), [torch.zeros_like(found)] * layers, None
            if one.pixels is not None:
                height, width = one.pixels.shape[-2:]
                # Of the grids that come seldom none is compiled.
                tower, seen = see(core.visual, one.pixels, self.block if height == width else perception.seen_block)
                place = place - one.media[:, None]
                added = [_laid(values, place, tower.shape[1], torch.zeros_like(found)) for values in seen]
                found = _laid(tower, place, tower.shape[1], found)
                where = positions(place, grid_of(height, width)) + one.media[:, None]
            elif one.features is not None:
                tower = hear(core.audio_tower, one.features, one.tokens)
                found = _laid(tower, place - one.media[:, None], one.tokens[:, None], found)
            embeds.append(found)
            places.append(where)
            deep.append(added)
            towers.append(tower)
        hidden = torch.cat(embeds)
        turns = core.language_model.rotary_emb(hidden, torch.cat(places, 1))
        for number, layer in enumerate(core.language_model.layers):
            hidden = layer(hidden, position_embeddings=turns)
            if number < layers:
                hidden = hidden + torch.cat([added[number] for added in deep])
        hidden = core.language_model.norm(hidden)
        logits = []
        for one, part in zip(groups, hidden.split([len(one.ids) for one in groups]), strict=True):
            asked = one.first[:, None] - 1 + torch.arange(one.answers.shape[1], device=one.ids.device)
            asked = asked.clamp(max=columns - 1)[..., None].expand(-1, -1, part.shape[-1])
            logits.append(self.module.lm_head(part.gather(1, asked)))
        return logits, towers

    def losses(self, groups: Sequence[Group]) -> list[Any]:
        """Nats a token of each group's answers; then nats a thing and a letter of what the towers themselves name and
        spell."""
        logits, towers = self(groups)
        found = [
            F.cross_entropy(values.float().flatten(0, 1), one.answers.flatten(), ignore_index=-100)
            for values, one in zip(logits, groups, strict=True)
        ]
        for one, tower in zip(groups, towers, strict=True):
            if one.things is not None:
                rows, columns = grid_of(*one.pixels.shape[-2:])
                cells, half = tower.unflatten(1, (rows, columns)), columns // 2
                halves = torch.stack([part.mean((1, 2)) for part in (cells[:, :, :half], cells[:, :, -half:])], 1)
                found.append(F.cross_entropy(self.naming(halves).float().flatten(0, 1), one.things.flatten()))
            if one.tokens is not None:
                likely = self.spelling(tower).float().unflatten(-1, (_LETTERS_A_TOKEN, -1)).flatten(1, 2)
                rows = likely.log_softmax(-1).transpose(0, 1)
                found.append(
                    F.ctc_loss(rows, one.letters, _LETTERS_A_TOKEN * one.tokens, one.lettered, zero_infinity=True)
                )
        return found


def _laid(tower: Any, place: Any, tokens: Any, found: Any) -> Any:
    """`found` [rows, columns, width] with what a tower gave [rows, most, width], as many `tokens` of it as are real,
    from where `place` [rows, columns] is 0."""
    at = place.clamp(0, tower.shape[1] - 1)[..., None].expand(-1, -1, tower.shape[2])
    return torch.where(((place >= 0) & (place < tokens))[..., None], tower.gather(1, at).to(found), found)


def width_of(parts: Sequence[Lines]) -> int:
    """Columns that any row of these can need, in eights."""
    needed = 0
    for one in parts:
        media = 1 if one.pixels is None else picture_tokens(*one.pixels.shape[-2:])
        if one.samples is not None:
            media = int(heard_tokens(torch.tensor((round(one.longest_samples / _SLOWEST) + 2 * _AROUND) // HOP)))
        needed = max(needed, one.ids.shape[1] + media - 1)
    return -(-needed // 8) * 8


def train(
    module: Any,
    parts: dict[Medium, Lines],
    *,
    seconds: float,
    batch: int,
    device: str,
    seed: int,
    keep: Callable[[], None],
    framed: Sequence[Lines] = (),
    again: bool = False,
) -> None:
    """Trains transformers' thinker in place; its table of tokens stays. Every step has dialogues in text, with
    pictures, with pictures of one of the other shapes in `framed` and with sounds; `keep` is called about once a
    minute. `again`: it has been trained before, so that the towers are not to be spoilt by heads that know nothing."""
    torch.manual_seed(seed)
    chance = random.Random(seed)
    things = 1 + int(parts["image"].things.max()) if "image" in parts else 1
    thinker = Thinker(module, things).to(device)
    module.get_input_embeddings().requires_grad_(False)
    parameters = [value for value in thinker.parameters() if value.requires_grad]
    if device == "cuda":
        # What cannot be compiled runs as it is, and the log says so.
        torch._dynamo.config.suppress_errors = True
        for layer in module.model.language_model.layers:
            layer.compile(dynamic=False)
        thinker.block = torch.compile(perception.seen_block, dynamic=False)
    columns = width_of([*parts.values(), *framed])
    names: list[str] = [*parts, *(["framed"] if framed else [])]
    told = [*names, *(f"{name}'s tower" for name in names if name != "none")]
    log.info("thinker: %d columns", columns)

    def loss(own: float) -> Any:
        lines = [*parts.values(), *([chance.choice(framed)] if framed else [])]
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            groups = []
            for name, one in zip(names, lines, strict=True):
                rows = torch.randint(len(one.ids), (max(1, round(_SHARES[name] * batch)),), device=device)
                with torch.no_grad(), torch.autocast(device, enabled=False):
                    groups.append(thinker.group(one, rows, columns, vary=True))
            found = thinker.losses(groups)
            return torch.stack([*found[: len(names)], *(own * value for value in found[len(names) :])])

    step = Step(loss, parameters, device=device, record=False, weight_decay=0.02)
    for now in moments(seconds):
        own = _OWN * (min(1.0, 0.01 + 10 * now.done) if again else 1.0)
        found = step(now.rate(_RATE * (_AGAIN if again else 1), flat=0.4), own)
        if now.told:
            weights = [1.0] * len(names) + [own] * (len(told) - len(names))
            losses = zip(told, weights, found.tolist(), strict=True)
            log.info(
                "thinker: step %d, %d %% of the time, %d skipped, %s", now.step, 100 * now.done, step.skipped.item(),
                ", ".join(f"{name} {value / weight:.3f}" for name, weight, value in losses),
            )  # fmt: skip
        if now.kept:
            keep()
    module.eval()


@torch.no_grad()
@torch.compiler.set_stance("force_eager")  # for shapes that come once, compiling takes longer than it saves
def answered(module: Any, lines: Lines, end: int, *, batch: int = 256) -> list[list[int]]:
    """What the thinker answers to each, greedily, token by token, without its end."""
    device = lines.ids.device
    thinker, columns, found = Thinker(module).to(device), width_of([lines]), []
    most = lines.answers.shape[1]
    for rows in torch.arange(len(lines.ids), device=device).split(batch):
        group = thinker.group(lines, rows, columns, vary=False)
        place = torch.arange(columns, device=device)
        group.ids.masked_fill_(place >= group.first[:, None], end)
        told = torch.full((len(rows), most), end, device=device)
        for step in range(most):
            told[:, step] = thinker([group])[0][0][:, step].argmax(-1)
            if bool((told[:, : step + 1] == end).any(1).all()):
                break
            group.ids.scatter_(1, (group.first + step).clamp(max=columns - 1)[:, None], told[:, step : step + 1])
        found += [ids[: ids.index(end)] if end in ids else ids for ids in told.tolist()]
    return found


def scores(asked: Sequence[Dialogue], found: Sequence[str]) -> list[str]:
    """Of each topic how many answers are right to the letter, and how many words of what was heard."""
    right: dict[str, list[bool]] = {}
    wrong = count = 0
    for one, answer in zip(asked, found, strict=True):
        right.setdefault(_topic(one), []).append(answer == one.answer)
        if one.topic == "hearing":
            said = words_of(one.heard)
            count += len(said)
            wrong += min(len(said), Levenshtein.distance(said, words_of(answer)))
    whole = [value for values in right.values() for value in values]
    told = [f"{topic} {sum(v)} of {len(v)}" for topic, v in sorted(right.items())]
    lines = [f"{asked[0].medium}: {100 * sum(whole) / len(whole):.1f} % exact ({', '.join(told)})"]
    lines += [f"heard words: {100 * (1 - wrong / count):.1f} % of {count}"] if count else []
    missed = [(one, answer) for one, answer in zip(asked, found, strict=True) if answer != one.answer]
    return lines + [f"  {one.answer!r} was {answer!r}" for one, answer in missed[:8]]


def _topic(one: Dialogue) -> str:
    if one.scene is None:
        return one.topic
    if "background is" in one.answer or "It is" in one.answer or "There" in one.answer:
        return one.turns[-2]
    return "two things" if one.scene.right is not None else "one thing"
