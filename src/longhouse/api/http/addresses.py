"""The address under which a client reaches this server, for links in its responses."""

from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from longhouse.api.http.origins import ANY_HOST

ROOT_PATH: Final = "longhouse.root_path"
"""The key under which a request's scope holds the path below which clients see this server."""


class SubPathMiddleware:
    """Serves below a path, as a reverse proxy shows it, whether the proxy passes the path on or takes it away.

    Not by ASGI's `root_path`, which routes would be matched with: they, and all that compares paths, see none of it.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self.app = app
        self._root = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope[ROOT_PATH] = self._root
            path: str = scope["path"]
            if path == self._root or path.startswith(f"{self._root}/"):
                scope["path"] = path.removeprefix(self._root) or "/"
                # A root path has no character that is escaped.
                scope["raw_path"] = scope["raw_path"].removeprefix(self._root.encode()) or b"/"
        await self.app(scope, receive, send)


def root_of(scope: Scope) -> str:
    """The path below which clients see this server; empty: they see it at the top."""
    root: str = scope.get(ROOT_PATH, "")
    return root


def base_of(scope: Scope) -> str:
    """Scheme, host and root path: of the proxy in front of the server, if that names them; empty if unknown."""
    headers = Headers(scope=scope)
    host = _first(headers, "x-forwarded-host") or headers.get("host", "")
    # What a client sends is shown to that client only, and never anything but a host name.
    return f"{scheme_of(scope)}://{host}{root_of(scope)}" if ANY_HOST.fullmatch(host) else ""


def scheme_of(scope: Scope) -> str:
    """The client's scheme, also behind a proxy that terminates TLS. A false header affects only its sender."""
    headers = Headers(scope=scope)
    said = (scope.get("scheme"), _first(headers, "x-forwarded-proto").lower())
    return "https" if "https" in said or headers.get("origin", "").startswith("https://") else "http"


def session_address(scope: Scope, session_id: str) -> str:
    """The page of a session in the console; empty if the host is unknown."""
    base = base_of(scope)
    return f"{base}/s/{session_id}" if base else ""


def _first(headers: Headers, name: str) -> str:
    """The value of the proxy next to the client, if there are several."""
    return headers.get(name, "").partition(",")[0].strip()
