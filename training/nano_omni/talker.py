"""The talker and its code predictor, trained on what the teacher says: the rows are those that `generate` makes.

A sequence is the user's turn, the nine rows that begin an answer, then a row a frame; row and frame carry the sum of a
text token and of sixteen codes. What a row predicts is the first code of the next frame; the predictor adds the others.
"""

import logging
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from rapidfuzz.distance import Levenshtein
from torch.nn import functional as F

from training.budget import moments
from training.nano_omni.causal import through
from training.nano_omni.layout import CODES, GROUPS
from training.repeat import Step, half

log = logging.getLogger(__name__)
_RATE = 1.5e-3
NONE = -1  # no token, no code: a row without that part
_WRONG = 0.1  # of single codes that it is given, at most
_DROPOUT = 0.1
_PREDICTED_FRAMES = 12  # of a sentence, for the code predictor
_FRAME_SIZE = 0.2  # deviation of a frame's sum of codes at the start
_FADE = 0.85  # weight of a code group against the one before
_LENGTHS = 12  # of batches: each is recorded for itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """`user` ids of the user's turn, NONE for media; `answer` ids of what is said; `codes` [ways, GROUPS, frames]: the
    ways in which it is said."""

    user: tuple[int, ...]
    answer: tuple[int, ...]
    speaker: int
    codes: Any

    @property
    def rows(self) -> int:
        return len(self.user) + 9 + self.codes.shape[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Sentences, each said in one way: `text` [batch, rows], `codes` [batch, rows, GROUPS], `first` [batch]: the row
    that predicts frame 0, `frames` [batch]. Rows behind the end are empty; since rows see only those before them, no
    mask is needed."""

    text: Any
    codes: Any
    first: Any
    frames: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentences:
    """Rows of sentences, each with all the ways in which it is said: `ways` [batch, ways, rows, GROUPS] int16, the
    others as of Rows."""

    text: Any
    ways: Any
    first: Any
    frames: Any

    def said(self, sentences: Any, ways: Any, length: int) -> Rows:
        """The first `length` rows of some sentences, each said in one way."""
        return Rows(
            text=self.text[sentences, :length],
            codes=self.ways[sentences, ways, :length].long(),
            first=self.first[sentences],
            frames=self.frames[sentences],
        )

    def on(self, device: str) -> "Sentences":
        return Sentences(**{name: getattr(self, name).to(device) for name in self.__slots__})


def sentences_of(config: Any, newline: int, spoken: Sequence[Spoken]) -> Sentences:
    """The rows of what is spoken, on the CPU. `newline` is the id that follows a role's name."""
    talker = config.talker_config
    head_text = [config.im_start_token_id, config.assistant_token_id, newline]
    head_text += [config.tts_pad_token_id] * 4 + [config.tts_bos_token_id]
    longest = max(one.rows for one in spoken)
    text = torch.full((len(spoken), longest), NONE)
    ways = torch.full((len(spoken), len(spoken[0].codes), longest, GROUPS), NONE, dtype=torch.int16)
    for place, one in enumerate(spoken):
        count, start = one.codes.shape[2], len(one.user)
        said = [*one.answer, config.tts_eos_token_id][: count + 1]
        said += [config.tts_pad_token_id] * (count + 1 - len(said))
        line = [*one.user, *head_text, *said]
        text[place, : len(line)] = torch.tensor(line)
        marks = [talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id, one.speaker]
        marks += [talker.codec_pad_id, talker.codec_bos_id]
        ways[place, :, start + 3 : start + 9, 0] = torch.tensor(marks, dtype=torch.int16)
        ways[place, :, start + 9 : start + 9 + count] = one.codes.transpose(1, 2)
    first = torch.tensor([len(one.user) + 8 for one in spoken])
    return Sentences(text=text, ways=ways, first=first, frames=torch.tensor([one.codes.shape[2] for one in spoken]))


