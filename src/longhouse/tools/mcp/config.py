"""Configuration of MCP servers: reads the file, fills in environment variables, collects secrets for redaction."""

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
"""Reserved server names: prefixes of other tools."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class _ServerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One server entry of the file."""

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
    """A server process that we start, over standard input and output."""

    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class Http:
    """A remote server over streamable HTTP."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class McpServer:
    name: str
    reach: Stdio | Http
    secrets: Redaction = field(default_factory=Redaction)
    timeout: float = 60.0
    """Timeout of a tool call in seconds."""


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
    """Parses one server entry."""
    where = f"the MCP server {name!r}"
    if not _NAME.fullmatch(name) or name in RESERVED:
        raise SetupError(f"{where} needs another name: letters, digits, _ and -, at most 64, and not 'agent'.")
    used: list[str] = []
    entry = _converted(_filled(raw, environ, where, used), where)
    if (entry.command is None) == (entry.url is None):
        raise SetupError(f"{where} needs either a command or a url.")
    if entry.timeout <= 0:
        raise SetupError(f"{where}: the timeout must be more than 0 seconds.")
    # Some servers take their API key only in the query; it is redacted like those in headers.
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
    """Replaces `${NAME}` from the environment in every string of `value`; adds the values used to `used`."""
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
    except msgspec.ValidationError as error:  # the message names fields and types, never values
        raise SetupError(f"{where} cannot be read: {error}.") from None
