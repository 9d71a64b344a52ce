"""Memory files over HTTP: what agents kept is seen with who wrote it, corrected, and deleted; by its owner alone."""

import io
import json
import uuid
from itertools import product
from typing import Any
from urllib.parse import quote

from key_helpers import Client, client_of, keyed

from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import MemoryPolicy, MemoryScope, Template, ToolPolicy
from longhouse.journal.messages import ToolResult, User, text_of
from longhouse.models.scripted import Say, call
from longhouse.store.memory.memory_files import MAX_FILE, Memories
from longhouse.store.memory.memory_scopes import of_agent
from server_helpers import Serving, content

FILES = "/v1/memory/files"


def keeper(scope: MemoryScope = "agent", name: str = "keeper") -> Template:
    tools = ("createfiletool", "readfiletool", "getlistfilestool", "finalanswertool")
    return Template(name=name, tool_policy=ToolPolicy(allowlist=tools), memory_policy=MemoryPolicy(scope=scope))


def keeps(body: Body) -> Say:
    """`<path> <words>` is written down; a path alone is read."""
    last = body.messages[-1]
    if isinstance(last, ToolResult):
        return call("finalanswertool", answer=last.content)
    assert isinstance(last, User)
    path, _, words = text_of(last.content).partition(" ")
    return call("createfiletool", path=path, content=words) if words else call("readfiletool", path=path)


async def listed(client: Client, **query: str) -> list[Any]:
    pairs = "&".join(f"{name}={quote(value)}" for name, value in query.items())
    found: list[Any] = (await client.got(f"{FILES}?{pairs}"))["data"]
    return found