class Talker(torch.nn.Module):
    """transformers' talker, fed with rows; `table` [ids, thinker hidden] stays as it is."""

    def __init__(self, module: Any, table: Any) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("table", table, persistent=False)
        sizes = [one.weight.shape[0] for one in self._tables()]
        self.register_buffer("starts", torch.tensor([0, *accumulate(sizes)][:-1]), persistent=False)

    def forward(self, text: Any, codes: Any) -> Any:
        """Last hidden states [batch, rows, hidden]."""
        embeds = self._embedded(codes)
        # Not an index, whose gradient adds what is of one id, such as the one of silence, one after the other.
        projected = _rows(self.module.text_projection(self.table).float(), text.clamp(min=0))
        embeds = F.dropout(embeds, _DROPOUT, self.training) + projected * (text != NONE)[..., None]
        return F.dropout(through(self.module.model, embeds, (3, 1)), _DROPOUT, self.training)

    def _tables(self) -> tuple[Any, ...]:
        return (self.module.model.codec_embedding, *self.module.code_predictor.model.codec_embedding)

    def _embedded(self, codes: Any) -> Any:
        """The sum of the codes' embeddings [batch, rows, hidden]."""
        tables = self._tables()
        whole = torch.cat([*(table.weight for table in tables), torch.zeros_like(tables[0].weight[:1])])
        places = (codes + self.starts).masked_fill(codes == NONE, len(whole) - 1)
        return _rows(whole, places).sum(-2)

    def first_codes(self, hidden: Any) -> Any:
        """Logits [..., talker vocabulary]."""
        return self.module.codec_head(hidden)

    def other_codes(self, hidden: Any, codes: Any) -> Any:
        """Logits [frames, GROUPS - 1, CODES] from the rows' `hidden` [frames, hidden] and all `codes` [frames, GROUPS]:
        each group sees those before it."""
        predictor = self.module.code_predictor
        known = [_rows(table.weight, codes[:, group]) for group, table in enumerate(self._tables()[: GROUPS - 1])]
        found = through(predictor.model, torch.stack([hidden, *known], dim=1), (1,))[:, 1:]
        heads = torch.stack([head.weight for head in predictor.lm_head])
        return torch.einsum("fgh,gch->fgc", found, heads)


def _rows(table: Any, places: Any) -> Any:
    """Rows of `table` [any, width]: an embedding whose gradient, unlike the library's, a recording may have in it."""
    return table.index_select(0, places.flatten()).unflatten(0, places.shape)


@torch.no_grad()
def begin(module: Any, vectors: Any) -> None:
    """Makes the tables of codes from the codec's `vectors` [GROUPS, CODES, any], turned at random: what sounds alike is
    alike from the first step, and a frame's sum lies near what it sounds like."""
    predictor = module.code_predictor.model
    tables = (module.model.codec_embedding, *predictor.codec_embedding)
    turn = torch.linalg.qr(torch.randn(tables[0].weight.shape[1], vectors.shape[-1]))[0]
    turned = (vectors - vectors.mean(1, keepdim=True)) @ turn.T
    turned *= _FRAME_SIZE / turned.var(1).mean(1).sum().sqrt()
    for table, values in zip(tables, turned, strict=True):
        table.weight[:CODES] = values


def disturbed(codes: Any) -> Any:
    """The codes of rows [batch, rows, GROUPS], many of them wrong: what was said before is then a poor witness of what
    comes next, and the text has to be read. Of each sentence a share of frames, drawn from 0 to 1, is another frame's
    from some group on, mostly an early one; some single codes are any."""
    batch, rows, groups = codes.shape
    share = torch.rand(batch, 1, 1, device=codes.device)
    start = (groups * torch.rand(batch, rows, 1, device=codes.device).square()).long()
    frames = torch.rand(batch, rows, 1, device=codes.device) < share
    frames = frames & (torch.arange(groups, device=codes.device) >= start)
    spoken = (codes >= 0) & (codes < CODES)  # not those that are marks
    others = _rows(codes.flatten(0, 1), torch.randint(batch * rows, (batch, rows), device=codes.device))
    single = torch.rand(codes.shape, device=codes.device) < _WRONG * share
    single = single | (others < 0) | (others >= CODES)
    others = torch.where(single, torch.randint(CODES, codes.shape, device=codes.device), others)
    return torch.where(
        (frames | (torch.rand(codes.shape, device=codes.device) < _WRONG * share)) & spoken, others, codes
    )


