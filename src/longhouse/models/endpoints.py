"""Chooses the model endpoint of a template: one connection pool for each endpoint that templates name."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import msgspec

from longhouse.agents.strategies.base import AgentRegistry
from longhouse.agents.strategies.one_call import EchoedReply
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import Template
from longhouse.egress import Egress
from longhouse.errors import SetupError
from longhouse.journal.events import Usage
from longhouse.journal.messages import text_of
from longhouse.models.http.client import HANG, open_endpoint
from longhouse.models.openai import OpenAIModel
from longhouse.models.protocol import Delta, Model, ToolCallDelta
from longhouse.secrets import PROXY_READS_KEY, is_unencrypted

MOST: Final = 256
"""Endpoints that one process keeps open."""


class EchoModel:
    """The model of agents that ask none: replies with what the request tells it to."""

    async def stream(self, body: Body) -> AsyncGenerator[Delta, None]:
        reply = msgspec.json.decode(text_of(body.messages[-1].content or ""), type=EchoedReply)
        calls = tuple(
            ToolCallDelta(index=index, id=one.id, name=one.name, arguments=one.arguments)
            for index, one in enumerate(reply.calls)
        )
        finish = "tool_calls" if calls else "stop"
        yield Delta(text=reply.text, calls=calls, usage=Usage(), finish=finish, model=body.model)


FindSecret = Callable[[str, str], str | None]
"""Returns the secret of this name for a call to this URL; None where it is not set."""


@asynccontextmanager
async def open_endpoints(
    default: Model, secrets: FindSecret, *, egress: Egress, hang: float = HANG
) -> AsyncIterator[Callable[[Template], Awaitable[Model]]]:
    """Yields a function that returns the model of a template: the endpoint that it names, or the default.

    `egress`: where templates may send requests; a publisher of templates is not the operator of this process.
    """
    models: dict[tuple[str | None, ...], Model] = {}

    async def model_for(template: Template) -> Model:
        cls = AgentRegistry.get(template.base_agent_class)
        if cls and not cls.asks_model:
            return EchoModel()
        policy = template.llm_policy
        base_url, ref, proxy = place = (policy.base_url, policy.api_key_ref, policy.proxy)
        if base_url is None:
            return default
        if place in models:
            return models[place]
        if len(models) >= MOST:
            raise SetupError(f"Templates name more than {MOST} model endpoints; restart to forget old ones.")
        # The settings' key is sent only to the settings' endpoint; a template's key only to the URL it belongs to.
        key = secrets(ref, base_url) if ref else ""
        if key is None:
            raise SetupError(f"{template.ref} names the secret {ref!r}, which this process was not given.")
        if key and proxy and is_unencrypted(base_url):
            raise SetupError(f"{template.ref}: {PROXY_READS_KEY}.")
        opening = open_endpoint(base_url, key, proxy=proxy, hang=hang, egress=egress)
        models[place] = OpenAIModel(await stack.enter_async_context(opening))
        return models[place]

    async with AsyncExitStack() as stack:
        yield model_for
