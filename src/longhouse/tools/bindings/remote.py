"""What HTTP and gRPC tools share: arguments that are checked here, a secret, and a result that is JSON.

Requests are not retried: the engine decides about retries, from the effect of the tool.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final, TypedDict

import msgspec

from longhouse.agents.tool import Tool
from longhouse.egress import parse
from longhouse.journal.events import Fault
from longhouse.models.http.client import can_be_sent
from longhouse.redaction import Redaction, redaction_of
from longhouse.tools.arguments import BadSchema, Check, checker, read
from longhouse.tools.bindings.base import Binding, Work
from longhouse.tools.config import ToolConfig
from longhouse.tools.context import ToolContext
from longhouse.tools.outcomes import CallError

MOST_BYTES: Final = 4 * 2**20
"""Maximum bytes of a response, compressed or not."""

SecretFor = Callable[[str, str], str | None]
"""Gives the secret of a name for calls to an address."""


class RemoteError(CallError):
    """A call of a remote tool failed; the agent reads the message."""


class EndpointOptions(TypedDict, total=False):
    api_key_ref: str | None
    secret_for: SecretFor


class EndpointBinding(Binding):
    """A catalog tool at an endpoint. Its secret is resolved for each call and sent nowhere else."""

    def __init__(
        self,
        tool: Tool,
        endpoint: str,
        schemes: Sequence[str],
        *,
        api_key_ref: str | None = None,
        secret_for: SecretFor = lambda ref, url: None,
    ) -> None:
        super().__init__(tool, self._bind, is_elsewhere=True)
        self._endpoint, self._url = endpoint, parse(endpoint, schemes)
        self._api_key_ref = api_key_ref
        self._secret_for = secret_for

    async def _call(self, given: dict[str, Any], key: str) -> str:
        """Makes the call, with arguments that were checked, and returns its result as text."""
        raise NotImplementedError

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

    def _secret(self) -> tuple[str | None, Redaction]:
        """The secret of a call, and what takes it out of what its server says."""
        if self._api_key_ref is None:
            return None, Redaction()
        secret = self._secret_for(self._api_key_ref, self._endpoint)
        if not secret:
            raise RemoteError(f"{self.tool.name} needs the secret {self._api_key_ref!r}, which is not set here")
        if not can_be_sent(secret):
            raise RemoteError(f"the secret {self._api_key_ref!r} holds characters that no HTTP header can carry")
        return secret, redaction_of([secret])

    def _text(self, answer: bytes | str) -> str:
        """The result as the agent reads it: a JSON string is its text, all else compact JSON."""
        try:
            result = msgspec.json.decode(answer)
            # Encoded again, so that redaction finds a returned secret however it was escaped.
            return result if isinstance(result, str) else msgspec.json.encode(result).decode()
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise RemoteError(f"{self.tool.name} sent an answer that is not valid JSON", in_doubt=True) from None
