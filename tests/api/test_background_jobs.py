"""Background jobs of chat clients (titles, tags, suggestions): one plain model call, and no session is left."""

from typing import Any

import pytest
from attack_helpers import CHAT
from key_helpers import Client, admin_of, client_of, keyed

from longhouse.agents.strategies.protocol import Body
from longhouse.api.openai.background_jobs import is_job
from longhouse.api.wire import ChatRequest
from longhouse.journal.messages import text_of
from longhouse.models.scripted import Say, ScriptedStatus, call, say
from server_helpers import AGENT, Serving, content, sse

TAGS = """### Task:
Generate 1-3 broad tags categorizing the main themes of the chat history.

### Chat History:
<chat_history>
USER: Сколько дождя в Бергене?
ASSISTANT: 很多。
</chat_history>"""
LIBRECHAT = "Provide a concise, 5-word-or-less title for the conversation, using its same language.\n\nUser: Hi"
NEXTCHAT = "Please generate a four to five word title summarizing our conversation without any lead-in."


def scene(body: Body) -> Say:
    """An agent answers with its tool, a plain call in plain text."""
    asked = text_of(body.messages[-1].content)
    return call("finalanswertool", answer="It rains.") if body.tools else say(f"Дождь 雨 ({len(asked)})", chunk=3)


def request_of(text: str, **extra: Any) -> dict[str, Any]:
    return {"model": AGENT, "messages": [{"role": "user", "content": text}], **extra}


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        (request_of(TAGS), {}, True),
        (request_of(LIBRECHAT), {}, True),
        (request_of("使用四到五个字直接返回这句话的简要主题，不要解释"), {}, True),
        (request_of("Which tags fit?"), {"x-openwebui-task": "tags_generation"}, True),
        (request_of(TAGS, chat_id="9"), {"x-openwebui-task": "tags_generation"}, True),
        # Somebody talks to an agent.
        (request_of("Hello"), {}, False),
        (request_of(TAGS), {"x-openwebui-task": ""}, False),
        (request_of(TAGS), {"x-openwebui-task": "{{TASK}}"}, False),
        (request_of(TAGS), {"x-conversation-id": "c"}, False),
        (request_of(TAGS, chat_id="c"), {}, False),
        (request_of(TAGS, metadata={"conversation_id": "c"}), {}, False),
        (request_of(f"What does this mean? {LIBRECHAT}"), {}, False),
        (request_of("### Task:\nWrite a poem."), {}, False),
    ],
)
def test_jobs_are_told_from_messages(body: dict[str, Any], headers: dict[str, str], expected: bool) -> None:
    assert is_job(ChatRequest.model_validate(body), headers) is expected


async def test_a_chat_with_its_title_and_tags_is_one_session(serving: Serving) -> None:
    async with keyed(serving, scene) as house:
        ann = await client_of(house, "ann")
        first = await ann.say("Does it rain?")
        used = (await ann.got("/v1/usage"))["total"]
        history = [
            {"role": "user", "content": "Does it rain?"},
            {"role": "assistant", "content": content(first)},
            {"role": "user", "content": NEXTCHAT},
        ]
        async with ann.ask("POST", CHAT, {"model": AGENT, "messages": history, "max_tokens": 50}) as response:
            title = await response.json()
        asked = house.model.requests[-1] if house.model else {}
        assert "tools" not in asked
        assert [one["role"] for one in asked["messages"]] == ["user", "assistant", "user"], "nothing of the agent's own"
        assert asked["max_tokens"] == 50
        assert (title["model"], content(title)) == (AGENT, f"Дождь 雨 ({len(NEXTCHAT)})")
        async with ann.ask("POST", CHAT, request_of(TAGS, stream=True, stream_options={"include_usage": True})) as tags:
            pieces = [one.json async for one in sse(tags) if one.data != "[DONE]"]
        text = "".join(one["choices"][0]["delta"].get("content", "") for one in pieces if one["choices"])
        assert text == f"Дождь 雨 ({len(TAGS)})"
        assert [one["choices"][0]["finish_reason"] for one in pieces if one["choices"]][-1] == "stop"
        assert pieces[-1]["usage"]["total_tokens"] > 0
        [row] = (await ann.got("/v1/sessions"))["data"]
        assert row["session_id"] == first["model"]
        # What they used counts, and no turn does.
        now = (await ann.got("/v1/usage"))["total"]
        jobs = title["usage"]["total_tokens"] + pieces[-1]["usage"]["total_tokens"]
        assert now["total_tokens"] == used["total_tokens"] + jobs
        assert now["turns"] == used["turns"] == 1
        # The talk goes on as if nothing had been.
        history[-1] = {"role": "user", "content": "And tomorrow?"}
        async with ann.ask("POST", CHAT, {"model": AGENT, "messages": history}) as response:
            assert (await response.json())["model"] == first["model"]


async def test_a_job_has_the_rights_of_its_key_and_no_more(serving: Serving) -> None:
    async with keyed(serving, scene) as house:
        first = await (await client_of(house, "ann")).say("Does it rain?")
        bob = await client_of(house, "bob")
        reader = await client_of(house, "bob", read_only=True)
        scoped = await client_of(house, "bob", templates=["sgr_agent"])
        spent = await client_of(house, "bob", tokens_per_day=1)
        await spent.say(TAGS)
        refusals: list[tuple[Client, dict[str, Any], int, str]] = [
            (Client(house), {}, 401, "invalid_api_key"),
            (reader, {}, 403, "read_only_key"),
            (scoped, {}, 403, "template_not_allowed"),
            (bob, {"model": first["model"]}, 404, "model_not_found"),
            (bob, {"model": "nobody"}, 404, "model_not_found"),
        ]
        for client, changed, status, code in refusals:
            found, error = await client.refused("POST", CHAT, {**request_of(TAGS), **changed})
            assert (found, error["code"]) == (status, code)
        assert (await spent.say(TAGS))["error"]["code"] == "budget_exceeded"
        assert content(await bob.say(TAGS, model="auto")) == content(await scoped.say(TAGS, model="auto"))
        assert (await bob.got("/v1/sessions"))["data"] == []
        assert len((await admin_of(house).got("/admin/sessions"))["data"]) == 1


async def test_a_model_that_fails_is_said_in_both_forms(serving: Serving) -> None:
    async with serving(lambda _: say("", fault=ScriptedStatus(status=500))) as house:
        async with house.http.post(CHAT, json=request_of(TAGS)) as response:
            error = (await response.json())["error"]
        assert (response.status, error["code"]) == (502, "provider_error")
        async with house.http.post(CHAT, json=request_of(TAGS, stream=True)) as response:
            pieces = [one.json async for one in sse(response)]
        assert pieces[-1]["error"]["code"] == "provider_error"
