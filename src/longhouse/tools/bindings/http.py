"""Binding of remote HTTP tools: arguments and results are JSON.

Requests are not retried here: the engine decides about retries, from the effect of the tool.
"""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Unpack

import msgspec

from longhouse.agents.tool import Tool
from longhouse.egress import HTTP, Egress, Lookup, look_up
from longhouse.models.http.client import BoundedResponse, Endpoint, StatusFailure, json_headers, open_pool
from longhouse.models.http.connection import Timeouts
from longhouse.models.http.failure import HttpFailure
from longhouse.models.http.pool import HttpPool
from longhouse.redaction import Redaction
from longhouse.tools.bindings.remote import MOST_BYTES, EndpointBinding, EndpointOptions, RemoteError
from longhouse.tools.outcomes import NotBegun

_IN_DOUBT: Final = frozenset({302, 303, 408, 499, 502, 504, *range(520, 525), *range(600, 1000)})
"""Status of what may have done its work: a form that shows the result elsewhere, a gateway that got no valid response,
and who speaks no HTTP."""


class RemoteBinding(EndpointBinding):
    """A catalog tool at an HTTP endpoint."""

    def __init__(
        self,
        tool: Tool,
        endpoint: str,
        pool: HttpPool,
        *,
        most_bytes: int = MOST_BYTES,
        **options: Unpack[EndpointOptions],
    ) -> None:
        super().__init__(tool, endpoint, HTTP, **options)
        self.obeys = True
        self._pool = pool
        self._most_bytes = most_bytes

    async def _call(self, given: dict[str, Any], key: str) -> str:
        # Once connected, the endpoint may have received the request.
        name, connected = self.tool.name, asyncio.Event()
        secret, hidden = self._secret()
        headers = json_headers(secret or "") | {"Accept-Encoding": "gzip", "Idempotency-Key": key}
        endpoint = Endpoint(pool=self._pool, url=self._url, headers=headers, redaction=hidden)
        try:
            # The validated value is sent, not the model's text: two parsers may read that text differently.
            async with endpoint.post(
                msgspec.json.encode(given), most_bytes=self._most_bytes, connected=connected
            ) as answer:
                return hidden.hide(await self._read(answer, hidden))
        except asyncio.CancelledError:
            if not connected.is_set():
                raise NotBegun(f"{name} could not be reached") from None
            raise
        except StatusFailure as failure:
            raise RemoteError(failure.sentence(name), in_doubt=failure.status in _IN_DOUBT) from None
        except HttpFailure as failure:
            if not connected.is_set():
                raise RemoteError(f"{name} could not be reached: {failure.kind or failure.what}") from None
            lost = f"{name} was asked, and its answer was lost ({failure.kind})"
            raise RemoteError(lost if failure.kind else failure.sentence(name), in_doubt=True) from None

    async def _read(self, answer: BoundedResponse, hidden: Redaction) -> str:
        name, kind = self.tool.name, answer.kind
        if answer.status == 204:
            return ""
        if kind != "application/json" and not kind.endswith("+json"):
            raise RemoteError(f"{name} answered with {hidden.quoted(kind)}, which is not JSON", in_doubt=True)
        return self._text(await answer.body())


def open_remote(egress: Egress, *, lookup: Lookup = look_up) -> AbstractAsyncContextManager[HttpPool]:
    """The connection pool of all remote tools; it connects only where the egress rules allow it."""
    return open_pool(egress, Timeouts(), lookup=lookup)
