"""Keys that this process was given, by name. Names may be published; what they stand for leaves only on its way out.

A key of a file goes to the address that it stands beside. `LONGHOUSE_SECRET_<NAME>` goes wherever it is named, unless
`LONGHOUSE_SECRET_<NAME>_HOSTS` says where it may go.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from yarl import URL

from longhouse.egress import plain_host
from longhouse.errors import SetupError

PREFIX: Final = "LONGHOUSE_SECRET_"
HOSTS: Final = "_HOSTS"
OF_FILES: Final = (f"{PREFIX}CONFIG_", f"{PREFIX}AGENTS_")
"""Names of keys that stand in files: a process without the file is told where each may go."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_KEYS: Final = frozenset({
    "apikey", "auth", "authorization", "bearer", "credential", "credentials", "jwt", "key", "passwd", "password", "pwd",
    "secret", "sig", "signature", "token",
})  # fmt: skip
"""What the names of keys end with, in the queries that people copy from a service's page."""
_LONG_CODE: Final = 20
"""Characters: a `code` that long is a key, as Azure's functions have it."""
_KEY: Final = re.compile(r"(sk|pk|rk)[-_]|lh_|tvly-|gsk_|gh[pousr]_|github_pat_|xai-|xox[a-z]-|hf_|AIza|AKIA|eyJ")
"""How keys begin that people paste where something else belongs."""
_HOST: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:/@\[\]]+))(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Bound:
    """A key, and the address that it stands beside."""

    value: str = field(repr=False)
    base_url: str

    def reaches(self, url: str) -> bool:
        """Is this the same place, or one beneath it?"""
        here, there = URL(self.base_url), URL(url)
        if _origin(here) != _origin(there):
            return False
        inner, outer = _steps(there), _steps(here)
        return ".." not in inner and inner[: len(outer)] == outer


class Secrets:
    """Looks in what files brought, then in `LONGHOUSE_SECRET_<NAME>`: no other variable can be named."""

    def __init__(self, given: Mapping[str, Bound] | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self._given = {variable(name): bound for name, bound in (given or {}).items()}
        self._environ = environ

    def __repr__(self) -> str:
        return f"Secrets({sorted(self._given)})"

    def find(self, name: str, to: str) -> str | None:
        """The secret for a call to this address; None where it is not set here, SetupError where it is not for it."""
        value, is_meant = self._looked_up(name, to)
        if value is not None and not is_meant:
            raise SetupError(f"{elsewhere(name)}.")
        return value

    def problem(self, name: str, to: str) -> str | None:
        """Why this secret cannot be sent to this address, in words."""
        try:
            value, is_meant = self._looked_up(name, to)
        except SetupError as error:
            return str(error).rstrip(".")
        if value is None:
            return f"the secret {name!r} is not set here; give it to this process as {variable(name)}"
        return None if is_meant else elsewhere(name)

    def _looked_up(self, name: str, to: str) -> tuple[str | None, bool]:
        """The value, and whether it is meant for this address."""
        key = variable(name)
        if bound := self._given.get(key):
            return bound.value, bound.reaches(to)
        if self._is_list(key):
            return None, False
        value, hosts = self._environ.get(key) or None, self._environ.get(key + HOSTS, "")
        listed = [entry for entry in hosts.split(",") if entry.strip()]
        is_free = not listed and not key.startswith(OF_FILES)
        return value, is_free or any(_covers(entry, key, to) for entry in listed)

    def _is_list(self, key: str) -> bool:
        """Is this the list of hosts of another secret, and none itself?"""
        return key.endswith(HOSTS) and key.removesuffix(HOSTS) in self._environ


def variable(name: str) -> str:
    """The variable of the environment that a secret of this name comes from."""
    return PREFIX + re.sub(r"[^A-Z0-9]", "_", name.upper())


def elsewhere(name: str) -> str:
    """What is said of a secret that is not sent to an address; not where it belongs, which is nobody's business."""
    return f"the secret {name!r} belongs to another address, and is not sent to this one"


READS_ALONG: Final = "a proxy reads a key that is sent to an http address; give the model an https address"


def unsealed(base_url: str) -> bool:
    """Does whoever passes a request on to this address read it?"""
    return URL(base_url).scheme == "http"


def is_like_a_key(text: str) -> bool:
    """Does this begin as the keys of well-known services do?"""
    return _KEY.match(text) is not None


def keys_in(url: str) -> list[tuple[str, str]]:
    """What of an address's query looks like a key: names and values."""
    # Some servers part a query at semicolons too.
    said = URL(url).raw_query_string.replace(";", "&")
    parts = URL.build(query_string=said, encoded=True).query.items()
    return [(name, value) for name, value in parts if _is_key(name, value)]


def _is_key(name: str, value: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    last = words[-1] if words else ""
    return bool(value) and (last in _KEYS or is_like_a_key(value) or (last == "code" and len(value) >= _LONG_CODE))


def _covers(entry: str, key: str, to: str) -> bool:
    found, url = _HOST.fullmatch(entry.strip()), URL(to)
    if found is None:
        raise SetupError(f"{key}{HOSTS} is a list of hosts, host or host:port, with commas between them.")
    host = plain_host(found["v6"] or found["host"])
    return host == plain_host(url.raw_host) and found["port"] in (None, str(url.port))


def _origin(url: URL) -> tuple[str, str, int | None]:
    return url.scheme, plain_host(url.raw_host), url.port


def _steps(url: URL) -> list[str]:
    return [part for part in url.path.split("/") if part]
