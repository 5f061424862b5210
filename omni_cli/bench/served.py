"""One request as its caller saw it: when each piece came, and what follows from that. Knows no engine."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from omni_cli.trace.summary import type_of

AUDIO, TEXT = "audio", "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of an output, `t_ns` when the caller had it. `units` are tokens or frames; `plays_s` is 0 for text."""

    t_ns: int
    modality: str
    units: int
    plays_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Playback:
    """`underruns` times it ran dry, for `silence_s` in all. Started `prebuffer_s` later, it would not have."""

    underruns: int = 0
    silence_s: float = 0.0
    prebuffer_s: float = 0.0


@dataclass(kw_only=True)
class Served:
    """`start_ns` is when the request was due: in an open loop, time that it waited for the caller counts as well.

    `error` says why it failed; None: it gave all that it was asked for. `picture` are its pixels, if they are kept.
    """

    number: int
    start_ns: int
    end_ns: int = 0
    pieces: list[Piece] = field(default_factory=list)
    error: str | None = None
    picture: bytes = b""

    def check(self, asked: Mapping[str, int | None]) -> None:
        """An answer with less or more units of an output than were asked for has failed; None: any number will do."""
        given = {output: sum(p.units for p in self.pieces if p.modality == output) for output in asked}
        wrong = [f"{given[o]} of {units} units of {o}" for o, units in asked.items() if units not in (None, given[o])]
        if wrong and self.error is None:
            self.error = f"request {self.number} gave {', '.join(wrong)}"

    @property
    def ttft_s(self) -> float | None:
        """From the start to the first token of text."""
        return self._since(piece.t_ns for piece in self._of(TEXT) if piece.units)

    @property
    def ttfa_s(self) -> float | None:
        """From the start to the first sample of sound."""
        return self._since(piece.t_ns for piece in self.sounds)

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Between one piece of sound and the next."""
        return tuple((after.t_ns - before.t_ns) / 1e9 for before, after in pairwise(self.sounds))

    @property
    def audio_s(self) -> float:
        return sum(piece.plays_s for piece in self.sounds)

    @property
    def rtf(self) -> float | None:
        """(Last piece of sound - start) / playing time. None without sound."""
        return (self.sounds[-1].t_ns - self.start_ns) / 1e9 / self.audio_s if self.sounds else None

    @property
    def playback(self) -> Playback:
        return play([(piece.t_ns / 1e9, piece.plays_s) for piece in self.sounds])

    @cached_property
    def sounds(self) -> tuple[Piece, ...]:
        """The pieces of the first audio output that can be heard; ask once it has ended."""
        heard = [piece for piece in self._of(AUDIO) if piece.plays_s]
        return tuple(piece for piece in heard if piece.modality == heard[0].modality)

    def _of(self, kind: str) -> Sequence[Piece]:
        return [piece for piece in self.pieces if type_of(piece.modality) == kind]

    def _since(self, stamps: Iterable[int]) -> float | None:
        first = next(iter(stamps), None)
        return None if first is None else (first - self.start_ns) / 1e9


def play(pieces: Sequence[tuple[float, float]]) -> Playback:
    """A player that starts on the first piece and plays on as pieces come. `pieces` are (when it came, how long it
    plays) in seconds, in their order. Those without sound do not count."""
    heard = [(came_s, plays_s) for came_s, plays_s in pieces if plays_s]
    if not heard:
        return Playback()
    underruns, silence_s, prebuffer_s, played_s = 0, 0.0, 0.0, 0.0
    first_s = ends_s = heard[0][0]
    for came_s, plays_s in heard:
        if came_s > ends_s:
            underruns += 1
            silence_s += came_s - ends_s
            ends_s = came_s
        prebuffer_s = max(prebuffer_s, came_s - first_s - played_s)
        played_s += plays_s
        ends_s += plays_s
    return Playback(underruns=underruns, silence_s=silence_s, prebuffer_s=prebuffer_s)
