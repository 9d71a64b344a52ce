"""Tools of SGR-Agent Core: they hold objects, and the journal holds what it always held."""

import importlib
import inspect
import json
import sys
import types
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from fake_tavily import KEY, hit, tavily
from longhouse import clock, tools
from longhouse.agents.template import LLMPolicy, Template
from longhouse.journal import events
from longhouse.journal.events import Fault, Output
from longhouse.journal.session import Session
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.tools import AgentStatesEnum, SearchResult, SourceData
from longhouse.tools.base import BaseTool
from longhouse.tools.builtin.research import ExtractPageContentTool, WebSearchTool
from longhouse.tools.builtin.tavily import open_search
from longhouse.tools.config import ExecutionConfig, LLMConfig, SearchConfig, ToolConfig
from longhouse.tools.context import DEEPEST, TOO_DEEP, Services, ToolContext
from longhouse.tools.decorator import tool
from longhouse.tools.toolbox import Result, Toolbox
from server_helpers import AGENT, folded, opened, prompted, started, turn_of, used
from sgr_tools import ELM, EVERY, OAK


class KeepsModel(BaseTool):
    """Keeps the model that it was called with."""

    seen: ClassVar[list[LLMConfig]] = []

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        self.seen.append(config.llm)
        return "kept"


@tool
async def look(context: ToolContext) -> str:
    """Only looks."""
    return " ".join(f"{type(one).__name__}" for one in (*context.sources.values(), *context.searches))


def beginning(**kept: Any) -> Session:
    """A session whose context was written by somebody before."""
    wrote = events.Returned(call="1-action-0", outcome=Output(content=""), writes=kept)
    return folded(opened(), prompted("x"), started(2), events.Replied(), used("1-action-0"), wrote)


class Workshop:
    """Calls tools one after another, each on what the journal keeps of those before."""

    def __init__(self, session: Session | None = None, *more: type[BaseTool], **lent: Any) -> None:
        self.session = session or beginning()
        self._toolbox = Toolbox([*EVERY, look, *more], **lent)

    async def call(self, *calls: tuple[str, dict[str, Any]]) -> list[Result]:
        """Calls of one reply, which do not see each other."""
        step = self.session.iteration + 1
        made = [used(f"{step}-action-{nth}", tool=name, arguments=json.dumps(a)) for nth, (name, a) in enumerate(calls)]
        self.session = folded(events.Replied(), *made, session=self.session)
        due = self.session.due_calls
        results = [await self._toolbox.perform(call, self.session, turn_of(self.session)) for call in due]
        for call, result in zip(due, results, strict=True):
            fact = events.Returned(call=call.call, outcome=result.outcome, writes=result.writes, adds=result.adds)
            # As a later process will read it.
            again = msgspec.json.decode(msgspec.json.encode(fact), type=events.Returned)
            assert again == fact
            self.session = folded(again, session=self.session)
        return results

    async def said(self, name: str, /, **arguments: Any) -> str:
        [result] = await self.call((name, arguments))
        assert isinstance(result.outcome, Output), result.outcome
        return result.outcome.content

    async def failure(self, name: str, /, **arguments: Any) -> Fault:
        [result] = await self.call((name, arguments))
        assert isinstance(result.outcome, Fault), result.outcome
        assert (result.writes, result.adds) == ({}, {})
        return result.outcome


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("base_tool", ["BaseTool", "SystemBaseTool"]),
        ("models", ["AgentContext", "AgentStatesEnum", "SearchResult", "SourceData"]),
        ("agent_definition", ["AgentConfig", "ExecutionConfig", "LLMConfig"]),
        ("tools", ["ReasoningTool", "ClarificationTool", "FinalAnswerTool", "WebSearchTool", "CreateReportTool"]),
    ],
)
def test_what_is_imported_there_is_imported_here(path: str, names: list[str]) -> None:
    theirs = importlib.import_module(f"sgr_agent_core.{path}")
    ours = importlib.import_module("longhouse.tools" if path == "tools" else f"longhouse.tools.{path}")
    for name in names:
        assert getattr(ours, name) is getattr(tools, name)
        assert hasattr(theirs, name)
    with pytest.raises(AttributeError, match="has no attribute 'PaintTool'"):
        _ = tools.PaintTool


