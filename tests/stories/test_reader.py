"""The reader: an agent that answers from documents, with their pages, and remembers what it has read."""

from typing import Any

import msgspec

from document_texts import ENGLISH
from longhouse.agents.strategies.protocol import Body
from longhouse.journal import events
from longhouse.journal.messages import ToolResult
from longhouse.models.scripted import Say, call
from longhouse.models.scripted import calls as several
from server_helpers import House, Serving, content


async def calls(house: House, session_id: str) -> list[tuple[str, str]]:
    """The calls of a session: their tools, and who answered them."""
    journal = [record.event for record in await house.journal(session_id)]
    by = {event.call: event.by for event in journal if isinstance(event, events.Returned)}
    return [(event.tool, by.get(event.call) or "tool") for event in journal if isinstance(event, events.Called)]


async def test_the_reader_plays_its_scene_on_the_document_that_comes_along(serving: Serving) -> None:
    async with serving() as house:
        asked = await house.say("What happens to a worker that was believed dead and comes back?", model="reader")
        session = asked["model"]
        assert "longhouse P" in content(asked)
        assert "names an old fence, is refused, and stops" in content(asked)
        made = [tool for tool, _ in await calls(house, session)]
        assert made == ["get_toc", "smart_search", "read_page_range", "finalanswertool"]
        roles = {event.event.role for event in await house.journal(session) if isinstance(event.event, events.Called)}
        assert roles == {"knowledge", "finishes"}

        again = await house.say("Which file formats can be added as documents?", model=session)
        assert "DOCX" in content(again)
        made = [tool for tool, _ in (await calls(house, session))[4:]]
        assert made == ["smart_search", "read_page_range", "finalanswertool"], "it knows the outline"


def reading(results: list[Any]) -> Any:
    """A script that makes these calls in order, whatever comes back, and keeps the results."""
    script = [
        call("list_documents"),
        call("get_toc", reg_id="rules"),
        call("smart_search", query="Which end of the earthing cable is attached first?", reg_id="rules"),
        call("read_page_range", reg_id="rules", start_page=1, end_page=1),
        call("get_toc", reg_id="angui"),
        call("read_page_range", reg_id="rules", start_page=1, end_page=21),
        call("smart_search", query="lock", reg_id="*", section_number="2"),
    ]

    def play(body: Body) -> Say:
        seen = [message.content for message in body.messages if isinstance(message, ToolResult)]
        results[:] = seen
        if len(seen) < len(script):
            return script[len(seen)]
        return call("finalanswertool", answer="Read.", status="completed")

    return play


async def test_an_agent_lists_searches_and_reads_with_four_tools(serving: Serving) -> None:
    results: list[Any] = []
    async with serving(reading(results)) as house:
        upload = house.http.post("/v1/documents", params={"filename": "rules.md"}, data=ENGLISH.encode())
        async with upload as response:
            assert response.status == 201, await response.text()
        assert content(await house.say("Read the rules.", model="reader")) == "Read."
    listed, toc, found, read = [msgspec.json.decode(result) for result in results[:4]]
    assert [one["reg_id"] for one in listed["documents"]] == ["longhouse", "rules"]
    assert toc.keys() == {"reg_id", "title", "total_pages", "items"}
    assert toc["items"][0]["children"][2] == {
        "title": "3 Earthing",
        "section_number": "3",
        "level": 2,
        "page": 1,
        "children": [],
    }
    assert found[0].keys() == {
        "content", "reg_id", "page", "source", "score", "chapter_path", "section_number", "block_type",
    }  # fmt: skip
    assert "attached to the ground first" in found[0]["content"]
    assert (read["source"], read["pages"][0]["page"]) == ("rules P1", 1)
    assert results[4] == "Error: there is no document 'angui'; known ones: longhouse, rules"
    assert results[5] == "Error: one call reads 20 pages at most; read the others with another call"
    assert results[6].startswith("Error: chapters and sections are those of one document")


async def test_a_changed_document_is_read_again_and_an_unchanged_one_is_remembered(serving: Serving) -> None:
    read: list[str] = []

    def look(body: Body) -> Say:
        last = body.messages[-1]
        if not isinstance(last, ToolResult):
            return calls_of_three()
        read.extend(one.content for one in body.messages[-3:] if isinstance(one, ToolResult))
        return call("finalanswertool", answer="Read.", status="completed")

    async with serving(look) as house:

        async def upload(text: str) -> None:
            async with house.http.post("/v1/documents?filename=rules.md", data=text.encode()) as response:
                assert response.status == 201

        await upload(ENGLISH)
        session = (await house.say("Read it.", model="reader"))["model"]
        await house.say("Read it again.", model=session)
        await upload(ENGLISH.replace("padlock", "seal"))
        await house.say("And again.", model=session)
        by = [by for tool, by in await calls(house, session) if tool != "finalanswertool"]
    assert by == ["tool"] * 3 + ["memory"] * 3 + ["tool"] * 3
    assert read[:3] == read[3:6]
    assert ["padlock" in text for text in read] == [False, True, True] * 2 + [False] * 3
    assert "seal" in read[7]
    assert "seal" in read[8]


async def test_a_deleted_document_is_not_answered_from_memory(serving: Serving) -> None:
    """Not even the one that comes along, which is added when it is first asked for."""
    read: list[str] = []

    def look(body: Body) -> Say:
        last = body.messages[-1]
        if not isinstance(last, ToolResult):
            return calls_of_three("longhouse")
        read.extend(one.content for one in body.messages[-3:] if isinstance(one, ToolResult))
        return call("finalanswertool", answer="Read.", status="completed")

    async with serving(look) as house:
        session = (await house.say("Read it.", model="reader"))["model"]
        await house.say("Read it again.", model=session)
        async with house.http.delete("/v1/documents/longhouse?shared=true") as response:
            assert response.status == 200
        await house.say("And again.", model=session)
        by = [by for tool, by in await calls(house, session) if tool != "finalanswertool"]
    assert by == ["tool"] * 3 + ["memory"] * 3 + ["tool"] * 3
    assert read[:3] == read[3:6]
    assert read[6:] == ["Error: there is no document 'longhouse'; no document was added yet"] * 3


def calls_of_three(reg_id: str = "rules") -> Say:
    return several(
        call("get_toc", reg_id=reg_id),
        call("smart_search", query="What is the switch locked with?", reg_id=reg_id),
        call("read_page_range", reg_id=reg_id, start_page=1, end_page=1),
    )
