"""What went wrong elsewhere does not happen here: each known defect as a story, in all three ways to think."""

import asyncio
import json
import os
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from strategy_replies import WRITE, offered, written

from fake_tavily import KEY, hit, tavily
from longhouse.agents.strategies.base import AgentRegistry
from longhouse.agents.template import ExecutionPolicy, PromptPack, Template, ToolPolicy
from longhouse.journal import events
from longhouse.models.scripted import Say, call, calls
from longhouse.tools import ToolContext, tool
from server_helpers import LIMITS, House, Serving, content, folded, opened, prompted

TOOLS = (
    "reasoningtool",
    "clarificationtool",
    "websearchtool",
    "extractpagecontenttool",
    "look",
    "fail",
    "finalanswertool",
)
DONE = ("finalanswertool", {"answer": "Done.", "status": "completed"})
PAGE = "https://rain.example.org/"

every_strategy = pytest.mark.parametrize("agent", list(WRITE))


@tool
async def look(at: str = "it", seconds: float = 0.0) -> str:
    """Look at something, for a while."""
    await asyncio.sleep(seconds)
    return f"seen: {at}"


@tool
async def fail(context: ToolContext, how: str = "badly") -> str:
    """Fail."""
    raise RuntimeError(f"failed {how}")


def template(agent: str, prompts: PromptPack | None = None, **limits: Any) -> Template:
    # A structured agent needs no tool to reason: its schema has the fields.
    tools = TOOLS if agent == "SGRToolCallingAgent" else TOOLS[1:]
    policy = ExecutionPolicy(**limits)
    pack = prompts or PromptPack()
    return Template(
        name="thinker",
        base_agent_class=agent,
        tool_policy=ToolPolicy(allowlist=tools),
        execution_policy=policy,
        prompt_pack=pack,
    )


def thinking(serving: Serving, script: Any, chosen: Template, **settings: Any) -> Any:
    return serving(script, templates=[chosen], tools=[look, fail], **settings)


def asked(house: House) -> list[dict[str, Any]]:
    """The requests in which the agent chooses what to do; the hybrid's reasoning is left out."""
    assert house.model is not None
    return [request for request in house.model.requests if not isinstance(request.get("tool_choice"), dict)]


def results(request: dict[str, Any]) -> list[str]:
    """What tools said, without the hybrid's own reasoning."""
    shown = [message for message in request["messages"] if message["role"] == "tool"]
    return [message["content"] for message in shown if "reasoning" not in message["tool_call_id"]]


# A date frozen at import.


@every_strategy
async def test_a_turn_is_told_the_date_on_which_it_started(serving: Serving, agent: str) -> None:
    days = {datetime.now(UTC).date().isoformat()}
    async with thinking(serving, written(agent, DONE), template(agent)) as house:
        answered = await house.say("Today?", model="thinker")
        days.add(datetime.now(UTC).date().isoformat())
        [date] = [one.event.date for one in await house.journal(answered["model"]) if hasattr(one.event, "date")]
        assert date in days
        system = asked(house)[0]["messages"][0]["content"]
        assert system.endswith(f"Today is {date}.")


@every_strategy
def test_each_turn_has_its_own_date_also_when_it_is_looked_at_later(agent: str) -> None:
    strategy = AgentRegistry.resolve([agent])[0]()
    chosen = template(agent, PromptPack(system_prompt="{current_date}", initial_user_request="{current_date}: {task}"))

    def started(prompt: int, date: str) -> events.Started:
        return events.Started(trace="t", prompt=prompt, version=1, instance="i", limits=LIMITS, date=date)

    session = folded(opened("thinker"), prompted("one"), started(2, "2026-01-31"))
    first = strategy.propose(session, chosen, [])
    session = folded(
        events.Replied(text="1"), events.Finished(answer="1"), prompted("two"), started(6, "2027-02-01"),
        session=session,
    )  # fmt: skip
    second = strategy.propose(session, chosen, [])
    assert [message.content for message in first.body.messages] == ["2026-01-31", "2026-01-31: one"]
    assert [message.content for message in second.body.messages] == [
        "2027-02-01", "2026-01-31: one", "1", "2027-02-01: two",
    ]  # fmt: skip


# Tool order that changes between processes.