async def test_a_tool_file_of_the_real_package_runs_when_its_imports_change(monkeypatch: pytest.MonkeyPatch) -> None:
    text = inspect.getsource(importlib.import_module("sgr_agent_core.tools.answer_tool"))
    module = types.ModuleType("brought_along")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(text.replace("sgr_agent_core", "longhouse.tools"), "answer_tool.py", "exec"), module.__dict__)
    workshop = Workshop(None, module.AnswerTool)
    said = await workshop.said("answertool", reasoning="Half of it is done.", intermediate_result="Oak is [1]. 橡树")
    assert said == "Oak is [1]. 橡树"
    assert workshop.session.context["custom_context"] == {"pass_turn_to_user": True}


async def test_settings_of_the_files_are_keyword_arguments_of_their_tool_alone() -> None:
    class Heard(tools.SystemBaseTool):
        """Hears."""

        def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
            return f"{kwargs} {dict(config.tools)}"

    assert Heard.descriptor().type == "system"
    assert tools.ToolRegistry.get("systembasetool") is None
    settings = {"heard": {"engine": "brave"}, "look": {"engine": "secret"}}
    workshop = Workshop(None, Heard, config=ToolConfig(tools=settings))
    assert await workshop.said("heard") == "{'engine': 'brave'} {'heard': {'engine': 'brave'}}"
    assert await workshop.said("look") == "", "a tool that takes none is not disturbed"


async def test_a_search_fills_sources_and_searches_with_objects_and_the_journal_with_json() -> None:
    workshop = Workshop()
    said = await workshop.said("shelfsearchtool", query="The")
    assert said == (f"Search: 'The' (2 sources)\n[1] Oak - {OAK} (The oak)\n[2] Untitled - {ELM} (The elm)")
    oak = {"number": 1, "title": "Oak", "url": OAK, "snippet": "The oak", "full_content": "", "char_count": 0}
    elm = {"number": 2, "title": None, "url": ELM, "snippet": "The elm", "full_content": "", "char_count": 0}
    assert workshop.session.context["sources"] == {OAK: oak, ELM: elm}
    [search] = workshop.session.context["searches"]
    assert (search["query"], search["answer"], search["citations"]) == ("The", None, [oak, elm])
    moment = datetime.fromisoformat(search["timestamp"])
    assert clock.now() - timedelta(minutes=1) < moment <= clock.now(), "it has its zone"
    assert workshop.session.turn is not None
    assert workshop.session.turn.searches_used == 1


async def test_a_page_that_is_read_goes_to_the_source_that_is_there_or_to_a_new_one() -> None:
    workshop = Workshop()
    await workshop.said("shelfsearchtool", query="oak")
    said = await workshop.said("shelfreadtool", urls=[OAK, ELM])
    assert said == (f"[1] Oak - {OAK}\nThe oak grows slowly. (21)\n\n[2] elm - {ELM}\nThe elm likes water. (20)")
    sources = workshop.session.context["sources"]
    assert [(one["number"], one["full_content"], one["char_count"]) for one in sources.values()] == [
        (1, "The oak grows slowly.", 21), (2, "The elm likes water.", 20),
    ]  # fmt: skip
    assert sources[OAK]["snippet"] == "The oak"


async def test_only_what_a_tool_changed_is_journaled() -> None:
    workshop = Workshop()
    await workshop.said("shelfsearchtool", query="The")
    await workshop.said("tallytool", name="Ann")
    [result] = await workshop.call(("look", {}))
    assert result == Result(Output(content="SourceData SourceData SearchResult"))
    [result] = await workshop.call(("shelfreadtool", {"urls": [ELM]}))
    assert (list(result.adds), list(result.adds["sources"]), result.writes) == (["sources"], [ELM], {})


