"""An agent as a tool: what it is asked, what is handed down, who waits for whom."""

import json
from datetime import timedelta

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from longhouse.agents.delegation import (
    AgentTask,
    Delegation,
    as_tool,
    capped_by_caller,
    capped_by_shared,
    delegation_of,
    has_delegated,
    narrowed,
    remaining,
    shared_budget,
    shared_messages,
    waits_for,
)
from longhouse.agents.template import MemoryPolicy, MultiAgentMeta, Template, ToolPolicy
from longhouse.journal import events
from longhouse.journal.events import Fault, Limits, Rights, SharedBudget, Usage
from longhouse.journal.messages import Assistant, User
from longhouse.journal.session import Session
from server_helpers import LIMITS, folded, opened, prompted, returned, started, used

MASTER = Template(name="master")


def at_work(*new: events.Event, limits: Limits = LIMITS) -> Session:
    return folded(opened("master"), prompted("Go"), started(2, limits=limits), *new)


def test_a_template_is_a_tool_that_takes_a_task() -> None:
    meta = MultiAgentMeta(capabilities="Counts things.", tags=("numbers",))
    tool = as_tool(Template(name="analytic", multi_agent_meta=meta, owner="acme"))
    assert (tool.name, tool.runtime_binding.agent, tool.owner) == ("agent.analytic", "analytic", "acme")
    assert "Counts things." in tool.description_short
    assert tool.tags == ("numbers",)
    assert tool.input_schema is not None
    assert set(tool.input_schema["properties"]) == {"task", "constraints", "label", "wait"}
    assert tool.input_schema["required"] == ["task"]
    assert tool.tool.is_delegated


@pytest.mark.parametrize(
    "arguments",
    ["{}", '{"task": ""}', '{"task": "t", "label": "a/b"}', '{"task": "t", "label": "ü"}', '{"task": "t", "who": 1}'],
)
def test_a_task_that_cannot_be_given_is_refused(arguments: str) -> None:
    with pytest.raises(pydantic.ValidationError):
        AgentTask.model_validate_json(arguments)


def test_constraints_follow_the_task_as_json_in_every_language() -> None:
    given = {"город": "Москва", "范围": ["北京", {"a": None}], "strict": True, "note": 'two\nlines - "quoted"'}
    task, _, conditions = AgentTask(task="Count.", constraints=given).text.split("\n")
    assert (task, json.loads(conditions)) == ("Count.", given)
    assert '"Москва"' in conditions
    assert "北京" in conditions


def test_constraints_follow_the_task() -> None:
    task = AgentTask(task="Count.", constraints={"limit": 3, "unit": "apples"})
    assert task.text == 'Count.\nConstraints:\n{"limit": 3, "unit": "apples"}'
    assert AgentTask(task="Count.").text == "Count."


def handed_down(session: Session, template: Template, call: str, agent: str, task: AgentTask) -> Delegation:
    assert session.turn is not None
    return delegation_of(session, session.turn, template, task, call=call, agent=agent, version=1)


def test_a_task_takes_along_trace_depth_root_rights_and_what_is_left() -> None:
    session = at_work(limits=Limits(max_iterations=9, max_clarifications=1, time_budget=60, token_budget=100))
    given = handed_down(session, MASTER, "1-action-0", "analytic", AgentTask(task="Count.", label="a", wait=False))
    assert (given.call, given.agent, given.label, given.awaited) == ("1-action-0", "analytic", "a", False)
    prompt = given.prompted
    assert (prompt.trace, prompt.sender, prompt.depth, prompt.root) == ("t", "master", 1, session.id)
    assert prompt.content == ("Count.",)
    assert prompt.reply_to == events.ReplyTo(session=session.id, call="1-action-0")
    assert prompt.budget is not None
    assert prompt.budget.token_budget == 100


def test_the_root_of_a_task_stays_the_root_further_down() -> None:
    session = folded(opened("ann"), prompted("Go", depth=2, root="master_1"), started(2))
    prompt = handed_down(session, MASTER, "1-action-0", "ben", AgentTask(task="Go on.")).prompted
    assert (prompt.depth, prompt.root) == (3, "master_1")


