"""One server, from its plan to its end: the port, the stages, the engine, uvicorn, and the drain at a signal."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import uvicorn

from omni_cli.artifacts.run_folder import RunFolder
from omni_cli.config.files import shown
from omni_cli.config.load import load_config
from omni_cli.config.schema import ServeConfig
from omni_cli.console import logging_to
from omni_cli.deployment import Deployment, deployed
from omni_cli.errors import PlanError, reason
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import visible_devices
from omni_cli.runtime.engine import OmniEngine
from omni_cli.runtime.events import Listener
from omni_cli.server.admission import Admission
from omni_cli.server.app import create_app
from omni_cli.server.metrics import Metrics
from omni_cli.server.service import Service
from omni_cli.server.starting import ACCEPT_AGAIN_S, HAS_TO_WAIT, NO_DESCRIPTOR, Starting
from omni_cli.server.timelines import Timelines
from omni_cli.trace.summary import type_of
from omni_cli.trace.why import LastHeard

log = logging.getLogger("omni.server")

_LAST_WORDS_S = 2.0  # for telling clients that the server ends

SERVED = ("text", "audio", "image")

KEYS_VARIABLE = "OMNI_API_KEYS"


def serve_once(words: Sequence[str], *, quiet: bool) -> int:
    """Serves until a signal; returns its exit code, or 1 if the server itself ended. Raises OmniError for a refusal."""
    with Interrupts() as interrupts:
        loaded = load_config(words)
        plan = build_plan(loaded, visible_devices())
        if not any(type_of(output) in SERVED for output in plan.outputs):
            gives = f"pipeline {plan.pipeline} gives {', '.join(plan.outputs)}"
            raise PlanError(
                f"{gives}, for which the server has no route; `omni run recipe={plan.recipe}` makes files of it"
            )
        serve = loaded.config.serve
        listening = _bind(serve)
        started_at = datetime.now().astimezone()
        folder = RunFolder.create(recipe=f"serve/{loaded.recipe}", started_at=started_at)
        with listening, logging_to(folder.path / "run.log", quiet=quiet), contextlib.ExitStack() as held:
            folder.keep_plan(plan.document())
            log.info("files: %s", shown(folder.path))
            places = serve.max_concurrency or 2 * max(stage.max_batch * len(stage.replicas) for stage in plan.entries)
            metrics, heard = Metrics(), LastHeard()
            timelines = Timelines(entries=frozenset(stage.name for stage in plan.entries))
            service = partial(
                Service,
                name=serve.model_name or plan.recipe,
                loaded=loaded,
                plan=plan,
                admission=Admission(places, serve.max_queue),
                metrics=metrics,
                timelines=timelines,
                heard=heard,
                max_buffered_bytes=serve.max_buffered_bytes,
            )
            listeners: list[Listener] = [metrics, timelines]
            stages = deployed(
                plan,
                interrupts,
                *(listeners if not serve.debug_requests else [*listeners, heard]),
                trace=folder.trace if loaded.config.trace.enabled else None,
                started_at=started_at,
                media_bytes=serve.media_ring_bytes if plan.media else 0,
            )
            with Starting(listening):
                deployment = held.enter_context(stages)
            asyncio.run(_serve(service, serve, deployment, listening, interrupts))
    return interrupts.exit_code or 1


def _bind(serve: ServeConfig) -> socket.socket:
    """The public port, taken before anything is loaded. Raises PlanError if it cannot be had."""
    family = socket.AF_INET6 if ":" in serve.host else socket.AF_INET
    # asyncio sends small pieces at once only on a socket that says that it is TCP; else each event waits for an ACK.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((serve.host, serve.port))
        # Bound alone, two servers could share the port, and the second would find out only after loading.
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise PlanError(f"serve.port: {serve.host}:{serve.port} cannot be listened on: {error.strerror}") from error
    return listening


async def _serve(
    make_service: Callable[..., Service],
    serve: ServeConfig,
    deployment: Deployment,
    listening: socket.socket,
    interrupts: Interrupts,
) -> None:
    async with OmniEngine(deployment.plan, deployment.running, listener=deployment.listener) as engine:
        service = make_service(engine=engine)
        server = _Server(uvicorn.Config(
            create_app(service, serve, (*serve.api_keys, *_keys_of_environment())),
            log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=2, server_header=False,
            ws_max_size=serve.max_body_bytes, ws_per_message_deflate=False,
        ))  # fmt: skip
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_Doorkeeper(listening))
        stopping = asyncio.Event()
        host, port = listening.getsockname()[:2]
        log.info("serving %s on http://%s:%d", service.name, f"[{host}]" if ":" in host else host, port)
        with interrupts.handled_by(lambda: loop.call_soon_threadsafe(stopping.set)):
            serving = asyncio.ensure_future(server.serve(sockets=[listening]))
            stop = asyncio.ensure_future(stopping.wait())
            await asyncio.wait((serving, stop), return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            await _drain(service, serve.drain_timeout_s)
            server.should_exit = True
            await serving


async def _drain(service: Service, limit_s: float) -> None:
    """Nobody new is let in; who is in may go on for a while."""
    service.admission.drain()
    try:
        await asyncio.wait_for(service.admission.idle(), limit_s)
    except TimeoutError:
        log.warning("%d requests were still running after serve.drain_timeout_s=%g and are cancelled",
                    service.admission.running, limit_s)  # fmt: skip
        service.end_all("the server is shutting down")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(service.admission.idle(), _LAST_WORDS_S)


def _keys_of_environment() -> tuple[str, ...]:
    return tuple(key.strip() for key in os.environ.get(KEYS_VARIABLE, "").split(",") if key.strip())


class _Doorkeeper:
    """Handles what the loop meets by itself. Connections for which there is no descriptor wait in the system's queue,
    as asyncio tries again every second; in one turn it fails as often as they may be many, and is told here each time.
    So often it tries again as well, be the socket closed meanwhile.
    """

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._next_s = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in NO_DESCRIPTOR):
            if not (self._next_s and isinstance(error, ValueError) and self._listening.fileno() < 0):
                loop.default_exception_handler(context)
        elif loop.time() >= self._next_s:
            self._next_s = loop.time() + ACCEPT_AGAIN_S
            log.warning(HAS_TO_WAIT, reason(error))


class _Server(uvicorn.Server):
    """uvicorn without signal handlers of its own: the command has them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