async def answered(client: Client, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    async with client.ask(method, path, body) as response:
        return response.status, await response.json()


async def test_what_an_agent_kept_is_seen_corrected_and_deleted(serving: Serving) -> None:
    async with serving(keeps, templates=[keeper(), keeper("conversation", "clerk"), keeper("owner", "sage")]) as house:
        me, at = Client(house), f"{FILES}/people/%D0%90%D0%BB%D0%B8%D1%8F.md?agent=keeper"
        said = await house.say("people/Алия.md Алия любит чай", model="keeper")
        await house.say("旅行/計劃.md 去奧斯陸", model="clerk", chat_id="12345")
        await house.say("rules.md Be short", model="sage")

        rows = await listed(me)
        assert [(one["path"], one["scope"], one["agent"], one["user"], one["conversation_id"]) for one in rows] == [
            ("rules.md", "owner", None, None, None),
            ("旅行/計劃.md", "conversation", None, None, "12345"),
            ("people/Алия.md", "agent", "keeper", "local", None),
        ], "the last written first, with what names its scope"
        session = said["model"]
        assert rows[2]["written_by"] == {"session_id": session, "agent": "keeper", "call": "1-action-0"}
        assert rows[2]["size"] == len("Алия любит чай".encode())
        assert [one["path"] for one in await listed(me, directories="true")][-2:] == ["people/Алия.md", "people"]
        for query, paths in (
            ({"scope": "owner"}, ["rules.md"]),
            ({"scope": "agent"}, ["people/Алия.md"]),
            ({"agent": "keeper"}, ["people/Алия.md"]),
            ({"agent": "clerk"}, []),
            ({"conversation_id": "12345"}, ["旅行/計劃.md"]),
            ({"scope": "conversation", "conversation_id": "other"}, []),
            ({"user": "bob", "scope": "agent"}, []),
            ({"user": "l_cal", "scope": "agent"}, []),
        ):
            assert [one["path"] for one in await listed(me, **query)] == paths, query
        first = await me.got(f"{FILES}?limit=2")
        rest = await me.got(f"{FILES}?limit=2&before={first['next']}")
        assert first["data"] + rest["data"] == rows
        assert (first["has_more"], rest["has_more"]) == (True, False)

        shown = await me.got(at)
        assert (shown["content"], shown["object"]) == ("Алия любит чай", "memory.file")
        status, put = await answered(me, "PUT", at, {"content": "Алия любит кофе"})
        assert (status, put["written_by"], put["replaced"]["written_by"]) == (
            200, {"key": "local"}, {"session_id": session, "agent": "keeper", "call": "1-action-0"},
        )  # fmt: skip
        assert content(await house.say("people/Алия.md", model="keeper")) == "Алия любит кофе"
        status, made = await answered(me, "PUT", f"{FILES}/new/note.md?agent=keeper", {"content": ""})
        assert (status, made["replaced"], made["size"]) == (201, None, 0)

        assert (await answered(me, "DELETE", at))[1] == {
            "path": "people/Алия.md", "object": "memory.file.deleted", "deleted": True,
        }  # fmt: skip
        assert (await me.refused("GET", at))[0] == (await me.refused("DELETE", at))[0] == 404
        assert content(await house.say("people/Алия.md", model="keeper")) == "Error: there is no people/Алия.md"
        assert await house.db.value("SELECT count(*) FROM memories WHERE content LIKE '%Алия%'") == 0


async def test_what_cannot_be_done_is_one_sentence(serving: Serving) -> None:
    async with serving() as house:
        me, long = Client(house), io.BytesIO(json.dumps({"content": "x" * (MAX_FILE + 1)}).encode())
        kind = {"content-type": "application/json"}
        async with house.http.put(f"{FILES}/long.md", data=long, headers=kind) as response:
            said = (await response.json())["error"]["message"]
            assert (response.status, said) == (413, f"long.md would be larger than {MAX_FILE} bytes; split it.")
        assert (await answered(me, "PUT", f"{FILES}/a/b.md", {"content": "x"}))[0] == 201
        for method, path, body, status, message in (
            ("GET", "nothing.md", None, 404, "There is no nothing.md."),
            ("GET", "a", None, 400, "a is a directory."),
            ("PUT", "a", {"content": "x"}, 400, "a is a directory."),
            ("PUT", "a/b.md/c.md", {"content": "x"}, 400, "a/b.md/c.md would stand inside of a file."),
            ("DELETE", "a", None, 409, "a is a directory that is not empty."),
            ("GET", "..%2f..%2fetc%2fpasswd", None, 400, "The path is refused:"),
            ("GET", "%2fetc/passwd", None, 400, "The path is refused:"),
            ("PUT", "con.md", {"content": "x"}, 400, "The path is refused:"),
            ("GET", "", None, 400, "Name a file, such as people/ann.md."),
            ("PUT", "a.md", {}, 400, "Invalid value for content:"),
            ("PUT", "a.md", {"content": "x", "mode": 1}, 400, "Invalid value for mode:"),
            ("PUT", "a.md", {"content": 7}, 400, "Invalid value for content:"),
            ("GET", "a.md?scope=agent", None, 400, "Name the agent whose files are meant."),
            ("GET", "a.md?scope=conversation", None, 400, "Name the conversation whose files are meant."),
            ("GET", "a.md?scope=all", None, 400, "Invalid value for scope:"),
            ("GET", "a.md?owner=x", None, 400, "There is no query parameter 'owner' here"),
        ):  # fmt: skip
            found, error = await me.refused(method, f"{FILES}/{path}", body)
            assert (found, error["message"][: len(message)]) == (status, message), (method, path)
        assert [one["path"] for one in await listed(me)] == ["a/b.md"], "nothing was written"


async def test_a_key_sees_its_owner_and_one_key_of_many_people_does_not_mix_them(serving: Serving) -> None:
    async with keyed(serving, keeps, templates=[keeper(), keeper("conversation", "clerk")]) as house:
        shop, rival = await client_of(house, "shop"), await client_of(house, "rival")
        await shop.say("me.md I am Ann", model="keeper", user="ann")
        await shop.say("me.md I am Bob", model="keeper", user="bob")
        await shop.say("me.md Somebody", model="keeper", chat_id="c1")
        await shop.say("here.md Somebody's", model="clerk", chat_id="c1")

        assert await shop.got(f"{FILES}/me.md?agent=keeper&user=ann") == {
            **(await listed(shop, user="ann"))[0], "content": "I am Ann",
        }  # fmt: skip
        assert [one["user"] for one in await listed(shop, user="ann")] == ["ann"]
        assert await listed(shop) == [], "without a user no person's files are listed"
        assert [(one["path"], one["agent"]) for one in await listed(shop, conversation_id="c1")] == [
            ("here.md", None), ("me.md", "keeper"),
        ]  # fmt: skip
        for query in ("scope=agent&agent=keeper", "agent=keeper", "scope=conversation"):
            status, error = await shop.refused("GET", f"{FILES}?{query}")
            assert (status, error["param"]) == (400, "user"), query
        assert (await shop.refused("GET", f"{FILES}/me.md?agent=keeper"))[0] == 400
        assert (await shop.got(f"{FILES}/me.md?agent=keeper&conversation_id=c1"))["content"] == "Somebody"

        for query in ("agent=keeper&user=ann", "agent=keeper&conversation_id=c1"):
            assert await listed(rival, **dict(pair.split("=") for pair in query.split("&"))) == []
            assert (await rival.refused("GET", f"{FILES}/me.md?{query}"))[0] == 404
            assert (await rival.refused("DELETE", f"{FILES}/me.md?{query}"))[0] == 404
            assert (await answered(rival, "PUT", f"{FILES}/me.md?{query}", {"content": "mine"}))[0] == 201
        assert (await shop.got(f"{FILES}/me.md?agent=keeper&user=ann"))["content"] == "I am Ann"
        written = (await rival.got(f"{FILES}/me.md?agent=keeper&user=ann"))["written_by"]
        assert written == {"key": rival.id}


async def test_a_file_that_was_corrected_still_goes_with_the_session_that_wrote_it(serving: Serving) -> None:
    async with serving(keeps, templates=[keeper("conversation")]) as house:
        me = Client(house)
        session = (await house.say("a.md secret", model="keeper", chat_id="c"))["model"]
        await answered(me, "PUT", f"{FILES}/a.md?conversation_id=c", {"content": "secret, corrected"})
        assert await me.status("DELETE", f"/v1/sessions/{session}") == 200
        assert await house.db.value("SELECT count(*) FROM memories WHERE content LIKE 'secret%'") == 0


async def test_users_with_special_names_are_kept_apart(serving: Serving) -> None:
    names = ("ann", "a%", "a_n", 'a"n', "a\\n", "Аня", "安", '","keeper"]', "x" * 500)
    async with serving() as house:
        me = Client(house)
        for name, agent in product(names, ("keeper", "k%")):
            scope = of_agent("local", name, agent, "")
            await Memories(house.db).write(scope, "a.md", name, key=f"s:{uuid.uuid4()}")
        for name in names[:-1]:
            assert {one["user"] for one in await listed(me, user=name, scope="agent")} == {name}
            assert {one["agent"] for one in await listed(me, user=name, agent="k%")} == {"k%"}
        long = names[-1]
        assert [one["path"] for one in await listed(me, user=long, agent="keeper")] == ["a.md"]
        assert (await me.got(f"{FILES}/a.md?agent=keeper&user={long}"))["content"] == long
