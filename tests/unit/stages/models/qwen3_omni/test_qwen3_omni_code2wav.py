"""The two ways to decode: transformers' chunks bit by bit, and streams that equal one pass however they are cut."""

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.models.qwen3_omni import modules
from stages.models.qwen3_omni.code2wav import ChunkedDecoder, DecodeCounts, Piece
from stages.models.qwen3_omni.code2wav_exact import ExactDecoder, StateTable
from stages.models.qwen3_omni.code2wav_stream import Code2WavStream

CPU = torch.device("cpu")
HELD = 555
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def module(tiny_folder: Path) -> Any:
    source = modules.Source(folder=tiny_folder, device=CPU, dtype=torch.float32, dummy=False)
    return modules.stage_module("code2wav", modules.read_config(tiny_folder), source)[0]


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def some_codes(frames: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 64, (frames, 4), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


def one_pass(module: Any, codes: torch.Tensor) -> torch.Tensor:
    wave: torch.Tensor = module(codes.T[None].long())
    return wave.reshape(-1)


def pieces(codes: torch.Tensor, sizes: list[int], uid: int = 0) -> Iterator[Piece]:
    """Pieces of these sizes; the last size is repeated, the last piece may be shorter."""
    start = 0
    while start < len(codes):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        end = min(start + size, len(codes))
        yield Piece(uid=uid, codes=codes, start=start, end=end)
        start = end


def streamed(decoder: Any, codes: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    return torch.cat([decoder.decode([piece])[0][0] for piece in pieces(codes, sizes)])


def close(wave: torch.Tensor, expected: torch.Tensor) -> bool:
    return wave.shape == expected.shape and bool((wave - expected).abs().max() <= TOLERANCE)


@pytest.mark.parametrize("frames", [1, 2, 299, 300, 301, 326, 640])
def test_chunks_equal_transformers(module: Any, frames: int) -> None:
    codes = some_codes(frames, seed=frames)
    expected = module.chunked_decode(codes.T[None].long(), chunk_size=300, left_context_size=25)
    wave = streamed(ChunkedDecoder(module, device=CPU), codes, [300])
    assert torch.equal(wave, expected.reshape(-1))
    # Each chunk drops 555 samples at its end.
    assert len(wave) == frames * 1920 - HELD * -(-frames // 300)


def test_chunks_count_their_context(module: Any) -> None:
    decoder = ChunkedDecoder(module, device=CPU)
    counts = [decoder.decode([piece])[1] for piece in pieces(some_codes(301), [300])]
    assert counts == [DecodeCounts(frames=300), DecodeCounts(frames=1, context=25)]


def test_the_tiny_waveform_is_audible_and_not_clipped(module: Any) -> None:
    wave = one_pass(module, some_codes(50))
    assert 0.02 < wave.std() < 0.3
    assert wave.abs().max() < 0.95


@pytest.mark.parametrize("chunk", [1, 2, 4, 7, 10, 25, 50])
def test_every_length_around_a_chunk(module: Any, chunk: int) -> None:
    decoder = ExactDecoder(module, device=CPU)
    for frames in sorted({1, chunk - 1, chunk, chunk + 1, 2 * chunk + 1} - {0}):
        codes = some_codes(frames, seed=frames)
        wave = streamed(decoder, codes, [chunk])
        assert len(wave) == frames * 1920 - HELD
        assert close(wave, one_pass(module, codes)), frames


@pytest.mark.parametrize("chunk", [7, 10, 25, 50, 300])
@pytest.mark.parametrize("frames", [301, 400])
def test_long_utterances(module: Any, chunk: int, frames: int) -> None:
    """Far longer than the attention's window of 72 frames, so that all that is forgotten was forgotten rightly."""
    codes = some_codes(frames)
    assert close(streamed(ExactDecoder(module, device=CPU), codes, [4, chunk]), one_pass(module, codes))


def test_single_frames_beyond_the_window(module: Any) -> None:
    codes = some_codes(100)
    assert close(streamed(ExactDecoder(module, device=CPU), codes, [1]), one_pass(module, codes))


@pytest.mark.parametrize("seed", range(6))
def test_random_cuts(module: Any, seed: int) -> None:
    draw = random.Random(seed)
    codes = some_codes(draw.randint(1, 160), seed)
    sizes = [draw.choice((1, 2, 3, 5, 8, 13, 40)) for _ in range(170)]
    assert close(streamed(ExactDecoder(module, device=CPU), codes, sizes), one_pass(module, codes))


def test_one_piece_is_one_pass_bit_by_bit(module: Any) -> None:
    codes = some_codes(120)
    assert torch.equal(streamed(ExactDecoder(module, device=CPU), codes, [300]), one_pass(module, codes))


@pytest.mark.parametrize(
    "options",
    [{"batched": True}, {"batched": False}, {"batched": True, "first": [(2, 30), (5, 30)], "later": [(3, 9), (4, 30)]}],
    ids=["batched", "alone", "in buckets"],
)
def test_padding_and_company_change_nothing(module: Any, options: Any) -> None:
    """Streams of many lengths and phases share steps, cut at random; each equals itself alone, and one pass."""
    draw = random.Random(5)
    codes = {uid: some_codes(draw.randint(1, 110), seed=uid) for uid in range(8)}
    left = {uid: pieces(c, [draw.randint(1, 30) for _ in range(120)], uid) for uid, c in codes.items()}
    waves: dict[int, list[torch.Tensor]] = {uid: [] for uid in codes}
    decoder = ExactDecoder(module, device=CPU, **options)
    mixed = 0
    while left:
        batch = []
        for uid in draw.sample(sorted(left), min(len(left), 5)):
            piece = next(left[uid], None)
            if piece is None:
                del left[uid]
            else:
                batch.append(piece)
        mixed += len({piece.start == 0 for piece in batch}) == 2
        for piece, wave in zip(batch, decoder.decode(batch)[0], strict=True):
            waves[piece.uid].append(wave)
    assert mixed, "no step held a stream that began and one that went on"
    for uid, whole in codes.items():
        assert close(torch.cat(waves[uid]), one_pass(module, whole)), uid
        alone = streamed(ExactDecoder(module, device=CPU), whole, [25])
        assert close(torch.cat(waves[uid]), alone), uid


def test_no_frame_is_computed_twice(module: Any) -> None:
    decoder = ExactDecoder(module, device=CPU)
    counts = [decoder.decode([piece])[1] for piece in pieces(some_codes(57), [4, 25])]
    assert counts == [DecodeCounts(frames=4), DecodeCounts(frames=25), DecodeCounts(frames=25), DecodeCounts(frames=3)]
    batch = [Piece(uid=1, codes=some_codes(9), start=0, end=9), Piece(uid=2, codes=some_codes(5), start=0, end=5)]
    assert decoder.decode(batch)[1] == DecodeCounts(frames=14)
    assert ExactDecoder(module, device=CPU, batched=True).decode(batch)[1] == DecodeCounts(frames=14, padding=4)


def test_a_forgotten_stream_cannot_go_on(module: Any) -> None:
    decoder = ExactDecoder(module, device=CPU)
    first, second = pieces(some_codes(8), [4])
    decoder.decode([first])
    decoder.forget(0)
    decoder.forget(0)
    with pytest.raises(KeyError):
        decoder.decode([second])


def test_a_stream_does_not_see_who_had_its_place_before(module: Any) -> None:
    decoder = ExactDecoder(module, device=CPU)
    codes = some_codes(30)
    wave = streamed(decoder, codes, [4, 10])
    for uid in range(3):
        decoder.decode([Piece(uid=uid, codes=some_codes(9, seed=7), start=0, end=9)])
        decoder.forget(uid)
    assert torch.equal(streamed(decoder, codes, [4, 10]), wave)


def test_the_step_has_static_shapes_and_never_asks_the_device(module: Any) -> None:
    """What a CUDA graph needs: lengths are data. On the meta device a question to the data would raise."""
    stream = Code2WavStream(copy.deepcopy(module).to("meta"))
    frames = torch.zeros(3, dtype=torch.int64, device="meta")
    codes = torch.zeros(3, 4, 5, dtype=torch.int64, device="meta")
    first, states = stream(codes, frames, frames, None)
    later, after = stream(codes, frames, frames, states)
    assert first.shape == (3, 5 * 1920 - HELD)
    assert later.shape == (3, 5 * 1920)
    assert states.shape == after.shape == (3, stream.state_size)


def test_state_table() -> None:
    table = StateTable(2, dtype=torch.float32, device=CPU)
    rows = torch.arange(10.0).reshape(5, 2)
    table.write([3, 1], rows[:2])
    table.write([1, 4, 5], rows[2:])
    assert torch.equal(table.read([5, 3, 1]), rows[[4, 0, 2]])
    table.remove(3)
    table.remove(9)
    assert len(table) == 3
    table.write([6], rows[:1])
    assert torch.equal(table.read([6, 4]), rows[[0, 3]])
    with pytest.raises(KeyError):
        table.read([3])
