"""The cookie of a signed-in browser: a random token, which no script can read and no other site can send."""

import re
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from longhouse.api.http import addresses, origins
from longhouse.store.access.browser_sessions import LIFETIME

NAME: Final = "longhouse"
TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43}")
"""The format of tokens, which is not that of API keys: a token is never accepted in place of one."""


def token_of(headers: Headers) -> str | None:
    """The token in the request's cookie; two cookies that differ count as none."""
    pairs = (part.strip().partition("=") for line in headers.getlist("cookie") for part in line.split(";"))
    given = {value for name, _, value in pairs if name == NAME}
    return next(iter(given)) if len(given) == 1 and all(map(TOKEN.fullmatch, given)) else None


def put(response: Response, token: str, request: Request) -> None:
    _set(response, request, token, int(LIFETIME.total_seconds()))


def clear(response: Response, request: Request) -> None:
    _set(response, request, "", 0)


def _set(response: Response, request: Request, value: str, seconds: int) -> None:
    is_local = origins.LOCAL_HOST.fullmatch(origins.host_of(request.scope))
    is_secure = addresses.scheme_of(request.scope) == "https" and not is_local
    # Below a path of its own: two Longhouses on one host name do not sign each other out.
    path = addresses.root_of(request.scope) or "/"
    response.set_cookie(NAME, value, max_age=seconds, path=path, secure=is_secure, httponly=True, samesite="strict")
