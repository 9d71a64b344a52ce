"""Binding of remote HTTP tools: arguments and results are JSON.

Requests are not retried here: the engine decides about retries, from the effect of the tool.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any, Final

import aiohttp
import msgspec

from longhouse.agents.tool import Tool
from longhouse.egress import Egress, Lookup, look_up, parse
from longhouse.journal.events import Fault
from longhouse.models.http_client import (
    BoundedResponse,
    Endpoint,
    HttpFailure,
    StatusFailure,
    can_be_sent,
    json_headers,
    open_session,
)
from longhouse.redaction import Redaction, redaction_of
from longhouse.tools.arguments import BadSchema, Check, checker, read
from longhouse.tools.bindings.base import Binding, Work
from longhouse.tools.config import ToolConfig
from longhouse.tools.context import ToolContext
from longhouse.tools.outcomes import CallError, NotBegun

MOST_BYTES: Final = 4 * 2**20
"""Maximum bytes of a response, compressed or not."""

_LOST_ON_THE_WAY: Final = (502, 504)
"""Status of a gateway that forwarded the request and got no valid response."""

SecretFor = Callable[[str, str], str | None]
"""Gives the secret of a name for calls to an address."""


class RemoteError(CallError):
    """A call of a remote tool failed; the agent reads the message."""


class RemoteBinding(Binding):
    """A catalog tool at an HTTP endpoint. Its secret is resolved for each call and sent nowhere else."""

    def __init__(
        self,
        tool: Tool,
        endpoint: str,
        http: aiohttp.ClientSession,
        *,
        api_key_ref: str | None = None,
        secret_for: SecretFor = lambda ref, url: None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        super().__init__(tool, self._bind)
        self._endpoint, self._url = endpoint, parse(endpoint)
        self._http = http
        self._api_key_ref = api_key_ref
        self._secret_for = secret_for
        self._most_bytes = most_bytes

    def _bind(self, arguments: str) -> Work | Fault:
        try:
            given = read(self.tool.name, arguments, self._check)
        except BadSchema as error:
            return Fault(code="tool_failed", message=f"{self.tool.name} cannot be used: {error}")
        if isinstance(given, Fault):
            return given

        async def work(context: ToolContext, config: ToolConfig) -> str:
            return await self._call(given, context.key)

        return work

    @cached_property
    def _check(self) -> Check:
        return checker(self.tool.schema)

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

    def _secret(self) -> str | None:
        if self._api_key_ref is None:
            return None
        secret = self._secret_for(self._api_key_ref, self._endpoint)
        if not secret:
            raise RemoteError(f"{self.tool.name} needs the secret {self._api_key_ref!r}, which is not set here")
        if not can_be_sent(secret):
            raise RemoteError(f"the secret {self._api_key_ref!r} holds characters that no HTTP header can carry")
        return secret

    async def _read(self, answer: BoundedResponse, hidden: Redaction) -> str:
        name, kind = self.tool.name, answer.kind
        if answer.status == 204:
            return ""
        if kind != "application/json" and not kind.endswith("+json"):
            raise RemoteError(f"{name} answered with {hidden.quoted(kind)}, which is not JSON", in_doubt=True)
        try:
            result = msgspec.json.decode(await answer.body())
            # Encoded again, so that redaction finds a returned secret however it was escaped.
            return result if isinstance(result, str) else msgspec.json.encode(result).decode()
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise RemoteError(f"{name} sent an answer that is not valid JSON", in_doubt=True) from None


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
