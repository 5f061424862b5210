"""One simulated trace for each kind of ending and of pipeline; the seed chooses the order in which things happen."""

from collections.abc import Callable

from stages.payload import Payload, Tensor
from tests.trace.simulated_run import SimulatedRun, TraceOfPlan
from tests.unit.omni_cli.runtime.simulation import DIAMOND, DIAMOND_OUTPUTS, LINE, LINE_OUTPUTS

IMAGE = Payload(tensors=(Tensor(name="media0", dtype="uint8", shape=(3,), data=memoryview(b"rgb")),))


def finished(seed: int) -> TraceOfPlan:
    run = SimulatedRun(LINE, LINE_OUTPUTS, incremental=True, seed=seed)
    for uid in (1, 2, 3):
        run.admit(uid, outputs=("text",) if uid == 2 else ("text", "audio"))
        run.some(10)
    return run.finish()


def whole_payloads(seed: int) -> TraceOfPlan:
    run = SimulatedRun(LINE, LINE_OUTPUTS, incremental=False, seed=seed, replicas=2, media=True)
    for uid in (1, 2, 3):
        run.admit(uid, media=IMAGE if uid != 2 else None)
        run.some(5)
    return run.finish()


def failed(seed: int) -> TraceOfPlan:
    run = SimulatedRun(LINE, LINE_OUTPUTS, incremental=True, seed=seed)
    for uid in (1, 2, 3):
        run.admit(uid)
        run.some(12)
        run.stages[run.random.choice(tuple(run.stages))].fail_next = uid < 3
    return run.finish()


def cancelled(seed: int) -> TraceOfPlan:
    run = SimulatedRun(LINE, LINE_OUTPUTS, incremental=True, seed=seed)
    for uid in (1, 2, 3):
        run.admit(uid)
        run.some(20)
    run.cancel(run.random.choice((1, 2, 3)))
    run.some(20)
    run.cancel(1)
    return run.finish()


def expired(seed: int) -> TraceOfPlan:
    run = SimulatedRun(LINE, LINE_OUTPUTS, incremental=True, seed=seed)
    run.admit(1, timeout_s=1e-6)
    run.admit(2)
    run.some(15)
    run.now += 2000
    run.orchestrator.expire()
    run.deliver()
    return run.finish()


def killed(seed: int) -> TraceOfPlan:
    run = SimulatedRun(LINE, LINE_OUTPUTS, incremental=True, seed=seed, replicas=2)
    for uid in (1, 2, 3, 4):
        run.admit(uid)
        run.some(20)
    run.kill(run.random.choice(tuple(run.stages)))
    return run.finish()


def restarted(seed: int) -> TraceOfPlan:
    """One replica while another one of its stage goes on, then the only one of a stage; both start again. Of two, each
    is full."""
    more = {"restarts": 2, "retry": 1, "max_batch": 1, "max_queue": 1 if seed % 2 else 3}
    run = SimulatedRun(LINE, LINE_OUTPUTS, incremental=True, seed=seed, replicas=1 + seed % 2, **more)
    for uid in (1, 2, 3, 4):
        run.admit(uid)
        run.some(20)
        if uid > 2:
            run.kill(run.random.choice(tuple(run.stages)))
    run.run()
    for uid in (5, 6):
        run.admit(uid)
    return run.finish()


def dag(seed: int) -> TraceOfPlan:
    run = SimulatedRun(DIAMOND, DIAMOND_OUTPUTS, incremental=True, seed=seed)
    for uid in (1, 2, 3):
        run.admit(uid, outputs=("text", "left", "sum") if uid != 2 else ("sum",))
        run.some(15)
    return run.finish()


SCENARIOS: dict[str, Callable[[int], TraceOfPlan]] = {
    f.__name__: f for f in (finished, whole_payloads, failed, cancelled, expired, killed, restarted, dag)
}
