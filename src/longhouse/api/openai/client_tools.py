"""Reads the functions that a client offers to run, and the results that it sends for their calls."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from longhouse.agents.naming import NamePatterns, key
from longhouse.agents.permission import Permission
from longhouse.agents.template import Template
from longhouse.api.sessions.waiting import MAX_TEXT, settled, shortened
from longhouse.api.wire import SentMessage
from longhouse.errors import CallerError
from longhouse.journal import fingerprint
from longhouse.journal.events import ClientTool, ClientTools, Fault, Outcome, Output
from longhouse.journal.fingerprint import PREFIX, client_id
from longhouse.journal.fold import blank
from longhouse.journal.roles import ROLES
from longhouse.journal.session import Session
from longhouse.journal.transcript import Use
from longhouse.store.catalog.catalog import Catalog
from longhouse.tools.arguments import BadSchema, client_schema

MOST_TOOLS: Final = 128
MAX_SIZE: Final = 256_000
"""Bytes of all schemas and descriptions together: they are part of every request to the model."""
NOT_RUN: Final = Fault(code="not_run", message="the client sent no result of this call: the user has written instead")

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ID: Final = re.compile(rf"{PREFIX}[0-9a-f]{{32}}")


class ClientResult(msgspec.Struct, frozen=True):
    """The result of a call, as a client sends it."""

    id: str
    text: str
    param: str
    """The field of the request that holds the id."""


def read(tools: Sequence[Any], choice: Any = None, parallel: bool | None = None) -> ClientTools | None:
    """The functions that a request offers, as `tools`, `tool_choice` and `parallel_tool_calls` say; None: the model may
    call none of them."""
    if len(tools) > MOST_TOOLS:
        raise CallerError(f"A request offers {MOST_TOOLS} functions at most.", param="tools")
    found: dict[str, ClientTool] = {}
    size = 0
    for index, given in enumerate(tools):
        tool = _tool(given, f"tools[{index}]")
        if tool.name in found:
            raise CallerError(f"{tool.name!r} is there twice.", param=f"tools[{index}].function.name")
        found[tool.name] = tool
        size += len(tool.parameters) + len(tool.description)
        if size > MAX_SIZE:  # before others are checked
            raise CallerError(f"The functions have more than {MAX_SIZE:,} characters together.", param="tools")
    allowed, must_call = _chosen(choice, list(found))
    offered = tuple(found[name] for name in allowed)
    return ClientTools(tools=offered, must_call=must_call, parallel=parallel is not False) if offered else None


async def check_names(tools: ClientTools, catalog: Catalog, template: Template, owner: str) -> None:
    """Refuses names that the agent's own tools have: the model could not tell them apart, nor could a person."""
    names = [one.name for one in tools.tools]
    own = await catalog.described(await catalog.active_tools({*names, *map(key, names)}, owner))
    permission, denied = Permission(template, blank("")), NamePatterns(template.tool_policy.denylist)
    taken = {key(one.name) for one in own if permission.permits(one)} | ROLES.keys()
    for index, name in enumerate(names):
        if key(name) in taken:
            raise CallerError(
                f"The agent has a tool {name!r} of its own: give your function another name.",
                code="tool_name_taken",
                param=f"tools[{index}].function.name",
            )
        if name in denied:
            raise CallerError(
                f"The agent may not use a tool of the name {name!r}.",
                code="tool_not_allowed",
                param=f"tools[{index}].function.name",
            )


def _tool(given: Any, where: str) -> ClientTool:
    if not isinstance(given, dict) or given.get("type") != "function":
        raise CallerError('Only functions can be offered: {"type": "function", …}.', param=f"{where}.type")
    function, where = given.get("function"), f"{where}.function"
    if not isinstance(function, dict):
        raise CallerError("It should be an object.", param=where)
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise CallerError("A name has 1 to 64 of the characters A-Z a-z 0-9 _ -.", param=f"{where}.name")
    if not isinstance(description, str | None):
        raise CallerError("It should be a text.", param=f"{where}.description")
    if not isinstance(strict := function.get("strict"), bool | None):
        raise CallerError("It should be true or false.", param=f"{where}.strict")
    parameters = _parameters(function.get("parameters"), f"{where}.parameters")
    return ClientTool(name=name, description=description or "", parameters=parameters, strict=bool(strict))


def _parameters(schema: Any, where: str) -> str:
    """The schema as JSON text; empty if there is none."""
    if schema is None or schema == {}:
        return ""
    if not isinstance(schema, dict):
        raise CallerError('It should be a JSON Schema: {"type": "object", …}.', param=where)
    try:
        return _kept(msgspec.json.encode(schema).decode())
    except RecursionError:
        raise CallerError("The schema is nested too deeply.", param=where) from None
    except BadSchema as error:
        problem = str(error)
        raise CallerError(f"{problem[:1].upper()}{problem[1:]}.", param=where) from None