def test_what_was_used_is_not_handed_down() -> None:
    limits = Limits(max_iterations=9, max_clarifications=1, time_budget=60, tool_budget=5, token_budget=100)
    usage = Usage(prompt_tokens=50, completion_tokens=10, total_tokens=60)
    session = at_work(events.Replied(usage=usage), used("1-action-0"), limits=limits)
    assert session.turn is not None
    left = remaining(replace(session.turn, worked_at=session.turn.started_at + timedelta(seconds=20)))
    assert (left.token_budget, left.tool_budget, left.time_budget) == (40, 4, 40)
    spent = folded(returned("1-action-0", spent=Usage(total_tokens=90), calls=3), session=session)
    assert spent.turn is not None
    left = remaining(replace(spent.turn, worked_at=spent.turn.started_at + timedelta(seconds=61)))
    assert (left.token_budget, left.tool_budget, left.time_budget) == (0, 1, 0)


def test_all_sub_agents_share_one_budget_of_what_the_agent_at_the_top_leaves() -> None:
    limits = Limits(max_iterations=9, max_clarifications=1, time_budget=60, tool_budget=5, token_budget=100)
    asking: list[events.Event] = [events.Replied(usage=Usage(total_tokens=30)), used("1-action-0")]
    session = at_work(*asking, returned("1-action-0", spent=Usage(total_tokens=50), calls=2), limits=limits)
    assert session.turn is not None
    # What sub-agents used is not taken from the shared budget twice: there it is counted by itself.
    assert shared_budget(session.turn) == SharedBudget(tool_budget=4, token_budget=70, root_calls=1)
    assert shared_budget(at_work().turn or session.turn) is None
    shared = SharedBudget(token_budget=70)
    sub = folded(opened("ann"), prompted("Go", root="master_1", shared_budget=shared), started(2))
    assert handed_down(sub, MASTER, "1-action-0", "ben", AgentTask(task="Go on.")).prompted.shared_budget == shared


def test_nobody_has_more_than_is_left_of_the_shared_budget() -> None:
    limits = Limits(max_iterations=9, max_clarifications=1, time_budget=60, tool_budget=5)
    shared = SharedBudget(tool_budget=9, token_budget=70)
    left = capped_by_shared(limits, shared, calls=6, tokens=80)
    assert (left.tool_budget, left.token_budget, left.time_budget) == (3, 0, 60)
    left = capped_by_shared(limits, SharedBudget(), calls=6, tokens=80)
    assert (left.tool_budget, left.token_budget) == (5, None)


def test_who_is_named_by_the_client_is_another_agent_for_this_request_whoever_calls_it() -> None:
    top = folded(
        events.Opened(agent="master", version=1, owner="local", conversation="c", label="ephemeral/1"),
        prompted("Go", contexts={"ben": (User(content="I am"),)}),
        started(2),
    )
    named = handed_down(top, MASTER, "1-action-0", "ben", AgentTask(task="Who?", label="b"))
    assert (named.label, named.brings_history) == ("ephemeral/1/b", True)
    assert named.prompted.prior == (User(content="I am"),)
    unnamed = handed_down(top, MASTER, "1-action-0", "ann", AgentTask(task="Who?"))
    assert (unnamed.label, unnamed.brings_history, unnamed.prompted.contexts) == ("", False, {})
    further = folded(opened("ann"), msgspec.structs.replace(unnamed.prompted, root="master_1"), started(2))
    through = handed_down(further, MASTER, "1-action-0", "ben", AgentTask(task="Who?"))
    assert (through.label, through.brings_history) == ("ephemeral/1", True)


budgets = st.none() | st.integers(0, 100)
some_limits = st.builds(
    Limits,
    max_iterations=st.integers(0, 50),
    max_clarifications=st.integers(0, 5),
    time_budget=st.floats(1, 100),
    max_searches=budgets,
    tool_budget=budgets,
    token_budget=budgets,
)


