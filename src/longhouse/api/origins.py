"""Where a request comes from: the name it was sent to, and the page that made a browser send it.

Without keys a request is let in because it comes from this machine. So does what a browser here sends for a page of
elsewhere; that is told apart by its headers, which no page can change.
"""

import re
from typing import Final

from starlette.types import Scope

from longhouse.api.auth import Authenticator
from longhouse.errors import CallerError
from longhouse.store.database import PASSING

LOCAL_HOST: Final = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?", re.IGNORECASE)
"""Without keys we listen on loopback addresses only; whoever comes by another name was sent by somebody else."""
ANY_HOST: Final = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\])(:\d{1,5})?")
"""With keys any name will do, if it is one."""
SAFE: Final = ("GET", "HEAD", "OPTIONS")
"""They change nothing, and no page of elsewhere can read what comes back: we send no CORS headers."""
OURS: Final = ("same-origin", "none")
"""`Sec-Fetch-Site` of a page of ours, and of what a user typed; another port of this machine is `same-site`."""

MISDIRECTED: Final = "This server does not answer to that name; without API keys only to local ones, such as localhost."
FOREIGN: Final = (
    "A web page of another origin sent this, which is not taken without API keys:"
    " set LONGHOUSE_ADMIN_KEY, and send a key."
)


async def refusal(scope: Scope, door: Authenticator) -> CallerError | None:
    """Why this request is not looked at, whatever it asks for; None: it is. With keys it is the key that decides."""
    host, is_foreign = _origin(scope)
    if LOCAL_HOST.fullmatch(host) and not is_foreign:
        return None
    if ANY_HOST.fullmatch(host) and not await _may_be_open(door):
        return None
    if is_foreign and LOCAL_HOST.fullmatch(host):
        return CallerError(FOREIGN, status=403, code="foreign_origin")
    return CallerError(MISDIRECTED, status=421)


async def _may_be_open(door: Authenticator) -> bool:
    try:
        return await door.is_open()
    except PASSING:
        return True


def _origin(scope: Scope) -> tuple[str, bool]:
    """The name that the request was sent to; and was it sent by a page of another origin, to change something?"""
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    host = hosts[0].decode("latin-1") if hosts else ""
    if scope["method"] in SAFE:
        return host, False
    for name, value in scope["headers"]:
        said = value.decode("latin-1").lower()
        # The scheme is left out: in front of us there may be a proxy that speaks TLS.
        if name == b"origin" and said.partition("://")[2] != host.lower():
            return host, True
        if name == b"sec-fetch-site" and said not in OURS:
            return host, True
    return host, False
