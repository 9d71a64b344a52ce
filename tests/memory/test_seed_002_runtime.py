"""Seed 002 in the agent loop: what reading tools returned is shown in the next prompt, and not fetched again."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from library_tools import DONE, FACTS, REG_ID, Library, obedient, repeating
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import MemoryPolicy, ResetPolicy, Template, ToolPolicy
from longhouse.journal import events
from longhouse.journal.events import Cleanable
from longhouse.models.scripted import Say, call, step_of
from server_helpers import House, Serving, content, sse

HINT = f"# 已缓存目录\n以下规程目录已获取: {REG_ID}\n无需再次调用 get_toc()"
FOUND = f"# 已获取的相关信息\n## [1] {REG_ID} P85\n{FACTS['母线'][1]}"
USED_UP = """
    INSERT INTO tool_uses (owner, tool, minute, used)
    SELECT 'local', 'library_toc', date_trunc('minute', now()) + nth * interval '1 minute', 1
    FROM generate_series(0, 1) AS nth
"""
QUESTIONS = [f"What of {topic}, question {nth}?" for nth, topic in enumerate([*FACTS] * 4)][:10]


def reader(library: Library, **policy: Any) -> Template:
    tools = ToolPolicy(allowlist=(*library.names, "finalanswertool"))
    return Template(name="a", tool_policy=tools, memory_policy=MemoryPolicy(**policy))


def systems(house: House) -> list[str]:
    assert house.model is not None
    return [request["messages"][0]["content"] for request in house.model.requests]


async def memory_of(house: House, session_id: str) -> Any:
    async with house.http.get(f"/v1/sessions/{session_id}/memory") as response:
        assert response.status == 200
        return await response.json()


async def check_requests(house: House, session_id: str) -> int:
    """Every request of the session is composed again as it was sent; how many there are."""
    steps = (await house.kinds(session_id)).count("Replied")
    for step in range(1, steps + 1):
        async with house.http.get(f"/v1/sessions/{session_id}/steps/{step}/request") as response:
            assert (await response.json())["matches"], step
    return steps


async def test_the_first_query_calls_get_toc_the_second_does_not_and_neither_does_one_after_a_restart(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    library = Library()
    setup: dict[str, Any] = {"templates": [reader(library)], "tools": library.tools, "memory_language": "zh"}
    caplog.set_level(logging.DEBUG, "longhouse.memory.working")
    async with serving(obedient, **setup) as house:
        answer = await house.say("母线失压怎么办?", model="a")
        session_id = answer["model"]
        assert (content(answer), library.runs) == (FACTS["母线"][1], ["toc", "search"])
        first, second, third = systems(house)
        assert (second, third) == (f"{first}\n\n{HINT}", f"{first}\n\n{HINT}\n\n{FOUND}")
        assert [f"[Memory] 缓存目录: {REG_ID}", "[Memory] 添加搜索结果: 2 条"] == [
            one.message for one in caplog.records
        ]
        assert content(await house.say("母线再问一次", model=session_id)) == FACTS["母线"][1]
        assert library.runs == ["toc", "search"]
        shown = await memory_of(house, session_id)
    async with serving(obedient, **setup) as house:
        assert await memory_of(house, session_id) == shown
        assert content(await house.say("What of the breaker?", model=session_id)) == FACTS["breaker"][1]
        assert library.runs == ["toc", "search", "search"]
        assert systems(house)[0].endswith(f"{HINT}\n\n{FOUND}")
        assert await check_requests(house, session_id) == 6
        now = await memory_of(house, session_id)
    assert shown == {
        "object": "session.memory",
        "session_id": session_id,
        "enabled": True,
        "current_query": "母线再问一次",
        "outlines": [{"reg_id": REG_ID, "call_id": "1-action-0", "chapters": ["第一章 总则", "1.1 适用范围"]}],
        "known_chapters": ["第一章 总则", "1.1 适用范围"],
        "chunks": [
            {
                "content": FACTS["母线"][1],
                "source": f"{REG_ID} P85",
                "relevance_score": 0.9,
                "chunk_type": "search_result",
                "metadata": {"reg_id": REG_ID, "page": "85"},
            }
        ],
        "recalled": [],
        "interactions": [],
    }
    assert [one["source"] for one in now["chunks"]] == [f"{REG_ID} P40", f"{REG_ID} P85"]


async def test_a_model_that_asks_again_is_answered_from_memory_and_everybody_can_see_it(serving: Serving) -> None:
    library = Library()
    async with serving(repeating, templates=[reader(library)], tools=library.tools) as house:
        session_id = (await house.say("What of the breaker?", model="a"))["model"]
        assert library.runs == ["toc", "search", "pages"]
        body = {"model": session_id, "messages": [{"role": "user", "content": "The breaker again"}], "stream": True}
        with capture_logs() as log:
            async with house.http.post("/v1/chat/completions", json=body) as response:
                told = [one.json.get("x_agent") or {} async for one in sse(response) if one.data != "[DONE]"]
        assert library.runs == ["toc", "search", "pages"]
        results = [one for one in told if one.get("event") == "tool_result" and one["tool"] in library.names]
        assert [(one["tool"], one["by"], one["status"]) for one in results] == [
            (name, "memory", "ok") for name in library.names
        ]
        answered = [(one["tool"], one["session"]) for one in log if one["event"] == "answered_from_memory"]
        assert answered == [(name, session_id) for name in library.names]
        async with house.http.get(f"/v1/sessions/{session_id}/events?deltas=false") as response:
            facts = [one.json["event"] async for one in sse(response)]
        returned = [one for one in facts if one["kind"] == "Returned" and "-action-" in one["call"]]
        assert [one.get("by", "") for one in returned] == ["", "", "", "", "memory", "memory", "memory", ""]
        # The remembered result is the same, byte for byte.
        assert [one["outcome"] for one in returned[4:7]] == [one["outcome"] for one in returned[:3]]
        async with house.http.get("/metrics") as response:
            metrics = await response.text()
        assert 'longhouse_calls_from_memory_total{tool="library_toc"} 1.0' in metrics
        await check_requests(house, session_id)


async def test_ten_questions_need_fewer_tool_calls_with_memory(serving: Serving) -> None:
    """The number: runs of tools in a reading session of ten questions on three topics."""
    ran = {}
    for enabled in (True, False):
        library = Library()
        async with serving(
            repeating, templates=[reader(library)], tools=library.tools, memory_enabled=enabled
        ) as house:
            session_id = "a"
            for question in QUESTIONS:
                session_id = (await house.say(question, model=session_id))["model"]
            shown = await memory_of(house, session_id)
            assert (shown["enabled"], len(shown["outlines"]), len(shown["chunks"])) == (enabled, enabled, 6 * enabled)
        ran[enabled] = len(library.runs)
    assert ran == {True: 7, False: 30}


PLAIN, WIDE = [("search_result", 0.9)], [("search_result", 0.9), ("page_content", 0.8), ("search_result", 0.2)]


async def test_capacity_threshold_switch_and_resets_are_those_of_the_settings_and_the_template(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    library = Library()
    policies: dict[str, MemoryPolicy] = {
        "plain": MemoryPolicy(),
        "wide": MemoryPolicy(max_chunks=5),
        "strict": MemoryPolicy(min_relevance=0.85),
        "off": MemoryPolicy(enabled=False),
    }
    parts: tuple[Cleanable, ...] = ("query_context", "working_memory")
    resets = {part: ResetPolicy(clean=(part,)) for part in parts}
    one = reader(library)
    agents = [replace(one, name=name, memory_policy=policy) for name, policy in policies.items()]
    agents += [replace(one, name=name, reset_policy=policy) for name, policy in resets.items()]
    setup: dict[str, Any] = {"templates": agents, "tools": library.tools}
    sessions = dict[str, str]()
    caplog.set_level(logging.DEBUG, "longhouse.memory.working")

    async def ran(house: House, name: str) -> list[str]:
        """The tools that one more question runs."""
        library.runs.clear()
        answered = await house.say("What of the breaker?", model=sessions.get(name, name))
        sessions[name] = answered["model"]
        return [*library.runs]

    async def chunks(house: House, name: str) -> list[tuple[str, float]]:
        shown = (await memory_of(house, sessions[name]))["chunks"]
        return [(chunk["chunk_type"], chunk["relevance_score"]) for chunk in shown]

    async with serving(repeating, memory_max_chunks=1, memory_min_relevance=0.1, **setup) as house:
        for name in (*policies, *resets):
            assert await ran(house, name) == ["toc", "search", "pages"]
        assert "[Memory] 添加页面内容: angui_2024 P40" in [record.message for record in caplog.records]
        assert await chunks(house, "plain") == PLAIN
        assert await chunks(house, "wide") == WIDE
        assert await chunks(house, "strict") == PLAIN
        assert await chunks(house, "off") == []
        again = {name: await ran(house, name) for name in (*policies, *resets)}
        assert again == {
            "plain": [], "wide": [], "strict": [], "off": ["toc", "search", "pages"],
            "query_context": ["search", "pages"], "working_memory": ["toc", "search", "pages"],
        }  # fmt: skip
    # What was noted under other settings is shown by those of now.
    async with serving(repeating, memory_max_chunks=2, **setup) as house:
        for name in ("plain", "wide"):
            assert await chunks(house, name) == WIDE[:2]
        assert await chunks(house, "strict") == PLAIN


async def test_each_agent_of_a_conversation_remembers_for_itself(serving: Serving) -> None:
    library = Library()
    chief = Template(name="chief", tool_policy=ToolPolicy(allowlist=("library_toc", "agent.a", "finalanswertool")))

    def script(body: Body) -> Say:
        is_chief = any(b"agent_a" in bytes(raw) for raw in body.tools)
        steps = [call("library_toc", reg_id=REG_ID), *([call("agent_a", task="Look it up")] if is_chief else []), DONE]
        return steps[min(step_of(body.messages), len(steps) - 1)]

    async with serving(script, templates=[reader(library), chief], tools=library.tools) as house:
        session_id = (await house.say("Go", model="chief"))["model"]
        assert library.runs == ["toc", "toc"]
        async with house.http.get(f"/v1/sessions?parent={session_id}") as response:
            [child] = [one["session_id"] for one in (await response.json())["data"]]
        body = {"model": session_id, "messages": [{"role": "user", "content": "Again"}], "stream": True}
        async with house.http.post("/v1/chat/completions", json=body) as response:
            told = [one.json.get("x_agent") or {} async for one in sse(response) if one.data != "[DONE]"]
        assert library.runs == ["toc", "toc"]
        by = [(one["event"], one["by"]) for one in told if "by" in one]
        assert by == [("tool_result", "memory"), ("subagent_tool_result", "memory")]
        for one in (session_id, child):
            assert [outline["reg_id"] for outline in (await memory_of(house, one))["outlines"]] == [REG_ID]
            await check_requests(house, one)


async def test_switches_approval_and_rate_limits_come_before_memory(serving: Serving) -> None:
    library = Library()
    again = [call("library_toc", reg_id=REG_ID), DONE]
    async with serving([*again] * 9, templates=[reader(library)], tools=library.tools) as house:
        session_id = "a"

        async def ask() -> str:
            """One more turn; how its call of the outline ended."""
            nonlocal session_id
            session_id = (await house.say("Once more", model=session_id))["model"]
            returned = [one.event for one in await house.journal(session_id) if isinstance(one.event, events.Returned)]
            outcome = returned[-2].outcome
            return outcome.code if isinstance(outcome, events.Fault) else returned[-2].by or "ran"

        async def overlay(**changes: Any) -> None:
            async with house.http.put("/admin/tools/library_toc/security_policy", json=changes) as response:
                assert response.status == 200, await response.text()

        assert [await ask(), await ask()] == ["ran", "memory"]
        library.state = "v2"
        assert [await ask(), await ask()] == ["ran", "memory"]
        assert len(library.runs) == 2

        await overlay(rate_limits={"per_minute": 1})
        assert [await ask(), await ask()] == ["memory", "memory"]  # not counted
        await house.db.run(USED_UP)
        assert await ask() == "rate_limited"
        await overlay(rate_limits={})

        await overlay(enabled=False)
        assert await ask() == "not_offered"
        await overlay(needs_approval=True)
        asking = asyncio.create_task(house.say("Once more", model=session_id))
        await house.until(session_id, "WAITING_FOR_APPROVAL")
        call_id = (await house.session(session_id))["questions"][0]["call_id"]
        answer = {"call_id": call_id, "decision": "approve"}
        async with house.http.post(f"/v1/sessions/{session_id}/approval", json=answer) as response:
            assert response.status == 202
        await asking
        await house.until(session_id, "COMPLETED")
        assert len(library.runs) == 3
