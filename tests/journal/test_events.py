"""Facts on their way to the journal and back: whole, in their own order, and never guessed at."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longhouse.errors import UnknownShape
from longhouse.journal import events
from longhouse.journal.events import Event, Upgrade
from longhouse.journal.messages import Assistant, Function, ImagePart, ImageUrl, TextPart, ToolCall, ToolResult, User

# One of each kind, every field away from its default.
EXAMPLES: list[Event] = [
    events.Opened(
        agent="a", version=2, owner="acme", user="ann", conversation="c-1", side="sub", label="branch-1a2b3c4d"
    ),
    events.Prompted(
        trace="t1",
        content=("Hello", (TextPart(text="look"), ImagePart(image_url=ImageUrl(url="file:ab", detail="low")))),
        sender="master",
        reply_to=events.ReplyTo(session="master_1", call="3-action-0"),
        prior=(
            User(content="before"),
            Assistant(tool_calls=(ToolCall(id="1", function=Function(name="f", arguments='{"b":1,"a":2}')),)),
            ToolResult(tool_call_id="1", content="2"),
        ),
        system="Be brief.",
        sampling=events.Sampling(
            temperature=0.0, top_p=0.5, max_tokens=7, seed=0, stop=("END",), response_format='{"type":"json_object"}'
        ),
        version=3,
        chain="ff",
        shared_budget=events.SharedBudget(tool_budget=3, token_budget=0),
        named=("ann",),
        ephemeral="ephemeral/1",
    ),
    events.Started(
        trace="t1",
        prompt=2,
        version=3,
        instance="a-1",
        limits=events.Limits(max_iterations=1, max_clarifications=0, time_budget=0.5),
        rights=events.Rights(denied=("paytool",), max_risk="medium"),
        date="2026-01-31",
        wants_title=True,
    ),
    events.Replied(
        text="thinking",
        reasoning="hm",
        calls=(events.ProviderCall(id="call_1", name="f", arguments='{"z": 1, "a": 2}'),),
        usage=events.Usage(prompt_tokens=1, completion_tokens=2, total_tokens=3, cached_tokens=1),
        phase="action",
        finish="tool_calls",
        model="m",
        offered=("f@1",),
        withdrawn=("g@1",),
        recalled=("note-1",),
        digest="d",
        attempts=2,
        troubled_at=datetime(2026, 1, 31, 12, tzinfo=UTC),
    ),
    events.Called(
        call="1-action-0",
        provider_id="call_1",
        tool="f",
        version=4,
        arguments='{"z": 1, "a": 2}',
        effect="once",
        deadline=datetime(2026, 1, 31, 12, tzinfo=UTC),
        call_kind="ask",
        question="Which?",
    ),
    events.Returned(
        call="1-action-0",
        outcome=events.Output(content="4"),
        by="user",
        chain="aa",
        writes={"sources": {"z": 1, "a": [None, True, 1.5]}},
    ),
    events.Returned(call="1-action-1", outcome=events.Fault(code="timeout", message="too late")),
    events.Decided(call="1-action-0", decision="did_not_happen", by="ann", comment="I looked"),
    events.Decided(call="1-action-0", decision="approve", by="key_1", user="ann", via="chat"),
    events.Decided(call="1-action-0", decision="unknown", by="w1", comment="its answer was lost"),
    events.Resumed(worker="w1", previous="w1", unbegun=("1-action-1",)),
    events.Condensed(upto=9, summary="They greeted."),
    events.Condensed(upto=9, summary="They greeted.", deleted=1),
    events.Noted(about="outdated", deleted=(3, 9)),
    events.Spent(usage=events.Usage(total_tokens=3), reason="the model answered with nothing"),
    events.Spent(usage=events.Usage(), reason="title", title=""),
    events.Noted(text="Ann lives in Oslo", cites=(2, 4)),
    events.Stored(path="report.md", digest="ab", media_type="text/markdown"),
    events.Resumed(worker="w2", previous="w1", seen_at=datetime(2026, 1, 31, 12, tzinfo=UTC)),
    events.Finished(answer="42"),
    events.Failed(reason="no model", code="provider_error"),
    events.Cancelled(trace="t1", by="user"),
    events.Returned(
        call="1-action-2",
        outcome=events.Output(content="found"),
        by="agent",
        spent=events.Usage(total_tokens=3),
        calls=2,
        seconds=1.5,
    ),
    events.Prompted(
        trace="t2",
        content=("Rain?",),
        client_tools=events.ClientTools(
            tools=(
                events.ClientTool(name="get_weather", description="天气", parameters='{"type":"object"}', strict=True),
            ),
            must_call=("get_weather",),
            parallel=False,
        ),
    ),
    events.Prompted(trace="t3", content=("Не сегодня",), aside=True),
    events.Opened(
        agent="a", version=1, owner="acme", conversation="c-2", origins=(events.Origin(session="a_1", after=4),)
    ),
    events.Called(call="1-action-3", tool="get_weather", version=0, arguments="{}", call_kind="client", role="client"),
    events.Returned(
        call="1-action-3", outcome=events.Output(content="12°"), by="user", client_tools=events.ClientTools()
    ),
]


def test_there_is_an_example_of_every_kind() -> None:
    assert {type(event) for event in EXAMPLES} == set(get_args(Event))
    assert set(events.KINDS) == {events.kind_of(event) for event in EXAMPLES}


@pytest.mark.parametrize("event", EXAMPLES, ids=events.kind_of)
def test_an_event_comes_back_as_it_was_written(event: Event) -> None:
    body = events.encode(event)
    version = 3 if isinstance(event, events.Prompted) and event.client_tools else 2 if means_more(event) else 1
    assert body.startswith(f'{{"v":{version},"kind":"{events.kind_of(event)}"')
    assert events.decode(body) == event
    assert events.decode(body.encode()) == event


def means_more(event: Event) -> bool:
    """Would a release that does not know its newest field do the wrong thing?"""
    is_client = isinstance(event, events.Called) and event.call_kind == "client"
    return is_client or any(getattr(event, field, False) for field in ("aside", "unbegun", "origins"))


@given(st.text(), st.text(), st.recursive(st.none() | st.booleans() | st.text(), st.lists, max_leaves=5))
def test_whatever_text_a_tool_returns_comes_back(call: str, content: str, written: object) -> None:
    returned = events.Returned(call=call, outcome=events.Output(content=content), writes={"searches": written})
    assert events.decode(events.encode(returned)) == returned


def test_the_models_key_order_is_kept_in_strings_and_in_writes() -> None:
    called = events.Called(call="1-action-0", tool="f", arguments='{"reasoning": "first", "answer": 1, "a": 0}')
    assert '{\\"reasoning\\": \\"first\\", \\"answer\\": 1, \\"a\\": 0}' in events.encode(called)
    returned = events.Returned(call="1", outcome=events.Output(content=""), writes={"z": 1, "a": 2, "m": 3})
    back = events.decode(events.encode(returned))
    assert isinstance(back, events.Returned)
    assert list(back.writes) == ["z", "a", "m"]


def test_a_body_that_postgres_spaced_differently_is_read_all_the_same() -> None:
    assert events.decode('{ "kind": "Finished", "v": 1, "answer": "42" }') == events.Finished(answer="42")


def test_fields_keep_the_names_under_which_old_journals_store_them() -> None:
    prompt = events.Prompted(trace="t", content=("x",), shared_budget=events.SharedBudget(token_budget=7))
    assert '"purse":{"token_budget":7}' in events.encode(prompt)
    assert '"said":4' in events.encode(events.Replied(text="Hm. ", streamed_chars=4))


def test_a_field_that_this_version_does_not_know_is_passed_over() -> None:
    assert events.decode('{"v":1,"kind":"Finished","answer":"42","mood":"good"}') == events.Finished(answer="42")


@pytest.mark.parametrize(
    "body",
    [
        '{"v":1,"kind":"Dreamed","text":"x"}',
        '{"v":2,"kind":"Finished","answer":"42"}',
        '{"v":0,"kind":"Finished","answer":"42"}',
        '{"v":"1","kind":"Finished","answer":"42"}',
        '{"v":null,"kind":"Finished","answer":"42"}',
        '{"kind":"Finished","answer":"42"}',
        '{"forgotten": true}',
        '{"v":1,"kind":"Finished"}',
        '{"v":1,"kind":"Finished","answer":42}',
        '{"v":1,"kind":"Decided","call":"1","decision":"maybe","by":"x"}',
        "[]",
        "not json",
    ],
)
def test_a_shape_that_is_not_known_is_said_to_be_unknown(body: str) -> None:
    with pytest.raises(UnknownShape):
        events.decode(body)


@contextmanager
def upgrading(kind: str, version: int, upgrade: Upgrade) -> Iterator[None]:
    events.UPGRADES[(kind, version)] = upgrade
    try:
        yield
    finally:
        del events.UPGRADES[(kind, version)]


def test_an_old_shape_is_upgraded_step_by_step_to_the_newest() -> None:
    old = '{"v":-1,"kind":"Finished","words":"42"}'
    with (
        upgrading("Finished", -1, lambda body: {"kind": body["kind"], "text": body["words"]}),
        upgrading("Finished", 0, lambda body: {"kind": body["kind"], "answer": body["text"]}),
    ):
        assert events.decode(old) == events.Finished(answer="42")
        assert events.decode('{"v":0,"kind":"Finished","text":"42"}') == events.Finished(answer="42")
        with pytest.raises(UnknownShape, match="'Failed' in version 0"):
            events.decode('{"v":0,"kind":"Failed","reason":"x"}')
    with pytest.raises(UnknownShape, match="version -1"):
        events.decode(old)


def test_events_know_their_call_and_the_parents_call_they_answer() -> None:
    assert events.call_of(EXAMPLES[4]) == "1-action-0"
    assert events.call_of(EXAMPLES[5]) == "1-action-0"
    assert events.call_of(EXAMPLES[7]) == "1-action-0"
    assert events.call_of(events.Finished(answer="")) is None
    assert events.reply_to_of(EXAMPLES[1]) == "master_1:3-action-0"
    assert events.reply_to_of(events.Prompted(trace="t", content=("x",))) is None
    assert events.reply_to_of(events.Finished(answer="")) is None


def test_facts_are_frozen() -> None:
    event = events.Finished(answer="42")
    with pytest.raises(AttributeError):
        event.answer = "43"  # type: ignore[misc]
    assert msgspec.structs.replace(event, answer="43").answer == "43"


def test_what_was_said_long_ago_is_not_looked_through_for_garbage() -> None:
    for event in EXAMPLES:
        read = events.decode(events.encode(event))
        assert not gc.is_tracked(read), events.kind_of(read)