COMPOSE = """
import sys
from datetime import UTC, datetime
from longhouse.agents import AgentRegistry, rules
from longhouse.agents.builtin import BUILT_IN
from longhouse.agents.strategies import structured, tool_calling
from longhouse.agents.tool import Tool
from longhouse.journal import events
from longhouse.journal.events import Recorded
from longhouse.journal.fold import blank, fold
from longhouse.tools.base import ToolRegistry
from longhouse.tools.builtin import clock, dialogue, planning, report, research
from longhouse.tools.toolbox import Toolbox

at = datetime(2026, 1, 31, tzinfo=UTC)
limits = events.Limits(max_iterations=9, max_clarifications=9, time_budget=9)
journal = [
    events.Opened(agent="a", version=1, owner="o", conversation="c"),
    events.Prompted(trace="t", content=("x",)),
    events.Started(trace="t", prompt=2, version=1, instance="i", limits=limits, date="2026-01-31"),
]
session = fold((Recorded(seq=n, at=at, event=one) for n, one in enumerate(journal, 1)), blank("a_1"))
strange = [Tool(name=name, description="", schema={}) for name in ("agent.b", "agent_b", "agent/b", "c" * 70, "d" * 70)]
toolbox = Toolbox(ToolRegistry.list_items())
for template in BUILT_IN:
    tools = [*filter(None, map(toolbox.find, template.tool_policy.named)), *strange]
    open_tools = rules.open_tools(session, session.turn, template)
    request = AgentRegistry.resolve([template.base_agent_class])[0]().propose(
        session, template, [tool for tool in tools if open_tools.includes(tool)]
    )
    sys.stdout.buffer.write(request.encoded + b"\\n")
"""


