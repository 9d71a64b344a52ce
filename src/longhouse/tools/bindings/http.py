"""Binding of remote HTTP tools: arguments and results are JSON.

Requests are not retried here: the engine decides about retries, from the effect of the tool.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Unpack

import aiohttp
import msgspec

from longhouse.agents.tool import Tool
from longhouse.egress import HTTP, Egress, Lookup, look_up
from longhouse.models.http_client import (
    BoundedResponse,
    Endpoint,
    HttpFailure,
    StatusFailure,
    json_headers,
    open_session,
)
from longhouse.redaction import Redaction, redaction_of
from longhouse.tools.bindings.remote import MOST_BYTES, EndpointBinding, EndpointOptions, RemoteError
from longhouse.tools.outcomes import NotBegun

_LOST_ON_THE_WAY: Final = (502, 504)
"""Status of a gateway that forwarded the request and got no valid response."""


class RemoteBinding(EndpointBinding):
    """A catalog tool at an HTTP endpoint."""

    def __init__(
        self,
        tool: Tool,
        endpoint: str,
        http: aiohttp.ClientSession,
        *,
        most_bytes: int = MOST_BYTES,
        **options: Unpack[EndpointOptions],
    ) -> None:
        super().__init__(tool, endpoint, HTTP, **options)
        self._http = http
        self._most_bytes = most_bytes

    async def _call(self, given: dict[str, Any], key: str) -> str:
        # Once connected, the endpoint may have received the request.
        name, secret, connected = self.tool.name, self._secret(), asyncio.Event()
        hidden = redaction_of([secret] if secret else [])
        headers = json_headers(secret or "") | {"Accept-Encoding": "gzip", "Idempotency-Key": key}
        endpoint = Endpoint(http=self._http, url=self._url, headers=headers, redaction=hidden)
        try:
            # The validated value is sent, not the model's text: two parsers may read that text differently.
            async with endpoint.post(
                msgspec.json.encode(given), most_bytes=self._most_bytes, trace=connected
            ) as answer:
                return hidden.hide(await self._read(answer, hidden))
        except asyncio.CancelledError:
            if not connected.is_set():
                raise NotBegun(f"{name} could not be reached") from None
            raise
        except StatusFailure as failure:
            raise RemoteError(failure.sentence(name), in_doubt=failure.status in _LOST_ON_THE_WAY) from None
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


@asynccontextmanager
async def open_remote(egress: Egress, *, lookup: Lookup = look_up) -> AsyncIterator[aiohttp.ClientSession]:
    """The connection pool of all remote tools; it connects only where the egress rules allow it."""

    async def connected(http: aiohttp.ClientSession, trace: Any, params: Any) -> None:
        if isinstance(trace.trace_request_ctx, asyncio.Event):
            trace.trace_request_ctx.set()

    # Sets the event of a request when its connection is established, after DNS, TCP and TLS.
    tracing = aiohttp.TraceConfig()
    tracing.on_connection_create_end.append(connected)
    async with open_session(egress, lookup=lookup, traces=[tracing]) as http:
        yield http
