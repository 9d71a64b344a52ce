"""What an endpoint can do: three small requests, and which of a template's `llm_policy.can` follow from the replies."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from longhouse.agents.strategies.json_repair import read_object
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.strategies.structured import DISCRIMINATOR
from longhouse.agents.template import Abilities
from longhouse.errors import ProviderError
from longhouse.journal.messages import User
from longhouse.models.protocol import Model

MOST_TOKENS: Final = 1000
"""Of one reply; room for a model that thinks before it answers."""
CITIES: Final = ["Lima", "Oslo"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One ability: whether the endpoint has it (None: it could not be judged), and how that is known."""

    ability: str
    holds: bool | None
    why: str


@dataclass(slots=True)
class _Heard:
    """A reply as far as the probe is interested in it."""

    text: str = ""
    calls: dict[int, str] = field(default_factory=dict)
    finish: str = ""


async def probe(model: Model, name: str) -> list[Finding]:
    """Asks one thing after another. An endpoint that answers nothing at all raises: that says nothing of abilities."""
    findings: list[Finding] = []
    errors: list[ProviderError] = []
    for ability, body, judge in _trials(name):
        try:
            findings.append(Finding(ability, *judge(await _answer(model, body))))
        except ProviderError as error:
            errors.append(error)
            # What may pass says nothing about the request; a refusal does.
            failed, why = (None, "it failed") if error.retryable else (False, "it was refused")
            findings.append(Finding(ability, failed, f"{why}: {error}"))
    if len(errors) == len(findings):
        raise errors[0]
    return findings


def told(findings: Sequence[Finding]) -> str:
    """The findings in plain words, and what to set."""
    marks = {True: "yes", False: "no", None: "unknown"}
    width = max(len(finding.ability) for finding in findings)
    lines = [f"{finding.ability:<{width}}  {marks[finding.holds]}: {finding.why}" for finding in findings]
    lacking = [finding.ability for finding in findings if finding.holds is False]
    unknown = [finding.ability for finding in findings if finding.holds is None]
    lines.append("")
    if lacking:
        lines.append(f"In the template's llm_policy.can, set to false: {', '.join(lacking)}.")
    if unknown:
        lines.append(f"Not judged, probe again later: {', '.join(unknown)}.")
    if not lacking and not unknown:
        lines.append("The defaults of llm_policy.can fit this endpoint; there is nothing to set.")
    return "\n".join(lines)


def abilities(findings: Sequence[Finding]) -> Abilities:
    """What a template should say of this endpoint; what could not be judged stays as it is by default."""
    return Abilities(**{finding.ability: finding.holds for finding in findings if finding.holds is not None})


Judge = Callable[[_Heard], tuple[bool, str]]


def _trials(model: str) -> list[tuple[str, Body, Judge]]:
    def body(text: str, **fields: Any) -> Body:
        return Body(model=model, messages=[User(content=text)], max_tokens=MOST_TOKENS, temperature=0.0, **fields)

    # No text asks for the form that is wanted: an endpoint that passes over a field does not get there by chance.
    force = {"type": "function", "function": {"name": "note_mood"}}
    cities = "What is the weather in Oslo, and what is it in Lima? Look up both cities at once. Be brief."
    return [
        ("forced_tool_choice", body("Say hello.", tools=_TOOLS, tool_choice=force), _forced),
        ("parallel_tool_calls", body(cities, tools=_TOOLS, tool_choice="auto", parallel_tool_calls=True), _parallel),
        ("json_schema", body("Say hello.", response_format=_FORMAT), _structured),
    ]


def _forced(heard: _Heard) -> tuple[bool, str]:
    names = list(heard.calls.values())
    if names and set(names) == {"note_mood"}:
        return True, "it called the tool that it was told to call"
    return False, f"it called {names[0]!r} in place of the one named" if names else "it called no tool"


def _parallel(heard: _Heard) -> tuple[bool, str]:
    match len(heard.calls):
        case 0:
            return False, "it called no tool"
        case 1:
            return True, "it took the request, and called one tool"
        case many:
            return True, f"it called {many} tools in one reply"


def _structured(heard: _Heard) -> tuple[bool, str]:
    if heard.finish == "length":
        return False, f"it did not end within {MOST_TOKENS} tokens"
    try:
        said = msgspec.json.decode(heard.text, type=_Step)
    except (msgspec.DecodeError, UnicodeEncodeError):
        if isinstance(read_object(heard.text), dict):
            return False, "it wrote JSON, but not within the schema"
        return False, "it did not write JSON"
    if said.function.get(DISCRIMINATOR) not in _BRANCHES or said.function.get("city") not in CITIES:
        return False, "it wrote JSON, but not within the schema"
    return True, "its reply fits the schema"


async def _answer(model: Model, body: Body) -> _Heard:
    """A second try for what may pass: some servers close a connection that they had promised to keep."""
    try:
        return await _heard(model, body)
    except ProviderError as error:
        if not error.retryable:
            raise
        return await _heard(model, body)


async def _heard(model: Model, body: Body) -> _Heard:
    heard = _Heard()
    async with aclosing(model.stream(body)) as deltas:
        async for delta in deltas:
            heard.text += delta.text
            heard.finish = delta.finish or heard.finish
            for call in delta.calls:
                heard.calls[call.index] = heard.calls.get(call.index) or call.name
    return heard


class _Step(msgspec.Struct, forbid_unknown_fields=True):
    """What the probe's schema allows, as far as a type can say it."""

    sure: bool
    function: dict[str, str]


def _tool(name: str, description: str, property_name: str) -> msgspec.Raw:
    parameters = _object({property_name: {"type": "string"}})
    function = {"name": name, "description": description, "parameters": parameters}
    return msgspec.Raw(msgspec.json.encode({"type": "function", "function": function}))


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_TOOLS: Final = (
    _tool("look_up_weather", "Look up the weather in one city.", "city"),
    _tool("note_mood", "Note the mood of the user, in one word.", "mood"),
)
_BRANCHES: Final = ("look_up_weather", "look_up_time")
# The form that structured agents use, a union of literals, and no free text in it: it ends after a few tokens.
_SCHEMA: Final = _object(
    {
        "sure": {"type": "boolean"},
        "function": {
            "anyOf": [
                _object({DISCRIMINATOR: {"type": "string", "const": name}, "city": {"type": "string", "enum": CITIES}})
                for name in _BRANCHES
            ]
        },
    }
)
_FORMAT: Final = msgspec.Raw(
    msgspec.json.encode(
        {"type": "json_schema", "json_schema": {"name": "NextStepTools", "strict": True, "schema": _SCHEMA}}
    )
)