async def test_pages_that_our_own_tools_read_have_their_count() -> None:
    page, seen = "All about oaks.", []

    @tool
    async def count(context: ToolContext) -> str:
        """Counts."""
        seen.append(context.sources[OAK].char_count)
        return ""

    async with tavily({"oak": [hit(OAK, "Oak")]}, {OAK: page}) as stand_in, open_search(stand_in.url, KEY) as search:
        workshop = Workshop(None, WebSearchTool, ExtractPageContentTool, count, services=Services(search=search))
        for name, arguments in (("websearchtool", {"query": "oak"}), ("extractpagecontenttool", {"urls": [OAK]})):
            await workshop.said(name, **arguments)
            await workshop.said("count")
    assert seen == [0, len(page)]
    assert "char_count" not in workshop.session.context["sources"][OAK], "our own tools journal what they always did"


async def test_what_journals_hold_from_before_is_read_as_objects_where_it_fits() -> None:
    old = {"number": 3, "title": "Oak", "url": OAK, "snippet": "", "full_content": "Old text", "shelf_mark": ["b", 2]}
    search: dict[str, Any] = {"query": "oak", "answer": None, "citations": [], "timestamp": "2026-01-02T03:04:05+00:00"}
    foreign = {"a": "just text", "b": {"title": "no number"}, "c": {"number": "3", "url": "c"}, "d": {"number": 1}}
    seen: list[ToolContext] = []

    @tool
    async def see(context: ToolContext) -> str:
        """Sees."""
        seen.append(context)
        return "seen"

    workshop = Workshop(beginning(sources={OAK: old, **foreign}, searches=[search, "oak", ["q"], {"q": 1}]), see)
    [result] = await workshop.call(("see", {}))
    assert result == Result(Output(content="seen"))
    [context] = seen
    oak = context.sources.pop(OAK)
    assert isinstance(oak, SourceData)
    assert (oak.number, oak.char_count, oak.shelf_mark) == (3, 8, ["b", 2])  # type: ignore[attr-defined]
    assert context.sources == foreign
    found, *rest = context.searches
    assert isinstance(found, SearchResult)
    assert rest == ["oak", ["q"], {"q": 1}]


def test_an_object_answers_to_brackets_as_the_plain_one_did() -> None:
    source = SourceData(number=1, url=OAK, mark="x")
    source["title"], source["score"] = "Oak", 0.5
    assert (source["number"], source.title, source["mark"], source.get("score"), source.get("none", 7)) == (
        1, "Oak", "x", 0.5, 7,
    )  # fmt: skip
    assert ("url" in source, "isbn" in source) == (True, False)
    assert dict(source) == {**source} == dict(source.items()) == source.model_dump()
    assert next(iter(source.values())) == 1
    with pytest.raises(KeyError, match="isbn"):
        source["isbn"]
    search = SearchResult(query="oak", citations=[source])
    assert search["citations"][0]["title"] == "Oak"
    assert search["timestamp"] == clock.iso(search.timestamp)


def test_the_time_of_a_search_can_be_compared_with_the_time_that_tools_know() -> None:
    given = SearchResult.model_validate({"query": "q", "timestamp": clock.iso(clock.now())})
    for search in (given, SearchResult(query="q")):
        age = datetime.now() - search.timestamp  # noqa: DTZ005
        assert timedelta(0) <= age < timedelta(minutes=1)


@pytest.mark.parametrize(("is_read", "counts"), [(False, (0, 0)), (True, (8, 0))])
async def test_tools_that_ask_the_search_service_themselves_get_sources(is_read: bool, counts: tuple[int, int]) -> None:
    inside = hit("http://127.0.0.1/", "Inside", "not public")
    async with tavily({"trees": [inside, hit(OAK, "Oak", "An oak."), hit(ELM)]}, {OAK: "All oaks"}) as stand_in:
        search = SearchConfig(tavily_api_base_url=stand_in.url, tavily_api_key=KEY)
        workshop = Workshop(config=ToolConfig(search=search))
        said = await workshop.said("farshelftool", query="trees", is_read=is_read)
    assert said == f"[1] Oak - {OAK} {counts[0]}\n[0] oak - {OAK} 8"
    assert all(asked.headers["Authorization"] == f"Bearer {KEY}" for asked in stand_in.requests)
    [oak] = workshop.session.context["sources"].values()
    assert (oak["number"], oak["snippet"], oak["full_content"]) == (1, "An oak.", "All oaks" if is_read else "")


