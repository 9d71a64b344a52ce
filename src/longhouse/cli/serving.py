"""`longhouse serve` and `longhouse work`: the processes that stay."""

import asyncio
import gc
import ipaddress
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
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

import structlog
import typer
import uvicorn
from starlette.types import ASGIApp

import longhouse
from longhouse import background
from longhouse.api import monitoring
from longhouse.api.auth import LEAST_KEY, is_easy
from longhouse.api.http_protocol import BACKLOG, config_of, raise_file_limit
from longhouse.app import App, open_app
from longhouse.app.store import open_store
from longhouse.cli import environment
from longhouse.cli.running import AgentsFile, ConfigFile, Host, Port, add_commands, given, run
from longhouse.errors import SetupError
from longhouse.settings import Settings
from longhouse.store.keys import is_any_valid
from longhouse.store.postgres import holds_data

DEMO: Final = "no model is set: the built-in demo model answers (set LONGHOUSE_LLM_BASE_URL, _API_KEY, _MODEL)"
OPEN: Final = "no API key is set: whoever reaches this port may do everything (set LONGHOUSE_ADMIN_KEY)"
COLLECT_AFTER: Final = (10_000, 20, 50)
"""Collections of cyclic garbage are rarer than Python's own: nearly all that a request makes ends without them."""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
WatchPort = Annotated[
    int | None, typer.Option("--port", help="Port for /health, /ready and /metrics; none by default.", min=0, max=65535)
]

cli = typer.Typer()


@cli.command()
def serve(
    host: Host = None,
    port: Port = None,
    config_file: ConfigFile = None,
    agents_file: AgentsFile = None,
    works: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Work on sessions too, or leave that to `longhouse work`.")
    ] = True,
) -> None:
    """Serve the API and work on sessions, with an embedded Postgres unless LONGHOUSE_DATABASE_URL is set."""
    settings = Settings(**given(host=host, port=port, config_file=config_file, agents_file=agents_file))
    run(settings, partial(serve_house, open_house=partial(open_app, works=works)))


async def serve_house(
    settings: Settings, *, open_house: Callable[[Settings], AbstractAsyncContextManager[App]]
) -> None:
    """Serves a house until a signal comes."""
    environment.report()
    refuse_easy_key(settings.host, settings.admin_key.get_secret_value().strip())
    await _refuse_missing_key(settings)
    raise_file_limit()
    with _listening(settings.host, settings.port) as listener:
        async with open_house(settings) as app:
            served = _Server(config_of(app.asgi, trusts=settings.trusted_proxies, timeout_graceful_shutdown=3))
            _on_end(served.leave)
            is_open = await app.authenticator.is_open()
            if is_open and not is_local(settings.host):
                raise missing_key(settings.host)  # the last key was revoked since the check
            freeze_objects()
            address, port = listener.getsockname()[:2]
            typer.echo(f"longhouse {longhouse.__version__} serves on http://{address}:{port}")
            if is_open:
                structlog.get_logger().warning("no_api_key_set", message=OPEN)
            if app.is_demo:
                typer.echo(DEMO)
            await _until_end(app, served.serve(sockets=[listener]))


async def work(settings: Settings, host: Host = None, port: WatchPort = None) -> None:
    """Work on sessions without serving the API."""
    environment.report()
    settings = settings.model_copy(update=given(host=host, port=port))
    if port is not None:
        await _refuse_missing_key(settings)
    with _listening(settings.host, settings.port) if port is not None else nullcontext() as listener:
        # Outside of the app: whoever watches is answered until the worker has drained.
        async with AsyncExitStack() as watching, open_app(settings) as app:
            ended = asyncio.Event()
            _on_end(ended.set)
            freeze_objects()
            typer.echo(f"longhouse {longhouse.__version__}, worker ready: {app.worker.id}")
            if listener is not None:
                address, chosen = listener.getsockname()[:2]
                typer.echo(f"its state is served on http://{address}:{chosen}")
                asgi = monitoring.only_monitoring(app.asgi, ended.is_set)
                await watching.enter_async_context(_watched(asgi, listener))
            await _until_end(app, ended.wait())


@asynccontextmanager
async def _watched(asgi: ASGIApp, listener: socket.socket) -> AsyncIterator[None]:
    served = _Server(config_of(asgi, timeout_graceful_shutdown=1))
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


async def _until_end(app: App, work: Coroutine[Any, Any, object]) -> None:
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
        raise SetupError("the Postgres of this data folder has ended; start the process that owns it again.")
    leaving.cancel()
    await working


class _Server(uvicorn.Server):
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


def _on_end(leave: Callable[[], None]) -> None:
    """SIGTERM and SIGINT start a graceful shutdown; a second one of either ends the process at once."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        leave()
        for name in SIGNALS:
            loop.remove_signal_handler(name)

    for name in SIGNALS:
        loop.add_signal_handler(name, on_signal)


def refuse_easy_key(host: str, key: str) -> None:
    """Refuses a guessable admin key on an address that others can reach."""
    if key and is_easy(key) and not is_local(host):
        raise SetupError(
            f"LONGHOUSE_ADMIN_KEY is easy to guess, and {host} can be reached by others: "
            f"choose {LEAST_KEY} random characters or more, none of them well known."
        )


async def _refuse_missing_key(settings: Settings) -> None:
    """Refuses to bind a public address without keys: anyone who reaches the port would own everything."""
    if is_local(settings.host) or settings.admin_key.get_secret_value().strip():
        return
    # An embedded Postgres that does not exist yet holds no key, and is not created to find that out.
    has_store = settings.database_url or holds_data(settings.data_dir)
    if has_store:
        async with open_store(settings, create=False) as (db, _):
            if await is_any_valid(db):
                return
    raise missing_key(settings.host)


def missing_key(host: str) -> SetupError:
    return SetupError(
        f"{host} is not a loopback address, and no API key is set: set LONGHOUSE_ADMIN_KEY, "
        f"make a key with `longhouse keys create`, or serve on 127.0.0.1."
    )


def is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise SetupError(
                f"port {port} on {host} cannot be used ({error.strerror}); choose another with --port."
            ) from error
        listener.listen(BACKLOG)
        listener.setblocking(False)
        yield listener


add_commands(cli, {"work": work})
