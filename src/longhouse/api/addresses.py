"""The address under which a client reaches this server, for links in its responses."""

from starlette.datastructures import Headers
from starlette.types import Scope

from longhouse.api.origins import ANY_HOST


def base_of(scope: Scope) -> str:
    """Scheme and host without a path: of the proxy in front of the server, if that names them; empty if unknown."""
    headers = Headers(scope=scope)
    host = _first(headers, "x-forwarded-host") or headers.get("host", "")
    # What a client sends is shown to that client only, and never anything but a host name.
    return f"{scheme_of(scope)}://{host}" if ANY_HOST.fullmatch(host) else ""


def scheme_of(scope: Scope) -> str:
    """How the client reached us, also through a proxy that terminates TLS. Whoever lies deceives only itself."""
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
