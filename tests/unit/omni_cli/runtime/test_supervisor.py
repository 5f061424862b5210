"""Nothing is started again once the run is ending."""

import asyncio
import threading
from types import SimpleNamespace

from omni_cli.runtime.replicas import Start
from omni_cli.runtime.supervisor import Supervisor


def test_a_life_that_is_due_while_the_run_closes_is_not_begun():
    renewed, go_on = [], threading.Event()

    def renew(process, generation):
        renewed.append(process)
        assert go_on.wait(10)

    def hear(*what):
        raise AssertionError(what)

    async def close():
        processes = SimpleNamespace(replicas=(), renew=renew)
        heard = {"on_receive": hear, "started": hear, "not_started": hear, "failed": hear}
        supervisor = Supervisor(processes, clock=lambda: 0, **heard)
        supervisor.carry_out([Start(process="talker.0", generation=1)])
        closing = asyncio.ensure_future(supervisor.close())
        await asyncio.sleep(0)
        supervisor.carry_out([Start(process="singer.0", generation=1)])
        go_on.set()
        await closing
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(close())
    assert renewed == ["talker.0"]