@given(own=some_limits, left=some_limits)
def test_no_budget_is_above_that_of_who_asks(own: Limits, left: Limits) -> None:
    narrow = capped_by_caller(own, left)
    assert (narrow.max_iterations, narrow.max_searches) == (own.max_iterations, own.max_searches)
    assert narrow.time_budget <= min(own.time_budget, left.time_budget)
    for name in ("tool_budget", "token_budget"):
        mine, theirs, got = (getattr(one, name) for one in (own, left, narrow))
        assert got == min((one for one in (mine, theirs) if one is not None), default=None)
    assert capped_by_caller(own, None) == own


risks = st.sampled_from(["low", "medium", "high"])
names = st.lists(st.sampled_from("abcdef"), max_size=4, unique=True).map(tuple)


@given(above=st.builds(Rights, denied=names, max_risk=risks), denylist=names, level=risks)
def test_rights_only_narrow(above: Rights, denylist: tuple[str, ...], level: str) -> None:
    template = Template(name="t", tool_policy=ToolPolicy(denylist=denylist, max_risk_level=level))  # type: ignore[arg-type]
    below = narrowed(above, template) or Rights()
    assert {*below.denied} == {*above.denied, *denylist}
    order = ["low", "medium", "high"]
    assert order.index(below.max_risk) == min(order.index(above.max_risk), order.index(level))
    assert (narrowed(below, template) or Rights()) == below


def test_what_is_shared_is_what_was_said_and_no_work() -> None:
    first = folded(
        opened("master"), prompted("one"), started(2), events.Replied(), used("1-action-0"), returned("1-action-0"),
        events.Replied(text="two"), events.Finished(answer="two"),
    )  # fmt: skip
    session = folded(prompted("three"), started(9), session=first)
    assert shared_messages(session, 0) == ()
    assert shared_messages(session, 2) == (Assistant(content="two"), User(content="three"))
    assert shared_messages(session, 9) == (User(content="one"), Assistant(content="two"), User(content="three"))
    sharing = Template(name="master", memory_policy=MemoryPolicy(share_context=1))
    given = handed_down(session, sharing, "2-action-0", "ann", AgentTask(task="Go on."))
    assert given.prompted.shared == (User(content="three"),)


def test_somebody_waits_for_whom_its_edges_lead_to() -> None:
    edges = [("a", "b"), ("b", "c"), ("c", "d"), ("x", "a")]
    assert waits_for(edges, "a", "d")
    assert not waits_for(edges, "d", "a")
    assert waits_for([], "a", "a"), "who calls itself waits for itself"
    assert not waits_for([("a", "b"), ("b", "a")], "a", "z"), "circles end"


@given(edges=st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef")), max_size=12))
def test_waiting_is_the_closure_of_the_edges(edges: list[tuple[str, str]]) -> None:
    reached = {one: {one} for one in "abcdef"}
    for _ in range(6):
        for waiting, awaited in edges:
            for ones in reached.values():
                if waiting in ones:
                    ones.add(awaited)
    for start in "abcdef":
        assert {target for target in "abcdef" if waits_for(edges, start, target)} == reached[start]


@pytest.mark.parametrize(
    ("outcome", "counts"),
    [
        (events.Output(content="done"), True),
        (Fault(code="failed", message="it could not"), True),
        (Fault(code="not_offered", message="there is none"), False),
        (Fault(code="bad_arguments", message="what task?"), False),
    ],
)
def test_only_a_call_that_was_made_has_asked_somebody(outcome: events.Outcome, counts: bool) -> None:
    call = used("1-action-0", tool="agent.ann", call_kind="agent")
    assert has_delegated(at_work(events.Replied(), call))
    session = at_work(events.Replied(), call, events.Returned(call="1-action-0", outcome=outcome))
    assert has_delegated(session) is counts
    assert not has_delegated(at_work(events.Replied(), used("1-action-0")))


def test_null_is_what_was_left_out() -> None:
    task = AgentTask.model_validate_json('{"task": "t", "constraints": null, "label": null, "wait": null}')
    assert task == AgentTask(task="t")
