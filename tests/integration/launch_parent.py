"""A parent to be killed and signalled: starts the fake stages and waits. Run as a module: MODE RUN_ID.

Tells on stdout, a line each: `pid N` per stage, `ready`, `stopping`, `dead CAUSE` per stage.
"""

import contextlib
import signal
import sys

from omni_cli.launch import signals
from omni_cli.launch.launcher import LocalLauncher
from omni_cli.launch.signals import Interrupts
from omni_cli.runtime.events import Event, ProcessDead, ProcessStarted
from tests.integration.launch_fakes import Behaviour, fake_specs, run_fake
from tests.integration.launch_plans import fake_plan

BEHAVIOURS = {
    "hold": {},
    "loading": {"code2wav": Behaviour(load="hang")},
    "stubborn": {"talker": Behaviour(stop="ignore terminate")},
    "hanging": {"talker": Behaviour(stop="ignore terminate")},
}


def say(line: str) -> None:
    print(line, flush=True)


def tell(source: str, event: Event) -> None:
    if isinstance(event, ProcessStarted):
        say(f"pid {event.pid}")
    elif isinstance(event, ProcessDead):
        say(f"dead {event.cause}")


def main(mode: str, run_id: str) -> None:
    signals.FORCED_END_S = 0.2
    for number in signals.SIGNALS:  # a job in the background or under nohup has some of them ignored
        signal.signal(number, signal.SIG_DFL)
    with Interrupts() as interrupts:
        launcher = LocalLauncher(
            fake_plan(drain_timeout_s=60), fake_specs(run_id, BEHAVIOURS[mode]), listener=tell, run_stage=run_fake
        )
        with contextlib.ExitStack() as stack:
            running = stack.enter_context(launcher.start())
            interrupts.register(running)
            stack.callback(say, "stopping")
            if mode == "hanging":
                stack.enter_context(interrupts.handled_by(lambda: say("stopping")))
            say("ready")
            while True:
                signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
