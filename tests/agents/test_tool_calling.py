"""ToolCallingAgent: what it asks a model, and what it makes of the reply. And the names that a provider accepts."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longhouse.agents.strategies.protocol import Intent, Reply, Request, Verdict
from longhouse.agents.strategies.tool_calling import ToolCallingAgent
from longhouse.agents.template import LLMPolicy, PromptPack, Template, ToolPolicy
from longhouse.agents.tool import Tool, wire_names
from longhouse.journal import events
from longhouse.journal.events import ProviderCall
from longhouse.journal.session import Session
from server_helpers import folded, opened, prompted, returned, started, used

AGENT = ToolCallingAgent()
CLOCK = Tool(name="clocktool", description="Tell the time.", schema={"type": "object", "properties": {}})
ANALYTIC = Tool(name="agent.analytic", description="Ask the analyst.", schema={"type": "object"})
TEMPLATE = Template(
    name="t",
    tool_policy=ToolPolicy(allowlist=()),
    prompt_pack=PromptPack(system_prompt="Today is {current_date}. Tools:\n{available_tools}"),
    llm_policy=LLMPolicy(model="m", temperature=0.4, max_tokens=100),
)


def session_of(*new: events.Event, **prompt: Any) -> Session:
    return folded(opened(), prompted("Will it rain?", **prompt), started(2), *new)


def sent(request: Request) -> dict[str, object]:
    return dict(msgspec.json.decode(request.encoded))


def test_a_request_has_the_policy_the_tools_and_the_transcript() -> None:
    request = AGENT.propose(session_of(), TEMPLATE, [CLOCK, ANALYTIC])
    assert sent(request) == {
        "model": "m",
        "messages": [
            {
                "role": "system",
                "content": (
                    "Today is 2026-01-31. Tools:\n1. clocktool: Tell the time.\n2. agent_analytic: Ask the analyst."
                ),
            },
            {"role": "user", "content": "Will it rain?"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "clocktool",
                    "description": "Tell the time.",
                    "parameters": {"type": "object", "properties": {}},
                },
            },
            {
                "type": "function",
                "function": {
                    "name": "agent_analytic",
                    "description": "Ask the analyst.",
                    "parameters": {"type": "object"},
                },
            },
        ],
        "tool_choice": "required",
        "parallel_tool_calls": True,
        "temperature": 0.4,
        "max_tokens": 100,
    }
    assert request.names == {"clocktool": "clocktool", "agent_analytic": "agent.analytic"}
    assert request.text_is == "answer", "unless a tool is called beside it"


def test_without_tools_the_text_is_the_answer() -> None:
    request = AGENT.propose(session_of(), TEMPLATE, [])
    assert request.text_is == "answer"
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(sent(request))


def test_what_the_client_asked_of_the_model_goes_before_the_policy() -> None:
    sampling = events.Sampling(
        temperature=0.0, top_p=0.1, max_tokens=7, seed=3, stop=("END",), response_format='{"type": "json_object"}'
    )
    body = sent(AGENT.propose(session_of(sampling=sampling), TEMPLATE, []))
    assert body["temperature"] == 0.0
    assert (body["top_p"], body["max_tokens"], body["seed"], body["stop"]) == (0.1, 7, 3, ["END"])
    assert body["response_format"] == {"type": "json_object"}


def test_history_names_tools_as_the_provider_knows_them_even_those_no_longer_offered() -> None:
    session = session_of(
        events.Replied(),
        used("1-action-0", tool="agent.analytic"),
        used("1-action-1", tool="left over!"),
        returned("1-action-0"),
        returned("1-action-1"),
    )
    request = AGENT.propose(session, TEMPLATE, [CLOCK])
    calls = request.body.messages[2].tool_calls  # type: ignore[union-attr]
    assert [call.function.name for call in calls] == ["agent_analytic", "left_over_"]


def test_equal_sessions_give_equal_bytes_and_another_word_gives_others() -> None:
    steps = (events.Replied(text="hm"), used("1-action-0"), returned("1-action-0", "12:00"))
    first = AGENT.propose(session_of(*steps), TEMPLATE, [CLOCK, ANALYTIC])
    second = AGENT.propose(session_of(*steps), TEMPLATE, [CLOCK, ANALYTIC])
    assert first.encoded == second.encoded
    assert first.digest == second.digest
    assert len(first.digest) == 64
    other = AGENT.propose(session_of(*steps[:2], returned("1-action-0", "12:01")), TEMPLATE, [CLOCK, ANALYTIC])
    assert other.digest != first.digest


def test_a_snapshot_proposes_the_same_bytes_as_the_session_it_was_taken_of() -> None:
    session = session_of(events.Replied(), used("1-action-0", arguments='{"z": 1, "a": 2}'), returned("1-action-0"))
    again = msgspec.json.decode(msgspec.json.encode(session), type=Session)
    assert AGENT.propose(again, TEMPLATE, [CLOCK]).encoded == AGENT.propose(session, TEMPLATE, [CLOCK]).encoded


def test_text_without_a_call_is_the_answer() -> None:
    request = AGENT.propose(session_of(), TEMPLATE, [CLOCK])
    assert AGENT.interpret(request, Reply(text="Rain.")) == Verdict(answer="Rain.")
    assert AGENT.interpret(request, Reply()) == Verdict(answer="")


def test_calls_become_intents_under_the_tools_real_names() -> None:
    request = AGENT.propose(session_of(), TEMPLATE, [CLOCK, ANALYTIC])
    calls = (
        ProviderCall(id="call_1", name="agent_analytic", arguments='{"z": 1, "a": 2}'),
        ProviderCall(id="call_2", name="invented", arguments=""),
    )
    assert AGENT.interpret(request, Reply(text="let me see", calls=calls)) == Verdict(
        intents=(
            Intent(tool="agent.analytic", arguments='{"z": 1, "a": 2}', provider_id="call_1"),
            Intent(tool="invented", arguments="", provider_id="call_2"),
        )
    )


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("clocktool", "clocktool"),
        ("A-b_9", "A-b_9"),
        ("x" * 64, "x" * 64),
        ("agent.analytic", "agent_analytic"),
        ("погода", "______"),
        ("", "_e3b0c4"),
    ],
)
def test_a_name_is_kept_or_encoded(name: str, wire: str) -> None:
    assert wire_names([name]) == {name: wire}


def test_a_name_that_is_too_long_is_cut_and_ends_in_its_digest() -> None:
    names = ["x" * 65, "x" * 66]
    table = wire_names(names)
    assert all(re.fullmatch(r"x{57}_[0-9a-f]{6}", table[name]) for name in names)
    assert table[names[0]] != table[names[1]]


def test_on_a_collision_the_plain_name_keeps_itself_and_the_others_get_a_digest() -> None:
    table = wire_names(["a.b", "a/b", "a_b"])
    assert table["a_b"] == "a_b"
    assert re.fullmatch(r"a_b_[0-9a-f]{6}", table["a.b"])
    assert re.fullmatch(r"a_b_[0-9a-f]{6}", table["a/b"])
    assert len(set(table.values())) == 3


def test_a_name_that_takes_anothers_digest_does_not_take_its_place() -> None:
    crafted = wire_names(["a.b", "a_b"])["a.b"]
    table = wire_names(["a.b", "a_b", crafted])
    assert table[crafted] == crafted
    assert len(set(table.values())) == 3


NAMES = st.lists(
    st.text(alphabet="ab._/é ", max_size=5) | st.text(alphabet="a.", min_size=60, max_size=70), unique=True
)


@given(NAMES)
def test_names_on_the_wire_are_acceptable_reversible_and_stable(names: list[str]) -> None:
    table = wire_names(names)
    assert set(table) == set(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", wire) for wire in table.values())
    back = {wire: name for name, wire in table.items()}
    assert [back[table[name]] for name in names] == names
    assert wire_names(names) == table
