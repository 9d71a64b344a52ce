"""Owners live apart: what is one's is not there for the other, whatever id the other has got hold of."""

import base64
import hashlib
import io
import uuid
import zipfile
from typing import Any

from attack_helpers import CHAT, ask, chat, remains
from key_helpers import Client, admin_of, client_of, keyed, methods_of, routes_of

from longhouse.agents.template import MemoryPolicy, PromptPack, Template, ToolPolicy
from longhouse.models.scripted import call
from server_helpers import AGENT, House, Serving, content, sse

SECRET = "the launch code is 0000"

BODIES: dict[str, Any] = {
    "clarification": {"answer": "Oslo"},
    "approval": {"call_id": "1-action-0", "decision": "happened"},
    "provide_clarification": {"clarifications": "Oslo"},
    "fork": {"after": 2},
    "replay": {},
}
"""What a route that changes a session is sent, by the end of its path."""


def session_calls(house: House, session_id: str) -> list[tuple[str, str, Any]]:
    """Every route about one session, for this session: routes that come later are tried too."""
    calls: list[tuple[str, str, Any]] = []
    for route in routes_of(house):
        path = route.path or ""
        if path.startswith("/admin/") or not any(name in path for name in ("{session_id}", "{agent_id}")):
            continue
        filled = path.replace("{session_id}", session_id).replace("{agent_id}", session_id)
        filled = filled.replace("{artifact_id}", "1").replace("{digest}", "0").replace("{step}", "1")
        calls += [(method, filled, BODIES.get(path.rpartition("/")[2])) for method in methods_of(route)]
    calls.append(("GET", f"/v1/models/{session_id}", None))
    extras: list[Any] = [{}, {"stream": True}, {"metadata": {"reply_to": "1-action-0"}}]
    calls += [("POST", CHAT, chat(model=session_id, **extra)) for extra in extras]
    # What takes it away comes last.
    return sorted(calls, key=lambda one: one[0] == "DELETE")


