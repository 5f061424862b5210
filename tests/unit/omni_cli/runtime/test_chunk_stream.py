"""A request's pieces reach its caller all, once, in order, whoever is ahead."""

import asyncio

import pytest

from omni_cli.runtime.chunk_stream import ChunkStream
from omni_cli.runtime.request import OutputChunk, RequestEnd

END = RequestEnd(outcome="finished")


def piece(seq: int) -> OutputChunk:
    return OutputChunk(modality="text", seq=seq, units=1, eos=False, text=str(seq))


def test_a_reader_behind_gets_all_at_once_and_one_ahead_is_woken() -> None:
    async def run() -> None:
        stream = ChunkStream(asyncio.get_running_loop())
        stream.put(piece(0))
        stream.put(piece(1))
        assert await stream.take() == [piece(0), piece(1)]
        reader = asyncio.ensure_future(stream.take())
        await asyncio.sleep(0)
        assert not reader.done()
        stream.put(piece(2))
        stream.put(END)
        assert await reader == [piece(2), END]

    asyncio.run(run())


def test_pieces_outlive_a_reader_that_gave_up_waiting() -> None:
    async def run() -> None:
        stream = ChunkStream(asyncio.get_running_loop())
        reader = asyncio.ensure_future(stream.take())
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        stream.put(END)
        assert await stream.take() == [END]

    asyncio.run(run())
