"""A PDF of 300 pages, from the upload to an answer: its outline is right, and a known sentence is found on its page."""

from typing import Any

import aiohttp
import msgspec

from document_files import Bookmark, Drawn, flow, pdf
from longhouse.agents.strategies.protocol import Body
from longhouse.journal.messages import ToolResult
from longhouse.models.scripted import Say, call
from server_helpers import Serving, content

PAGES = 300
KNOWN = "The spare key of the transformer house hangs behind the portrait of the founder."
KNOWN_PAGE = 217
SUBJECTS = ("valves", "pumps", "meters", "cables", "ladders", "gloves", "lamps", "filters", "switches", "boilers")


def page(number: int) -> list[Drawn]:
    chapter, nth = divmod(number - 1, 10)
    subject = SUBJECTS[nth]
    lines: list[str | tuple[float, str]] = []
    if nth == 0:
        lines.append((20.0, f"{chapter + 1} Plant number {chapter + 1}"))
    lines.append((15.0, f"{chapter + 1}.{nth + 1} Care of the {subject}"))
    lines += [
        f"In plant {chapter + 1} the {subject} are inspected every {number} days by two people,",
        f"who write what they find into book {number * 7}. Parts are ordered from store {number % 13}.",
        "",
        f"Old {subject} go to the yard. New ones are tested for {number % 50 + 3} minutes before use.",
    ]
    if number == KNOWN_PAGE:
        lines += ["", KNOWN]
    return flow(*lines)


def book() -> bytes:
    marks = []
    for number in range(1, PAGES + 1):
        chapter, nth = divmod(number - 1, 10)
        if nth == 0:
            marks.append(Bookmark(f"{chapter + 1} Plant number {chapter + 1}", number))
        marks.append(Bookmark(f"{chapter + 1}.{nth + 1} Care of the {SUBJECTS[nth]}", number, 2))
    return pdf([page(number) for number in range(1, PAGES + 1)], marks, title="Handbook of the plants")


async def test_a_sentence_of_300_pages_is_found_with_its_page(serving: Serving) -> None:
    results: list[str] = []
    script = [
        call("get_toc", reg_id="handbook", max_depth=1),
        call("smart_search", query="Where is the spare key of the transformer house?", reg_id="handbook"),
        call("smart_search", query="How are pumps inspected?", reg_id="handbook", section_number="22.2"),
        call("read_page_range", reg_id="handbook", start_page=KNOWN_PAGE - 1, end_page=KNOWN_PAGE + 1),
        call("finalanswertool", answer="It hangs behind the portrait (handbook P217).", status="completed"),
    ]

    def read(body: Body) -> Say:
        results[:] = [message.content for message in body.messages if isinstance(message, ToolResult)]
        return script[len(results)]

    async with serving(read) as house:
        form = aiohttp.FormData({"reg_id": "handbook"})
        form.add_field("file", book(), filename="handbook.pdf")
        async with house.http.post("/v1/documents", data=form) as response:
            made = await response.json()
            assert (response.status, made["pages"], made["format"]) == (201, PAGES, "pdf"), made
        assert "portrait" in content(await house.say("Where is the key?", model="reader"))
        async with house.http.get("/v1/documents/handbook") as response:
            shown: Any = await response.json()
    toc, found, inside, pages = [msgspec.json.decode(result) for result in results]
    assert shown["title"] == toc["title"] == "Handbook of the plants"
    assert [(one["title"], one["page"]) for one in toc["items"]] == [
        (f"{nth + 1} Plant number {nth + 1}", nth * 10 + 1) for nth in range(30)
    ]
    assert [(one["section_number"], one["page"]) for one in shown["toc"][21]["children"]] == [
        (f"22.{nth + 1}", 211 + nth) for nth in range(10)
    ]
    assert KNOWN in " ".join(found[0]["content"].split())
    assert (found[0]["source"], found[0]["page"]) == (f"handbook P{KNOWN_PAGE}", KNOWN_PAGE)
    assert found[0]["section_number"] == "22.7"
    assert found[0]["score"] > 0.5 > found[1]["score"]
    assert {one["page"] for one in inside} == {212}
    assert [one["page"] for one in pages["pages"]] == [216, 217, 218]
    assert KNOWN in " ".join(pages["pages"][1]["content"].split())
