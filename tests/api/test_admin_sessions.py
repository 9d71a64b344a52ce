"""An admin sees and decides in the sessions of every owner, and the journal names who it was."""

from typing import Any, ClassVar

from attack_helpers import remains
from key_helpers import Client, admin_of, client_of, keyed, methods_of, routes_of

from longhouse.agents.template import Template, ToolPolicy
from longhouse.api.sessions.routes import SESSION_PATH
from longhouse.journal import events
from longhouse.journal.messages import ToolResult, User, text_of
from longhouse.models.scripted import Say, call
from longhouse.tools import BaseTool, ToolContext
from server_helpers import AGENT, House, Serving, sse

ADMIN_PATH = "/admin/sessions/{session_id}"

BODIES: dict[str, Any] = {
    "clarification": {"answer": "x"},
    "approval": {"call_id": "x", "decision": "deny"},
    "fork": {"after": 1},
    "replay": {},
}
"""What a route that changes a session is sent, by the end of its path."""


class PayTool(BaseTool):
    """Pay somebody, after a person has approved it; leaves a receipt."""

    needs_approval: ClassVar[bool] = True

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return "paid"


NAMES = ("paytool", "createreporttool", "clarificationtool", "finalanswertool")
BANK = Template(name=AGENT, tool_policy=ToolPolicy(allowlist=NAMES))


def bank(body: Any) -> Say:
    """Asks, then pays, then answers; or writes a report."""
    first = next(text_of(one.content) for one in body.messages if isinstance(one, User))
    done = sum(isinstance(one, ToolResult) for one in body.messages)
    if "report" in first:
        report = call("createreporttool", title="Costs", content="All of them.")
        return report if not done else call("finalanswertool", answer="Written.")
    steps = (call("clarificationtool", questions=["Whom?"]), call("paytool"), call("finalanswertool", answer="Done."))
    return steps[min(done, 2)]


def house_of(serving: Serving) -> Any:
    return keyed(serving, bank, templates=[BANK], tools=[PayTool])


async def last(house: House, session_id: str, kind: type[Any]) -> Any:
    return [one.event for one in await house.journal(session_id) if isinstance(one.event, kind)][-1]


async def events_of(client: Client, path: str) -> list[Any]:
    async with client.streaming(path) as response:
        return [event.json async for event in sse(response)]


async def test_what_an_admin_decides_for_an_owner_is_journaled_with_the_key(serving: Serving) -> None:
    async with house_of(serving) as house:
        root, ann = admin_of(house), await client_of(house, "ann")
        other = await client_of(house, "operators", "admin")
        theirs = (await ann.say("Pay"))["model"]
        path = f"/admin/sessions/{theirs}"
        assert await other.status("POST", f"{path}/clarification", {"answer": "Bob"}) == 202
        returned = await last(house, theirs, events.Returned)
        assert (returned.by, returned.outcome.content) == (other.id, "Bob")
        assert (await other.refused("POST", f"{path}/clarification", {"answer": "Bob"}))[0] == 409
        asked_again = {"answer": "Bob", "call_id": "1-action-0"}
        assert (await ann.refused("POST", f"/v1/sessions/{theirs}/clarification", asked_again))[0] == 409, "not unknown"
        await until(ann, theirs, "WAITING_FOR_APPROVAL")
        [question] = (await root.got(f"{path}/questions"))["data"]
        assert (question["owner"], question["name"]) == ("ann", "2-action-0")
        decision = {"call_id": question["name"], "decision": "approve", "comment": "да"}
        assert await root.status("POST", f"{path}/approval", decision) == 202
        decided = await last(house, theirs, events.Decided)
        assert (decided.by, decided.decision, decided.comment) == ("admin", "approve", "да")
        await until(ann, theirs, "COMPLETED")

        cancelled = (await ann.say("Pay again"))["model"]
        assert await other.status("POST", f"/admin/sessions/{cancelled}/cancel") == 202
        assert (await last(house, cancelled, events.Cancelled)).by == other.id

        ours = (await root.say("Pay"))["model"]
        for route, body, kind in (
            ("clarification", {"answer": "Bob"}, events.Returned),
            ("cancel", None, events.Cancelled),
        ):
            assert await root.status("POST", f"/admin/sessions/{ours}/{route}", body) == 202
            assert (await last(house, ours, kind)).by == "admin", "in one's own session too"
        assert await other.status("DELETE", path) == 200
        assert await ann.status("GET", f"/v1/sessions/{theirs}") == 404


