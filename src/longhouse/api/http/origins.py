"""Checks of the Host and Origin headers against DNS rebinding and cross-site requests.

Without keys a request is accepted because it comes from this machine. A request that a local browser sends for a page
of another origin comes from this machine too; its headers, which no page can change, tell them apart. So they do where
a browser is signed in: it adds its cookie to requests by itself.
"""

import ipaddress
import re
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from longhouse.errors import CallerError
from longhouse.store.database import PASSING

LOCAL_HOST: Final = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?", re.IGNORECASE)
"""Without keys the server listens on loopback addresses only; another host name means DNS rebinding."""
ANY_HOST: Final = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\])(:\d{1,5})?")
"""With keys any valid host name is accepted."""
SAFE: Final = ("GET", "HEAD", "OPTIONS")
"""These methods change nothing, and a page of another origin cannot read the response: CORS headers are for those that
the settings name, which bring a key and no cookie."""
OURS: Final = ("same-origin", "none")
"""`Sec-Fetch-Site` of our own pages, and of an address that a user typed; another port of this machine is
`same-site`."""

EXPOSED: Final = (
    "x-request-id", "retry-after", "x-should-retry", "openai-processing-ms", "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests",
)  # fmt: skip
"""Headers that such a page may read."""
MISDIRECTED: Final = "This host name is not served here: without API keys, use a local name such as localhost."
FOREIGN: Final = (
    "A web page of another origin sent this request, which is refused while no API keys are set:"
    " set LONGHOUSE_ADMIN_KEY, and send a key."
)
UNLISTED: Final = (
    "The MCP server does not know this host name: use a local name or an IP address, or list the name in"
    " LONGHOUSE_MCP_HOSTS."
)
FOREIGN_PAGE: Final = "A web page of another origin sent this request, which the MCP server refuses."
NOT_OUR_PAGE: Final = (
    "A signed-in browser acts for the pages of this server alone, and this request comes from elsewhere:"
    " send an API key in its header instead."
)


class CrossOriginMiddleware(CORSMiddleware):
    """Lets pages of these origins call the API below /v1, with keys."""

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        super().__init__(app, tuple(allowed), allow_methods=("*",), allow_headers=("*",), expose_headers=EXPOSED)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serve = super().__call__ if scope["path"].startswith("/v1/") else self.app
        await serve(scope, receive, send)


def named_host_error(scope: Scope, names: Collection[str]) -> CallerError | None:
    """The error for a request by a host name that nobody has listed, or for a page of another origin; None: accepted.

    For the MCP server, also where keys are set: its specification asks for it, and programs on a developer's machine
    speak it. An address is no name that somebody could point elsewhere.
    """
    host = host_of(scope)
    name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    if not (LOCAL_HOST.fullmatch(host) or _is_address(name) or name in names):
        return CallerError(UNLISTED, status=421, code="unknown_host")
    if _has_other_origin(scope):
        return CallerError(FOREIGN_PAGE, status=403, code="foreign_origin")
    return None


def _is_address(name: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(name.strip("[]")) is not None
    return False


async def origin_error(scope: Scope, is_open: Callable[[], Awaitable[bool]]) -> CallerError | None:
    """The error for a request with a bad host or a foreign origin; None: accepted. With keys, the key decides."""
    host, is_foreign = host_of(scope), is_foreign_write(scope)
    if LOCAL_HOST.fullmatch(host) and not is_foreign:
        return None
    if ANY_HOST.fullmatch(host):
        with suppress(*PASSING):  # while Postgres is away, the API may be open
            if not await is_open():
                return None
    if is_foreign and LOCAL_HOST.fullmatch(host):
        return CallerError(FOREIGN, status=403, code="foreign_origin")
    return CallerError(MISDIRECTED, status=421)


def refuse_foreign_cookie(scope: Scope) -> None:
    """Refuses a cookie that was not sent for a page of ours; to change something, the request must prove where it
    comes from."""
    if scope["method"] in SAFE:
        # SameSite keeps the cookie from other sites, but not from other ports of this machine. A link may lead here.
        sites, modes = _values(scope, b"sec-fetch-site"), _values(scope, b"sec-fetch-mode")
        is_foreign = any(site not in OURS for site in sites) and modes != ["navigate"]
    else:
        is_proven = bool(_values(scope, b"origin")) or "same-origin" in _values(scope, b"sec-fetch-site")
        is_foreign = is_foreign_write(scope) or not is_proven
    if is_foreign:
        raise CallerError(NOT_OUR_PAGE, status=403, code="foreign_origin")


def is_foreign_write(scope: Scope) -> bool:
    """Whether a page of another origin sent the request to change something."""
    if scope["method"] in SAFE:
        return False
    return _has_other_origin(scope) or any(site not in OURS for site in _values(scope, b"sec-fetch-site"))


def _has_other_origin(scope: Scope) -> bool:
    # The scheme is not compared: a proxy in front of the server may terminate TLS.
    return any(origin.partition("://")[2] != host_of(scope) for origin in _values(scope, b"origin"))


def host_of(scope: Scope) -> str:
    return next(iter(_values(scope, b"host")), "")


def _values(scope: Scope, header: bytes) -> list[str]:
    return [value.decode("latin-1").lower() for name, value in scope["headers"] if name == header]
