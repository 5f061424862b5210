"""One request as its caller saw it: when each piece came, and what follows from that. Knows no engine."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from omni_cli.bench.player import Playback, play
from omni_cli.trace.summary import type_of

AUDIO, TEXT = "audio", "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of an output, `t_ns` when the caller had it. `units` are tokens or frames; `plays_s` is 0 for text."""

    t_ns: int
    modality: str
    units: int
    plays_s: float = 0.0


@dataclass(kw_only=True)
class Served:
    """`start_ns` is when the request was due: in an open loop, time that it waited for the caller counts as well.

    `error` says why it failed; None: it gave all that it was asked for.
    """

    number: int
    start_ns: int
    end_ns: int = 0
    pieces: list[Piece] = field(default_factory=list)
    error: str | None = None

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

    def units(self, modality: str) -> int:
        return sum(piece.units for piece in self.pieces if piece.modality == modality)

    def _of(self, kind: str) -> Sequence[Piece]:
        return [piece for piece in self.pieces if type_of(piece.modality) == kind]

    def _since(self, stamps: Iterable[int]) -> float | None:
        first = next(iter(stamps), None)
        return None if first is None else (first - self.start_ns) / 1e9