async def test_a_session_of_another_owner_is_as_good_as_none(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        ann, bob, admin = await client_of(house, "ann"), await client_of(house, "bob"), admin_of(house)
        theirs, unknown = (await ann.say(SECRET))["model"], f"{AGENT}_{uuid.uuid4()}"
        before, calls = await remains(house.db), session_calls(house, theirs)
        assert len(calls) > 15
        for stranger in (bob, admin):
            for (method, path, body), (_, other, same) in zip(calls, session_calls(house, unknown), strict=True):
                status, error = await stranger.refused(method, path, body)
                missed, missing = await stranger.refused(method, other, same)
                assert (status, missed) == (404, 404), (method, path)
                assert str(error).replace(theirs, "{id}") == str(missing).replace(unknown, "{id}"), (method, path)
                assert SECRET not in str(error)
        assert await remains(house.db) == before, "nothing was appended"
        others = len(calls) - sum(method == "DELETE" for method, *_ in calls)
        for method, path, body in calls[: others + 1]:  # what is taken away once is not there for another way
            is_made_up = "/artifacts/1" in path or "/images/0" in path
            assert is_made_up or await ann.status(method, path, body) not in (401, 403, 404), (method, path)


async def test_a_list_holds_only_what_is_the_callers(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        ann, bob = await client_of(house, "ann"), await client_of(house, "bob")
        theirs, ours = (await ann.say(SECRET, chat_id="c"))["model"], (await bob.say("hi"))["model"]
        for query, found in (
            ("", [ours]),
            (f"?template={AGENT}", [ours]),
            ("?conversation_id=c", []),
            (f"?parent={theirs}", []),
        ):
            assert [row["session_id"] for row in (await bob.got(f"/v1/sessions{query}"))["data"]] == found, query
        assert [agent["agent_id"] for agent in (await bob.got("/agents"))["agents"]] == [ours]
        assert (await admin_of(house).got("/v1/sessions"))["data"] == [], "an admin is an owner among others here"


async def test_two_owners_may_use_the_same_conversation_id(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        ann, bob = await client_of(house, "ann"), await client_of(house, "bob")
        theirs = (await ann.say(SECRET, chat_id=12345))["model"]
        before = await house.journal(theirs)
        ours = await bob.say("hello", chat_id=12345)
        again = await bob.say("Oslo", metadata={"conversation_id": "12345"})
        assert ours["model"] == again["model"] != theirs
        assert house.model is not None
        assert SECRET not in str(house.model.requests[1:]) + str(await bob.got(f"/v1/sessions/{ours['model']}"))
        assert await house.journal(theirs) == before
        assert (await ann.say("Bergen", chat_id=12345))["model"] == theirs


async def test_a_history_that_is_resent_finds_only_the_callers_session(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        ann, bob = await client_of(house, "ann"), await client_of(house, "bob")
        theirs = (await ann.say(SECRET))["model"]
        said = [{"role": "user", "content": SECRET}, {"role": "assistant", "content": "Which city?"}]
        body = chat(messages=[*said, {"role": "user", "content": "Oslo"}])
        async with bob.ask("POST", CHAT, body) as response:
            assert (await response.json())["model"] != theirs
        async with ann.ask("POST", CHAT, body) as response:
            assert (await response.json())["model"] == theirs


async def test_an_idempotency_key_belongs_to_its_owner(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        ann, bob = await client_of(house, "ann"), await client_of(house, "bob")

        async def sent(client: Client, body: Any, key: str) -> tuple[int, Any]:
            async with client.ask("POST", CHAT, body, idempotency_key=key) as response:
                return response.status, await response.json()

        _, first = await sent(ann, chat(), "key-1")
        assert (await sent(ann, chat(), "key-1"))[1]["model"] == first["model"]
        status, other = await sent(bob, chat(), "key-1")
        assert (status, other["model"] != first["model"]) == (200, True), "another owner's key is another key"
        assert (await sent(bob, chat(temperature=1), "key-1"))[0] == 422
        before = await remains(house.db)
        for key in ("k" * 256, "k" * 10_000, "a\tb", ""):
            assert (await sent(ann, chat(), key))[0] == 400, key[:20]
        assert await remains(house.db) == before


async def test_two_keys_of_one_owner_see_the_same(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        one, two = await client_of(house, "ann"), await client_of(house, "ann")
        session_id = (await one.say("hi", chat_id="c"))["model"]
        assert [row["session_id"] for row in (await two.got("/v1/sessions"))["data"]] == [session_id]
        assert (await two.say("Oslo", chat_id="c"))["model"] == session_id
        async with two.streaming(f"/v1/sessions/{session_id}/events") as response:
            assert [event.event async for event in sse(response)][:2] == ["Opened", "Prompted"]


async def test_a_template_of_one_owner_is_no_model_for_another(serving: Serving) -> None:
    private = Template(name="private", owner="ann", tool_policy=ToolPolicy(allowlist=("clarificationtool",)))
    async with keyed(serving, ask, templates=[private]) as house:
        ann, bob = await client_of(house, "ann"), await client_of(house, "bob")
        assert [model["id"] for model in (await ann.got("/v1/models"))["data"]] == ["auto", "private"]
        assert content(await ann.say("hi", model="private")) == "Which city?"
        assert [model["id"] for model in (await bob.got("/v1/models"))["data"]] == ["auto"]
        before = await remains(house.db)
        for name in ("private", "private@1"):
            assert (await bob.refused("GET", f"/v1/models/{name}"))[1]["code"] == "model_not_found"
            status, error = await bob.refused("POST", CHAT, chat(model=name))
            assert (status, error["code"]) == (404, "model_not_found")
        assert await remains(house.db) == before


async def test_a_session_does_not_follow_its_template_to_another_owner(serving: Serving) -> None:
    tools = ToolPolicy(allowlist=("finalanswertool",))
    public = Template(name="shared", tool_policy=tools)
    private = Template(name="shared", owner="ann", tool_policy=tools, prompt_pack=PromptPack(system_prompt=SECRET))
    async with keyed(serving, lambda body: call("finalanswertool", answer="Yes."), templates=[public]) as house:
        bob = await client_of(house, "bob")
        session_id = (await bob.say("hi", model="shared"))["model"]
        await house.app.catalog.templates.publish([private], by="ann")
        assert house.model is not None
        asked = len(house.model.requests)
        for model in (session_id, "shared", "shared@1", "shared@2"):
            assert (await bob.refused("POST", CHAT, chat(model=model)))[0] == 404
        assert len(house.model.requests) == asked
        ann = await client_of(house, "ann")
        assert content(await ann.say("hi", model="shared")) == "Yes."


async def test_a_version_that_was_for_all_stays_with_those_who_are_pinned_to_it(serving: Serving) -> None:
    tools = ToolPolicy(allowlist=("finalanswertool",))
    public = Template(name="shared", tool_policy=tools, follow="pinned")
    private = Template(name="shared", owner="ann", tool_policy=tools, prompt_pack=PromptPack(system_prompt=SECRET))
    async with keyed(serving, lambda body: call("finalanswertool", answer="Yes."), templates=[public]) as house:
        bob = await client_of(house, "bob")
        session_id = (await bob.say("hi", model="shared"))["model"]
        await house.app.catalog.templates.publish([private], by="ann")
        assert content(await bob.say("still there?", model=session_id)) == "Yes."
        assert SECRET not in str(house.model and house.model.requests)


async def test_what_was_done_without_keys_belongs_to_the_admin_key_of_the_settings(serving: Serving) -> None:
    async with serving(ask) as house:
        session_id = (await house.say("hi"))["model"]
    async with keyed(serving, ask) as house:
        assert (await admin_of(house).got(f"/v1/sessions/{session_id}"))["session_id"] == session_id
        local = await client_of(house, "local")
        assert content(await local.say("Oslo", model=session_id)) == "Which city?"


KEEPER = Template(
    name="keeper",
    tool_policy=ToolPolicy(allowlist=("createfiletool", "readfiletool", "finalanswertool")),
    memory_policy=MemoryPolicy(scope="owner"),
)


async def test_what_an_agent_remembers_for_one_owner_is_not_there_for_another(serving: Serving) -> None:
    done = call("finalanswertool", answer="done")
    look = call("readfiletool", path="plan.md")
    script = [call("createfiletool", path="plan.md", content=SECRET), done, look, done, look, done]
    async with keyed(serving, script, templates=[KEEPER]) as house:
        ann, bob = await client_of(house, "ann"), await client_of(house, "bob")
        await ann.say("keep it", model="keeper", chat_id="c")
        await bob.say("read it", model="keeper", chat_id="c")
        assert house.model is not None
        seen = str(house.model.requests[3])
        assert ("Error" in seen, SECRET in seen) == (True, False)
        await ann.say("read it", model="keeper", chat_id="d")
        assert SECRET in str(house.model.requests[5])


def shown_to(session: str, content: bytes) -> str:
    return f"/v1/sessions/{session}/images/{hashlib.sha256(content).hexdigest()}"


def data_url(content: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


async def showing(client: Client, *parts: Any, **extra: Any) -> str:
    """The session of a message of these parts: texts and addresses of images."""
    sent = [
        {"type": "text", "text": part}
        if not part.startswith("data:")
        else {"type": "image_url", "image_url": {"url": part, "detail": "low"}}
        for part in parts
    ]
    body = chat(messages=[{"role": "user", "content": sent}], **extra)
    async with client.ask("POST", CHAT, body) as response:
        assert response.status == 200, await response.text()
        return str((await response.json())["model"])


async def seen(client: Client, path: str) -> tuple[int, str, bytes]:
    async with client.ask("GET", path) as response:
        return response.status, response.content_type, await response.read()


async def test_a_file_is_there_for_those_who_stored_it_and_goes_with_them(serving: Serving) -> None:
    """What bob writes are names of ann's file, as short text, as long text, and as the JSON of an image."""
    picture = b"\x89PNG" + SECRET.encode()
    digest = hashlib.sha256(picture).hexdigest()
    name = f"longhouse-file:{digest}"
    as_image = f'{{"type":"image_url","image_url":{{"url":"{name}"}}}} 图 "url":"{name}"'
    async with keyed(serving, ask) as house:
        ann, bob = await client_of(house, "ann"), await client_of(house, "bob")
        theirs = await showing(ann, "Что это?", data_url(picture))
        long = f"{as_image} " + "字" * 30_000
        ours = [await showing(bob, text) for text in (name, as_image, long)]
        ours.append(await showing(bob, "mine", data_url(b"\x89PNG of bob"), as_image, chat_id="b"))
        for session in ours:
            assert (await seen(bob, shown_to(session, picture)))[0] == 404, session
            _, _, capsule = await seen(bob, f"/v1/sessions/{session}/capsule")
            with zipfile.ZipFile(io.BytesIO(capsule)) as archive:
                assert not any(digest in entry for entry in archive.namelist())
        assert await seen(bob, shown_to(ours[-1], b"\x89PNG of bob")) == (200, "image/png", b"\x89PNG of bob")
        # Items of a conversation that nobody reads are kept as they were written.
        item = {"type": "reasoning", "content": [{"type": "input_image", "detail": "low", "image_url": name}]}
        async with bob.ask("POST", "/v1/conversations/b/items", {"items": [item]}) as response:
            added = (await response.json())["data"]
        listed = (await bob.got("/v1/conversations/b/items"))["data"]
        assert [one["content"] for one in (*added, *listed) if one["type"] == "reasoning"] == [item["content"]] * 2
        assert base64.b64encode(picture).decode() not in str(listed)
        # Who has the same bytes learns nothing of who else has: neither their type, nor that they were there.
        same = await showing(bob, "Что это?", data_url(picture, "webp"), chat_id="same")
        assert await seen(bob, shown_to(same, picture)) == (200, "image/webp", picture)
        assert await seen(ann, shown_to(theirs, picture)) == (200, "image/png", picture)
        assert house.model is not None
        assert data_url(picture, "webp") in str(house.model.requests[-1]["messages"])
        for query in ("?dry_run=true", ""):
            assert (await erased(bob, f"/v1/conversations/same{query}"))["counts"]["files"] == 1
        assert await seen(ann, shown_to(theirs, picture)) == (200, "image/png", picture)
        # A branch holds what it shows, also once the session that it came from is gone.
        async with ann.ask("POST", f"/v1/sessions/{theirs}/fork", {"after": 2}) as response:
            branch = (await response.json())["session_id"]
        await erased(ann, f"/v1/sessions/{theirs}")
        assert await seen(ann, shown_to(branch, picture)) == (200, "image/png", picture)
        await erased(ann, f"/v1/sessions/{branch}")
        left = await house.db.rows("SELECT content FROM files")
        assert picture not in [row["content"] for row in left], "bob's texts name it, and keep nothing"
        assert await seen(bob, shown_to(ours[-1], b"\x89PNG of bob")) == (200, "image/png", b"\x89PNG of bob")


async def erased(client: Client, path: str) -> Any:
    async with client.ask("DELETE", path) as response:
        assert response.status == 200, await response.text()
        return await response.json()
