"""`longhouse serve` and `longhouse work`: the processes that stay."""

import asyncio
import gc
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from functools import partial
from typing import Annotated, Any, Final

import typer
import uvicorn
from starlette.types import ASGIApp

import longhouse
from longhouse import background
from longhouse.api.http_protocol import config_of, raise_file_limit
from longhouse.api.watching import monitoring
from longhouse.app import App, open_app
from longhouse.cli import environment
from longhouse.cli.house import POSTGRES_ENDED
from longhouse.cli.processes.listening import (
    check_start,
    greet,
    is_local,
    listening,
    missing_key,
    refuse_missing_key,
    url_of,
)
from longhouse.cli.running import Host, Main, given, group
from longhouse.errors import SetupError
from longhouse.settings import Settings
from longhouse.store.postgres.embedded import Embedded

COLLECT_AFTER: Final = (3_000, 3, 200)
"""Collections of cyclic garbage, by new objects: full ones are rarer than Python's own, since nearly all that a request
makes ends without them; the others are small, since each holds the event loop for a microsecond an object."""
Opening = Callable[[Settings], AbstractAsyncContextManager[App]]
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
WatchPort = Annotated[
    int | None, typer.Option("--port", help="Port for /health, /ready and /metrics; none by default.", min=0, max=65535)
]


def serving(*, works: bool, embedded: Embedded | None) -> Main:
    """What `longhouse serve` runs; `embedded`: is open already."""
    return partial(serve_house, open_house=partial(open_app, works=works, embedded=embedded))


async def serve_house(settings: Settings, *, open_house: Opening) -> None:
    """Serves a house until a signal comes."""
    await check_start(settings)
    with listening(settings.host, settings.port) as listener:
        async with serving_app(settings, open_house) as (app, served, is_open):
            greet(listener, is_open=is_open, is_demo=app.is_demo)
            await until_end(app, served.serve(sockets=[listener]))


@asynccontextmanager
async def serving_app(
    settings: Settings,
    open_house: Opening,
    *,
    in_front: Callable[[App], ASGIApp] = lambda app: app.asgi,
    others: Iterable[socket.socket] = (),
) -> AsyncIterator[tuple[App, "ApiServer", bool]]:
    """An open house, the server in front of it, and whether it is open to everybody."""
    raise_file_limit()
    async with open_house(settings) as app:
        served = ApiServer(config_of(in_front(app), trusts=settings.trusted_proxies, timeout_graceful_shutdown=3))
        _on_end(partial(_leave, served, others))
        is_open = await app.authenticator.is_open()
        if is_open and not is_local(settings.host):
            raise missing_key(settings.host)  # the last key was revoked since the check
        freeze_objects()
        yield app, served, is_open


async def work(settings: Settings, host: Host = None, port: WatchPort = None) -> None:
    """Work on sessions without serving the API."""
    environment.report()
    settings = settings.model_copy(update=given(host=host, port=port))
    if port is not None:
        await refuse_missing_key(settings)
    with listening(settings.host, settings.port) if port is not None else nullcontext() as listener:
        # Outside of the app: whoever watches is answered until the worker has drained.
        async with AsyncExitStack() as watching, open_app(settings) as app:
            ended = asyncio.Event()
            _on_end(ended.set)
            freeze_objects()
            typer.echo(f"longhouse {longhouse.__version__}, worker ready: {app.worker.id}")
            if listener is not None:
                typer.echo(f"its state is served on {url_of(listener)}")
                asgi = monitoring.only_monitoring(app.asgi, ended.is_set)
                await watching.enter_async_context(_watched(asgi, listener))
            await until_end(app, ended.wait())


@asynccontextmanager
async def _watched(asgi: ASGIApp, listener: socket.socket) -> AsyncIterator[None]:
    served = ApiServer(config_of(asgi, timeout_graceful_shutdown=1))
    serving = asyncio.create_task(background.guarded("watching", served.serve(sockets=[listener])))
    try:
        yield
    finally:
        served.leave()
        await serving


def freeze_objects() -> None:
    """Freezes the objects of start-up: they live until exit, and a full collection over them would delay the wake-up of
    a long session by 50 ms."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


async def until_end(app: App, work: Coroutine[Any, Any, object]) -> None:
    """Waits until the work ends; if Postgres exits first, stops with an error of one sentence."""
    working = asyncio.create_task(work)
    if app.postgres is None:
        await working
        return
    leaving = asyncio.create_task(app.postgres.gone.wait())
    await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        raise SetupError(POSTGRES_ENDED)
    leaving.cancel()
    await working


def _leave(served: "ApiServer", others: Iterable[socket.socket]) -> None:
    served.leave()
    for one in others:
        one.close()


class ApiServer(uvicorn.Server):
    """A uvicorn server without signal handling, which belongs to the process.

    Uvicorn would raise captured signals again at its end, and SIGTERM would kill the process before the worker has
    released its leases. And it would look ten times a second whether it should leave.
    """

    _leaving: asyncio.Event | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def leave(self) -> None:
        self.should_exit = True
        if self._leaving:
            self._leaving.set()

    async def main_loop(self) -> None:
        """Until it leaves; once a second the date of its answers is another one."""
        self._leaving = asyncio.Event()
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(background.until_tick(1.0)):
                    await self._leaving.wait()

    async def take(self, connection: socket.socket) -> None:
        """Serves a connection that was accepted elsewhere."""
        protocol: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        of_this = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
        await asyncio.get_running_loop().connect_accepted_socket(partial(protocol, **of_this), connection)
        connection.detach()  # from now on the transport closes it, and nobody else


def _on_end(leave: Callable[[], None]) -> None:
    """SIGTERM and SIGINT start a graceful shutdown; a second one of either ends the process at once."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        leave()
        for name in SIGNALS:
            loop.remove_signal_handler(name)

    for name in SIGNALS:
        loop.add_signal_handler(name, on_signal)


cli = group({"work": work})
