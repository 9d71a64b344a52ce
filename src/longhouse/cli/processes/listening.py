"""What comes before serving: the settings are looked at, and the port is taken; and what is said once it serves."""

import http.client
import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog
import typer

import longhouse
from longhouse.api.easy_keys import LEAST_KEY, is_easy
from longhouse.cli import environment
from longhouse.cli.house import open_ready
from longhouse.errors import SetupError
from longhouse.settings import Settings
from longhouse.store.access.keys import is_any_valid
from longhouse.store.postgres import holds_data

DEMO: Final = "no model is set: the built-in demo model answers (set LONGHOUSE_LLM_BASE_URL, _API_KEY, _MODEL)"
OPEN: Final = "no API key is set: whoever reaches this port may do everything (set LONGHOUSE_ADMIN_KEY)"


async def check_start(settings: Settings) -> None:
    """Reports variables that set nothing, and refuses an address that others reach without a key."""
    environment.report()
    refuse_easy_key(settings.host, settings.admin_key.get_secret_value().strip())
    await refuse_missing_key(settings)


def greet(listener: socket.socket, *, is_open: bool, is_demo: bool) -> None:
    typer.echo(f"longhouse {longhouse.__version__} serves on {url_of(listener)}")
    if is_open:
        structlog.get_logger().warning("no_api_key_set", message=OPEN)
    if is_demo:
        typer.echo(DEMO)


def url_of(listener: socket.socket) -> str:
    address, port = listener.getsockname()[:2]
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def refuse_easy_key(host: str, key: str) -> None:
    """Refuses a guessable admin key on an address that others can reach."""
    if key and is_easy(key) and not is_local(host):
        raise SetupError(
            f"LONGHOUSE_ADMIN_KEY is easy to guess, and {host} can be reached by others: "
            f"choose {LEAST_KEY} random characters or more, none of them well known."
        )


async def refuse_missing_key(settings: Settings) -> None:
    """Refuses to bind a public address without keys: anyone who reaches the port would own everything."""
    if is_local(settings.host) or settings.admin_key.get_secret_value().strip():
        return
    # An embedded Postgres that does not exist yet holds no key, and is not created to find that out.
    if settings.database_url or holds_data(settings.data_dir):
        async with open_ready(settings) as (db, _):
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


def _holder(host: str, port: int) -> str:
    """Who has the port, if it is a Longhouse."""
    connection = http.client.HTTPConnection(host, port, timeout=1)
    try:
        connection.request("GET", "/health")
        is_ours = b"Longhouse" in connection.getresponse().read(1000)
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()
    return "a Longhouse serves there: stop it, or use it" if is_ours else ""


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise SetupError(
                f"port {port} on {host} cannot be used ({_holder(host, port) or error.strerror}); "
                "choose another with --port."
            ) from error
        listener.listen()  # so that a second server is refused; whoever accepts says how many may wait
        listener.setblocking(False)
        yield listener
