"""Binding of gRPC tools: the service of tool.proto, over connections that calls share."""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar, Unpack

import msgspec

from longhouse import tracing
from longhouse.agents.tool import Tool
from longhouse.egress import GRPC
from longhouse.journal.events import Fault
from longhouse.redaction import Redaction
from longhouse.tools.bindings.base import OWN_PROBE, Binding, Work
from longhouse.tools.bindings.remote import EndpointBinding, EndpointOptions, RemoteError
from longhouse.tools.config import ToolConfig
from longhouse.tools.context import ToolContext
from longhouse.tools.grpc import messages
from longhouse.tools.grpc.channels import Channels, GrpcFailure, Unreachable
from longhouse.tools.outcomes import NotBegun, ToolFailed, bounded

T = TypeVar("T")

_REFUSALS: Final = frozenset(
    {
        "ABORTED",
        "ALREADY_EXISTS",
        "FAILED_PRECONDITION",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "OUT_OF_RANGE",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
        "UNIMPLEMENTED",
    }
)
"""Statuses that only a server gives, and that say that nothing was done. The others may also mean that an answer was
lost: gRPC does not tell which of the two ends has made them."""
_BAD_ARGUMENTS: Final = "bad_arguments"
_ADDRESS: Final = re.compile(r"\bipv[46]:[^\s,;)]*")
_PROBED: Final = {
    "type": "object",
    "properties": {"key": {"type": "string"}, "tool": {"type": "string"}, "arguments": {"type": "object"}},
}
_LONGEST_PROBED: Final = 100_000_000
"""The result that a probe tells is cut before it is encoded: that may not be cut again."""


class _Probe(msgspec.Struct):
    key: str
    arguments: dict[str, Any]


class GrpcBinding(EndpointBinding):
    """A catalog tool at a gRPC server, which can also say whether a call took effect."""

    def __init__(self, tool: Tool, endpoint: str, channels: Channels, **options: Unpack[EndpointOptions]) -> None:
        super().__init__(tool, endpoint, GRPC, **options)
        self._channels = channels
        asking = Tool(
            name=f"{tool.name}{OWN_PROBE}",
            version=tool.version,
            description=f"Tells whether a call of {tool.name} took effect.",
            schema=_PROBED,
            timeout=tool.timeout,
            max_output=_LONGEST_PROBED,
        )
        self.probe = Binding(asking, self._bind_probe, is_elsewhere=True)

    async def _call(self, given: dict[str, Any], key: str) -> str:
        deadline = int((time.time() + self.tool.timeout) * 1000)
        message = messages.request(self.tool.name, msgspec.json.encode(given).decode(), key, deadline)
        outcome, hidden = await self._ask(messages.CALL, message, messages.call_response)
        if isinstance(outcome, messages.RemoteFault):
            raise self._fault(outcome, hidden)
        return hidden.hide(self._text(outcome)) if outcome else ""

    def _bind_probe(self, arguments: str) -> Work | Fault:
        asked = msgspec.json.decode(arguments, type=_Probe)

        async def work(context: ToolContext, config: ToolConfig) -> dict[str, Any]:
            return await self._did_happen(asked)

        return work

    async def _did_happen(self, asked: _Probe) -> dict[str, Any]:
        message = messages.request(self.tool.name, msgspec.json.encode(asked.arguments).decode(), asked.key)
        found, hidden = await self._ask(messages.PROBE, message, messages.probe_response)
        if found.happened is None:
            raise RemoteError(f"the server of {self.tool.name} cannot tell whether the call took effect")
        text = hidden.hide(self._text(found.result_json)) if found.result_json else ""
        return {"happened": found.happened, "result": bounded(text, self.tool.max_output)}

    async def _ask(self, method: str, message: bytes, read: Callable[[bytes], T]) -> tuple[T, Redaction]:
        """The answer, and what takes the secret out of it."""
        name, sent = self.tool.name, asyncio.Event()
        secret, hidden = self._secret()
        until = asyncio.get_running_loop().time() + self.tool.timeout
        metadata = tracing.sent() | ({"authorization": f"Bearer {secret}"} if secret else {})
        try:
            answer = await self._channels.call(self._url, method, message, metadata=metadata, until=until, sent=sent)
            return read(answer), hidden
        except messages.BadMessage:
            raise RemoteError(f"{name} sent an answer that does not follow tool.proto", in_doubt=True) from None
        except asyncio.CancelledError:
            if not sent.is_set():
                raise NotBegun(f"{name} could not be reached") from None
            raise
        except Unreachable as failure:
            raise RemoteError(f"{name} could not be reached: {failure}") from None
        except GrpcFailure as failure:
            if failure.status == "DEADLINE_EXCEEDED" and asyncio.get_running_loop().time() >= until - 0.01:
                late = f"{name} did not answer within {self.tool.timeout:g} seconds"
                raise ToolFailed(late, code="timeout", in_doubt=True) from None
            raise self._failed(failure, hidden) from None

    def _failed(self, failure: GrpcFailure, hidden: Redaction) -> RemoteError:
        name, status = self.tool.name, failure.status
        if failure.is_too_large:
            return RemoteError(f"{name} sent more than {self._channels.most_bytes} bytes", in_doubt=True)
        details = hidden.quoted(_ADDRESS.sub("its address", failure.details)) or "no reason given"
        if status == "UNAVAILABLE":
            return RemoteError(f"{name} was asked, and its answer was lost ({status}: {details})", in_doubt=True)
        return RemoteError(f"{name} answered {status}: {details}", in_doubt=status not in _REFUSALS)

    def _fault(self, fault: messages.RemoteFault, hidden: Redaction) -> Exception:
        """The server's fault as a message. Its code is not used as ours, except for bad arguments."""
        words = hidden.quoted(fault.message) or "no reason given"
        if fault.code == _BAD_ARGUMENTS:
            return ToolFailed(f"the arguments of {self.tool.name} do not fit: {words}", code=_BAD_ARGUMENTS)
        again = "; the same call may succeed later" if fault.retryable else ""
        return RemoteError(f"{self.tool.name} answered {hidden.quoted(fault.code) or 'with a fault'}: {words}{again}")
