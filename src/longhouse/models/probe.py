"""Probes an endpoint with three small requests, and derives the values of a template's `llm_policy.can`."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec

from longhouse.agents.json_repair import read_object
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.strategies.structured import DISCRIMINATOR
from longhouse.errors import ProviderError
from longhouse.journal.messages import User
from longhouse.models.protocol import Model

MOST_TOKENS: Final = 1000
"""Limit of one reply; enough for a model that reasons before it answers."""
CITIES: Final = ["Lima", "Oslo"]


class ProbeFinding(msgspec.Struct, frozen=True):
    """One capability: whether the endpoint has it (None: unknown), and the reason."""

    ability: str
    holds: bool | None
    why: str


class _ProbeReply(msgspec.Struct):
    """The parts of a reply that the probe looks at."""

    text: str = ""
    calls: dict[int, str] = msgspec.field(default_factory=dict)
    finish: str = ""


async def probe(model: Model, name: str) -> list[ProbeFinding]:
    """Sends the requests one after another. Raises if all fail: that shows nothing about the capabilities."""
    findings: list[ProbeFinding] = []
    errors: list[ProviderError] = []
    for ability, body, judge in _requests(name):
        try:
            findings.append(ProbeFinding(ability, *judge(await _answer(model, body))))
        except ProviderError as error:
            errors.append(error)
            # A retryable error shows nothing about the request; a refusal does.
            failed, why = (None, "it failed") if error.retryable else (False, "it was refused")
            findings.append(ProbeFinding(ability, failed, f"{why}: {error}"))
    if len(errors) == len(findings):
        raise errors[0]
    return findings


def report(findings: Sequence[ProbeFinding]) -> str:
    """The findings as text, and what to set."""
    marks = {True: "yes", False: "no", None: "unknown"}
    width = max(len(finding.ability) for finding in findings)
    lines = [f"{finding.ability:<{width}}  {marks[finding.holds]}: {finding.why}" for finding in findings]
    return "\n".join([*lines, "", *advice(findings)])


def advice(findings: Sequence[ProbeFinding]) -> list[str]:
    """What to set, in sentences."""
    lacking = [finding.ability for finding in findings if finding.holds is False]
    unknown = [finding.ability for finding in findings if finding.holds is None]
    sentences = []
    if lacking:
        sentences.append(f"In the template's llm_policy.can, set to false: {', '.join(lacking)}.")
    if unknown:
        sentences.append(f"Not judged, probe again later: {', '.join(unknown)}.")
    return sentences or ["The defaults of llm_policy.can fit this endpoint; there is nothing to set."]


Judge = Callable[[_ProbeReply], tuple[bool, str]]


def _requests(model: str) -> list[tuple[str, Body, Judge]]:
    def body(text: str, **fields: Any) -> Body:
        return Body(model=model, messages=[User(content=text)], max_tokens=MOST_TOKENS, temperature=0.0, **fields)

    # No prompt asks for the expected form: an endpoint that ignores a field does not produce it by chance.
    force = {"type": "function", "function": {"name": "note_mood"}}
    cities = "What is the weather in Oslo, and what is it in Lima? Look up both cities at once. Be brief."
    return [
        ("forced_tool_choice", body("Say hello.", tools=_TOOLS, tool_choice=force), _forced),
        ("parallel_tool_calls", body(cities, tools=_TOOLS, tool_choice="auto", parallel_tool_calls=True), _parallel),
        ("json_schema", body("Say hello.", response_format=_FORMAT), _structured),
    ]


def _forced(reply: _ProbeReply) -> tuple[bool, str]:
    names = list(reply.calls.values())
    if names and set(names) == {"note_mood"}:
        return True, "it called the tool that it was told to call"
    return False, f"it called {names[0]!r} in place of the one named" if names else "it called no tool"


def _parallel(reply: _ProbeReply) -> tuple[bool, str]:
    if len(reply.calls) > 1:
        return True, f"it called {len(reply.calls)} tools in one reply"
    return (True, "it took the request, and called one tool") if reply.calls else (False, "it called no tool")


def _structured(reply: _ProbeReply) -> tuple[bool, str]:
    if reply.finish == "length":
        return False, f"it did not end within {MOST_TOKENS} tokens"
    try:
        step = msgspec.json.decode(reply.text, type=_Step)
    except (msgspec.DecodeError, UnicodeEncodeError):
        if isinstance(read_object(reply.text), dict):
            return False, "it wrote JSON, but not within the schema"
        return False, "it did not write JSON"
    if step.function.get(DISCRIMINATOR) not in _BRANCHES or step.function.get("city") not in CITIES:
        return False, "it wrote JSON, but not within the schema"
    return True, "its reply fits the schema"


async def _answer(model: Model, body: Body, *, retries: int = 1) -> _ProbeReply:
    """Retries a retryable error once: some servers close a keep-alive connection too early."""
    reply = _ProbeReply()
    try:
        async with aclosing(model.stream(body)) as deltas:
            async for delta in deltas:
                reply.text += delta.text
                reply.finish = delta.finish or reply.finish
                for call in delta.calls:
                    reply.calls[call.index] = reply.calls.get(call.index) or call.name
    except ProviderError as error:
        if not error.retryable or not retries:
            raise
        return await _answer(model, body, retries=retries - 1)
    return reply


class _Step(msgspec.Struct, forbid_unknown_fields=True):
    """The reply that the probe's schema allows, as far as a type can express it."""

    sure: bool
    function: dict[str, str]


def _tool(name: str, description: str, property_name: str) -> msgspec.Raw:
    parameters = _object({property_name: {"type": "string"}})
    function = {"name": name, "description": description, "parameters": parameters}
    return msgspec.Raw(msgspec.json.encode({"type": "function", "function": function}))


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    required = list(properties)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_TOOLS: Final = (
    _tool("look_up_weather", "Look up the weather in one city.", "city"),
    _tool("note_mood", "Note the mood of the user, in one word.", "mood"),
)
_BRANCHES: Final = ("look_up_weather", "look_up_time")
# The form that structured agents use: a union of literals without free text, which ends after a few tokens.
_CITY: Final = {"type": "string", "enum": CITIES}
_UNION: Final = [_object({DISCRIMINATOR: {"type": "string", "const": name}, "city": _CITY}) for name in _BRANCHES]
_SCHEMA: Final = _object({"sure": {"type": "boolean"}, "function": {"anyOf": _UNION}})
_NAMED: Final = {"name": "NextStepTools", "strict": True, "schema": _SCHEMA}
_FORMAT: Final = msgspec.Raw(msgspec.json.encode({"type": "json_schema", "json_schema": _NAMED}))