def losses(talker: Talker, rows: Rows, eos: int, *, noise: bool) -> tuple[Any, Any]:
    """The mean error (nats) of first codes, and of a frame's other codes with falling weights that sum to 1. With
    `noise` many codes that are given are wrong, as they may be when it speaks."""
    given = disturbed(rows.codes) if noise else rows.codes
    hidden = talker(rows.text, given)
    places = torch.arange(rows.text.shape[1], device=rows.text.device)
    frame = places - rows.first[:, None]  # the frame that a row predicts
    following = torch.cat([rows.codes[:, 1:, 0], torch.full_like(rows.codes[:, :1, 0], NONE)], dim=1)
    target = following.masked_fill(frame == rows.frames[:, None], eos)
    target = target.masked_fill((frame < 0) | (frame > rows.frames[:, None]), -100)
    first = F.cross_entropy(talker.first_codes(hidden).float().flatten(0, 1), target.flatten(), ignore_index=-100)
    # Some frames of some sentences, so that the host need not know how many there are.
    some = torch.randint(len(rows.frames), (_PREDICTED_FRAMES * len(rows.frames),), device=places.device)
    row = rows.first[some] + (torch.rand(len(some), device=places.device) * rows.frames[some]).long()
    right = rows.codes[some, row + 1]
    logits = talker.other_codes(_rows(hidden.flatten(0, 1), some * hidden.shape[1] + row), right)
    error = F.cross_entropy(logits.float().flatten(0, 1), right[:, 1:].flatten(), reduction="none")
    weights = _FADE ** torch.arange(GROUPS - 1, device=error.device)
    return first, (error.view(-1, GROUPS - 1) * weights / weights.sum()).sum(1).mean()


@torch.no_grad()
def speak(talker: Talker, rows: Rows, eos: int) -> list[Any]:
    """Codes [frames, GROUPS] of each sentence of `rows`, said freely, on what it said before; the best codes, not drawn
    ones. It ends each by itself, or where the rows do."""
    codes = rows.codes.clone()
    places = torch.arange(codes.shape[1], device=codes.device)
    codes[places > rows.first[:, None]] = NONE
    each, ends = torch.arange(len(codes), device=codes.device), torch.full_like(rows.first, codes.shape[1] - 1)
    for frame in range(int(codes.shape[1] - 1 - rows.first.min())):
        row = (rows.first + frame).clamp(max=codes.shape[1] - 2)
        hidden = talker(rows.text, codes)[each, row]
        first = talker.first_codes(hidden).float().argmax(-1)
        ends = torch.where((first == eos) & (row < ends), row, ends)
        if (ends <= row).all():
            break
        found = torch.zeros_like(codes[:, 0])
        found[:, 0] = first.clamp(max=CODES - 1)
        for group in range(1, GROUPS):
            found[:, group] = talker.other_codes(hidden, found)[:, group - 1].argmax(-1)
        codes[each, row + 1] = found
    return [one[start + 1 : end + 1] for one, start, end in zip(codes, rows.first, ends, strict=True)]


