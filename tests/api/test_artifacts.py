"""What came of a session beside its answer: files to download, sources to read."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from attack_helpers import refusal

from fake_tavily import KEY, hit, tavily
from longhouse.agents.template import Template, ToolPolicy
from longhouse.models.scripted import call, calls
from longhouse.tools import BaseTool, ToolContext
from longhouse.tools.context import MadeFile
from server_helpers import House, Serving, content

RAIN, SNOW = "https://example.org/rain", "https://example.org/snow"
KNOWN = {"rain": [hit(RAIN, "Rain", "It rains.")], "snow": [hit(SNOW, "Snow", "It snows.")]}
SCOUT = Template(
    name="scout",
    tool_policy=ToolPolicy(
        allowlist=(
            "websearchtool",
            "extractpagecontenttool",
            "createreporttool",
            "clarificationtool",
            "finalanswertool",
        )
    ),
)


class MakeTool(BaseTool):
    """Make files, as the test says."""

    files: list[tuple[str, str]]

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        for path, media_type in self.files:
            context.made.append(MadeFile(path=path, content=b"<script>\x00\xff", media_type=media_type))
        return "made"


MAKER = Template(name="maker", tool_policy=ToolPolicy(allowlist=("maketool", "finalanswertool")))


def files_in(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


async def read(house: House, path: str) -> Any:
    async with house.http.get(path) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def fetched(house: House, path: str) -> tuple[aiohttp.ClientResponse, bytes]:
    async with house.http.get(path) as response:
        return response, await response.read()


async def test_a_research_leaves_a_report_and_its_sources(serving: Serving, tmp_path: Path) -> None:
    script = [
        calls(call("websearchtool", query="rain"), call("websearchtool", query="snow")),
        call("extractpagecontenttool", urls=[RAIN]),
        call("createreporttool", title="Погода: Oslo", content="It rains [1] and snows [11]."),
        call("finalanswertool", answer="Done."),
    ]
    async with tavily(KNOWN, {RAIN: "All about rain."}) as stand_in:
        setup: dict[str, Any] = {"tavily_base_url": stand_in.url, "tavily_api_key": KEY, "reports_dir": tmp_path}
        async with serving(script, templates=[SCOUT], **setup) as house:
            answer = await house.say("Weather?", model="scout")
            own = f"/v1/sessions/{answer['model']}"
            listed, sources = await read(house, f"{own}/artifacts"), await read(house, f"{own}/sources")
            [artifact] = listed["data"]
            response, report = await fetched(house, artifact["download"])
            assert house.model is not None
            told = json.loads(house.model.requests[-1]["messages"][-1]["content"])
            by_call, same = await fetched(house, told["download"])
            shown = await house.session(answer["model"])
            journal = repr(await house.journal(answer["model"]))
    assert content(answer) == "Done."
    assert (shown["state"], shown["counters"]["searches_used"]) == ("COMPLETED", 2)
    assert {**sources, "data": []} == {"object": "list", "data": [], "has_more": False, "next": None}
    assert [(one["number"], one["url"], one["full_content"]) for one in sources["data"]] == [
        (1, RAIN, "All about rain."),
        (11, SNOW, ""),
    ]
    assert list(sources["data"][0]) == ["number", "url", "title", "snippet", "full_content"]
    assert report.decode().endswith(f"- [1] Rain: <{RAIN}>\n- [11] Snow: <{SNOW}>\n")
    assert (artifact["media_type"], artifact["size"]) == ("text/markdown", len(report))
    assert (artifact["path"], artifact["call_id"]) == (told["path"], "3-action-0")
    assert told["download"] == f"{own}/artifacts/3-action-0"
    assert (by_call.status, same) == (200, report)
    assert by_call.headers["content-disposition"] == response.headers["content-disposition"]
    assert response.headers["content-type"] == "text/markdown; charset=utf-8"
    assert response.headers["x-content-type-options"] == "nosniff"
    disposition = response.headers["content-disposition"]
    assert disposition.startswith('attachment; filename="______-oslo-')
    assert "filename*=UTF-8''%D0%BF%D0%BE" in disposition
    assert files_in(tmp_path) == {Path(told["path"]).name: report}
    assert KEY not in journal


async def test_a_session_that_made_nothing_has_empty_lists(serving: Serving) -> None:
    async with serving([call("finalanswertool", answer="Hi.")]) as house:
        answer = await house.say("hi")
        for kind in ("artifacts", "sources"):
            listed = await read(house, f"/v1/sessions/{answer['model']}/{kind}")
            assert listed == {"object": "list", "data": [], "has_more": False, "next": None}


async def test_whatever_a_tool_calls_its_file_a_browser_only_saves_it(serving: Serving) -> None:
    files = [
        ("page.html", "text/html"),
        ('a/b"c\r\nx: y.md', "text/plain\r\nset-cookie: a=b"),
        ("../../etc/passwd", "TEXT/HTML; charset=evil"),
        ("", "image/png"),
        ("x/..", "application/json"),
    ]
    types = [
        "text/html; charset=utf-8",
        "application/octet-stream",
        "application/octet-stream",
        "image/png",
        "application/json",
    ]
    script = [call("maketool", files=files), call("finalanswertool", answer="Done.")]
    async with serving(script, templates=[MAKER], tools=[MakeTool]) as house:
        answer = await house.say("Make.", model="maker")
        listed = (await read(house, f"/v1/sessions/{answer['model']}/artifacts"))["data"]
        assert [one["path"] for one in listed] == [path for path, _ in files]
        by_call, _ = await fetched(house, f"/v1/sessions/{answer['model']}/artifacts/1-action-0")
        assert 'filename="page.html"' in by_call.headers["content-disposition"], "the first that the call made"
        for artifact, kind in zip(listed, types, strict=True):
            response, body = await fetched(house, artifact["download"])
            assert (response.status, body) == (200, b"<script>\x00\xff")
            assert response.headers["content-type"] == kind
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["content-disposition"].startswith("attachment; filename=")
            assert "/" not in response.headers["content-disposition"].partition(";")[2]
            assert response.headers["content-security-policy"].startswith("sandbox")
            assert "set-cookie" not in response.headers


async def test_what_is_not_there_or_not_known_is_refused(serving: Serving) -> None:
    script = [call("createreporttool", title="T", content="x"), call("finalanswertool", answer="Done.")]
    async with serving(script, templates=[SCOUT]) as house:
        answer = await house.say("Report.", model="scout")
        own = f"/v1/sessions/{answer['model']}"
        [artifact] = (await read(house, f"{own}/artifacts"))["data"]
        for wrong in (
            "1",
            "0",
            "-1",
            "999999999999999999999999",
            "x",
            f"0{artifact['id']}",
            "%00",
            "%2e%2e",
            "2-action-0",
        ):
            async with house.http.get(f"{own}/artifacts/{wrong}") as response:
                assert (await refusal(response)).status == 404, wrong
        for path in (f"{own}/artifacts", artifact["download"], f"{own}/sources"):
            async with house.http.get(f"{path}?colour=red") as response:
                found = await refusal(response)
                assert (found.status, found.param) == (400, "colour")
            async with house.http.post(path) as response:
                assert (await refusal(response)).status == 405


async def test_another_owners_session_is_as_if_it_were_not_there(serving: Serving) -> None:
    script = [call("createreporttool", title="T", content="x"), call("finalanswertool", answer="Done.")]
    async with serving(script, templates=[SCOUT]) as house:
        answer = await house.say("Report.", model="scout")
        own = f"/v1/sessions/{answer['model']}"
        [artifact] = (await read(house, f"{own}/artifacts"))["data"]
        await house.db.run("UPDATE sessions SET owner = 'somebody' WHERE id = :id", id=answer["model"])
        for path in (f"{own}/artifacts", artifact["download"], f"{own}/sources", "/v1/sessions/none/artifacts"):
            async with house.http.get(path) as response:
                found = await refusal(response)
                assert (found.status, found.error["code"]) == (404, "session_not_found"), path


@pytest.mark.parametrize("settings", [{}, {"tavily_api_key": ""}])
async def test_without_a_key_the_agent_is_told_that_there_is_no_search(
    serving: Serving, settings: dict[str, Any]
) -> None:
    script = [call("websearchtool", query="rain"), call("finalanswertool", answer="No search here.")]
    async with serving(script, templates=[SCOUT], **settings) as house:
        answer = await house.say("Search.", model="scout")
        assert house.model is not None
        told = house.model.requests[-1]["messages"][-1]
    assert content(answer) == "No search here."
    assert "no search service is set up" in told["content"]