async def test_a_report_lists_sources_and_goes_to_the_folder_when_there_is_one(tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    for config, path in (
        (ToolConfig(), None),
        (ToolConfig(execution=ExecutionConfig(reports_dir=str(folder))), str(folder / "Trees.md")),
    ):
        workshop = Workshop(config=config)
        await workshop.said("shelfsearchtool", query="The")
        told_ = json.loads(await workshop.said("shelfreporttool", title="Trees", content="They grow [1]."))
        assert told_ == {"title": "Trees", "sources_count": 2, "filepath": path}
    assert (folder / "Trees.md").read_text() == (
        f"# Trees\n\nThey grow [1].\n\n## Sources\n\n[1] Oak - {OAK}\n[2] Untitled - {ELM}\n"
    )


async def test_a_tool_that_needs_the_folder_fails_alone_where_none_is_set(tmp_path: Path) -> None:
    fault = await Workshop().failure("eagerreport")
    assert (fault.code, fault.message.partition(":")[0]) == ("tool_failed", "TypeError")
    config = ToolConfig(execution=ExecutionConfig(reports_dir=str(tmp_path / "made")))
    assert await Workshop(config=config).said("eagerreport") == ""
    assert (tmp_path / "made").is_dir()


async def test_data_of_its_own_comes_back_to_a_tool_by_attribute_and_by_key() -> None:
    workshop = Workshop()
    assert await workshop.said("tallytool", name="Ann") == "1: Ann"
    assert await workshop.said("tallytool", name="Bo") == "2: Ann, Bo"
    assert workshop.session.context["custom_context"] == {"count": 2, "names": ["Ann", "Bo"]}

    @tool
    async def put(key: str, context: ToolContext) -> str:
        """Puts."""
        context.custom_context = {**(context.custom_context or {}), key: True}
        return str(sorted(context.custom_context))

    workshop = Workshop(None, put)
    await workshop.call(("put", {"key": "a"}), ("put", {"key": "b"}))
    assert await workshop.said("put", key="c") == "['a', 'b', 'c']"


async def test_a_thought_is_read_by_attribute() -> None:
    assert await Workshop().said("plannotetool") == "no plan"
    thought = {"remaining_steps": ["read", "write"], "enough_data": False}
    assert await Workshop(beginning(current_step_reasoning=thought)).said("plannotetool") == "read; write"


@pytest.mark.parametrize(("status", "verdict"), [("completed", "COMPLETED"), ("failed", "FAILED")])
async def test_a_tool_ends_the_turn_with_its_state(status: str, verdict: str) -> None:
    workshop = Workshop()
    assert json.loads(await workshop.said("shelfanswertool", answer="Oak", status=status))["status"] == status
    assert workshop.session.turn is not None
    assert (workshop.session.turn.verdict, workshop.session.turn.answer) == (verdict, "Oak")


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        (AgentStatesEnum.ERROR, "FAILED"), (AgentStatesEnum.CANCELLED, "FAILED"), ("completed", "COMPLETED"),
        ("FAILED", "FAILED"), (AgentStatesEnum.RESEARCHING, ""), (AgentStatesEnum.WAITING_FOR_CLARIFICATION, ""),
    ],
)  # fmt: skip
async def test_states_are_journaled_in_upper_case(state: str, verdict: str) -> None:
    @tool
    async def stop(context: ToolContext) -> str:
        """Stops."""
        context.state = state
        return ""

    workshop = Workshop(None, stop)
    await workshop.said("stop")
    assert workshop.session.turn is not None
    assert workshop.session.turn.verdict == verdict


