"""The model of agents that ask none: replies with what the request tells it to."""

from collections.abc import AsyncGenerator

import msgspec

from longhouse.agents.strategies.one_call import EchoedReply
from longhouse.agents.strategies.protocol import Body
from longhouse.journal.events import Usage
from longhouse.journal.messages import text_of
from longhouse.models.protocol import Delta, ToolCallDelta


class EchoModel:
    async def stream(self, body: Body) -> AsyncGenerator[Delta, None]:
        reply = msgspec.json.decode(text_of(body.messages[-1].content or ""), type=EchoedReply)
        calls = tuple(
            ToolCallDelta(index=index, id=one.id, name=one.name, arguments=one.arguments)
            for index, one in enumerate(reply.calls)
        )
        finish = "tool_calls" if calls else "stop"
        yield Delta(text=reply.text, calls=calls, usage=Usage(), finish=finish, model=body.model)