async def test_whoever_a_request_names_the_journal_says_which_key_it_was(serving: Serving) -> None:
    async with house_of(serving) as house:
        ann, second = await client_of(house, "ann"), await client_of(house, "ann")
        for claimed in ("admin", ann.id, "cli", "user"):
            session = (await ann.say("Pay", user=claimed))["model"]
            await second.say("Bob", model=session, user=claimed)
            returned = await last(house, session, events.Returned)
            assert (returned.by, returned.user) == (second.id, claimed), "an answer in the chat"
            await second.say("yes", model=session, user=claimed)
            decided = await last(house, session, events.Decided)
            assert (decided.by, decided.user, decided.via) == (second.id, claimed, "chat")

        session = (await ann.say("Pay"))["model"]
        path = f"/v1/sessions/{session}"
        assert await second.status("POST", f"{path}/clarification", {"answer": "Bob", "user": "admin"}) == 202
        assert (await last(house, session, events.Returned)).by == second.id
        await until(ann, session, "WAITING_FOR_APPROVAL")
        denial = {"call_id": "2-action-0", "decision": "deny"}
        for name in ("comment", "result"):
            status, error = await ann.refused("POST", f"{path}/approval", {**denial, name: "x" * 200_001})
            assert (status, error["param"]) == (400, name), "as long as an answer at most"
        assert await second.status("POST", f"{path}/approval", denial) == 202
        assert (await last(house, session, events.Decided)).by == second.id
        denied = [one for one in await house.journal(session) if isinstance(one.event, events.Returned)][1]
        assert denied.event.by == second.id
        session = (await ann.say("Pay"))["model"]
        async with second.ask(
            "POST", f"/agents/{session}/provide_clarification", {"clarifications": "Bob"}
        ) as response:
            await response.read()
        assert (await last(house, session, events.Returned)).by == second.id
        assert await second.status("POST", f"/v1/sessions/{session}/cancel") == 202
        assert (await last(house, session, events.Cancelled)).by == second.id


async def until(client: Client, session_id: str, state: str) -> None:
    """Follows the session until it rests, which it does in this state."""
    await events_of(client, f"/v1/sessions/{session_id}/events")
    assert (await client.got(f"/v1/sessions/{session_id}"))["state"] == state


async def test_an_admin_reads_all_that_the_owner_reads_and_users_read_nothing_there(serving: Serving) -> None:
    async with house_of(serving) as house:
        root, ann = admin_of(house), await client_of(house, "ann")
        session_id = (await ann.say("Write a report"))["model"]
        calls = [
            (method, (route.path or "").replace("{session_id}", "{}").replace("{step}", "1"))
            for route in routes_of(house)
            for method in methods_of(route)
            if (route.path or "").startswith(SESSION_PATH)
        ]
        mirrored = {
            (
                method,
                (route.path or "").replace("/admin/", "/v1/", 1).replace("{session_id}", "{}").replace("{step}", "1"),
            )
            for route in routes_of(house)
            for method in methods_of(route)
            if (route.path or "").startswith(ADMIN_PATH)
        }
        assert mirrored == set(calls), "everything below a session is there"
        [artifact] = (await root.got(f"/admin/sessions/{session_id}/artifacts"))["data"]
        async with root.ask("GET", artifact["download"]) as response:
            assert (response.status, "All of them." in await response.text()) == (200, True)
        reads = [path for method, path in calls if method == "GET" and "_id}" not in path and "{digest}" not in path]
        assert len(reads) > 8
        for path in (path.format(session_id) for path in reads):
            admins = path.replace("/v1/", "/admin/", 1)
            if path.endswith(("/events", "/export")):
                async with ann.ask("GET", path) as mine, root.ask("GET", admins) as theirs:
                    assert (mine.status, await mine.text()) == (theirs.status, await theirs.text()), path
            elif path.endswith("/capsule"):
                async with ann.ask("GET", path) as mine, root.ask("GET", admins) as theirs:
                    assert (mine.status, theirs.status) == (200, 200)  # each says when it was made
            elif not path.endswith("/artifacts"):
                assert await ann.got(path) == await root.got(admins), path

        before = await remains(house.db)
        for method, path in calls:
            sent = BODIES.get(path.rpartition("/")[2])
            known = path.replace("/v1/", "/admin/", 1).format(session_id, artifact_id="1", digest="0")
            status, error = await ann.refused(method, known, sent)
            assert (status, error["code"]) == (403, "insufficient_permissions"), (method, path)
            unknown = path.replace("/v1/", "/admin/", 1).format(f"{AGENT}_nobody", artifact_id="1", digest="0")
            status, error = await root.refused(method, unknown, sent)
            assert (status, error["code"]) == (404, "session_not_found"), (method, path)
            assert (await root.refused(method, unknown.replace("_nobody", "%00"), sent))[0] == 404, path
        assert await remains(house.db) == before
        assert (await Client(house).refused("GET", f"/admin/sessions/{session_id}"))[0] == 401

        document = await root.got("/openapi.json")
        for path, operations in document["paths"].items():
            if path.startswith("/admin/"):
                assert [one["security"] for one in operations.values()] == [[{"admin_key": []}]] * len(operations), path
        assert document["paths"][f"{ADMIN_PATH}/approval"]["post"]["tags"] == ["Admin"]
