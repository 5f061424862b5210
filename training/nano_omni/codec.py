"""The codec: an encoder and codebooks that exist for training alone, and Code2Wav, which is kept.

Residual vector quantisation whose codebooks follow their vectors' running mean, as in SoundStream (arXiv:2107.03312);
the loss is on mel spectrograms of several resolutions and on the codebooks' error.
"""

import logging
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers.audio_utils import mel_filter_bank
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeSnakeBeta

from training.budget import moments
from training.nano_omni.causal import through
from training.nano_omni.layout import CODES, FRAME, GROUPS
from training.nano_omni.speech import RATE
from training.repeat import Step

log = logging.getLogger(__name__)
_VECTOR = 96
_FOLLOW = 0.03  # of a codebook, a step
_SEGMENT_FRAMES = 20
_RATE = 1e-3
_MEL = 15.0  # weight of the spectrograms' error
_WHOLE = 0.6  # of the sentences are coded by all groups in training
_USED = 0.2  # choices a step, from which on a code counts as used
_CODED = 64  # sentences at once
PHASES = 8
"""Ways in which a sentence is coded: later by so many parts of a frame. Its codes are others in each."""


class Mel(nn.Module):
    """Magnitudes of a mel spectrogram: [batch, samples] to [batch, bins, frames]."""

    def __init__(self, window: int, hop: int, bins: int) -> None:
        super().__init__()
        bank = mel_filter_bank(window // 2 + 1, bins, 0.0, RATE / 2, RATE, norm=None, mel_scale="htk")
        self.register_buffer("bank", torch.from_numpy(bank).float().T)
        self.register_buffer("hann", torch.hann_window(window))
        self._window, self._hop = window, hop

    def forward(self, samples: Any) -> Any:
        found = torch.stft(samples, self._window, self._hop, self._window, self.hann, return_complex=True)
        return self.bank @ found.abs()


class MelLoss(nn.Module):
    """Mean over resolutions of the error of log magnitudes."""

    def __init__(self) -> None:
        super().__init__()
        self.mels = nn.ModuleList(
            Mel(size, size // 4, bins) for size, bins in ((256, 32), (512, 48), (1024, 80), (2048, 100))
        )

    def forward(self, drawn: Any, samples: Any) -> Any:
        errors = []
        for mel in self.mels:
            found, right = mel(drawn), mel(samples)
            errors.append(F.l1_loss((found + 1e-4).log(), (right + 1e-4).log()))
            errors.append(0.2 * F.l1_loss(found, right) / (right.mean() + 1e-3))
        return sum(errors) / len(self.mels)


class Encoder(nn.Module):
    """Samples [batch, frames x FRAME] to vectors [batch, frames, _VECTOR]: a mel spectrogram of 100 a second, halved
    three times."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.mel = Mel(1024, FRAME // 8, 80)
        layers: list[nn.Module] = [nn.Conv1d(80, width, 5, padding=2), nn.GELU()]
        for _ in range(3):
            layers += [nn.Conv1d(width, width, 4, 2, 1), nn.GELU(), nn.Conv1d(width, width, 3, padding=1), nn.GELU()]
        self.body = nn.Sequential(*layers, nn.Conv1d(width, _VECTOR, 1))

    def forward(self, samples: Any) -> Any:
        heights = (self.mel(samples)[..., : samples.shape[-1] // (FRAME // 8)] + 1e-4).log()
        return self.body(heights).transpose(1, 2)


class Codebooks(nn.Module):
    """GROUPS codebooks, each for what the ones before it have left."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("vectors", torch.randn(GROUPS, CODES, _VECTOR) * 0.02)
        self.register_buffer("counts", torch.ones(GROUPS, CODES))
        self.register_buffer("sums", self.vectors.clone())
        self.filled = False

    def forward(self, found: Any, groups: Any) -> tuple[Any, Any, Any]:
        """Vectors [batch, frames, _VECTOR] to themselves as coded by the first `groups` [batch] of the codebooks (the
        gradient passes), codes [batch, GROUPS, frames], and the sum over codebooks of the error."""
        left = found.reshape(-1, found.shape[-1])
        coded, codes, error = torch.zeros_like(left), [], torch.zeros((), device=left.device)
        last = groups[:, None].expand(-1, found.shape[1]).reshape(-1, 1)
        for group in range(GROUPS):
            if self.training and not self.filled:
                self._restart(group, torch.ones(CODES, dtype=torch.bool, device=left.device), left.detach())
            book = self.vectors[group]
            chosen = torch.addmm(book.square().sum(1), left.detach(), book.T, alpha=-2).argmin(1)
            vectors, counts = book[chosen], group < last
            error = error + ((left - vectors) * counts).square().mean()
            if self.training:
                self._follow(group, chosen, left.detach())
            codes.append(chosen.view(found.shape[:2]))
            coded, left = coded + vectors * counts, left - vectors
        self.filled = self.filled or self.training
        passed = found + (coded.view(found.shape) - found).detach()
        return passed, torch.stack(codes, 1), error

    @torch.no_grad()
    def _follow(self, group: int, chosen: Any, vectors: Any) -> None:
        ones = torch.ones(len(chosen), device=chosen.device)
        counts = torch.zeros(CODES, device=chosen.device).index_add_(0, chosen, ones)
        self.counts[group].lerp_(counts, _FOLLOW)
        self.sums[group].lerp_(torch.zeros_like(self.sums[group]).index_add_(0, chosen, vectors), _FOLLOW)
        self.vectors[group] = self.sums[group] / (self.counts[group][:, None] + 1e-5)
        self._restart(group, self.counts[group] < 0.05, vectors)

    @torch.no_grad()
    def _restart(self, group: int, dead: Any, vectors: Any) -> None:
        """Codes that nobody chooses become random vectors that were there."""
        fresh = vectors[torch.randint(len(vectors), (CODES,), device=vectors.device)]
        self.vectors[group] = torch.where(dead[:, None], fresh, self.vectors[group])
        self.sums[group] = torch.where(dead[:, None], fresh, self.sums[group])
        self.counts[group] = torch.where(dead, torch.ones_like(self.counts[group]), self.counts[group])


class Codec(nn.Module):
    """`code2wav` is transformers' module; the projection is folded into its code embedding at the end."""

    def __init__(self, code2wav: Any) -> None:
        super().__init__()
        self.encoder, self.codebooks, self.code2wav = Encoder(), Codebooks(), code2wav
        self.project = nn.Linear(_VECTOR, code2wav.config.hidden_size)

    def decode(self, coded: Any) -> Any:
        """Samples [batch, frames x FRAME - 555] of vectors [batch, frames, _VECTOR]: Code2Wav without its codes. Raises
        ValueError for more frames than its window has."""
        if coded.shape[1] > self.code2wav.config.sliding_window:
            raise ValueError(f"{coded.shape[1]} frames are more than a window, {self.code2wav.config.sliding_window}")
        hidden = through(self.code2wav.pre_transformer, self.project(coded), (1,)).transpose(1, 2)
        for block in (block for blocks in self.code2wav.upsample for block in blocks):
            hidden = block(hidden)
        for block in self.code2wav.decoder:
            hidden = block(hidden)
        return hidden[:, 0]

    @torch.no_grad()
    def finish(self) -> None:
        """Makes Code2Wav whole: it takes the mean of its codes' embeddings."""
        vectors = self.codebooks.vectors @ self.project.weight.T * GROUPS + self.project.bias
        self.code2wav.code_embedding.weight.copy_(vectors.flatten(0, 1))

    @torch.no_grad()
    def codes(self, samples: Any) -> Any:
        """Codes [batch, GROUPS, frames] of samples [batch, frames x FRAME]."""
        return self.codebooks(self.encoder(samples), _whole(len(samples), samples.device))[1]

    def coded(self, samples: Any, frames: Sequence[int]) -> list[Any]:
        """Codes [PHASES, GROUPS, frames], int16 on the CPU, of each sentence of `samples`, int16
        [sum of frames x FRAME]; those of one length go together. What begins later loses as much of the silence at
        its end."""
        starts, found = [0, *accumulate(frames)], [torch.empty(0)] * len(frames)
        alike: dict[int, list[int]] = {}
        for place, count in enumerate(frames):
            alike.setdefault(count, []).append(place)
        for count, places in alike.items():
            span = torch.arange(count * FRAME, device=samples.device)
            for at in range(0, len(places), _CODED):
                some = places[at : at + _CODED]
                begin = torch.tensor([starts[place] * FRAME for place in some], device=samples.device)
                sound = samples[begin[:, None] + span].float() / 32768
                later = (phase * FRAME // PHASES for phase in range(PHASES))
                whole = torch.cat([F.pad(sound, (shift, 0))[:, : len(span)] for shift in later])
                codes = self.codes(whole).unflatten(0, (PHASES, -1)).transpose(0, 1).to(torch.int16).cpu()
                for place, one in zip(some, codes, strict=True):
                    found[place] = one.clone()
        return found


def _whole(batch: int, device: Any) -> Any:
    """All groups of each sentence of a batch."""
    return torch.full((batch,), GROUPS, device=device)


def train(code2wav: Any, samples: Any, *, seconds: float, batch: int, device: str, seed: int, record: bool) -> Codec:
    """Trains on `samples`, int16 [all frames x FRAME] on the device: sentences one behind the other. `record`: as in
    Step."""
    torch.manual_seed(seed)
    codec, loss_of = Codec(code2wav).to(device), MelLoss().to(device)
    if record and device == "cuda":
        for module in codec.modules():
            if isinstance(module, Qwen3OmniMoeSnakeBeta):
                module.compile(dynamic=False)  # eager, these are most of what goes through memory
    span = torch.arange(_SEGMENT_FRAMES * FRAME, device=device)

    def draw() -> Any:
        starts = torch.randint(len(samples) - len(span), (batch,), device=device)
        return samples[starts[:, None] + span].float() / 32768

    def loss() -> Any:
        right = draw()
        # Often with fewer groups, so that the first ones carry most.
        fewer = torch.randint(2, GROUPS, (batch,), device=device)
        groups = fewer.masked_fill(torch.rand(batch, device=device) < _WHOLE, GROUPS)
        coded, _, error = codec.codebooks(codec.encoder(right), groups)
        drawn = codec.decode(coded)
        return torch.stack([_MEL * loss_of(drawn, right[:, : drawn.shape[1]]), 0.5 * error])

    with torch.no_grad():
        codec.codebooks(codec.encoder(draw()), _whole(batch, device))  # fills the codebooks
    parameters = [value for value in codec.parameters() if value.requires_grad]
    step = Step(loss, parameters, device=device, record=record, betas=(0.8, 0.99), weight_decay=0.0, norm=5.0)
    for now in moments(seconds):
        found = step(now.rate(_RATE, flat=0.4))
        if now.told:
            used = (codec.codebooks.counts > _USED).sum(1).tolist()
            log.info(
                "codec: step %d, %d %% of the time, mel %.3f, %d steps skipped, codes in use %s",
                now.step, 100 * now.done, found[0].item() / _MEL, step.skipped.item(), used,
            )  # fmt: skip
    codec.eval()
    codec.finish()
    return codec