async def composed(seed: str) -> tuple[int | None, bytes]:
    """What a process of its own composes: its exit code, and all it said."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", COMPOSE, env={**os.environ, "PYTHONHASHSEED": seed},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, said


async def test_two_processes_compose_the_same_bytes() -> None:
    one, other = await asyncio.gather(composed("1"), composed("2"))
    assert one == other
    code, said = one
    assert code == 0, said.decode()
    assert said.count(b"\n") == 7, "one for each agent that comes along"


# Names of a schema's inside that leak into what people and models read.


async def test_no_discriminator_and_no_made_up_name_reaches_history_or_log(serving: Serving) -> None:
    script = written("SGRAgent", ("look", {"at": "x", "seconds": None}), ("fail", {"how": None}), DONE)
    async with thinking(serving, script, template("SGRAgent")) as house:
        session_id = (await house.say("Look", model="thinker"))["model"]
        texts = [json.dumps(request["messages"]) for request in asked(house)]
        for path in ("messages", "log"):
            async with house.http.get(f"/v1/sessions/{session_id}/{path}") as response:
                texts.append(await response.text())
        for text in texts:
            assert "discriminator" not in text
            assert '"d_' not in text.lower()
        called = [one.event for one in await house.journal(session_id) if isinstance(one.event, events.Called)]
        assert [(one.tool, one.arguments) for one in called[:2]] == [("look", '{"at": "x"}'), ("fail", "{}")]


# A raising tool that kills the run; parallel calls dropped.


@every_strategy
async def test_a_raising_tool_is_something_to_read(serving: Serving, agent: str) -> None:
    async with thinking(serving, written(agent, ("fail", {"how": "at once"}), DONE), template(agent)) as house:
        answered = await house.say("Go", model="thinker")
        assert content(answered) == "Done."
        assert results(asked(house)[-1]) == ["Error: RuntimeError: failed at once"]


@pytest.mark.parametrize("agent", ["ToolCallingAgent", "SGRToolCallingAgent"])
async def test_all_calls_of_a_reply_are_made_and_shown_in_their_order(serving: Serving, agent: str) -> None:
    first, *more = written(agent, ("look", {"at": "a", "seconds": 0.2}))
    many = calls(*(more or [first]), call("fail"), call("look", at="b"))
    script = [first, many] if more else [many]
    async with thinking(serving, [*script, *written(agent, DONE)], template(agent)) as house:
        answered = await house.say("Go", model="thinker")
        assert content(answered) == "Done."
        assert results(asked(house)[-1]) == ["seen: a", "Error: RuntimeError: failed badly", "seen: b"]
        uses = [one for message in asked(house)[-1]["messages"] for one in message.get("tool_calls", ())]
        ids = [one["id"] for one in uses if "reasoning" not in one["id"]]
        assert ids == ["1-action-0", "1-action-1", "1-action-2"]


# A strategy that ignores its limits.


@every_strategy
async def test_at_its_limit_of_steps_an_agent_still_answers(serving: Serving, agent: str) -> None:
    script = written(agent, ("look", {}), ("look", {"at": "more"}), ("look", {"at": "yet more"}), DONE)
    async with thinking(serving, script, template(agent, max_iterations=2)) as house:
        answered = await house.say("Go", model="thinker")
        assert content(answered) == "Done."
        closing = ["reasoningtool"] if agent == "SGRToolCallingAgent" else []
        assert [offered(request) for request in asked(house)[2:]] == [[*closing, "finalanswertool"]] * 2
        assert results(asked(house)[-1])[-1] == "Error: 'look' is not among the tools that are open now"


@every_strategy
async def test_questions_end_at_their_limit(serving: Serving, agent: str) -> None:
    question = ("clarificationtool", {"questions": ["Where?"]})
    script = written(agent, question, question, DONE)
    async with thinking(serving, script, template(agent, max_clarifications=1)) as house:
        waiting = await house.say("Go", model="thinker")
        assert content(await house.say("Here", model=waiting["model"])) == "Done."
        assert ["clarificationtool" in offered(request) for request in asked(house)] == [True, False, False]
        assert results(asked(house)[-1])[-1] == "Error: 'clarificationtool' is not among the tools that are open now"


@every_strategy
async def test_searches_end_at_their_limit_and_reading_with_them(serving: Serving, agent: str) -> None:
    search = ("websearchtool", {"query": "rain"})
    script = written(agent, search, ("extractpagecontenttool", {"urls": [PAGE]}), DONE)
    async with tavily({"rain": [hit(PAGE, "Rain", "wet")]}, {PAGE: "all wet"}) as stand_in:
        setup = {"tavily_base_url": stand_in.url, "tavily_api_key": KEY}
        async with thinking(serving, script, template(agent, max_searches=1), **setup) as house:
            assert content(await house.say("Go", model="thinker")) == "Done."
            searching = [{"websearchtool", "extractpagecontenttool"} & set(offered(one)) for one in asked(house)]
            assert searching == [{"websearchtool", "extractpagecontenttool"}, set(), set()]
        assert [one.path for one in stand_in.requests] == ["/search"]


@every_strategy
async def test_the_same_failing_call_closes_its_tool_and_the_agent_is_told(serving: Serving, agent: str) -> None:
    again = [("fail", {"how": "again"})] * 3
    script = written(agent, ("fail", {"how": "once"}), *again, ("fail", {"how": "anew"}), DONE)
    async with thinking(serving, script, template(agent)) as house:
        assert content(await house.say("Go", model="thinker")) == "Done."
        assert ["fail" in offered(request) for request in asked(house)] == [True] * 4 + [False] * 2
        news = "This call has failed 3 times: fail is closed for the rest of this turn; go another way."
        failed = [f"Error: RuntimeError: failed {how}" for how in ("once", "again", "again", "again")]
        closed = "Error: 'fail' is not among the tools that are open now"
        assert results(asked(house)[-1]) == [*failed[:3], f"{failed[3]}. {news}", closed]


# Budgets.


def willing(agent: str) -> Any:
    """Looks for as long as it may, then answers."""

    def choose(body: Any) -> Say:
        shown = json.loads(bytes(body.response_format)) if bytes(body.response_format) else None
        names = offered({"response_format": shown, "tools": [json.loads(bytes(one)) for one in body.tools]})
        replies = written(agent, ("look", {}) if "look" in names else DONE)
        return replies[0] if isinstance(body.tool_choice, dict) else replies[-1]

    return choose


@every_strategy
async def test_a_spent_budget_of_tool_calls_leaves_the_way_out(serving: Serving, agent: str) -> None:
    async with thinking(serving, willing(agent), template(agent, tool_budget=2)) as house:
        assert content(await house.say("Go", model="thinker")) == "Done."
        assert results(asked(house)[-1]) == ["seen: it"] * 2, "thinking is not using a tool"


@every_strategy
async def test_a_spent_budget_of_tokens_leaves_the_way_out(serving: Serving, agent: str) -> None:
    pack = PromptPack(system_prompt="word " * 800)  # a thousand tokens a request
    async with thinking(serving, willing(agent), template(agent, pack, token_budget=2_500)) as house:
        assert content(await house.say("Go", model="thinker")) == "Done."
        assert house.model is not None
        assert len(house.model.requests) == 4, "the third request crosses the line, the fourth is the way out"


@every_strategy
async def test_a_turn_that_takes_twice_its_time_is_ended_in_words(serving: Serving, agent: str) -> None:
    script = written(agent, ("look", {"seconds": 1.4}), DONE)
    async with thinking(serving, script, template(agent, time_budget=0.7)) as house:
        failed = await house.say("Go", model="thinker")
        assert failed["error"]["code"] == "limit_reached"
        assert "the agent did not finish within its limit of 0.7 seconds" in failed["error"]["message"]
