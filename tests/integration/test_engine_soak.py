"""What takes minutes or a quiet machine: ratios of times that belong in no run that has to pass, and a long run."""

import asyncio
import os
import secrets
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

import pytest

from omni_cli.launch.launcher import LocalLauncher
from omni_cli.plan.spec import stage_specs
from omni_cli.runtime.engine import OmniEngine
from omni_cli.runtime.events import Event, ProcessStarted
from omni_cli.runtime.outputs import OutputAssembler
from omni_cli.trace.summary import summarise
from stages.events import ProcessReady
from stages.models.qwen3_omni.tiny import tiny_checkpoint
from stages.models.synthetic.options import SyntheticOptions
from tests.integration.engine_run import MEDIA_BYTES, greedy_request
from tests.integration.recorded import Session, plan_of, record
from tests.integration.test_incremental_processes import INCREMENTAL, ask
from tests.integration.test_qwen3_omni_parity import CONVERSATIONS

pytestmark = pytest.mark.soak

WHOLE = ("pipeline.stages.talker.inputs.thinker=complete", "pipeline.stages.code2wav.inputs.talker=complete")
ROUNDS = 9


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder: Path = tiny_checkpoint(tmp_path_factory.mktemp("omni_cache"))
    return ("recipe=qwen3_omni", f"model.path={folder}")


def test_streamed_sound_begins_in_a_third_of_the_time(words: tuple[str, ...]) -> None:
    """The same request again and again, 100 frames; the first one warms up."""

    async def act(session: Session) -> None:
        for number in range(ROUNDS + 1):
            lengths = {"text_tokens": 40, "codec_tokens": 101, "ignore_eos": True}
            await session.one(greedy_request(str(number), CONVERSATIONS["text"], **lengths))

    def ttfa_ms(*more: str) -> float:
        requests = summarise(record(plan_of(*words, *more), act).trace()).requests.values()
        return median(request.ttfa_ns / 1e6 for request in list(requests)[1:])

    streamed, whole = ttfa_ms(), ttfa_ms(*WHOLE)
    print(f"\nfirst sound after {streamed:.1f} ms streamed, {whole:.1f} ms whole: {streamed / whole:.3f}")
    assert streamed <= whole / 3


def test_text_alone_costs_what_it_costs_without_a_talker(words: tuple[str, ...]) -> None:
    """Both deployments are there at once and take turns; counted is the processors' time, all stages together."""
    pids: tuple[list[int], list[int]] = ([], [])
    plans = [plan_of(*words), plan_of(*words, "deploy.outputs=[text]")]
    started, costs_s = [], []

    def deaf(source: str, event: Event) -> None:
        pass

    async def drive() -> None:
        async with AsyncExitStack() as stack:
            engines = [
                await stack.enter_async_context(OmniEngine(plan, running, listener=deaf))
                for plan, running in zip(plans, started, strict=True)
            ]
            for number in range(60):
                if number == 5:
                    costs_s.append([sum(map(_processor_s, own)) for own in pids])
                for engine in engines:
                    lengths = {"text_tokens": 64, "codec_tokens": 2, "ignore_eos": True}
                    request = greedy_request(str(number), CONVERSATIONS["text"], outputs=("text",), **lengths)
                    async for _ in engine.generate(request):
                        pass
            costs_s.append([sum(map(_processor_s, own)) for own in pids])

    try:
        for plan, own in zip(plans, pids, strict=True):

            def listener(source: str, event: Event, own: list[int] = own) -> None:
                if isinstance(event, ProcessStarted):
                    own.append(event.pid)

            specs = stage_specs(plan, secrets.token_hex(4), media_bytes=MEDIA_BYTES)
            started.append(LocalLauncher(plan, specs, listener=listener).start())
        asyncio.run(drive())
    finally:
        for running in started:
            running.stop()
    assert list(map(len, pids)) == [3, 1]
    whole, only = (after - before for before, after in zip(*costs_s, strict=True))
    print(f"\n{whole:.2f} s beside a talker, {only:.2f} s without: {whole / only:.3f}")
    assert whole <= 1.05 * only


def _processor_s(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_thousand_requests_leave_no_memory_and_no_descriptor_behind() -> None:
    """500 one after the other, then 500 at a concurrency of 8; memory and descriptors after 100 and at the end."""
    pids: dict[str, int] = {}
    held: list[dict[str, tuple[int, int]]] = []
    plan, run_id = plan_of("recipe=synthetic", *INCREMENTAL), secrets.token_hex(4)

    def listener(source: str, event: Event) -> None:
        if isinstance(event, ProcessReady):
            pids[source] = event.pid

    def look() -> None:
        """Resident bytes and open descriptors."""
        found = {}
        for name, pid in {"omni": os.getpid(), **pids}.items():
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            found[name] = (pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{pid}/fd")))
        held.append(found)

    async def one(engine: OmniEngine, number: int) -> None:
        request = ask(str(number), SyntheticOptions(frames=12))
        assembler = OutputAssembler(request.outputs)
        async for chunk in engine.generate(request):
            assembler.add(chunk)
        assert assembler.outputs["audio"].units == 12

    async def drive(engine: OmniEngine) -> None:
        for number in range(500):
            await one(engine, number)
            if number == 99:
                look()
        at_once = asyncio.Semaphore(8)

        async def placed(number: int) -> None:
            async with at_once:
                await one(engine, number)

        await asyncio.gather(*(placed(number) for number in range(500, 1000)))
        look()

    async def whole() -> None:
        async with OmniEngine(plan, running, listener=listener) as engine:
            await drive(engine)

    running = LocalLauncher(plan, stage_specs(plan, run_id), listener=listener).start()
    try:
        asyncio.run(whole())
    finally:
        running.stop()
    assert running.live_slots == 0
    after_100, after_1000 = held
    assert len(pids) == 3
    for name, (rss, fds) in after_1000.items():
        grown, opened = rss - after_100[name][0], fds - after_100[name][1]
        print(f"\n{name}: {grown / 2**20:.1f} MiB, {opened} descriptors")
        assert grown <= 20 * 2**20, name
        assert opened <= 5, name