@lru_cache(maxsize=512)
def _kept(text: str) -> str:
    """The schema as agents use it. Clients send the same schemas with every request."""
    return msgspec.json.encode(client_schema(msgspec.json.decode(text))).decode()


def _chosen(choice: Any, names: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """The names that the model may call, and those of which it must call one."""
    match choice:
        case None | "auto":
            return names, ()
        case "none":
            return [], ()
        case "required":
            return names, tuple(names)
        case {"type": "function"}:
            return names, (_known(choice, names, "tool_choice"),)
        case {"type": "allowed_tools"}:
            asked = choice.get("allowed_tools")
            where = "tool_choice.allowed_tools"
            if not isinstance(asked, dict) or not isinstance(listed := asked.get("tools"), list):
                raise CallerError("It should have a list of tools.", param=where)
            allowed = list(dict.fromkeys(_known(one, names, f"{where}.tools") for one in listed))
            return allowed, tuple(allowed) if asked.get("mode") == "required" else ()
    raise CallerError(
        "It should be auto, none, required, or name a function that the request offers.", param="tool_choice"
    )


def _known(given: Any, names: list[str], where: str) -> str:
    function = given.get("function") if isinstance(given, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or name not in names:
        raise CallerError("It names no function that the request offers.", param=where)
    return name


def mark_of(before: Sequence[SentMessage]) -> str | None:
    """The fingerprint of the rest in which our last message called functions of the client; None if it called none."""
    last = before[-1] if before else None
    ids = [call.id for call in last.tool_calls or () if _ID.fullmatch(call.id)] if last else []
    return fingerprint.of_calls(ids) if ids else None


def results_for(session: Session, given: Sequence[ClientResult]) -> dict[str, Outcome]:
    """The results of a request, by the ids of their calls in the session; the calls that are open have one each.

    Empty if all these calls have returned.
    """
    known = {**session.client_ids, **{call.call: call for call in session.client_calls}}
    closed, results = _closed(session), dict[str, Outcome]()
    for name, text, param in ((one.id, one.text, one.param) for one in given):
        if name not in known and name not in closed:
            raise unknown_call(name, param)
        if name not in known:
            continue  # an operator has given it up
        call = known[name].call
        if call in results:
            raise CallerError(f"{shortened(name)} has two results in this request.", param=param)
        if len(text) > MAX_TEXT:
            told = f"A result has {MAX_TEXT:,} characters at most, and this one has {len(text):,}: shorten it."
            raise CallerError(told, code="answer_too_long", param=param.rpartition(".")[0] or param)
        results[call] = Output(content=text)
    missing = [f"{name} ({call.tool})" for name, call in session.client_ids.items() if call.call not in results]
    if results and missing:
        raise CallerError(
            f"These calls have no result in the request: {', '.join(missing)}. Send a tool message for each of them.",
            code="tool_results_missing",
            param="messages",
        )
    return results


def unknown_call(name: str, param: str) -> CallerError:
    return CallerError(
        f"No call with the id {shortened(name)} waits for a result.", code="tool_call_not_found", param=param
    )


def refused(session: Session, given: Sequence[ClientResult]) -> CallerError:
    """The error for results of calls that have returned: who was first, or why they were closed."""
    closed, name = _closed(session), given[0].id
    outcome = closed[name].outcome if name in closed else None
    why = f": {outcome.message}" if isinstance(outcome, Fault) else ""
    return settled(f"{shortened(name)} has its result already{why}.")


def are_known(session: Session, given: Sequence[ClientResult]) -> bool:
    """Is one of these a call of this session?"""
    known = {*session.client_ids, *(call.call for call in session.client_calls), *_closed(session)}
    return any(one.id in known for one in given)


def are_same(session: Session, given: Sequence[ClientResult]) -> bool:
    """Are these the results that the session has? Then it is the same request again."""
    closed = _closed(session)
    uses = [(closed.get(one.id), one.text) for one in given]
    return all(use is not None and use.outcome == Output(content=text) for use, text in uses)


def calls_of(session: Session, given: Sequence[ClientResult]) -> set[str]:
    """The ids in the session of these calls that have returned."""
    closed = _closed(session)
    return {closed[one.id].call for one in given if one.id in closed}


def _closed(session: Session) -> Mapping[str, Use]:
    """The calls that the client was to run and that have returned, by both of their ids."""
    ours = [use for use in session.uses if use.role == "client" and use.outcome]
    return {**{client_id(session.id, use.call): use for use in ours}, **{use.call: use for use in ours}}
