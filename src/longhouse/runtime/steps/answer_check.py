"""Checks the final answer of a turn against the response format that its client asked for."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from longhouse.agents.requests import answer_format
from longhouse.agents.requests.answer_format import CODE, MOST_REPAIRS
from longhouse.journal.events import Fault
from longhouse.journal.json_text import object_of
from longhouse.journal.session import Turn
from longhouse.journal.transcript import Step
from longhouse.tools import arguments
from longhouse.tools.arguments import Check

PROBLEM = "the answer does not follow the response format: "


def shaped(turn: Turn, answer: Any, *, is_cut: bool = False) -> str | Fault:
    """The answer as the JSON that the client asked for; the fault says to the model why it is none."""
    read = answer_format.read(answer, is_cut=is_cut)
    if isinstance(read, str):
        return Fault(code=CODE, message=f"{PROBLEM}{read}")
    text, _ = read
    schema = answer_format.schema_of(turn)
    problem = _problem(msgspec.json.encode(schema), text) if schema is not None else None
    return Fault(code=CODE, message=f"{PROBLEM}{problem}") if problem else text


def in_arguments(turn: Turn, written: str) -> str | Fault:
    """The arguments of a call that gives the answer, with the answer as that JSON. An agent that says that it has
    failed, or a tool that takes no answer, is left as it is."""
    given = object_of(written)
    if given is None or "answer" not in given or str(given.get("status")).strip().lower().startswith("fail"):
        return written
    found = shaped(turn, given["answer"])
    return found if isinstance(found, Fault) else msgspec.json.encode({**given, "answer": found}).decode()


def repairs(steps: Sequence[Step]) -> int:
    """How often the model was asked again in these steps."""
    return sum(step.problem.startswith(PROBLEM) or any(map(_is_misshaped, step.uses)) for step in steps)


def is_given_up(steps: Sequence[Step]) -> bool:
    return repairs(steps) >= MOST_REPAIRS


def _is_misshaped(use: Any) -> bool:
    return isinstance(use.outcome, Fault) and use.outcome.code == CODE


@lru_cache(maxsize=32)
def _problem(schema: bytes, answer: str) -> str | None:
    """An answer is checked once: when its call is read, before it runs and after it has ended, the same is asked."""
    return _check(schema)(json.loads(answer))


@lru_cache(maxsize=256)
def _check(schema: bytes) -> Check:
    try:
        return arguments.checker(msgspec.json.decode(schema))
    except arguments.BadSchema as error:
        problem = str(error)
        return lambda given: problem
