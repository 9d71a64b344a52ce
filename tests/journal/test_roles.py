"""The role of a call is recorded with it; calls of releases that did not are given theirs while reading."""

from datetime import datetime

import msgspec
import pytest

from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor
from longhouse.app import TOOLS
from longhouse.journal import conversation, events
from longhouse.journal.roles import ROLES
from longhouse.tools.builtin.dialogue import FinalAnswerTool
from server_helpers import folded, opened, prompted, returned, started


@pytest.mark.parametrize(("tool", "role"), [*ROLES.items(), ("clocktool", ""), ("mcp.search", "")])
def test_a_call_that_was_recorded_without_a_role_has_that_of_its_tool(tool: str, role: str) -> None:
    event = events.decode(f'{{"v":1,"kind":"Called","call":"1-action-0","tool":"{tool}","arguments":"{{}}"}}')
    assert isinstance(event, events.Called)
    assert event.role == role
    assert event == events.Called(call="1-action-0", tool=tool, arguments="{}")


def test_a_recorded_role_stays_whatever_the_tool_is_called() -> None:
    event = events.Called(call="1-action-0", tool="closing_words", arguments="{}", role="finishes")
    body = events.encode(event)
    assert body.startswith('{"v":1,'), "a process of an earlier release reads it too"
    assert events.decode(body) == event


class OlderCalled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="Called"):
    """`Called` as the releases before roles read it."""

    call: str
    provider_id: str = ""
    tool: str
    version: int = 1
    arguments: str
    effect: events.Effect = "read"
    deadline: datetime | None = None
    call_kind: events.CallKind = "tool"
    question: str = ""
    approve_by: datetime | None = None


@pytest.mark.parametrize("role", ["finishes", "dreams"])
def test_in_a_rolling_upgrade_an_older_release_passes_over_the_role(role: str) -> None:
    called = events.Called(call="1-action-0", tool="closing_words", arguments="{}", effect="once", role=role)
    older = msgspec.json.decode(events.encode(called), type=OlderCalled)
    assert older == OlderCalled(call="1-action-0", tool="closing_words", arguments="{}", effect="once")
    # What the older release writes is read here with the role that the name of the tool gives.
    again = events.decode(b'{"v":1,' + msgspec.json.encode(older)[1:])
    assert again == events.Called(call="1-action-0", tool="closing_words", arguments="{}", effect="once")


def test_a_role_of_a_later_release_is_read_as_that_of_an_ordinary_tool_and_kept() -> None:
    body = '{"v":1,"kind":"Called","call":"1-action-0","tool":"sleeptool","arguments":"{}","role":"dreams"}'
    called = events.decode(body)
    assert isinstance(called, events.Called)
    assert (called.role, called.is_work) == ("dreams", True)
    assert events.encode(called) == body
    session = folded(opened(), prompted("x"), started(2), events.Replied(), called, returned("1-action-0"))
    assert [message["role"] for message in conversation.messages_of(session)] == ["user", "assistant", "tool"]


def test_the_classes_and_the_names_of_earlier_releases_say_the_same() -> None:
    assert ROLES.items() <= {cls.tool_name: cls.tool_role for cls in TOOLS}.items()
    assert {cls.tool_name: cls.described().role for cls in TOOLS} == {cls.tool_name: cls.tool_role for cls in TOOLS}


def test_a_subclass_under_another_name_has_no_role_of_its_own() -> None:
    class ShortAnswer(FinalAnswerTool):
        """Answers in one line."""

    assert ShortAnswer.described().role == ""


def test_what_is_published_under_the_name_of_a_built_in_tool_takes_over_its_role() -> None:
    remote = RuntimeBinding(remote_endpoint="https://search.example.org")
    descriptor = ToolDescriptor(name="websearchtool", description_short="Searches.", runtime_binding=remote)
    assert descriptor.tool.role == "searches"


def test_by_its_role_and_not_by_its_name_a_call_is_left_out_of_the_conversation() -> None:
    def life(role: str) -> list[str]:
        called = events.Called(call="1-action-0", tool="closing_words", arguments="{}", role=role)
        session = folded(opened(), prompted("x"), started(2), events.Replied(), called, returned("1-action-0"))
        return [message["role"] for message in conversation.messages_of(session)]

    assert life("") == ["user", "assistant", "tool"]
    assert life("finishes") == ["user"]
