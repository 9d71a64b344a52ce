"""A session in one file: opened in another house it is the same in every byte, and never goes on."""

import base64
import hashlib
import zipfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_recall_across import DOG, WHICH

from conftest import database
from databases import TEMPLATE
from delegating_server import agent, answer, ask, cast, task_of
from longhouse.agents.schema.strict import strict
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import LLMPolicy, MemoryPolicy, PromptPack
from longhouse.errors import ReadOnlySession, SetupError
from longhouse.models.scripted import Say, ScriptedStatus, call, calls, say, step_of
from longhouse.models.scripted_server import serve as serve_model
from longhouse.store import journals
from longhouse.store.capsules import format as capsules
from longhouse.store.capsules import importing
from longhouse.store.database import Database, open_database
from server_helpers import House, Serving, process

LONG = "很长的报告。Длинный отчёт." * 6_000


@pytest.fixture
async def elsewhere(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """The database of another house."""
    async with database(request, TEMPLATE) as dsn:
        yield dsn


async def said(*command: str, **environment: str) -> tuple[int, str]:
    async with process(*command, log_level="warning", **environment) as ran:
        status = await ran.ended()
    return status, "\n".join(ran.said)


async def got(house: House, path: str, method: str = "GET", status: int = 200, **body: Any) -> Any:
    async with house.http.request(method, path, json=body or None) as response:
        assert response.status == status, await response.text()
        return await response.json()


def master(body: Body) -> Say:
    if task_of(body) != WHICH:
        return answer("I see.")
    if step_of(body.messages):
        return say("", fault=ScriptedStatus(status=400, message="broken"))
    return calls(ask("ann", "找到它"), call("createreporttool", title="Отчёт", content=LONG))


def ann(body: Body) -> Say:
    return call("clocktool") if not step_of(body.messages) else answer("好。")


CAST = (
    agent("master", calls=["ann"], tools=["createreporttool", "finalanswertool"], memory_policy=MemoryPolicy(recall=5)),
    agent("ann", calls=[], tools=["clocktool", "finalanswertool"]),
)
OTHERS = tuple(replace(one, prompt_pack=PromptPack(system_prompt=f"I am {one.name}.\nAnother one.")) for one in CAST)


async def test_a_capsule_of_a_failed_session_is_the_same_elsewhere_and_stays_as_it_is(
    serving: Serving, elsewhere: str, tmp_path: Path
) -> None:
    file = tmp_path / "failed.capsule"
    async with serving(cast(master=master, ann=ann), templates=CAST) as house:
        await house.say(DOG, model="master")
        failed = await house.say(WHICH, model="master")
        top = str(await house.db.value("SELECT id FROM sessions WHERE task = :task", task=WHICH))
        assert (await house.session(top))["state"] == "FAILED", failed
        trace = (await house.session(top))["trace_id"]
        below = str(await house.db.value("SELECT id FROM sessions WHERE side = 'sub'"))
        async with house.http.get(f"/v1/sessions/{top}/capsule") as response:
            assert (response.status, response.content_type) == (200, "application/zip")
            file.write_bytes(await response.read())
        was = {one: await house.folded(one) for one in (top, below)}
        requests = [await got(house, f"/v1/sessions/{one}/steps/{n}/request") for one, n in ((top, 1), (below, 2))]
        assert [one["matches"] for one in requests] == [True, True]
        assert "Biscuit" in str(requests[0]["request"]), "what was recalled there is not known elsewhere"
        timeline = await got(house, f"/v1/sessions/{top}/timeline")

    status, words = await said("sessions", "import", str(file), database_url=elsewhere)
    assert (status, words.splitlines()[0]) == (
        0, f"imported, read-only: 2 sessions; `longhouse sessions show {top}` draws them"
    )  # fmt: skip
    assert f"{top}  FAILED  {was[top].head} events  the same state  1 of 1 requests the same" in words
    async with open_database(elsewhere) as other:
        with capsules.reading(file) as capsule, pytest.raises(SetupError, match="already: nothing was imported"):
            await importing.bring(other, capsule)
    # The other house has agents of the same names and numbers, which say something else.
    async with Serving(elsewhere)(cast(master=master, ann=ann), templates=OTHERS) as house:
        assert {one: await house.folded(one) for one in (top, below)} == was
        for (one, n), then in zip(((top, 1), (below, 2)), requests, strict=True):
            assert await got(house, f"/admin/sessions/{one}/steps/{n}/request") == then
        assert await got(house, f"/admin/sessions/{top}/timeline") == timeline
        artifact = (await got(house, f"/admin/sessions/{top}/artifacts"))["data"][0]
        async with house.http.get(f"/admin/sessions/{top}/artifacts/{artifact['id']}") as response:
            assert LONG in await response.text()
        refused = await house.say("Go on", model=top)
        assert (refused["error"]["code"], refused["error"]["message"]) == (
            "session_read_only",
            "This session was imported from a capsule and is read-only: start a session of your own to go on.",
        )
        await got(house, f"/admin/sessions/{top}/capsule", status=409)
        # Nobody's agents remember what came from elsewhere.
        await got(house, f"/v1/sessions/{top}", status=404)
        await house.say(WHICH, model="master", chat_id="own")
        assert house.model is not None
        assert "Biscuit" not in str(house.model.requests[-1]["messages"])
        status, drawn = await said("sessions", "show", top, database_url=elsewhere)
        assert (status, "ann@1" in drawn, "FAILED" in drawn) == (0, True, True)
        status, story = await said("sessions", "story", trace, database_url=elsewhere)
        assert (status, "master → ann" in story) == (0, True)
        assert (await said("sessions", "replay", top, database_url=elsewhere))[0] == 0
        await got(house, f"/admin/sessions/{top}", "DELETE")
        left = "SELECT (SELECT count(*) FROM capsules) + (SELECT count(*) FROM capsule_texts) + count(*) FROM sessions"
        assert await house.db.value(f"{left} WHERE capsule IS NOT NULL") == 0


async def test_a_session_that_waits_is_looked_at_and_answers_nobody(
    serving: Serving, db: Database, elsewhere: str, tmp_path: Path
) -> None:
    file = tmp_path / "asking.capsule"
    async with serving([call("clarificationtool", questions=["哪个？"])]) as house:
        asking = str((await house.say("ask"))["model"])
        status, words = await said("sessions", "export", asking, str(file), database_url=serving.dsn)
        assert (status, words.splitlines()[0]) == (0, f"{file} is written and was read back: 1 sessions, 0 files")
    capsules.verify(file)
    async with open_database(elsewhere) as other:
        with capsules.reading(file) as capsule:
            await importing.bring(other, capsule)
        # Whichever process tries, also one of an earlier release.
        for change in ("due = true", "holder = 'w'", "wake_at = now()", "head = head + 1"):
            with pytest.raises(ReadOnlySession):
                await other.run(f"UPDATE sessions SET {change} WHERE id = :id", id=asking)
    async with Serving(elsewhere)([]) as house:
        assert (await got(house, f"/admin/sessions/{asking}"))["questions"][0]["text"] == "哪个？"
        assert (await got(house, "/admin/questions"))["data"] == []
        refused = await got(house, f"/admin/sessions/{asking}/clarification", "POST", 409, answer="Это")
        assert refused["error"]["code"] == "session_read_only"
        refused = await got(house, f"/admin/sessions/{asking}/cancel", "POST", 409)
        assert refused["error"]["code"] == "session_read_only"
        assert (await journals.load(house.db, asking)).head == (await journals.load(db, asking)).head


def altered(file: Path, target: Path, part: str, text: bytes) -> Path:
    """The capsule with another content of one part, and a manifest that says so."""
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(target, "w") as new:
        manifest = msgspec.json.decode(old.read("manifest.json"))
        manifest["parts"][part] = {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
        for name in {*old.namelist(), part}:
            given = msgspec.json.encode(manifest) if name == "manifest.json" else None
            new.writestr(name, given or (text if name == part else old.read(name)))
    return target


def task(session: str) -> dict[str, Any]:
    """A task that the session gave itself."""
    about = {"parent": session, "call": "1-action-0", "child": session, "prompt": 1, "trace": "t", "outcome": None}
    return {**about, "at": "2026-01-31T12:00:00Z", "awaits": []}


def tool(schema: Any) -> dict[str, Any]:
    descriptor = {"name": "x", "description_short": "x", "runtime_binding": {"mcp": "a.b"}, "input_schema": schema}
    return {"kind": "tool", "name": "x", "version": 1, "descriptor": descriptor}


WIDE = {str(nth): {str(name): {"$ref": f"#/{nth + 1}"} for name in range(9)} for nth in range(18)} | {"18": {}}
ENDLESS: tuple[Any, ...] = (
    {"type": "object", "properties": {"a": {"$ref": "#/0"}}} | {nth: {"properties": one} for nth, one in WIDE.items()},
    {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#/0"}] * 9}}}
    | {str(nth): {"anyOf": [{"$ref": f"#/{nth + 1}"}] * 9} for nth in range(18)}
    | {"18": {}},
)
"""Schemas that are endless when they are written out."""
UNREADABLE: tuple[Any, ...] = ({"type": "object", "properties": ["a"]}, "object")


@pytest.mark.parametrize("schema", ENDLESS)
def test_a_schema_that_is_endless_when_it_is_written_out_is_cut(schema: Any) -> None:
    assert len(str(strict(schema))) < 1_000_000


async def test_a_capsule_names_no_address_of_tools_and_models(serving: Serving, tmp_path: Path) -> None:
    """Whoever talks to an agent gets the capsule; where its tools and its model are is for admins."""
    url, file = "https://tools.example.com/T0PSECRET", tmp_path / "a.capsule"
    schema = {"type": "object", "properties": {}}
    order = {"name": "order", "description_short": "Orders.", "runtime_binding": {"remote_endpoint": url}}
    async with (
        serve_model([call("finalanswertool", answer="Да.")]) as model,
        serving(allow_egress=model.url[7:-3]) as house,
    ):
        await got(house, "/admin/tools", "POST", 201, **order, input_schema=schema)
        policy = LLMPolicy(base_url=model.url, model="m")
        ann = agent("ann", calls=[], tools=["order", "finalanswertool"], llm_policy=policy)
        await house.app.catalog.templates.publish([ann], by="files")
        session = str((await house.say("Hello", model="ann"))["model"])
        async with house.http.get(f"/v1/sessions/{session}/capsule") as response:
            file.write_bytes(await response.read())
    with zipfile.ZipFile(file) as archive:
        lines = archive.read("catalog.jsonl").decode()
    assert ('"name":"order"' in lines, '"name":"ann"' in lines) == (True, True)
    assert not [word for word in (url, "T0PSECRET", model.url) if word in lines]


async def test_a_capsule_has_the_files_that_came_with_it_and_no_others(
    serving: Serving, elsewhere: str, tmp_path: Path
) -> None:
    """It names a file of the other house, and types that no header takes."""
    file, other = tmp_path / "a.capsule", tmp_path / "b.capsule"
    pictures = {hashlib.sha256(one).hexdigest(): one for one in (b"\x89PNG theirs", b"\x89PNG ours")}
    theirs, ours = pictures

    async def showing(house: House, picture: bytes) -> str:
        url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
        parts = [{"type": "text", "text": "Что это?"}, {"type": "image_url", "image_url": {"url": url}}]
        asked = {"model": "tool_calling_agent", "messages": [{"role": "user", "content": parts}]}
        async with house.http.post("/v1/chat/completions", json=asked) as response:
            return str((await response.json())["model"])

    async with serving([call("finalanswertool", answer="Да.")]) as house:
        session = await showing(house, pictures[ours])
        async with house.http.get(f"/v1/sessions/{session}/capsule") as response:
            file.write_bytes(await response.read())
    with zipfile.ZipFile(file) as archive:
        journal = archive.read("journal.jsonl")
        assert msgspec.json.decode(archive.read("manifest.json"))["files"] == {ours: "image/png"}
    image = b'{"type":"image_url","image_url":{"url":"longhouse-file:%s"}},'
    journal = journal.replace(b',"media_type":"image/png"', b"")  # as earlier releases wrote them
    altered(file, other, "journal.jsonl", journal.replace(b'"content":[[', b'"content":[[' + image % theirs.encode()))
    async with Serving(elsewhere)([call("finalanswertool", answer="Да.")]) as house:
        await showing(house, pictures[theirs])
        with capsules.reading(other) as capsule:
            capsule.manifest.files[ours] = "text/html\r\nset-cookie: a=b"
            await importing.bring(house.db, capsule)
        path = f"/admin/sessions/{session}/images"
        for digest in pictures:
            await got(house, f"{path}/{digest}", status=404)
        await house.db.run("UPDATE session_files SET media_type = 'image/png'")
        await got(house, f"{path}/{theirs}", status=404)
        async with house.http.get(f"{path}/{ours}") as response:
            assert (response.content_type, await response.read()) == ("image/png", pictures[ours])


async def test_a_capsule_that_lies_is_refused_and_nothing_of_it_is_kept(
    serving: Serving, elsewhere: str, tmp_path: Path
) -> None:
    file, other = tmp_path / "a.capsule", tmp_path / "b.capsule"
    async with serving([call("finalanswertool", answer="Да.")]) as house:
        session = str((await house.say("Hello"))["model"])
        async with house.http.get(f"/v1/sessions/{session}/capsule") as response:
            file.write_bytes(await response.read())
    with zipfile.ZipFile(file) as archive:
        rows, journal = archive.read("sessions.jsonl"), archive.read("journal.jsonl")
    row = msgspec.json.decode(rows)
    foreign: list[dict[str, str]] = [{"parent": "ann_1"}, {"child": "ann_1"}]
    lies: list[tuple[str, bytes, str | None]] = [
        ("journal.jsonl", journal.replace(b'"kind":"Finished"', b'"kind":"Vanished"'), "cannot be read by this"),
        ("journal.jsonl", journal.replace(b'"seq":2,', b'"seq":9,'), "is damaged"),
        ("sessions.jsonl", msgspec.json.encode(row | {"head": row["head"] + 1}), "is damaged"),
        ("sessions.jsonl", msgspec.json.encode(row | {"head": 2**62}), "is damaged"),
        ("sessions.jsonl", msgspec.json.encode(row | {"state": "KING"}), "cannot be read by this"),
        ("sessions.jsonl", rows.replace(b'"agent":"', b'"agent":"\xff'), "cannot be read by this"),
        ("sessions.jsonl", msgspec.json.encode(row | {"id": "x\u202e"}), "is damaged"),
        ("sessions.jsonl", msgspec.json.encode(row | {"side": "king"}), "cannot be read by this"),
        ("sessions.jsonl", msgspec.json.encode(row | {"task": "a\x00b"}), "no capsule that fits together"),
        ("journal.jsonl", journal.replace(b'"seq":2,', b'"body_digest":"%s","seq":2,' % (b"0" * 64)), "is damaged"),
        (
            "journal.jsonl",
            journal.replace(b'"content":["Hello"]', b'"content":%s1%s' % (b"[" * 9999, b"]" * 9999)),
            "cannot be read by this",
        ),
        *(("delegations.jsonl", msgspec.json.encode(task(session) | lie), "its delegations") for lie in foreign),
        ("delegations.jsonl", msgspec.json.encode(task(session) | {"outcome": {"os": "system"}}), "cannot be read by"),
        ("remembered.jsonl", msgspec.json.encode({"session_id": "ann_1", "seq": 1, "text": "x"}), "its delegations"),
        *(("catalog.jsonl", msgspec.json.encode(tool(schema)), "its catalog") for schema in UNREADABLE),
        ("files/" + "0" * 64, b"poison", None),
    ]
    async with open_database(elsewhere) as db:
        for part, text, sentence in lies:
            changed = altered(file, other, part, text)
            capsules.verify(changed)
            with capsules.reading(changed) as capsule:
                if sentence is None:
                    capsule.manifest.files["0" * 64] = "text/plain"
                with pytest.raises(SetupError, match=sentence or "is damaged"):
                    await importing.bring(db, capsule)
        other.write_bytes(file.read_bytes()[:-40])
        with pytest.raises(SetupError, match="no capsule of a session, or its end is missing"):
            capsules.verify(other)
        counts = "SELECT (SELECT count(*) FROM sessions) + (SELECT count(*) FROM journal) + count(*) FROM files"
        assert await db.value(counts) == 0
