"""Secrets (API keys) that this process was given, by name. Names may be published; values leave only in requests.

A key from a file is sent only to the URL that is configured next to it. `LONGHOUSE_SECRET_<NAME>` is sent wherever it
is named, unless `LONGHOUSE_SECRET_<NAME>_HOSTS` limits its hosts; then it is
sent encrypted, or to this machine, or to an entry that says `http://` or `grpc://`.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from yarl import URL

from longhouse.egress import is_loopback, plain_host
from longhouse.errors import SetupError

PREFIX: Final = "LONGHOUSE_SECRET_"
HOSTS: Final = "_HOSTS"
UNENCRYPTED: Final = ("http", "grpc")
OF_FILES: Final = (f"{PREFIX}CONFIG_", f"{PREFIX}AGENTS_")
"""Prefixes of keys from files: in a process without the file, each needs a list of hosts."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_KEYS: Final = frozenset({
    "apikey", "auth", "authorization", "bearer", "credential", "credentials", "jwt", "key", "passwd", "password", "pwd",
    "secret", "sig", "signature", "token",
})  # fmt: skip
"""Last words of the names of key parameters in URL queries."""
_LONG_CODE: Final = 20
"""Characters: a `code` parameter of this length is a key, as in Azure Functions."""
_KEY: Final = re.compile(
    r"(sk|pk|rk)[-_]|lh_|whsec_|tvly-|gsk_|gh[pousr]_|github_pat_|xai-|xox[a-z]-|hf_|AIza|AKIA|eyJ"
)
"""Prefixes of the API keys of well-known services, to detect a key that was pasted into the wrong field."""
_HOST: Final = re.compile(
    r"(?P<open>http://|grpc://)?(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:/@\[\]]+))(?::(?P<port>[0-9]{1,5}))?"
)


@dataclass(frozen=True, slots=True)
class BoundSecret:
    """A key, and the URL that is configured next to it."""

    value: str = field(repr=False)
    base_url: str

    def reaches(self, url: str) -> bool:
        """Whether the URL is the base URL or below it."""
        (origin, base), (other, path) = _split(self.base_url), _split(url)
        return origin == other and ".." not in path and path[: len(base)] == base


class Secrets:
    """Looks up secrets in the files' keys, then in `LONGHOUSE_SECRET_<NAME>`; no other variable can be named."""

    def __init__(self, given: Mapping[str, BoundSecret] | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self._given = {variable(name): bound for name, bound in (given or {}).items()}
        self._environ = environ

    def find(self, name: str, to: str) -> str | None:
        """The secret for a call to this URL; None where it is not set, SetupError where it belongs to another URL."""
        key, listed = variable(name), list[str]()
        if bound := self._given.get(key):
            value, is_meant = bound.value, bound.reaches(to)
        elif key.endswith(HOSTS) and key.removesuffix(HOSTS) in self._environ:
            return None  # the list of hosts of another secret
        else:
            value = self._environ.get(key, "")
            listed = [entry for entry in self._environ.get(key + HOSTS, "").split(",") if entry.strip()]
            is_free = not listed and not key.startswith(OF_FILES)
            is_meant = is_free or any(_covers(entry, key, to) for entry in listed)
        if value and not is_meant:
            is_open = bool(listed) and URL(to).scheme in UNENCRYPTED
            unless = ", unless its list of hosts says http:// or grpc:// before the host" if is_open else ""
            raise SetupError(f"{other_address_message(name)}{unless}.")
        return value or None

    def problem(self, name: str, to: str) -> str | None:
        """Why this secret cannot be sent to this URL, as a sentence."""
        try:
            is_set = self.find(name, to) is not None
        except SetupError as error:
            return str(error).rstrip(".")
        return None if is_set else f"the secret {name!r} is not set here; give it to this process as {variable(name)}"


def variable(name: str) -> str:
    return PREFIX + re.sub(r"[^A-Z0-9]", "_", name.upper())


def other_address_message(name: str) -> str:
    """The message for a secret that belongs to another URL; it does not reveal which one."""
    return f"the secret {name!r} belongs to another address and is not sent to this one"


PROXY_READS_KEY: Final = "a proxy can read a key that is sent to an http address; use an https address for the model"


def is_unencrypted(base_url: str) -> bool:
    """Whether requests to this URL are unencrypted, so that a proxy can read them."""
    return URL(base_url).scheme == "http"


def is_like_a_key(text: str) -> bool:
    """Whether the text starts like an API key of a well-known service."""
    return _KEY.match(text) is not None


def keys_in(url: str) -> list[tuple[str, str]]:
    """The query parameters of a URL that look like keys: names and values."""
    # Some servers also split a query at semicolons.
    query = URL(url).raw_query_string.replace(";", "&")
    parts = URL.build(query_string=query, encoded=True).query.items()
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
    is_safe = url.scheme not in UNENCRYPTED or found["open"] or is_loopback(host)
    return bool(is_safe) and host == plain_host(url.raw_host) and found["port"] in (None, str(url.port))


def _split(text: str) -> tuple[tuple[str, str, int | None], list[str]]:
    """The origin of a URL and the parts of its path."""
    url = URL(text)
    return (url.scheme, plain_host(url.raw_host), url.port), [part for part in url.path.split("/") if part]
