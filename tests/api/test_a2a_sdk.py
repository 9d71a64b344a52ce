"""The client of the official A2A SDK completes a task with a question in between."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from key_helpers import client_of, keyed

from longhouse.models.scripted import call
from server_helpers import AGENT, Serving

pytest.importorskip("a2a", reason="a2a-sdk is not installed: see the group `test` of pyproject.toml")

from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import a2a_pb2 as a2a
from a2a.utils.errors import TaskNotFoundError, UnsupportedOperationError

CITY = call("clarificationtool", questions=["Which city?"])
RAIN = call("finalanswertool", answer="Rain in Oslo.")


def message(text: str, **fields: Any) -> Any:
    part = a2a.Part(text=text)
    return a2a.SendMessageRequest(message=a2a.Message(message_id="m-1", role=a2a.ROLE_USER, parts=[part], **fields))


@asynccontextmanager
async def agent(url: str, key: str, *, version: str, streaming: bool) -> AsyncIterator[Any]:
    """The client that the SDK makes of our card, for this version of the protocol."""
    headers = {"authorization": f"Bearer {key}", "A2A-Version": version}
    async with httpx.AsyncClient(headers=headers, timeout=30.0, verify=False) as http:
        card = await A2ACardResolver(http, f"{url}/a2a/{AGENT}").get_agent_card()
        for interface in [one for one in card.supported_interfaces if one.protocol_version != version]:
            card.supported_interfaces.remove(interface)
        config = ClientConfig(httpx_client=http, streaming=streaming)
        yield ClientFactory(config).create(card)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_the_official_client_asks_answers_and_gets_the_result(
    serving: Serving, version: str, streaming: bool
) -> None:
    async with keyed(serving, [CITY, RAIN]) as house:
        ann = await client_of(house, "ann")
        async with agent(house.url, ann.key, version=version, streaming=streaming) as client:
            asked = [event async for event in client.send_message(message("Will it rain?"))]
            task = asked[0].task
            state = asked[-1].status_update.status if streaming else asked[-1].task.status
            assert state.state == a2a.TASK_STATE_INPUT_REQUIRED
            assert state.message.parts[0].text == "Which city?"
            answer = message("Oslo", task_id=task.id, context_id=task.context_id)
            told = [event async for event in client.send_message(answer)]
            state = told[-1].status_update.status if streaming else told[-1].task.status
            assert state.state == a2a.TASK_STATE_COMPLETED
            got = await client.get_task(a2a.GetTaskRequest(id=task.id))
            assert got.artifacts[0].parts[0].text == "Rain in Oslo."
            assert [one.parts[0].text for one in got.history] == ["Will it rain?", "Which city?", "Oslo"]
            if streaming:
                chunks = [one.artifact_update.artifact for one in told if one.HasField("artifact_update")]
                assert "".join(part.text for one in chunks for part in one.parts) == "Rain in Oslo."
            with pytest.raises(TaskNotFoundError):
                await client.get_task(a2a.GetTaskRequest(id="nobody's"))
            with pytest.raises(UnsupportedOperationError, match="has ended"):
                [event async for event in client.send_message(answer)]