def train(
    module: Any,
    table: Any,
    config: Any,
    newline: int,
    spoken: Sequence[Spoken],
    *,
    held: Sequence[Spoken],
    keep: Callable[[], None],
    seconds: float,
    batch: int,
    device: str,
    seed: int,
    record: bool,
) -> None:
    """Trains transformers' talker in place. Sentences of about one length share a batch. `keep` is called once a minute
    and at the end, and then the log says how it does on those that are `held` back; `record`: as in Step."""
    torch.manual_seed(seed)
    chance = random.Random(seed)
    talker = Talker(module, table).to(device)
    if record and device == "cuda":
        for layer in (*module.model.layers, *module.code_predictor.model.layers):
            layer.compile()
    eos = config.talker_config.codec_eos_token_id
    parameters = [value for name, value in talker.named_parameters() if "hidden_projection" not in name]
    unread = sentences_of(config, newline, held).on(device)
    loss, cuts = _batches(talker, config, newline, spoken, batch, device)
    step = Step(loss, parameters, device=device, record=record, betas=(0.9, 0.98), weight_decay=0.02)
    for now in moments(seconds):
        (cut,) = chance.choices(cuts, [stop - start for start, stop in cuts])
        # First each once, so that all are recorded before there is anything to lose.
        found = step(now.rate(_RATE, flat=0.3), *(cuts[now.step] if now.step < len(cuts) else cut))
        if now.told:
            first, others = found.tolist()
            log.info(
                "talker: step %d, %d %% of the time, first code %.3f, others %.3f, %d steps skipped",
                now.step, 100 * now.done, first, others, step.skipped.item(),
            )  # fmt: skip
        if now.kept:
            keep()
            log.info("talker: %s", score(talker, unread, eos))
    keep()
    log.info("talker: %s", score(talker, unread, eos))


def _batches(
    talker: Talker, config: Any, newline: int, spoken: Sequence[Spoken], batch: int, device: str
) -> tuple[Callable[[int, int], Any], list[tuple[int, int]]]:
    """The loss of a batch drawn from those sentences, ordered by length, that lie between two places; and the pairs of
    places between which they are of about one length."""
    ordered = sorted(spoken, key=lambda one: one.rows)
    lengths = [one.rows for one in ordered]
    every, eos = sentences_of(config, newline, ordered).on(device), config.talker_config.codec_eos_token_id
    cuts = _cuts(lengths)
    log.info("talker: batches of %s rows", [lengths[stop - 1] for _, stop in cuts])

    def loss(start: int, stop: int) -> Any:
        some = torch.randint(start, stop, (batch,), device=device)
        rows = every.said(some, torch.randint(every.ways.shape[1], (batch,), device=device), lengths[stop - 1])
        with half(device):
            return torch.stack(losses(talker, rows, eos, noise=True))

    return loss, cuts


def score(talker: Talker, unread: Sentences, eos: int) -> str:
    """How it does on sentences that it has not read: the error of first codes after what the teacher said, and how many
    of the teacher's first codes it says itself, in their order, when it hears itself, in the way that is nearest."""
    rows = unread.said(slice(None), 0, unread.text.shape[1])
    talker.eval()
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), half(rows.text.device.type):
        first, _ = losses(talker, rows, eos, noise=False)
        said = speak(talker, rows, eos)
    talker.train()
    wrong = 0
    for one, ways, start, frames in zip(said, unread.ways, unread.first, unread.frames, strict=True):
        right = ways[:, start + 1 : start + 1 + frames, 0].tolist()
        wrong += min(int(frames), *(Levenshtein.distance(way, one[:, 0].tolist()) for way in right))
    right_share = 1 - wrong / int(unread.frames.sum())
    return f"held out: first code {first.item():.3f}, said freely {100 * right_share:.1f} % as the teacher"


def _cuts(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Where rising `lengths` are cut, so that few rows are empty: start and stop of at most _LENGTHS parts."""
    edges = [max(1, place * len(lengths) // _LENGTHS) for place in range(1, _LENGTHS + 1)]
    stops = sorted({bisect_right(lengths, lengths[edge - 1]) for edge in edges})
    return list(pairwise([0, *stops]))
