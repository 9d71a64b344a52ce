"""Agents as tools of an MCP server: the official client lists them, calls them, and is asked what they ask."""

import asyncio
import io
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import mcp_types as types
import pytest
from attack_helpers import ask, leaves_no_trace
from key_helpers import admin_of, client_of, keyed
from mcp.shared.exceptions import MCPError
from pydantic import Field

from longhouse.agents.builtin import BUILT_IN
from longhouse.agents.template import MultiAgentMeta, Template, ToolPolicy
from longhouse.journal import events
from longhouse.journal.events import Effect
from longhouse.models.scripted import Hang, Say, call, say
from longhouse.tools import BaseTool, ToolContext
from mcp_helpers import ACCEPT, INITIALIZE, LEGACY, MODERN, MODES, Person, names_of, over_http, text_of
from own_module import own_module
from server_helpers import AGENT, House, Serving

CITY = call("clarificationtool", questions=["Which city?"])
RAIN = call("finalanswertool", answer="Rain in Oslo.")


def told(result: types.CallToolResult) -> dict[str, Any]:
    assert isinstance(result.structured_content, dict)
    return result.structured_content


@pytest.mark.parametrize("mode", MODES)
async def test_every_agent_is_a_tool_with_its_capabilities(serving: Serving, mode: str) -> None:
    own = Template(name="clerk.of-stock", multi_agent_meta=MultiAgentMeta(capabilities="Knows the stock.", tags=("w",)))
    async with serving(templates=(*BUILT_IN, own)) as house, over_http(house.url, mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {one.name for one in (*BUILT_IN, own)}
        clerk = tools["clerk.of-stock"]
        assert clerk.description == "Knows the stock."
        assert clerk.input_schema["required"] == ["message"]
        assert set(clerk.input_schema["properties"]) == {"message", "conversation_id"}
        assert clerk.output_schema is not None
        assert client.server_info is not None
        assert client.server_info.name == "longhouse"


@pytest.mark.parametrize("mode", MODES)
async def test_a_call_is_a_turn_and_the_next_one_goes_on_with_it(serving: Serving, mode: str) -> None:
    script = [call("clocktool", timezone="UTC"), RAIN, call("finalanswertool", answer="Snow.")]
    seen: list[str] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        seen.append(message or "")

    async with serving(script) as house, over_http(house.url, mode=mode) as client:
        first = await client.call_tool(AGENT, {"message": "Will it rain?"}, progress_callback=heard)
        assert (text_of(first), first.is_error) == ("Rain in Oslo.", False)
        about = told(first)
        assert (about["answer"], about["state"], about["question"]) == ("Rain in Oslo.", "COMPLETED", None)
        assert seen[0] == f"session {about['session_id']} of the conversation {about['conversation_id']}"
        assert f"{AGENT}: clocktool" in seen
        again = {"message": "And tomorrow?", "conversation_id": about["conversation_id"]}
        second = await client.call_tool(AGENT, again)
        assert text_of(second) == "Snow."
        assert told(second)["session_id"] == about["session_id"]
        other = await client.call_tool(AGENT, {"message": "", "conversation_id": about["conversation_id"]})
        assert text_of(other) == "Snow."
        assert (await house.session(about["session_id"]))["task"] == "And tomorrow?"


@pytest.mark.parametrize("mode", MODES)
async def test_a_person_at_the_client_answers_what_an_agent_asks(serving: Serving, mode: str) -> None:
    person = Person("Oslo", "Tuesday")
    script = [CITY, call("clarificationtool", questions=["Which day?"]), RAIN]
    async with serving(script) as house, over_http(house.url, mode=mode, person=person) as client:
        result = await client.call_tool(AGENT, {"message": "Will it rain?"})
        assert text_of(result) == "Rain in Oslo."
        assert person.asked == ["Which city?", "Which day?"]
        session = await house.folded(told(result)["session_id"])
        answers = [use.outcome for step in session.transcript for use in getattr(step, "uses", ()) if use.question]
        assert [one.content for one in answers] == ["Oslo", "Tuesday"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_asks_nobody_gets_the_question_and_answers_with_the_next_call(
    serving: Serving, mode: str
) -> None:
    async with serving([CITY, RAIN]) as house, over_http(house.url, mode=mode) as client:
        asked = await client.call_tool(AGENT, {"message": "Will it rain?"})
        about = told(asked)
        assert (about["answer"], about["state"]) == ("Which city?", "WAITING_FOR_CLARIFICATION")
        assert about["question"] == "1-action-0"
        assert text_of(asked) == (
            f'Which city?\n\nTo answer, call {AGENT} again with conversation_id "{about["conversation_id"]}".'
        )
        assert not asked.is_error
        answer = {"message": "Oslo", "conversation_id": about["conversation_id"]}
        assert text_of(await client.call_tool(AGENT, answer)) == "Rain in Oslo."


@pytest.mark.parametrize("mode", MODES)
async def test_a_question_that_a_person_declines_stays_open(serving: Serving, mode: str) -> None:
    async with serving([CITY, RAIN]) as house:
        async with over_http(house.url, mode=mode, person=Person(None)) as client:
            asked = await client.call_tool(AGENT, {"message": "Will it rain?"})
            assert told(asked)["state"] == "WAITING_FOR_CLARIFICATION"
        session = await house.session(told(asked)["session_id"])
        assert session["state"] == "WAITING_FOR_CLARIFICATION"


@pytest.mark.parametrize("mode", MODES)
async def test_a_call_that_needs_approval_is_a_choice(serving: Serving, mode: str) -> None:
    letter = call("lettertool", to="Ann", subject="Hi", text="Dear Ann")
    for decision, outcome in (("approve", "Output"), ("deny", "Fault")):
        person = Person(decision)
        async with serving([letter, call("finalanswertool", answer="Done.")]) as house:
            async with over_http(house.url, mode=mode, person=person) as client:
                result = await client.call_tool("secretary", {"message": "Write to Ann"})
            assert text_of(result) == "Done."
            assert person.schemas[0]["properties"]["answer"]["enum"] == ["approve", "deny"]
            journal = await house.journal(told(result)["session_id"])
            decided = [one.event for one in journal if isinstance(one.event, events.Decided)]
            assert [one.decision for one in decided] == [decision]
            returned = [one.event.outcome for one in journal if isinstance(one.event, events.Returned)]
            assert type(returned[0]).__name__ == outcome


async def test_a_cancelled_call_cancels_the_turn_and_a_client_that_only_leaves_does_not(serving: Serving) -> None:
    async def begun(house: House) -> str:
        async with asyncio.timeout(10):
            while True:
                async with house.http.get("/v1/sessions") as response:
                    for row in (await response.json())["data"]:
                        if row["state"] == "RESEARCHING":
                            return str(row["session_id"])
                await asyncio.sleep(0.02)

    async with serving([Say(fault=Hang(seconds=60))]) as house:
        async with over_http(house.url) as client:
            calling = asyncio.create_task(client.call_tool(AGENT, {"message": "Will it rain?"}))
            session_id = await begun(house)
            calling.cancel()  # which the client tells the server
            with suppress(asyncio.CancelledError):
                await calling
            await house.until(session_id, "CANCELLED")
        journal = await house.journal(session_id)
        assert isinstance(journal[-1].event, events.Cancelled)
    for mode in MODES:
        slow = Say(calls=RAIN.calls, chunk=1, delay=0.05)
        async with serving([slow]) as house:
            leaving = asyncio.create_task(_called_by_one_who_leaves(house.url, mode))
            session_id = await begun(house)
            leaving.cancel()
            with suppress(asyncio.CancelledError):
                await leaving
            done = await house.until(session_id, "COMPLETED", within=20)
            assert done["result"] == "Rain in Oslo."
            async with over_http(house.url, mode=mode) as client:
                later = {"message": "", "conversation_id": done["conversation_id"]}
                assert text_of(await client.call_tool(AGENT, later)) == "Rain in Oslo."


async def _called_by_one_who_leaves(url: str, mode: str) -> None:
    """A client whose connection breaks: it says nothing any more."""
    meta: dict[str, Any] = {}
    headers = dict(ACCEPT)
    async with aiohttp.ClientSession(url) as http:
        if mode == LEGACY:
            async with http.post("/mcp", json=INITIALIZE, headers=headers) as response:
                headers["mcp-session-id"] = response.headers["mcp-session-id"]
                await response.read()
            ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            async with http.post("/mcp", json=ready, headers=headers) as response:
                assert response.status == 202
        else:
            headers |= {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": AGENT}
            key = "io.modelcontextprotocol/"
            meta = {"_meta": {f"{key}protocolVersion": MODERN, f"{key}clientCapabilities": {}}}
        params = {"name": AGENT, "arguments": {"message": "Will it rain?"}, **meta}
        body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
        async with http.post("/mcp", json=body, headers=headers) as response:
            await response.read()


@pytest.mark.parametrize("mode", MODES)
async def test_a_turn_that_fails_is_an_error_for_the_model_to_read(serving: Serving, mode: str) -> None:
    failed = call("finalanswertool", answer="I cannot know.", status="failed")
    async with serving([failed]) as house, over_http(house.url, mode=mode) as client:
        result = await client.call_tool(AGENT, {"message": "Will it rain?"})
        assert (result.is_error, text_of(result), told(result)["state"]) == (True, "I cannot know.", "FAILED")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "message"),
    ({"message": 7}, "message"),
    ({"message": " "}, "message"),
    ({"message": "hi", "conversation_id": "../x"}, "conversation_id"),
    ({"message": "hi", "conversation_id": 7}, "conversation_id"),
    ({"message": "", "conversation_id": "nobody's"}, "conversation_id"),
    ({"message": "hi", "temperature": 2}, "temperature"),
]


@pytest.mark.parametrize("mode", MODES)
async def test_a_wrong_argument_is_named_and_nothing_is_done(serving: Serving, mode: str) -> None:
    async with serving(ask) as house, over_http(house.url, mode=mode) as client, leaves_no_trace(house):
        for arguments, param in WRONG:
            with pytest.raises(MCPError) as refused:
                await client.call_tool(AGENT, arguments)
            assert refused.value.code == types.INVALID_PARAMS, arguments
            assert (refused.value.data["param"], param in str(refused.value)) == (param, True), arguments
        with pytest.raises(MCPError, match="NUL"):
            await client.call_tool(AGENT, {"message": "a\x00b"})
        for name in ("nobody", "_tool", "clocktool", "finalanswertool", "a\x00b"):
            with pytest.raises(MCPError, match=re.escape(f"There is no tool {name!r}")):
                await client.call_tool(name, {"message": "hi"})
        with pytest.raises(MCPError) as refused:
            await client.session.call_tool(AGENT, {"message": "hi"}, request_state="{}", input_responses={})
        assert refused.value.data["param"] == "requestState"


async def test_what_is_no_request_of_the_protocol_is_refused(serving: Serving) -> None:
    async with serving(ask) as house, leaves_no_trace(house):

        async def status(data: bytes, **headers: str) -> int:
            async with house.http.post("/mcp", data=io.BytesIO(data), headers={**ACCEPT, **headers}) as response:
                assert "Traceback" not in await response.text()
                return response.status

        assert await status(b"{", **{"content-type": "application/json"}) == 400
        assert await status(b"[]", **{"content-type": "application/json"}) == 400
        assert await status(b"7", **{"content-type": "application/json"}) == 400
        assert await status(b"{}", **{"content-type": "text/plain"}) in (400, 415)
        assert await status(b"x" * (9 * 1024 * 1024), **{"content-type": "application/json"}) == 413
        lost = {"content-type": "application/json", "mcp-session-id": "nobody"}
        assert await status(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}', **lost) == 404
        modern = {"content-type": "application/json", "mcp-protocol-version": "2099-01-01"}
        assert await status(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}', **modern) == 400
        async with house.http.get("/mcp", headers=ACCEPT) as response:
            assert response.status == 405


async def test_evil_hosts_and_origins_are_refused_also_with_a_key(serving: Serving) -> None:
    async with keyed(serving, ask, mcp_hosts=("agents.example.com",)) as house:
        ann = await client_of(house, "ann")

        async def status(**headers: str) -> int:
            given = {**ann.headers, **ACCEPT, **headers}
            async with house.http.post("/mcp", json=INITIALIZE, headers=given) as response:
                await response.read()
                return response.status

        port = house.url.rpartition(":")[2]
        assert await status() == 200
        assert await status(host="agents.example.com") == 200
        assert await status(host="Agents.Example.com:8400") == 200
        assert await status(host=f"localhost:{port}", origin=f"http://localhost:{port}") == 200
        assert await status(host="evil.example") == 421
        assert await status(host="agents.example.com.evil.example") == 421
        assert await status(host="evil.example:8400", origin="http://evil.example:8400") == 421
        assert await status(origin="http://evil.example") == 403
        assert await status(origin="null") == 403
        assert await status(host="agents.example.com", origin="https://agents.example.com.evil.example") == 403


async def test_evil_hosts_and_origins_are_refused_where_there_are_no_keys(serving: Serving) -> None:
    async with serving(ask) as house:
        for headers, refused in (({"host": "evil.example"}, 421), ({"origin": "http://evil.example"}, 403)):
            async with house.http.post("/mcp", json=INITIALIZE, headers={**ACCEPT, **headers}) as response:
                assert response.status == refused


@pytest.mark.parametrize("mode", MODES)
async def test_keys_open_what_they_may_and_no_more(serving: Serving, mode: str) -> None:
    async with keyed(serving, ask) as house:
        nobody: dict[str, Any] = {"json": INITIALIZE, "headers": ACCEPT}
        for headers in ({}, {"authorization": "Bearer lh_" + "x" * 43}):
            async with house.http.post("/mcp", **{**nobody, "headers": {**ACCEPT, **headers}}) as response:
                assert response.status == 401
                assert response.headers["www-authenticate"] == "Bearer"
        reader = await client_of(house, "ann", read_only=True)
        bound = await client_of(house, "ann", templates=["reader"])
        async with over_http(house.url, reader.key, mode=mode) as client:
            assert AGENT in names_of(await client.list_tools())
            with pytest.raises(MCPError, match="This key may only read") as refused:
                await client.call_tool(AGENT, {"message": "hi"})
            assert refused.value.data["code"] == "read_only_key"
            # Nor does it wait for a turn of others: who waits can cancel.
            with pytest.raises(MCPError, match="This key may only read"):
                await client.call_tool(AGENT, {"message": "", "conversation_id": "12345"})
        async with over_http(house.url, bound.key, mode=mode) as client:
            assert names_of(await client.list_tools()) == ["reader"]
            with pytest.raises(MCPError, match=f"There is no tool '{AGENT}'"):
                await client.call_tool(AGENT, {"message": "hi"})
        assert (await bound.got("/v1/sessions"))["data"] == [], "nothing was begun"
        poor = await client_of(house, "ann", tokens_per_day=1)
        async with over_http(house.url, poor.key, mode=mode) as client:
            await client.call_tool(AGENT, {"message": "hi"})
            with pytest.raises(MCPError, match="has used up its budget of 1 tokens a day") as refused:
                await client.call_tool(AGENT, {"message": "hi"})
            assert refused.value.data["code"] == "budget_exceeded"


@pytest.mark.parametrize("mode", MODES)
async def test_two_owners_with_the_same_conversation_never_meet(serving: Serving, mode: str) -> None:
    async with keyed(serving, ask) as house:
        ann, ben = await client_of(house, "ann"), await client_of(house, "ben")
        async with (
            over_http(house.url, ann.key, mode=mode) as of_ann,
            over_http(house.url, ben.key, mode=mode) as of_ben,
        ):
            hers = told(await of_ann.call_tool(AGENT, {"message": "hi", "conversation_id": "12345"}))
            with pytest.raises(MCPError, match="no such conversation"):
                await of_ben.call_tool(AGENT, {"message": "", "conversation_id": "12345"})
            his = told(await of_ben.call_tool(AGENT, {"message": "hi", "conversation_id": "12345"}))
            assert hers["session_id"] != his["session_id"]
            state = f'{{"session": "{hers["session_id"]}", "question": "{hers["question"]}"}}'
            answer: Any = {"question": types.ElicitResult(action="accept", content={"answer": "Oslo"})}
            with pytest.raises(MCPError, match="names no session"):
                await of_ben.session.call_tool(
                    AGENT, {"message": "hi"}, request_state=state, input_responses=answer, allow_input_required=True
                )
            assert (await ann.got(f"/v1/sessions/{hers['session_id']}"))["state"] == "WAITING_FOR_CLARIFICATION"


async def test_a_session_of_the_protocol_belongs_to_the_key_that_opened_it(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        ann, ben = await client_of(house, "ann"), await client_of(house, "ben")
        another = await client_of(house, "ann")
        async with house.http.post("/mcp", json=INITIALIZE, headers={**ann.headers, **ACCEPT}) as response:
            session = {"mcp-session-id": response.headers["mcp-session-id"]}
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        for client, status in ((ben, 404), (another, 404), (ann, 200)):
            given = {**client.headers, **ACCEPT, **session}
            async with house.http.post("/mcp", json=ping, headers=given) as response:
                assert response.status == status
        for client, status in ((ben, 404), (ann, 200)):
            async with house.http.delete("/mcp", headers={**client.headers, **session}) as response:
                assert response.status == status


async def test_a_repeated_call_with_its_key_is_one_turn(serving: Serving) -> None:
    async with serving([RAIN, call("finalanswertool", answer="Twice.")]) as house, over_http(house.url) as client:
        meta: Any = {"longhouse/idempotency-key": "k-1"}
        first = await client.call_tool(AGENT, {"message": "Will it rain?"}, meta=meta)
        again = await client.call_tool(AGENT, {"message": "Will it rain?"}, meta=meta)
        assert text_of(first) == text_of(again) == "Rain in Oslo."
        assert told(first) == told(again)
        with pytest.raises(MCPError, match="another body"):
            await client.call_tool(AGENT, {"message": "Will it snow?"}, meta=meta)


@pytest.mark.parametrize("mode", MODES)
async def test_documents_are_resources_of_their_owner(serving: Serving, mode: str) -> None:
    async with keyed(serving) as house:
        ann, ben = await client_of(house, "ann"), await client_of(house, "ben")
        for text in ("# Rules\n\nNo running.", "# Rules\n\nNo running, no shouting."):
            upload = house.http.post("/v1/documents?filename=rules.md", data=text.encode(), headers=ann.headers)
            async with upload as response:
                assert response.status == 201, await response.text()
        async with over_http(house.url, ann.key, mode=mode) as client:
            listed = {one.name: one for one in (await client.list_resources()).resources}
            assert set(listed) == {"rules", "longhouse"}
            [content] = (await client.read_resource(listed["rules"].uri)).contents
            assert isinstance(content, types.TextResourceContents)
            assert "no shouting" in content.text
            [page] = (await client.read_resource(f"{listed['rules'].uri}/pages/1")).contents
            assert page == content.model_copy(update={"uri": page.uri})
            templates = (await client.list_resource_templates()).resource_templates
            assert [one.uri_template for one in templates] == ["longhouse://documents/{reg_id}/pages/{pages}"]
        async with over_http(house.url, ben.key, mode=mode) as client:
            assert [one.name for one in (await client.list_resources()).resources] == ["longhouse"]
            for uri in (
                "longhouse://documents/rules",
                "longhouse://documents/rules/pages/1",
                "longhouse://documents/longhouse/pages/99999",
                "longhouse://documents/longhouse/pages/0",
                "longhouse://documents/longhouse/pages/2-1",
                "longhouse://documents/..%2Frules",
                "file:///etc/passwd",
            ):
                with pytest.raises(MCPError, match="There is no such resource") as refused:
                    await client.read_resource(uri)
                assert refused.value.data["param"] == "uri"
            with pytest.raises(MCPError, match="nextCursor"):
                await client.list_resources(cursor="nonsense")


# Tools without an agent


class StockTool(BaseTool):
    """How many pieces of an item are in stock."""

    serve_over_mcp: ClassVar[bool] = True
    effect: ClassVar[Effect] = "idempotent"

    sku: str = Field(min_length=2)

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        if self.sku == "none":
            raise ValueError("nobody knows this item")
        return f"7 of {self.sku} for {context.owner}"


class OrderTool(StockTool):
    """Order an item."""

    serve_over_mcp: ClassVar[bool] = True
    needs_approval: ClassVar[bool] = True


TOOLS = (StockTool, OrderTool)


@pytest.mark.parametrize("mode", MODES)
async def test_a_tool_that_is_served_is_called_without_a_model(serving: Serving, mode: str) -> None:
    async with (
        serving([say("never asked")], tools=TOOLS) as house,
        over_http(house.url, mode=mode) as client,
    ):
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert "clocktool" not in tools
        stock = tools["stocktool"]
        assert stock.description == "How many pieces of an item are in stock."
        assert stock.input_schema["required"] == ["sku"]
        result = await client.call_tool("stocktool", {"sku": "A-1"})
        assert (result.is_error, text_of(result)) == (False, "7 of A-1 for local")
        session_id = told(result)["session_id"]
        assert await house.kinds(session_id) == [
            "Opened", "Prompted", "Started", "Replied", "Called", "Returned",
            "Replied", "Called", "Returned", "Finished",
        ]  # fmt: skip
        assert house.model is not None
        assert house.model.requests == [], "no model was asked"
        async with house.http.get(f"/v1/sessions/{session_id}/effects") as response:
            [effect] = (await response.json())["data"]
            assert (effect["tool"], effect["state"]) == ("stocktool", "done")
        async with house.http.get(f"/v1/sessions/{session_id}/steps/1/request") as response:
            assert (await response.json())["matches"] is True
        for arguments, words in (({"sku": "x"}, "sku"), ({}, "sku"), ({"sku": "none"}, "nobody knows this item")):
            wrong = await client.call_tool("stocktool", arguments)
            assert (wrong.is_error, words in text_of(wrong)) == (True, True), text_of(wrong)
        with pytest.raises(MCPError, match="NUL"):
            await client.call_tool("stocktool", {"sku": "a\x00b"})
        async with house.http.get("/v1/models") as response:
            assert "_tool" not in [one["id"] for one in (await response.json())["data"]]


async def test_a_tool_that_is_published_is_served_if_its_descriptor_says_so(serving: Serving) -> None:
    remote = {
        "name": "parcels",
        "description_short": "Where a parcel is.",
        "runtime_binding": {"remote_endpoint": "https://parcels.example/where"},
    }
    async with serving() as house, over_http(house.url) as client:
        for served in (False, True, False):
            body = {**remote, "serve_over_mcp": served}
            async with house.http.post("/admin/tools", json=body) as response:
                assert response.status in (200, 201), await response.text()
            assert ("parcels" in names_of(await client.list_tools())) is served
            async with house.http.get("/admin/tools/parcels") as response:
                assert (await response.json()).get("serve_over_mcp", False) is served


SERVED_MODULE = '''
from longhouse import tool


@tool(serve_over_mcp=True)
async def stock(sku: str) -> str:
    """How many pieces there are."""
    return f"7 of {sku}"


@tool
async def hidden(sku: str) -> str:
    """Not for clients."""
    return sku
'''
SERVED_FILE = """
tools:
  stock: {{runtime_binding: {{python_entrypoint: "{module}:stock"}}}}
  shut: {{runtime_binding: {{python_entrypoint: "{module}:stock"}}, serve_over_mcp: false}}
  hidden: {{runtime_binding: {{python_entrypoint: "{module}:hidden"}}}}
  opened: {{runtime_binding: {{python_entrypoint: "{module}:hidden"}}, serve_over_mcp: true}}
"""


@pytest.mark.parametrize("isolation", ["process", "none"])
async def test_a_class_says_whether_its_tool_is_served_unless_the_descriptor_does(
    serving: Serving, tmp_path: Path, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    with own_module(tmp_path, SERVED_MODULE) as module:
        file = tmp_path / "agents.yaml"
        file.write_text(SERVED_FILE.format(module=module), "utf-8")
        async with (
            serving([say("never asked")], agents_file=str(file), tool_packages=module) as house,
            over_http(house.url) as client,
        ):
            listed = set(names_of(await client.list_tools()))
            assert listed & {"stock", "shut", "hidden", "opened"} == {"stock", "opened"}
            assert text_of(await client.call_tool("stock", {"sku": "A-1"})) == "7 of A-1"
            for name, function, more in (
                ("published", "stock", {}),
                ("closed", "stock", {"serve_over_mcp": False}),
                ("inner", "hidden", {}),
            ):
                binding = {"python_entrypoint": f"{module}:{function}"}
                tool = {"name": name, "description_short": name, "runtime_binding": binding, "isolation": isolation}
                async with house.http.post("/admin/tools", json={**tool, **more}) as response:
                    assert response.status == 201, await response.text()
            listed = set(names_of(await client.list_tools()))
            assert listed & {"published", "closed", "inner"} == {"published"}
            assert text_of(await client.call_tool("published", {"sku": "B-2"})) == "7 of B-2"
            with pytest.raises(MCPError, match="There is no tool 'closed'"):
                await client.call_tool("closed", {"sku": "B-2"})


@pytest.mark.parametrize("mode", MODES)
async def test_a_served_tool_obeys_approval_policies_and_the_rights_of_its_key(serving: Serving, mode: str) -> None:
    async with keyed(serving, ask, tools=TOOLS) as house:
        admin = admin_of(house)
        free, bound = await client_of(house, "ann"), await client_of(house, "ann", templates=[AGENT])
        person = Person("deny", "approve")
        async with over_http(house.url, free.key, mode=mode, person=person) as client:
            denied = await client.call_tool("ordertool", {"sku": "A-1"})
            assert (denied.is_error, "did not approve" in text_of(denied)) == (True, True)
            assert text_of(await client.call_tool("ordertool", {"sku": "A-1"})) == "7 of A-1 for ann"
            assert all("ordertool" in text for text in person.asked)
        async with over_http(house.url, free.key, mode=mode) as client:
            waits = await client.call_tool("ordertool", {"sku": "A-1"})
            assert told(waits)["state"] == "WAITING_FOR_APPROVAL"
            assert f"/s/{told(waits)['session_id']}" in text_of(waits)
        async with over_http(house.url, bound.key, mode=mode) as client:
            assert names_of(await client.list_tools()) == [AGENT]
            with pytest.raises(MCPError, match="There is no tool 'stocktool'"):
                await client.call_tool("stocktool", {"sku": "A-1"})
        for policy in ({"enabled": False}, {"allow": {"templates": ["secretary"]}}):
            async with admin.ask("PUT", "/admin/tools/stocktool/security_policy", policy) as response:
                assert response.status in (200, 201), await response.text()
            async with over_http(house.url, free.key, mode=mode) as client:
                assert "stocktool" not in names_of(await client.list_tools())
                with pytest.raises(MCPError, match="There is no tool 'stocktool'"):
                    await client.call_tool("stocktool", {"sku": "A-1"})


async def test_a_prompt_reaches_no_tool_that_is_not_served(serving: Serving) -> None:
    """Whoever chats with the agent of direct calls has no more rights than over MCP."""
    async with serving(ask) as house:
        for text in ('{"tool": "clocktool", "arguments": {"timezone": "UTC"}}', "What time is it?", '{"tool": "*.*"}'):
            answer = await house.say(text, model="_tool")
            assert "+00:00" not in answer["choices"][0]["message"]["content"]
            assert "Called" not in await house.kinds(answer["model"])


async def test_an_agent_wins_over_a_tool_of_its_name(serving: Serving) -> None:
    named = Template(name="stocktool", tool_policy=ToolPolicy(allowlist=("finalanswertool",)))
    async with serving([RAIN], templates=(*BUILT_IN, named), tools=TOOLS) as house, over_http(house.url) as client:
        [stock] = [tool for tool in (await client.list_tools()).tools if tool.name == "stocktool"]
        assert "message" in stock.input_schema["properties"]
        assert text_of(await client.call_tool("stocktool", {"message": "hi"})) == "Rain in Oslo."


async def test_a_key_opens_so_many_sessions_of_the_protocol_and_keeps_nobody_out(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longhouse.api.mcp.server.MOST_OF_KEY", 2)
    async with keyed(serving, ask) as house:
        ann, ben = await client_of(house, "ann"), await client_of(house, "ben")
        for client, status in ((ann, 200), (ann, 200), (ann, 503), (ben, 200)):
            async with house.http.post("/mcp", json=INITIALIZE, headers={**client.headers, **ACCEPT}) as response:
                assert response.status == status, await response.text()
