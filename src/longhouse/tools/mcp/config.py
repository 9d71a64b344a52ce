"""Configuration of MCP servers: reads the file, fills in environment variables, collects secrets for redaction."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

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


class ServerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the file: a process that we start (`command`), or a server over streamable HTTP (`url`)."""

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
    """Timeout of a tool call in seconds."""

    def __repr__(self) -> str:
        return "ServerEntry()"  # its values may be secrets


class _McpFile(msgspec.Struct, frozen=True):
    mcpServers: dict[str, dict[str, Any]]  # noqa: N815 - the name that all MCP clients use


@dataclass(frozen=True, slots=True)
class McpServerConfig:
    name: str
    entry: ServerEntry = field(repr=False)
    """Never printed: it may hold secrets."""
    secrets: Redaction = field(default_factory=Redaction)


def read_servers(path: Path | None, environ: Mapping[str, str] = os.environ) -> tuple[McpServerConfig, ...]:
    """The servers of a file `{"mcpServers": {name: {command, args, env} | {url, headers}}}`; none without a file."""
    if path is None:
        return ()
    try:
        entries = msgspec.json.decode(path.read_bytes(), type=_McpFile).mcpServers
    except OSError as error:
        raise SetupError(f"the MCP configuration {path} cannot be read: {error.strerror}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SetupError(f"the MCP configuration {path} cannot be read: {error}.") from None
    return tuple(read_server(name, entry, environ) for name, entry in entries.items())


def read_server(name: str, raw: dict[str, Any], environ: Mapping[str, str] = os.environ) -> McpServerConfig:
    """Parses one server entry."""
    where = f"the MCP server {name!r}"
    if not _NAME.fullmatch(name) or name in RESERVED:
        raise SetupError(f"{where} needs another name: letters, digits, _ and -, at most 64, and not 'agent'.")
    secrets: list[str] = []
    try:
        entry = msgspec.convert(_filled(raw, environ, where, secrets), ServerEntry)
    except msgspec.ValidationError as error:  # the message names fields and types, never values
        raise SetupError(f"{where} cannot be read: {error}.") from None
    if (entry.command is None) == (entry.url is None):
        raise SetupError(f"{where} needs either a command or a url.")
    if entry.timeout <= 0:
        raise SetupError(f"{where}: the timeout must be more than 0 seconds.")
    if entry.url is not None:
        _check_url(entry.url, where)
        if "sse" in (entry.type, entry.transport):
            raise SetupError(f"{where}: the old SSE transport is not supported; use its streamable HTTP address.")
        # Some servers take their API key only in the query; it is redacted like those in headers.
        secrets += [value for _, value in keys_in(entry.url)]
    # Fields without effect are dropped: entries that mean the same server are equal.
    used = ("command", "args", "env", "cwd") if entry.url is None else ("url", "headers")
    secrets += entry.headers.values()
    entry = ServerEntry(timeout=entry.timeout, **{field: getattr(entry, field) for field in used})
    return McpServerConfig(name, entry, redaction_of(secrets))


def _check_url(url: str, where: str) -> None:
    if not url.startswith(("http://", "https://")):
        raise SetupError(f"{where}: the url must begin with http:// or https://.")
    try:
        parsed = URL(url)
    except ValueError:
        parsed = URL()
    if not parsed.host:
        raise SetupError(f"{where}: the url is not an address that can be called.")
    if refused := ANYWHERE.refusal_of(parsed):
        raise SetupError(f"{where} cannot be reached: {refused}.")


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
