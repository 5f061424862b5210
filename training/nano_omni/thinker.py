"""The thinker with its towers, trained on dialogues: in text alone, about a picture, and about a sound.

What is heard is in addition read from the audio tower itself by connectionist temporal classification (Graves et al.,
2006), through a head that is not kept: a tower that already spells aligns at once.
"""

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from training.budget import moments
from training.nano_image.captions import Scene
from training.nano_omni.dialogues import Dialogue, Medium
from training.nano_omni.perception import Features, clips, heard_tokens, patches, picture_tokens, positions

log = logging.getLogger(__name__)
_RATE = 1.2e-3
_SPELLED = 0.3  # weight of the audio tower's own reading
_IGNORED = -100

Sample = Callable[[Medium, int], tuple[Sequence[Dialogue], Any]]
"""Dialogues of one medium, as many as asked, and their media: pixels [n, 3, side, side] or sounds, a tensor each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """`ids`, `labels` (_IGNORED but for answers) and `mask` [batch, length], `places` [3, batch, length]."""

    ids: Any
    labels: Any
    mask: Any
    places: Any


class Writer:
    """Dialogues as token ids, in the chat template's words."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}
        self.newline = self._one("\n")
        self._placeholders: dict[Medium, str] = {
            "none": "",
            "image": "<|vision_start|><|image_pad|><|vision_end|>",
            "audio": "<|audio_start|><|audio_pad|><|audio_end|>",
        }

    def answer(self, dialogue: Dialogue) -> list[int]:
        return self.encode(dialogue.answer)

    def encode(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = self._tokenizer(text).input_ids
        return self._known[text]

    def learn(self, dialogues: Sequence[Dialogue]) -> None:
        """Encodes many at once, which is much faster, for later."""
        texts = list({text for one in dialogues for text in (one.answer, self._text(one), one.heard)})
        self._known.update(zip(texts, self._tokenizer(texts).input_ids, strict=True))

    def user(self, text: str) -> list[int]:
        """A whole user turn."""
        return self.encode(f"<|im_start|>user\n{text}<|im_end|>\n")

    def prompt(self, dialogue: Dialogue, media_tokens: int) -> list[int]:
        """All but the answer, the medium as so many tokens."""
        pads = {self._one("<|image_pad|>"), self._one("<|audio_pad|>")}
        ids = self.encode(self._text(dialogue))
        return [part for one in ids for part in [one] * (media_tokens if one in pads else 1)]

    def _text(self, dialogue: Dialogue) -> str:
        turns = list(dialogue.turns[:-1])
        turns[-1] = self._placeholders[dialogue.medium] + turns[-1]
        roles = ("user", "assistant")
        text = "".join(f"<|im_start|>{roles[at % 2]}\n{turn}<|im_end|>\n" for at, turn in enumerate(turns))
        return text + "<|im_start|>assistant\n"

    def batch(self, dialogues: Sequence[Dialogue], media_tokens: Sequence[int], side: int) -> Batch:
        """On the CPU, filled up on the right."""
        end, picture = self._one("<|im_end|>"), self._one("<|image_pad|>")
        prompts = [self.prompt(one, count) for one, count in zip(dialogues, media_tokens, strict=True)]
        answers = [[*self.answer(one), end] for one in dialogues]
        length = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
        ids = torch.full((len(prompts), length), end)
        labels, mask = torch.full_like(ids, _IGNORED), torch.zeros_like(ids)
        places = torch.zeros(3, *ids.shape, dtype=torch.long)
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            whole = len(prompt) + len(answer)
            ids[row, :whole] = torch.tensor(prompt + answer)
            labels[row, len(prompt) : whole] = torch.tensor(answer)
            mask[row, :whole] = 1
            places[:, row] = positions(length, prompt.index(picture) if picture in prompt else None, side)
        return Batch(ids=ids, labels=labels, mask=mask, places=places)

    def _one(self, token: str) -> int:
        (found,) = self.encode(token)
        return found


class Thinker(torch.nn.Module):
    """transformers' thinker and, for training, a head that reads the audio tower."""

    def __init__(self, module: Any, side: int) -> None:
        super().__init__()
        self.module, self.features, self.side = module, Features(), side
        text = module.config.text_config
        self.spelling = torch.nn.Linear(text.hidden_size, text.vocab_size + 1)  # the last class: nothing new
        self._window = module.config.audio_config.n_window
        self._tower: Any = None

    def _keep(self, tower: Any, given: Any, found: Any) -> None:
        self._tower = found.last_hidden_state

    def logits(self, writer: Writer, dialogues: Sequence[Dialogue], media: Any) -> tuple[Any, Batch, list[int]]:
        """Logits [batch, length, vocabulary], the batch on their device, and the media tokens of each dialogue."""
        medium, device = dialogues[0].medium, self.spelling.weight.device
        fields: dict[str, Any] = {}
        tokens = [0] * len(dialogues)
        if medium == "image":
            cells = self.side // 16
            fields["pixel_values"] = patches(media)
            fields["image_grid_thw"] = torch.tensor([[1, cells, cells]] * len(dialogues), device=device)
            tokens = [picture_tokens(self.side)] * len(dialogues)
        elif medium == "audio":
            features, mask = clips(self.features, media)
            fields["input_features"], fields["feature_attention_mask"] = features, mask.long()
            tokens = [heard_tokens(frames, self._window) for frames in mask.sum(1).tolist()]
        batch = writer.batch(dialogues, tokens, self.side)
        batch = Batch(**{name: getattr(batch, name).to(device, non_blocking=True) for name in Batch.__slots__})
        # Only for this call: the module is kept, and nothing of the training with it.
        hook = self.module.model.audio_tower.register_forward_hook(self._keep)
        try:
            found = self.module(
                input_ids=batch.ids, attention_mask=batch.mask, position_ids=batch.places, use_cache=False, **fields
            )
        finally:
            hook.remove()
        return found.logits, batch, tokens

    def loss(self, writer: Writer, dialogues: Sequence[Dialogue], media: Any) -> Any:
        """Nats a token of the answers; of what is heard, with the tower's own reading."""
        logits, batch, tokens = self.logits(writer, dialogues, media)
        error = F.cross_entropy(
            logits[:, :-1].float().flatten(0, 1), batch.labels[:, 1:].flatten(), ignore_index=_IGNORED
        )
        return (
            error if dialogues[0].medium != "audio" else error + _SPELLED * self._misspelled(writer, dialogues, tokens)
        )

    def _misspelled(self, writer: Writer, dialogues: Sequence[Dialogue], tokens: Sequence[int]) -> Any:
        likely = self.spelling(self._tower).float().log_softmax(-1)
        rows = torch.nn.utils.rnn.pad_sequence(list(likely.split(list(tokens))))
        said = [writer.encode(one.heard) for one in dialogues]
        return F.ctc_loss(
            rows,
            torch.tensor([one for ids in said for one in ids], device=rows.device),
            torch.tensor(list(tokens)),
            torch.tensor([len(ids) for ids in said]),
            blank=likely.shape[-1] - 1,
            zero_infinity=True,
        )


def train(
    module: Any,
    writer: Writer,
    sample: Sample,
    *,
    side: int,
    seconds: float,
    batch: int,
    device: str,
    seed: int,
) -> None:
    """Trains transformers' thinker in place: every step has dialogues in text, with pictures, and with sounds."""
    torch.manual_seed(seed)
    thinker = Thinker(module, side).to(device)
    optimizer = torch.optim.AdamW(thinker.parameters(), _RATE, betas=(0.9, 0.98), weight_decay=0.02)
    parts: tuple[tuple[Medium, int], ...] = (("none", batch), ("image", batch // 2), ("audio", batch // 3))
    for now in moments(seconds):
        optimizer.param_groups[0]["lr"] = now.rate(_RATE, flat=0.4)
        optimizer.zero_grad()
        told = {}
        for medium, count in parts:
            dialogues, media = sample(medium, max(1, count))
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                loss = thinker.loss(writer, dialogues, media)
            loss.backward()
            told[medium] = loss
        torch.nn.utils.clip_grad_norm_(thinker.parameters(), 1.0)
        optimizer.step()
        if now.step % 250 == 0:
            shown = ", ".join(f"{medium} {value.item():.3f}" for medium, value in told.items())
            log.info("thinker: step %d, %d %% of the time, %s", now.step, 100 * now.done, shown)
    module.eval()


def exact(module: Any, writer: Writer, dialogues: Sequence[Dialogue], media: Any, *, side: int) -> float:
    """The share of dialogues whose every answer token is the likeliest after those before it: greedy decoding's."""
    with torch.no_grad():
        logits, batch, _ = Thinker(module, side).to(next(module.parameters()).device).logits(writer, dialogues, media)
    right = (logits[:, :-1].argmax(-1) == batch.labels[:, 1:]) | (batch.labels[:, 1:] == _IGNORED)
    return right.all(1).float().mean().item()


class Samples:
    """Draws training dialogues from what was made beforehand; `paint` gives scenes' pixels; sounds are made worse."""

    def __init__(
        self,
        *,
        talks: Sequence[Dialogue],
        looks: Sequence[Dialogue],
        listens: Sequence[tuple[Dialogue, Any]],
        paint: Callable[[Sequence[Scene]], Any],
        seed: int,
        device: str,
    ) -> None:
        self._talks, self._looks, self._listens, self._paint = talks, looks, listens, paint
        self._chance, self._device = random.Random(seed), device

    def __call__(self, medium: Medium, count: int) -> tuple[Sequence[Dialogue], Any]:
        if medium == "none":
            return self._chance.choices(self._talks, k=count), None
        if medium == "image":
            looks = self._chance.choices(self._looks, k=count)
            return looks, self._paint([one.scene for one in looks if one.scene is not None])
        chosen = self._chance.choices(self._listens, k=count)
        return [dialogue for dialogue, _ in chosen], [self._worse(sound.to(self._device)) for _, sound in chosen]

    def _worse(self, sound: Any) -> Any:
        """A little louder or softer, slower or faster, with noise, and silence around it."""
        speed = self._chance.uniform(0.92, 1.08)
        resampled = F.interpolate(sound[None, None], size=round(len(sound) / speed), mode="linear")[0, 0]
        resampled = resampled * self._chance.uniform(0.4, 1.2)
        before, after = (self._chance.randrange(1600) for _ in range(2))
        padded = F.pad(resampled, (before, after))
        return padded + 10 ** self._chance.uniform(-4, -2) * torch.randn_like(padded)
