"""Checks of the Host and Origin headers against DNS rebinding and cross-site requests.

Without keys a request is accepted because it comes from this machine. A request that a local browser sends for a page
of another origin comes from this machine too; its headers, which no page can change, tell them apart.
"""

import re
from contextlib import suppress
from typing import Final

from starlette.types import Scope

from longhouse.api.auth import Authenticator
from longhouse.errors import CallerError
from longhouse.store.database import PASSING

LOCAL_HOST: Final = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?", re.IGNORECASE)
"""Without keys the server listens on loopback addresses only; another host name means DNS rebinding."""
ANY_HOST: Final = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\])(:\d{1,5})?")
"""With keys any valid host name is accepted."""
SAFE: Final = ("GET", "HEAD", "OPTIONS")
"""These methods change nothing, and a page of another origin cannot read the response: there are no CORS headers."""
OURS: Final = ("same-origin", "none")
"""`Sec-Fetch-Site` of our own pages, and of an address that a user typed; another port of this machine is
`same-site`."""

MISDIRECTED: Final = "This host name is not served here: without API keys, use a local name such as localhost."
FOREIGN: Final = (
    "A web page of another origin sent this request, which is refused while no API keys are set:"
    " set LONGHOUSE_ADMIN_KEY, and send a key."
)


async def origin_error(scope: Scope, authenticator: Authenticator) -> CallerError | None:
    """The error for a request with a bad host or a foreign origin; None: accepted. With keys, the key decides."""
    host, is_foreign = _origin(scope)
    if LOCAL_HOST.fullmatch(host) and not is_foreign:
        return None
    if ANY_HOST.fullmatch(host):
        with suppress(*PASSING):  # while Postgres is away, the API may be open
            if not await authenticator.is_open():
                return None
    if is_foreign and LOCAL_HOST.fullmatch(host):
        return CallerError(FOREIGN, status=403, code="foreign_origin")
    return CallerError(MISDIRECTED, status=421)


def _origin(scope: Scope) -> tuple[str, bool]:
    """The Host header, and whether a page of another origin sent the request to change something."""
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    host = hosts[0].decode("latin-1") if hosts else ""
    if scope["method"] in SAFE:
        return host, False
    for name, value in scope["headers"]:
        text = value.decode("latin-1").lower()
        # The scheme is not compared: a proxy in front of the server may terminate TLS.
        if name == b"origin" and text.partition("://")[2] != host.lower():
            return host, True
        if name == b"sec-fetch-site" and text not in OURS:
            return host, True
    return host, False
