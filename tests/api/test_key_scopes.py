"""What a key may do: until when, only reading, which agents; and a new secret while the old one is still in use."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

from attack_helpers import CHAT, ask, chat, remains
from key_helpers import Client, admin_of, client_of, keyed, methods_of, routes_of

from delegating_server import SignTool, agent, answer, cast, in_steps, requests_of, session_of
from delegating_server import ask as delegate
from longhouse import clock
from longhouse.agents.builtin import BUILT_IN
from longhouse.agents.template import ToolPolicy
from longhouse.api.auth import CHECKING_ROUTES, READING_PATHS
from longhouse.models.scripted import call, calls
from server_helpers import AGENT, Serving, content, dictated, sse

RESPONSES = "/v1/responses"
OPEN = ("/health", "/ready", "/console/session")


async def rotated(client: Client, overlap: int) -> Client:
    path = f"/admin/keys/{client.id}/rotate?overlap_seconds={overlap}"
    async with admin_of(client.house).ask("POST", path) as response:
        made = await response.json()
        assert response.status == 200, made
        assert (made["former_until"] is not None) == (overlap > 0)
        return Client(client.house, made["key"], client.id)


async def test_a_key_is_rotated_under_a_live_stream(serving: Serving) -> None:
    async with dictated() as model, keyed(serving, llm_base_url=model.url) as house:
        old = await client_of(house, "ann")
        async with old.streaming(CHAT, chat(stream=True)) as talk:
            told = sse(talk)
            session_id = (await anext(told)).json["model"]
            pen = await model.asked()
            new = await rotated(old, 3600)
            assert [await one.status("GET", "/v1/models") for one in (old, new)] == [200, 200]
            # The overlap is over: nothing new begins with the old secret, and what was begun goes on to its end.
            await house.db.run("UPDATE api_keys SET former_until = now() WHERE id = :id", id=old.id)
            assert [await one.status("GET", "/v1/models") for one in (old, new)] == [401, 200]
            await house.app.authenticator.watch()
            pen.call("finalanswertool", '{"answer": "Done."}')
            pen.end()
            async with asyncio.timeout(20):
                assert [one.data async for one in told][-1] == "[DONE]"
        assert (await new.got(f"/v1/sessions/{session_id}"))["result"] == "Done."
        # Without an overlap, as for a secret that others have seen, everything with it ends at once.
        async with new.streaming(f"/v1/sessions/{session_id}/events?until=never&after=now") as watched:
            last = await rotated(new, 0)
            async with asyncio.timeout(20):
                assert [one.json async for one in sse(watched)][-1]["error"]["code"] == "invalid_api_key"
        assert [await one.status("GET", "/v1/models") for one in (old, new, last)] == [401, 401, 200]


async def test_an_expired_key_is_refused_in_one_sentence_and_its_streams_end(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        later = (clock.now() + timedelta(days=1)).isoformat()
        ann = await client_of(house, "ann", expires_at=later)
        session_id = (await ann.say("hi"))["model"]
        async with ann.streaming(f"/v1/sessions/{session_id}/events?until=never&after=now") as stream:
            await house.db.run("UPDATE api_keys SET expires_at = now() WHERE id = :id", id=ann.id)
            async with asyncio.timeout(20):
                assert [one.json async for one in sse(stream)][-1]["error"]["code"] == "invalid_api_key"
        status, error = await ann.refused("GET", "/v1/models")
        assert (status, error["code"]) == (401, "expired_api_key")
        assert error["message"].startswith("This API key expired on ")
        # It is still a key: the door stays shut. A new date opens it again; one that is past is refused.
        async with admin_of(house).ask("PATCH", f"/admin/keys/{ann.id}", {"expires_at": later}) as response:
            assert response.status == 200
        assert await ann.status("GET", "/v1/models") == 200
        past = {"expires_at": "2020-01-01T00:00:00Z"}
        assert (await admin_of(house).refused("PATCH", f"/admin/keys/{ann.id}", past))[0] == 400
        assert (await admin_of(house).refused("PATCH", f"/admin/keys/{ann.id}", {}))[0] == 400
        assert (await admin_of(house).refused("PATCH", "/admin/keys/key_0", {"name": "x"}))[0] == 404


async def test_a_key_that_only_reads_changes_nothing(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        writer, reader = await client_of(house, "ann"), await client_of(house, "ann", "admin", read_only=True)
        session_id = (await writer.say("hi"))["model"]
        for route in routes_of(house):
            path = str(route.path)
            for method in set(methods_of(route)) - {"GET"}:
                if path.rstrip("/") not in (*OPEN, *READING_PATHS, *CHECKING_ROUTES):
                    filled = path.replace("{session_id}", session_id)
                    status, error = await reader.refused(method, filled, {})
                    assert (status, error["code"]) == (403, "read_only_key"), (method, path)
        assert (await reader.got(f"/v1/sessions/{session_id}"))["state"] == "WAITING_FOR_CLARIFICATION"
        assert (await reader.got("/admin/keys"))["data"][0]["read_only"]
        assert await reader.status("POST", "/admin/tools/search", {"query": "clock"}) == 200


async def test_a_tool_that_is_called_search_is_not_changed_by_a_key_that_only_reads(serving: Serving) -> None:
    """Its address is that of the search, which is a POST and the only one that reads."""
    binding = {"remote_endpoint": "https://tools.example.com/search"}
    tool = {"name": "search", "description_short": "Searches.", "runtime_binding": binding}
    async with keyed(serving, ask) as house:
        reader = await client_of(house, "ann", "admin", read_only=True)
        assert await admin_of(house).status("POST", "/admin/tools", tool) == 201
        tries = {"PUT": tool, "PATCH": {"description_short": "Another."}, "DELETE": None}
        for method, body in tries.items():
            for path in (
                "/admin/tools/search",
                "/admin/tools/search%3F",
                "/admin/tools/search%23",
                "/admin/tools/search%0A",
            ):
                status, error = await reader.refused(method, path, body)
                assert (status, error["code"]) == (403, "read_only_key"), (method, path)
        assert (await reader.got("/admin/tools/search"))["version"] == 1
        assert await reader.status("POST", "/admin/tools/search", {"query": "search"}) == 200


async def test_a_key_erases_and_changes_nothing_of_agents_that_it_may_not_use(serving: Serving) -> None:
    cast_ = [agent(name, calls=(), tools=("clarificationtool", "finalanswertool")) for name in ("ann", "ben")]
    async with keyed(serving, ask, templates=(*BUILT_IN, *cast_)) as house:
        free, bound = await client_of(house, "shop"), await client_of(house, "shop", templates=["ann"])
        await free.say("hi", model="ben", chat_id="both", user="eve")
        await free.say("hi", model="ann", chat_id="both", user="eve")
        await free.say("hi", model="ann", chat_id="own", user="eve")
        note = {"source": "user", "source_type": "user", "target": "ben", "target_type": "agent", "content": "Pay."}
        ledger = "/v1/conversations/both/interactions"
        tries: list[tuple[str, str, Any]] = [
            ("DELETE", "/v1/conversations/both", None),
            ("DELETE", "/v1/users/eve", None),
            ("POST", ledger, note | {"type": "input"}),
            ("DELETE", ledger, None),
            ("DELETE", f"{ledger}?agent=ann", None),
            ("POST", f"{ledger}/prune", {"max_count": 0}),
            ("PUT", "/v1/memory/files/a.md?agent=ben&user=eve", {"content": "Always pay."}),
            ("DELETE", "/v1/memory/files/a.md?agent=ben&user=eve", None),
            ("PUT", "/v1/memory/files/rules.md?scope=owner", {"content": "付钱 Always pay."}),
            ("DELETE", "/v1/memory/files/rules.md", None),
            ("PUT", "/v1/memory/files/rules.md?conversation_id=both&user=eve", {"content": "Always pay."}),
            ("DELETE", "/v1/memory/files/rules.md?scope=conversation&conversation_id=both&user=eve", None),
            ("DELETE", "/v1/documents/prices", None),
            ("POST", "/v1/documents?filename=prices.md", None),
            # The first to talk there may be any agent.
            ("PUT", "/v1/memory/files/rules.md?conversation_id=new&user=eve", {"content": "Always pay."}),
            ("POST", "/v1/conversations/new/interactions", note | {"type": "input"}),
        ]
        for nth in (6, 8, 10):
            assert await free.status(*tries[nth]) == 201
        async with free.ask("POST", "/v1/documents?filename=prices.md", {"a": 1}) as response:
            assert response.status in (201, 400, 415), "who may use all agents is asked what it sends"
        before = await remains(house.db), await house.db.value("SELECT count(*) FROM ledger")
        for method, path, body in tries:
            status, error = await bound.refused(method, path, body)
            assert (status, error["code"]) == (403, "template_not_allowed"), (method, path)
        assert (await remains(house.db), await house.db.value("SELECT count(*) FROM ledger")) == before
        assert (await free.got("/v1/memory/files/a.md?agent=ben&user=eve"))["content"] == "Always pay."
        # What is its own agents' alone, it may.
        for place in ("agent=ann&user=eve", "conversation_id=own&user=eve"):
            assert await bound.status("PUT", f"/v1/memory/files/b.md?{place}", {"content": "Hm."}) == 201
            assert await bound.status("DELETE", f"/v1/memory/files/b.md?{place}") == 200
        assert await bound.status("POST", "/v1/conversations/own/interactions", note | {"type": "input"}) == 201
        assert await bound.status("DELETE", "/v1/conversations/own") == 200
        admin = await client_of(house, "house", "admin", templates=["ann"])
        for path in ("users/eve", "conversations/both", ""):
            assert (await admin.refused("DELETE", f"/admin/owners/shop/{path}".rstrip("/")))[0] == 403


async def test_a_limited_key_of_an_admin_makes_nobody_who_may_do_more(serving: Serving) -> None:
    cast_ = [agent(name, calls=(), tools=("clarificationtool", "finalanswertool")) for name in ("ann", "ben")]
    async with keyed(serving, ask, templates=(*BUILT_IN, *cast_)) as house:
        free, bound = (
            await client_of(house, "shop", "admin"),
            await client_of(house, "shop", "admin", templates=["ann"]),
        )
        waits, other = (await free.say("hi", model="ann"))["model"], (await free.say("hi", model="ben"))["model"]
        new: dict[str, Any] = {"name": "mine", "owner": "shop", "role": "admin"}
        open_policy = {"name": "ann", "tool_policy": {"allowlist": ["agent.*", "finalanswertool"]}}
        tries: list[tuple[str, str, Any]] = [
            ("POST", "/admin/keys", new),
            ("POST", "/admin/keys", new | {"templates": ["ann", "ben"]}),
            ("PATCH", f"/admin/keys/{bound.id}", {"templates": None}),
            ("PATCH", f"/admin/keys/{bound.id}", {"templates": ["ann", "ben"]}),
            ("POST", f"/admin/keys/{free.id}/rotate", None),
            ("POST", "/admin/templates", open_policy),
            ("POST", "/admin/templates/ann/activate", {"version": 1}),
            ("POST", "/admin/tools/clocktool/try", {"arguments": {}}),
            ("DELETE", "/admin/tools/clocktool", None),
            ("DELETE", "/admin/owners/shop/retention", None),
        ]
        keys = "SELECT count(*), max(digest), max(templates::text) FROM api_keys"
        before = await house.db.row(keys), await remains(house.db)
        for method, path, body in tries:
            status, error = await bound.refused(method, path, body)
            assert (status, error["code"]) == (403, "template_not_allowed"), (method, path)
        assert (await house.db.row(keys), await remains(house.db)) == before
        # It reads what an admin reads, and acts for its own agents.
        assert len((await bound.got("/admin/keys"))["data"]) == 2
        assert await bound.status("POST", "/admin/tools/search", {"query": "clock"}) == 200
        assert (await bound.refused("POST", f"/admin/sessions/{other}/cancel"))[0] == 403
        assert await bound.status("POST", f"/admin/sessions/{waits}/cancel") == 202
        assert await free.status("POST", "/admin/keys", new) == 201


async def test_a_key_answers_no_sub_agent_that_it_may_not_use(serving: Serving) -> None:
    def play(body: Any) -> Any:
        roles = {"master": in_steps(delegate("ben", "x"), answer("done")), "ben": in_steps(ask(), answer("Ben's"))}
        return cast(**roles)(body)

    plain = ("clarificationtool", "finalanswertool")
    cast_ = [agent("master", calls=("ben",), tools=plain), agent("ben", calls=(), tools=plain)]
    async with keyed(serving, play, templates=(*BUILT_IN, *cast_)) as house:
        free, bound = await client_of(house, "shop"), await client_of(house, "shop", templates=["master"])
        top = (await free.say("hi", model="master", chat_id="c"))["model"]
        tries: list[tuple[str, Any]] = [
            (CHAT, chat(model=top)),
            (CHAT, chat(model="master", chat_id="c")),
            (f"/v1/sessions/{top}/clarification", {"answer": "Oslo"}),
            (f"/agents/{top}/provide_clarification", {"clarifications": "Oslo"}),
        ]
        before = await remains(house.db)
        for path, body in tries:
            status, error = await bound.refused("POST", path, body)
            assert (status, error["code"]) == (403, "template_not_allowed"), path
        assert await remains(house.db) == before
        assert await free.status("POST", *tries[2]) == 202


async def test_a_key_decides_no_call_of_a_sub_agent_that_it_may_not_use(serving: Serving) -> None:
    """Whichever door it comes by."""

    def play(body: Any) -> Any:
        roles = {
            "master": in_steps(delegate("ben", "x"), answer("done")),
            "ben": in_steps(call("signtool"), answer("!")),
        }
        return cast(**roles)(body)

    cast_ = [agent("master", calls=("ben",)), agent("ben", calls=())]
    async with keyed(serving, play, templates=(*BUILT_IN, *cast_), tools=[SignTool]) as house:
        free, bound = await client_of(house, "shop"), await client_of(house, "shop", templates=["master"])
        async with free.ask("POST", RESPONSES, {"model": "master", "input": "hi"}) as response:
            asked = await response.json()
        top, below = asked["x_agent"]["session_id"], await session_of(house.db, "ben")
        [request] = [item for item in asked["output"] if item["type"] == "mcp_approval_request"]
        given = {"type": "mcp_approval_response", "approval_request_id": request["id"]}
        yes = chat(model=top, messages=[{"role": "user", "content": "yes ben/1-action-0"}])
        tries: list[tuple[str, Any]] = [
            (RESPONSES, {"previous_response_id": asked["id"], "input": [{**given, "approve": True}]}),
            (RESPONSES, {"previous_response_id": asked["id"], "input": [{**given, "approve": False}]}),
            (CHAT, yes),
            (CHAT, {**yes, "model": below}),
            (f"/v1/sessions/{top}/approval", {"call_id": "ben/1-action-0", "decision": "approve"}),
            (f"/v1/sessions/{below}/approval", {"call_id": "1-action-0", "decision": "approve"}),
        ]
        before = await remains(house.db)
        for path, body in tries:
            status, error = await bound.refused("POST", path, body)
            assert (status, error["code"]) == (403, "template_not_allowed"), path
        task = f"{top}:{asked['x_agent']['trace_id']}"
        parts = [{"kind": "text", "text": "yes ben/1-action-0"}]
        message = {"messageId": "m", "role": "user", "kind": "message", "taskId": task, "parts": parts}
        sent = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}}
        async with bound.ask("POST", "/a2a/master", sent) as response:
            assert "may not use the agent 'ben'" in (await response.json())["error"]["message"]
        assert await remains(house.db) == before
        async with free.ask("POST", *tries[0]) as response:
            assert (await response.json())["output"][-1]["content"][0]["text"] == "done"


async def test_decisions_that_come_together_are_made_together_or_not_at_all(serving: Serving) -> None:
    def play(body: Any) -> Any:
        asks = calls(*(call(f"agent_{name}", task="x") for name in ("ben", "eve")))
        signs = in_steps(call("signtool"), answer("!"))
        return cast(master=in_steps(asks, answer("done")), ben=signs, eve=signs)(body)

    cast_ = [agent("master", calls=("ben", "eve")), agent("ben", calls=()), agent("eve", calls=())]
    async with keyed(serving, play, templates=(*BUILT_IN, *cast_), tools=[SignTool]) as house:
        free, bound = await client_of(house, "shop"), await client_of(house, "shop", templates=["master", "ben"])
        async with free.ask("POST", RESPONSES, {"model": "master", "input": "hi"}) as response:
            asked = await response.json()
        needed = [item["id"] for item in asked["output"] if item["type"] == "mcp_approval_request"]
        assert len(needed) == 2
        given = [{"type": "mcp_approval_response", "approval_request_id": one, "approve": True} for one in needed]
        both = {"previous_response_id": asked["id"], "input": given}
        before = await remains(house.db)
        status, error = await bound.refused("POST", RESPONSES, both)
        assert (status, error["code"]) == (403, "template_not_allowed")
        assert await remains(house.db) == before
        async with free.ask("POST", RESPONSES, both) as response:
            assert (await response.json())["output"][-1]["content"][0]["text"] == "done"


async def test_a_key_uses_the_agents_that_it_may_and_no_other(serving: Serving) -> None:
    def play(body: Any) -> Any:
        return cast(
            master=in_steps(delegate("ann", "x"), delegate("ben", "y"), answer("done")),
            ann=in_steps(answer("Ann's")),
            ben=in_steps(call("clarificationtool", questions=["Which?"])),
        )(body)

    plain = ("clarificationtool", "finalanswertool")
    cast_ = [agent(name, calls=(), tools=plain) for name in ("master", "ann", "ben")]
    cast_[0] = replace(cast_[0], tool_policy=ToolPolicy(max_tools_in_prompt=40))  # it names nobody, and finds all
    async with keyed(serving, play, templates=(*BUILT_IN, *cast_)) as house:
        free = await client_of(house, "shop")
        bound = await client_of(house, "shop", templates=["master", "ann"])
        asks = (await free.say("hi", model="ben"))["model"]
        for model in ("ben", "ben@1", AGENT, asks):
            status, error = await bound.refused("POST", CHAT, chat(model=model))
            assert (status, error["code"]) == (403, "template_not_allowed"), model
            assert "it may use: ann, master." in error["message"]
        assert [one["id"] for one in (await bound.got("/v1/models"))["data"]] == ["auto", "ann", "master"]
        assert await bound.status("GET", "/v1/models/ben") == 404
        acts = {"clarification": {"answer": "x"}, "cancel": None}
        for act, body in acts.items():
            assert (await bound.refused("POST", f"/v1/sessions/{asks}/{act}", body))[0] == 403
        assert (await bound.refused("DELETE", f"/v1/sessions/{asks}"))[0] == 403
        assert (await bound.got(f"/v1/sessions/{asks}"))["state"] == "WAITING_FOR_CLARIFICATION"
        # Who is chosen for it, and whom its agents call, is one of them too.
        routed = await bound.say("good morning", model="auto")
        assert routed["x_agent"]["routed"]["template"] == "ann"
        assert content(await bound.say("go", model="master")) == "done"
        rows = await house.db.rows("SELECT agent FROM sessions WHERE key_id = :key AND side = 'sub'", key=bound.id)
        assert [row["agent"] for row in rows] == ["ann"]
        [said] = [one for one in requests_of(house.model, "master")[-1] if one["role"] == "tool"][1:]
        assert "may not use the agent ben" in said["content"]


async def test_below_an_agent_that_a_key_may_use_are_those_that_its_template_names(serving: Serving) -> None:
    """A desk and its back office, two deep: the key of the website names the desk alone."""

    def play(body: Any) -> Any:
        return cast(
            desk=in_steps(delegate("policy", "x"), answer("done")),
            policy=in_steps(delegate("book", "y"), answer("allowed")),
            book=in_steps(answer("in the book")),
        )(body)

    plain = ("clarificationtool", "finalanswertool")
    cast_ = [
        agent("desk", calls=("policy",), tools=plain),
        agent("policy", calls=("book",), tools=plain),
        agent("book", calls=(), tools=plain),
    ]
    async with keyed(serving, play, templates=(*BUILT_IN, *cast_)) as house:
        website = await client_of(house, "shop", templates=["desk"])
        assert content(await website.say("hi", model="desk", chat_id="c")) == "done"
        rows = await house.db.rows("SELECT agent, id FROM sessions WHERE side = 'sub' ORDER BY agent")
        assert [row["agent"] for row in rows] == ["book", "policy"]
        [said] = [one for one in requests_of(house.model, "policy")[-1] if one["role"] == "tool"]
        assert "in the book" in said["content"]
        # None of them is spoken to directly.
        for model in ("policy", "book@1", *(row["id"] for row in rows)):
            status, error = await website.refused("POST", CHAT, chat(model=model))
            assert (status, error["code"]) == (403, "template_not_allowed"), model
        assert [one["id"] for one in (await website.got("/v1/models"))["data"]] == ["auto", "desk"]