def test_a_state_is_equal_to_its_name_in_either_case() -> None:
    done = AgentStatesEnum.COMPLETED
    assert done == "completed" == done.value
    assert done == "COMPLETED" == done.name
    assert "COMPLETED" == done  # noqa: SIM300
    assert not done != "COMPLETED"  # noqa: SIM202
    assert done not in ("FAILED", AgentStatesEnum.FAILED, 1, None)
    assert AgentStatesEnum("COMPLETED") is AgentStatesEnum("completed") is done
    by_state: dict[str, int] = {done: 1}
    assert by_state["completed"] == 1
    assert (str(done), f"{done}", json.dumps(done)) == ("COMPLETED", "COMPLETED", '"completed"')
    assert done in AgentStatesEnum.FINISH_STATES
    assert "FINISH_STATES" not in AgentStatesEnum.__members__


def nested(levels: int) -> Any:
    value: Any = "here"
    for _ in range(levels):
        value = [value]
    return value


async def test_a_thought_that_is_nested_too_deeply_does_not_end_the_calls_after_it() -> None:
    seen = []

    @tool
    async def see(context: ToolContext) -> str:
        """Sees."""
        seen.append(context.current_step_reasoning)
        context.searches_used += 1
        return "seen"

    for levels in (DEEPEST, DEEPEST + 1, 900):
        session = beginning(current_step_reasoning=nested(levels), sources={"u": nested(levels)})
        [result] = await Workshop(session, see).call(("see", {}))
        assert result == Result(Output(content="seen"), {}, {"searches_used": 1})
    whole, *cut = [json.dumps(one) for one in seen]
    assert '"here"' in whole
    assert all(TOO_DEEP in one for one in cut)


@pytest.mark.parametrize("levels", [DEEPEST + 1, 400, 5000])
async def test_what_a_tool_nests_too_deeply_is_refused_in_words(levels: int) -> None:
    @tool
    async def nest(context: ToolContext) -> str:
        """Nests."""
        context.sources["u"] = nested(levels)
        return ""

    fault = await Workshop(None, nest).failure("nest")
    assert "nested deeper than 64 levels" in fault.message


async def test_what_a_tool_nests_in_itself_is_refused_in_words() -> None:
    @tool
    async def nest(context: ToolContext) -> str:
        """Nests."""
        context.searches += [context.searches, context.searches]
        return ""

    assert "nested deeper than 64 levels" in (await Workshop(None, nest).failure("nest")).message


async def test_tools_are_told_of_the_model_but_never_its_key(db: Database) -> None:
    assert await Workshop().said("modelnametool") == "gpt-4o-mini, 8000 tokens at 0.4"
    catalog = Catalog(db, model="usual")
    policy = LLMPolicy(
        base_url="http://models.example/v1?key=sk-canary", api_key_ref="vault-canary", proxy="http://canary:1",
        model="small", max_tokens=50, temperature=0.0,
    )  # fmt: skip
    toolbox, seen = Toolbox([KeepsModel], catalog=catalog), KeepsModel.seen
    for said, expected in (
        (LLMPolicy(), ("usual", 8000, 0.4, None)),
        (policy, ("small", 50, 0.0, "http://models.example/v1")),
    ):
        [published] = await catalog.templates.publish([Template(name=AGENT, llm_policy=said)], by="test")
        fixed = folded(opened(), prompted("x"), msgspec.structs.replace(started(2), version=published.version))
        called = folded(events.Replied(), used("1-action-0", tool=KeepsModel.tool_name), session=fixed)
        for _ in range(2):
            await toolbox.perform(called.due_calls[0], called, turn_of(called))
        llm, again = seen[-2:]
        assert again is llm, "made once for a version"
        assert (llm.model, llm.max_tokens, llm.temperature, llm.base_url) == expected
        assert "canary" not in repr(llm)
        for name in ("api_key", "api_key_ref", "proxy"):
            with pytest.raises(AttributeError, match=f"cannot read the '{name}' of a model"):
                getattr(llm, name)
