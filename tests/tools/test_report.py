"""The report: Markdown with its sources, an artifact of the session, and a file where people want one."""

import json
from pathlib import Path
from typing import Any

import pytest

from longhouse.journal import events
from longhouse.journal.events import Fault, Output
from longhouse.journal.session import Session
from longhouse.tools.builtin.report import CreateReportTool
from longhouse.tools.config import ExecutionConfig, ToolConfig
from longhouse.tools.context import MadeFile
from longhouse.tools.toolbox import Result, Toolbox
from server_helpers import folded, opened, prompted, started, turn_of, used

RAIN, SNOW = "https://example.org/rain", "https://example.org/snow"


def source(number: int, url: str, title: str) -> dict[str, Any]:
    return {"number": number, "url": url, "title": title, "snippet": "", "full_content": ""}


def session_with(*sources: dict[str, Any], also: tuple[dict[str, Any], ...] = (), **arguments: str) -> Session:
    """A session that found these sources (and showed others under numbers of their own), about to report."""
    search = {"query": "q", "citations": [*sources, *also]}
    found = {"sources": {one["url"]: one for one in sources}, "searches": [search]}
    before = events.Returned(call="1-action-0", outcome=Output(content=""), adds=found)
    call = used("2-action-0", tool="createreporttool", arguments=json.dumps(arguments))
    past = (opened(), prompted("x"), started(2), events.Replied(), used("1-action-0"), before)
    return folded(*past, events.Replied(), call)


async def reported(session: Session, folder: Path | None = None) -> Result:
    config = ToolConfig(execution=ExecutionConfig(reports_dir=str(folder) if folder else None))
    return await Toolbox([CreateReportTool], config=config).perform(session.due_calls[0], session, turn_of(session))


def parts(result: Result) -> tuple[dict[str, Any], MadeFile]:
    """What the agent is told, and the file."""
    assert isinstance(result.outcome, Output), result.outcome
    [made] = result.made
    return json.loads(result.outcome.content), made


def names(folder: Path) -> list[str]:
    """Every file below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


async def test_a_report_ends_with_the_sources_that_it_cites() -> None:
    sources = (source(1, RAIN, "Rain"), source(2, SNOW, "Snow"), source(3, "https://example.org/fog", "Fog"))
    session = session_with(*sources, title="Weather in Oslo", content="It rains [1], and it snows [3, 1].")
    told_, made = parts(await reported(session))
    assert made.content.decode() == (
        "# Weather in Oslo\n\nIt rains [1], and it snows [3, 1].\n\n"
        "## Sources\n\n- [1] Rain: <https://example.org/rain>\n- [3] Fog: <https://example.org/fog>\n"
    )
    assert made.media_type == "text/markdown"
    assert made.path.startswith("reports/weather-in-oslo-")
    assert made.path.endswith(".md")
    assert told_ == {
        "title": "Weather in Oslo",
        "word_count": 8,
        "sources_count": 2,
        "unknown_citations": [],
        "path": made.path,
        "download": f"/v1/sessions/{session.id}/artifacts/2-action-0",
    }


async def test_a_report_that_cites_nothing_lists_every_source_once() -> None:
    twice = source(11, RAIN, "Rain")
    session = session_with(source(1, RAIN, "Rain"), source(2, SNOW, "Snow"), also=(twice,), title="T", content="Wet.")
    told_, made = parts(await reported(session))
    assert made.content.decode().count("https://") == told_["sources_count"] == 2


async def test_a_number_that_a_search_showed_is_known_though_another_search_found_the_page_too() -> None:
    session = session_with(source(1, RAIN, "Rain"), also=(source(11, RAIN, "Rain"),), title="T", content="Wet [11].")
    told_, made = parts(await reported(session))
    assert "- [11] Rain: <https://example.org/rain>" in made.content.decode()
    assert told_["unknown_citations"] == []


async def test_a_citation_without_a_source_is_told_to_the_agent() -> None:
    session = session_with(source(1, RAIN, "Rain"), title="T", content="Wet [1], cold [7].")
    told_, _ = parts(await reported(session))
    assert (told_["sources_count"], told_["unknown_citations"]) == (1, [7])


async def test_a_report_without_research_has_no_list() -> None:
    told_, made = parts(await reported(session_with(title="T", content="# Own heading\n\nText.")))
    assert made.content == b"# Own heading\n\nText.\n"
    assert told_["sources_count"] == 0


async def test_titles_of_strangers_stay_words() -> None:
    bad = source(1, RAIN, "](javascript:x)<script>\n# Heading")
    _, made = parts(await reported(session_with(bad, title="a\n# b <i>", content="Wet [1].")))
    text = made.content.decode()
    assert text.startswith("# a \\# b \\<i\\>\n")
    assert "- [1] \\](javascript:x)\\<script\\> \\# Heading: <https://example.org/rain>" in text


async def test_the_same_call_makes_the_same_file_and_another_call_another(tmp_path: Path) -> None:
    session = session_with(title="T", content="x")
    first, again = parts(await reported(session, tmp_path))[1], parts(await reported(session, tmp_path))[1]
    assert first == again
    other = folded(events.Returned(call="2-action-0", outcome=Output(content="")), events.Replied(), session=session)
    call = used("3-action-0", tool="createreporttool", arguments='{"title": "T", "content": "x"}')
    later = parts(await reported(folded(call, session=other), tmp_path))[1]
    assert later.path != first.path
    assert [f"reports/{name}" for name in names(tmp_path)] == sorted([first.path, later.path])
    assert (tmp_path / Path(first.path).name).read_bytes() == first.content


@pytest.mark.parametrize(
    ("title", "slug"),
    [
        ("../../etc/passwd", "etc-passwd"),
        ("/absolute\\path: C:\\x", "absolute-path-c-x"),
        ("..", "report"),
        ("\u0000\u202e", "report"),
        ("Погода в Осло", "погода-в-осло"),
        ("奥斯陆的天气", "奥斯陆的天气"),
        ("．．／ｆｕｌｌ width", "full-width"),
        ("x" * 300, "x" * 50),
        ("𝒳" * 300, "x" * 50),
        ("-rf *; $(id) `id` \n", "rf-id-id"),
    ],
)
async def test_a_title_never_leads_out_of_the_folder(title: str, slug: str, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "for" / "it"
    _, made = parts(await reported(session_with(title=title, content="x"), folder))
    [name] = names(tmp_path)
    assert name == f"made/for/it/{made.path.removeprefix('reports/')}"
    assert name.startswith(f"made/for/it/{slug}-")


async def test_a_link_laid_into_the_folder_is_replaced_not_followed(tmp_path: Path) -> None:
    session, victim, folder = session_with(title="T", content="x"), tmp_path / "victim", tmp_path / "reports"
    victim.write_text("precious")
    name = Path(parts(await reported(session))[1].path).name
    folder.mkdir()
    (folder / name).symlink_to(victim)
    await reported(session, folder)
    assert victim.read_text() == "precious"
    assert not (folder / name).is_symlink()


async def test_a_folder_that_cannot_be_written_does_not_take_the_report_away(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    told_, made = parts(await reported(session_with(title="T", content="x"), tmp_path / "file"))
    assert (told_["path"], made.content) == (made.path, b"# T\n\nx\n")


async def test_an_empty_report_is_refused() -> None:
    result = await reported(session_with(title="T", content=""))
    assert isinstance(result.outcome, Fault)
    assert result.made == ()


def test_a_report_can_still_be_written_when_a_budget_is_spent() -> None:
    tool = CreateReportTool.described()
    assert (tool.closing, tool.finishes, tool.inline, tool.effect) == (True, False, False, "idempotent")
