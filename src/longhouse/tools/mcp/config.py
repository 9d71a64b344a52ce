"""Which MCP servers there are: the file that names them, and what of it must never be shown."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from yarl import URL

from longhouse.egress import ANYWHERE
from longhouse.errors import SetupError
from longhouse.redaction import Redaction, redaction_of
from longhouse.secrets import keys_in

RESERVED: Final = frozenset({"agent"})
"""Names that begin other tools of ours."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class _ServerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One server as the file has it."""

    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    type: str | None = None
    transport: str | None = None
    description: str | None = None
    timeout: float = 60.0


class _File(msgspec.Struct, frozen=True):
    mcpServers: dict[str, dict[str, Any]]  # noqa: N815 - the name that all MCP clients use


@dataclass(frozen=True, slots=True)
class Stdio:
    """A server that we start: it reads its standard input and writes its standard output."""

    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class Http:
    """A server that runs elsewhere, over streamable HTTP."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class McpServer:
    name: str
    reach: Stdio | Http
    secrets: Redaction = field(default_factory=Redaction)
    timeout: float = 60.0
    """Seconds that a call of one of its tools may take."""


def read_servers(path: Path | None, environ: Mapping[str, str] = os.environ) -> tuple[McpServer, ...]:
    """The servers of a file `{"mcpServers": {name: {command, args, env} | {url, headers}}}`; none without a file."""
    if path is None:
        return ()
    try:
        text = path.read_bytes()
    except OSError as error:
        raise SetupError(f"the MCP configuration {path} cannot be read: {error.strerror}.") from None
    entries = _decoded(text, _File, f"the MCP configuration {path}").mcpServers
    return tuple(read_server(name, entry, environ) for name, entry in entries.items())


def read_server(name: str, raw: dict[str, Any], environ: Mapping[str, str] = os.environ) -> McpServer:
    """One server as files have it."""
    where = f"the MCP server {name!r}"
    if not _NAME.fullmatch(name) or name in RESERVED:
        raise SetupError(f"{where} needs another name: letters, digits, _ and -, at most 64, and not 'agent'.")
    used: list[str] = []
    entry = _converted(_filled(raw, environ, where, used), where)
    if (entry.command is None) == (entry.url is None):
        raise SetupError(f"{where} needs either a command or a url.")
    if entry.timeout <= 0:
        raise SetupError(f"{where}: the timeout must be more than 0 seconds.")
    # Some servers take their key in the query alone; it is hidden as those in headers are.
    asked = [value for _, value in keys_in(entry.url)] if entry.url and _is_address(entry.url) else []
    secrets = redaction_of([*used, *entry.headers.values(), *asked])
    if entry.url is None:
        assert entry.command is not None
        reach: Stdio | Http = Stdio(entry.command, tuple(entry.args), entry.env, entry.cwd)
    else:
        reach = Http(_checked(entry, where), entry.headers)
    return McpServer(name, reach, secrets, entry.timeout)


def _checked(entry: _ServerEntry, where: str) -> str:
    assert entry.url is not None
    if not entry.url.startswith(("http://", "https://")):
        raise SetupError(f"{where}: the url must begin with http:// or https://.")
    if not _is_address(entry.url):
        raise SetupError(f"{where}: the url is not an address that can be called.")
    if refused := ANYWHERE.refusal_of(URL(entry.url)):
        raise SetupError(f"{where} cannot be reached: {refused}.")
    if "sse" in (entry.type, entry.transport):
        raise SetupError(f"{where}: the old SSE transport is not spoken here; use its streamable HTTP address.")
    return entry.url


def _is_address(text: str) -> bool:
    try:
        return bool(URL(text).host)
    except ValueError:
        return False


def _filled(value: Any, environ: Mapping[str, str], where: str, used: list[str]) -> Any:
    """`value` with `${NAME}` replaced from the environment in every string; what was put in is added to `used`."""
    if isinstance(value, str):

        def put(match: re.Match[str]) -> str:
            if match[1] not in environ:
                raise SetupError(f"{where} needs the environment variable {match[1]}, which is not set.")
            used.append(environ[match[1]])
            return environ[match[1]]

        return _VARIABLE.sub(put, value)
    if isinstance(value, dict):
        return {key: _filled(item, environ, where, used) for key, item in value.items()}
    return [_filled(item, environ, where, used) for item in value] if isinstance(value, list) else value


_T = TypeVar("_T")


def _decoded(text: bytes, kind: type[_T], where: str) -> _T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SetupError(f"{where} cannot be read: {error}.") from None


def _converted(raw: Any, where: str) -> _ServerEntry:
    try:
        return msgspec.convert(raw, _ServerEntry)
    except msgspec.ValidationError as error:  # it names fields and types, never values
        raise SetupError(f"{where} cannot be read: {error}.") from None
