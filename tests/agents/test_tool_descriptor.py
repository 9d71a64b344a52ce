"""A descriptor on the class that it names: what it may say, what it may leave unsaid, and what it may not."""

from dataclasses import replace
from typing import Any

import pytest

from longhouse.agents.tool_descriptor import DEFAULTS, RuntimeBinding, ToolDescriptor, from_row, to_row
from longhouse.journal.events import Effect

SCHEMA = {"type": "object", "properties": {"amount": {"type": "integer"}}}


def described(**said: Any) -> ToolDescriptor:
    way = RuntimeBinding(python_entrypoint="acme.pay:Pay")
    return ToolDescriptor(name="pay", description_short="Pays.", runtime_binding=way, **said)


OWN = described(input_schema=SCHEMA, effect="once", timeout=10.0, max_output=500, needs_approval=True)
MILD = replace(OWN, effect="read", needs_approval=False)


def test_what_is_not_said_is_what_the_class_says() -> None:
    met = described().bound_to(OWN)
    assert (met.schema, met.effect, met.timeout, met.max_output, met.needs_approval) == (SCHEMA, "once", 10, 500, True)


def test_what_is_said_holds_where_it_is_no_matter_of_care() -> None:
    other = {"type": "object", "properties": {"amount": {"const": 1}}}
    met = described(input_schema=other, timeout=60.0, max_output=40_000).bound_to(OWN)
    assert (met.schema, met.timeout, met.max_output) == (other, 60.0, 40_000)
    assert (met.effect, met.needs_approval) == ("once", True)


@pytest.mark.parametrize(
    ("said", "own", "met"),
    [
        ("read", "once", "once"), ("idempotent", "once", "once"), ("once", "read", "once"),
        ("read", "idempotent", "idempotent"), ("idempotent", "read", "idempotent"), (None, "read", "read"),
    ],
)  # fmt: skip
def test_the_stricter_effect_holds(said: Effect | None, own: Effect, met: Effect) -> None:
    assert described(effect=said).bound_to(replace(OWN, effect=own)).effect == met


@pytest.mark.parametrize(("said", "own", "met"), [(True, False, True), (None, True, True), (False, True, True)])
def test_approval_is_needed_if_either_says_so(said: bool | None, own: bool, met: bool) -> None:
    assert described(needs_approval=said).bound_to(replace(OWN, needs_approval=own)).needs_approval is met


@pytest.mark.parametrize(
    ("said", "own", "field"),
    [
        ({"effect": "read"}, OWN, "effect"),
        ({"effect": "idempotent"}, OWN, "effect"),
        ({"needs_approval": False}, OWN, "needs_approval"),
        ({}, OWN, None),
        ({"effect": "once", "needs_approval": True}, MILD, None),
        ({"effect": "read", "needs_approval": False}, MILD, None),
        ({"timeout": 600.0, "max_output": 1}, OWN, None),
    ],
)
def test_only_less_care_than_the_class_takes_is_refused(
    said: dict[str, Any], own: ToolDescriptor, field: str | None
) -> None:
    found = described(**said).weakened(own)
    assert (found[0] if found else None) == field


def test_only_a_tool_that_reads_is_remembered() -> None:
    reads = replace(MILD, remembers="page")
    assert described().bound_to(reads).remembers == "page"
    assert described(remembers="search").bound_to(reads).remembers == "search"
    assert described(effect="once").bound_to(reads).remembers == ""
    assert described(remembers="page").weakened(reads) is None
    found = described(remembers="page").weakened(OWN)
    assert found
    assert found[0] == "remembers"
    remote = replace(described(remembers="page"), runtime_binding=RuntimeBinding(remote_endpoint="https://example.com"))
    assert (remote.tool.remembers, replace(remote, effect="read").tool.remembers) == ("", "page")


def test_a_class_that_nobody_has_looked_at_may_ask_for_anything() -> None:
    for said in (described(), described(effect="read", needs_approval=False)):
        assert (said.tool.effect, said.tool.needs_approval) == ("once", True)
    remote = replace(described(), runtime_binding=RuntimeBinding(remote_endpoint="https://example.com"))
    assert (remote.tool.effect, remote.tool.needs_approval, remote.tool.timeout) == ("once", False, 60.0)
    assert replace(remote, effect="read").tool.effect == "read"


CLASS = {"name": "pay", "runtime_binding": {"python_entrypoint": "acme.pay:Pay", "agent": None}}
REMOTE = {"name": "pay", "runtime_binding": {"remote_endpoint": "https://example.com"}}


def test_a_row_has_every_field_as_older_releases_read_it() -> None:
    for told in (CLASS, REMOTE):
        row = to_row({**told, **dict.fromkeys(DEFAULTS)})
        assert {name: row[name] for name in DEFAULTS} == DEFAULTS
        assert from_row(row) == ({**told, **dict.fromkeys(DEFAULTS)} if told is CLASS else {**told, **DEFAULTS})


def test_what_was_said_is_told_from_what_was_not_also_where_it_is_the_default() -> None:
    said = {**CLASS, "input_schema": None, "timeout": 60.0, "max_output": None, "needs_approval": False}
    assert from_row(to_row(said)) == said


def test_in_a_row_of_before_the_defaults_were_not_said() -> None:
    row = {**CLASS, **DEFAULTS, "max_output": 7}
    assert from_row(row) == {**CLASS, **dict.fromkeys(DEFAULTS), "max_output": 7}
    assert from_row({**REMOTE, **DEFAULTS}) == {**REMOTE, **DEFAULTS}
