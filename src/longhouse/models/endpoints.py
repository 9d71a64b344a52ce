"""Chooses the model endpoint of a template: one connection pool for each endpoint that templates name."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from longhouse.agents.template import LLMPolicy, Template
from longhouse.egress import Egress
from longhouse.errors import SetupError
from longhouse.models.http_client import HANG, open_endpoint
from longhouse.models.openai import OpenAIModel
from longhouse.models.protocol import Model
from longhouse.secrets import READS_ALONG, unsealed

MOST: Final = 256
"""Endpoints that one process keeps open."""

FindSecret = Callable[[str, str], str | None]
"""Returns the secret of this name for a call to this URL; None where it is not set."""


class Endpoints:
    def __init__(self, stack: AsyncExitStack, default: Model, secrets: FindSecret, egress: Egress, hang: float) -> None:
        self._stack = stack
        self._default = default
        self._secrets = secrets
        self._egress = egress
        self._hang = hang
        self._open: dict[tuple[str, str, str], Model] = {}

    async def model_for(self, template: Template) -> Model:
        """The endpoint that the template names, or that of the settings."""
        policy = template.llm_policy
        if policy.base_url is None:
            return self._default
        place = (policy.base_url, policy.api_key_ref or "", policy.proxy or "")
        if place not in self._open:
            if len(self._open) >= MOST:
                raise SetupError(f"Templates name more than {MOST} model endpoints; restart to forget old ones.")
            self._open[place] = await self._opened(policy.base_url, policy, template.ref)
        return self._open[place]

    async def _opened(self, base_url: str, policy: LLMPolicy, ref: str) -> Model:
        # The settings' key is sent only to the settings' endpoint; a template's key only to the URL it belongs to.
        key = self._secrets(policy.api_key_ref, base_url) if policy.api_key_ref else ""
        if key is None:
            raise SetupError(f"{ref} names the secret {policy.api_key_ref!r}, which this process was not given.")
        if key and policy.proxy and unsealed(base_url):
            raise SetupError(f"{ref}: {READS_ALONG}.")
        opening = open_endpoint(base_url, key, proxy=policy.proxy, hang=self._hang, egress=self._egress)
        return OpenAIModel(await self._stack.enter_async_context(opening))


@asynccontextmanager
async def open_endpoints(
    default: Model, secrets: FindSecret, *, egress: Egress, hang: float = HANG
) -> AsyncIterator[Endpoints]:
    """`egress`: where templates may send requests; a publisher of templates is not the operator of this process."""
    async with AsyncExitStack() as stack:
        yield Endpoints(stack, default, secrets, egress, hang)
