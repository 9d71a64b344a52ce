"""Selects the tools offered to an agent: those its template's policy permits, in the versions pinned by its turn."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import msgspec
import structlog

from longhouse import clock
from longhouse.agents import rules, tool_order
from longhouse.agents.naming import NamePatterns
from longhouse.agents.permission import Permission, differs_by
from longhouse.agents.strategies import one_call
from longhouse.agents.strategies.base import AgentRegistry
from longhouse.agents.template import Template, ToolPolicy
from longhouse.agents.tool import Tool
from longhouse.agents.tool_descriptor import RISKS, ToolDescriptor
from longhouse.journal.events import Selection
from longhouse.journal.session import Session, Turn
from longhouse.store.catalog.catalog import Catalog
from longhouse.tools import client_tools
from longhouse.tools.base import ToolRegistry
from longhouse.tools.builtin.dialogue import FinalAnswerTool
from longhouse.tools.toolbox import Toolbox

log = structlog.get_logger()

FRESH_FOR: Final = 0.5
"""Seconds for which the active versions are cached; changes made by this process apply at once."""

MOST_KNOWN: Final = 10_000
MOST_FOUND: Final = 5
"""Of the tools that an agent found itself, this many of the newest are always offered."""
FINAL_ANSWER: Final = FinalAnswerTool.tool_name
"""The tool that ends a turn if the policy names no other."""


class ToolSelector(Protocol):
    async def choose(
        self,
        template: Template,
        session: Session,
        turn: Turn,
        *,
        hard_require: Sequence[str],
        active: Mapping[str, int],
    ) -> tuple[list[ToolDescriptor], Selection | None]: ...


class Offered(msgspec.Struct, frozen=True):
    """The tools of a step and how they were selected; the selection is None if all permitted tools are offered."""

    tools: Sequence[Tool]
    selection: Selection | None = None


class Known(msgspec.Struct, frozen=True):
    """A template completed with all tools that its steps need, and the active versions of the tools it names."""

    template: Template
    active: Mapping[str, int]
    changes: int
    until: float
    permitted: dict[tuple[Any, ...], Sequence[Tool]] = msgspec.field(default_factory=dict)
    """The tools that it permits, by what differs between its sessions and what has changed since."""


class Offering(msgspec.Struct):
    catalog: Catalog
    toolbox: Toolbox
    search: ToolSelector | None = None
    """Selects tools if a policy permits more than may be offered."""
    _known: dict[tuple[str, int, str], Known] = msgspec.field(default_factory=dict)
    _warned: set[tuple[str, str]] = msgspec.field(default_factory=set)

    async def choose(self, session: Session, turn: Turn, template: Template) -> Offered:
        """The agent's own tools, and those of the client, if the template takes them."""
        own, asked = await self._own(session, turn, template), turn.client_tools
        if asked is None or not asked.tools or not template.allow_client_tools:
            return own
        tools = own.tools or await self._final_answer(session)
        open_tools = rules.open_tools(session, turn, template, clock.now())
        return msgspec.structs.replace(own, tools=client_tools.beside(tools, asked, template, open_tools))

    async def _final_answer(self, session: Session) -> list[Tool]:
        """An agent without tools answers in plain text; beside the client's tools it needs one to answer with."""
        active = await self.catalog.active_tools([FINAL_ANSWER], session.owner)
        return await self.toolbox.several([*active.items()])

    async def _own(self, session: Session, turn: Turn, template: Template) -> Offered:
        """The permitted tools that are available now: required ones first, never more than the policy's cap."""
        cls = AgentRegistry.get(template.base_agent_class)
        if cls and not cls.asks_model:
            return await self._one(session, turn, template)
        known = await self._known_for(template, session.owner)
        policy, found = known.template.tool_policy, session.context.get("found_tools", ())
        names_all = policy.allowlist is not None and len(known.active) <= policy.max_tools_in_prompt
        if self.search and (found or not (names_all or policy.selection_strategy == "static")):
            needed = found[-MOST_FOUND:]
            chosen, selection = await self.search.choose(
                known.template, session, turn, hard_require=needed, active=known.active
            )
            return Offered(await self.toolbox.several([(one.name, one.version) for one in chosen]), selection)
        return await self._named(session, turn, known)

    async def _one(self, session: Session, turn: Turn, template: Template) -> Offered:
        """The tool that the prompt names, if it may be called directly, and the one that ends the turn."""
        call = one_call.wanted(turn)
        served = await self.catalog.served_tools(session.owner, names=[call.tool]) if call else []
        policy = ToolPolicy(allowlist=tuple(one.name for one in served))
        completed, active = await self._completed(replace(template, tool_policy=policy), session.owner)
        return await self._named(session, turn, Known(completed, active, 0, 0.0))

    async def _named(self, session: Session, turn: Turn, known: Known) -> Offered:
        """The tools that the policy names, in its order; over the cap, required tools come first."""
        policy = known.template.tool_policy
        open_tools = rules.open_tools(session, turn, known.template, clock.now())
        found = open_tools.among(await self._permitted(session, known))
        if len(found) <= policy.max_tools_in_prompt:
            return Offered(found)
        tools, required = {tool.name: tool for tool in found}, NamePatterns(policy.required)
        first = [name for name in tools if name in required]
        names = tool_order.first_few(first, tools, policy.max_tools_in_prompt)
        selection = tool_order.selection(names, tools, {}, stage=rules.stage(session, turn, known.template))
        return Offered([tools[name] for name in names], selection)

    async def _permitted(self, session: Session, known: Known) -> Sequence[Tool]:
        """The tools that the policy names and permits, in the versions of the turn."""
        versions, pinned, overlays = known.active, tool_order.pins(session), self.catalog.overlays
        if not pinned.items() <= versions.items():
            versions = {name: pinned.get(name, version) for name, version in versions.items()}
        if overlays.is_due:
            await overlays.refresh()
        others = () if versions is known.active else tuple(versions.values())
        key = (others, *differs_by(session), overlays.changes, self.toolbox.changes)
        permitted = known.permitted.get(key)
        if permitted is None:
            permission = Permission(known.template, session)
            described = [one for one in await self.catalog.described(versions) if permission.permits(one)]
            permitted = await self.toolbox.several([(one.name, one.version) for one in described])
            if len(permitted) == len(described):  # one that cannot be called now is looked for again
                known.permitted[key] = permitted
        return permitted

    async def _known_for(self, template: Template, owner: str) -> Known:
        key, now = (template.name, template.version, owner), asyncio.get_running_loop().time()
        known = self._known.get(key)
        if known is None or now >= known.until or known.changes != self.catalog.tools.changes:
            changes = self.catalog.tools.changes
            completed, active = await self._completed(template, owner)
            known = Known(completed, active, changes, now + FRESH_FOR)
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = known
        return known

    async def _completed(self, template: Template, owner: str) -> tuple[Template, dict[str, int]]:
        """The template with the tools that every step needs, and name -> active version of the tools it names.

        Added are the tool that ends a turn and the reasoning tool of the agent class. An agent without any tool
        answers in plain text.
        """
        policy = template.tool_policy
        cls = AgentRegistry.get(template.base_agent_class)
        thinking = cls.needs if cls else ()
        active = await self.catalog.active_tools((*policy.named, FINAL_ANSWER, *thinking), owner)
        named = NamePatterns(policy.named)
        own = {name: version for name, version in active.items() if name in named}
        may_find_others = policy.allowlist is None and policy.selection_strategy != "static"
        if not own and not may_find_others:
            return template, {}
        self._warn_missing(template, active)
        ending = await self._finishing(policy, own) or (FINAL_ANSWER,)
        needed = [name for name in (*ending, *thinking) if name in active]
        # First, so that the cap never removes them.
        required = tuple(dict.fromkeys((*needed, *policy.required)))
        completed = replace(template, tool_policy=replace(policy, required=required))
        return completed, {**own, **{name: active[name] for name in needed}}

    def _warn_missing(self, template: Template, active: Mapping[str, int]) -> None:
        """Logs once that a required tool is missing: its agents work without it."""
        for name in template.tool_policy.required:
            if name not in active and not name.endswith(".*") and (template.ref, name) not in self._warned:
                if len(self._warned) >= MOST_KNOWN:
                    self._warned.clear()
                self._warned.add((template.ref, name))
                message = "a required tool is not active: agents work without it"
                log.warning("required_tool_missing", message=message, template=template.ref, tool=name)

    async def _finishing(self, policy: ToolPolicy, active: Mapping[str, int]) -> tuple[str, ...]:
        """The tools named by the policy that end a turn: classes, which are named one by one."""
        denied = NamePatterns(policy.denylist)
        names = [name for name in policy.named if name in active and name not in denied]
        described = await self.catalog.tools.several({name: active[name] for name in names})
        classes = [one for one in described if one.runtime_binding.python_entrypoint]
        resolved = await self.toolbox.several([(one.name, one.version) for one in classes])
        return tuple(tool.name for tool in resolved if tool.finishes)


PolicyProblem = tuple[tuple[str | int, ...], str]
"""A field of the policy, and what is wrong with it."""


async def policy_problem(catalog: Catalog, template: Template, owner: str) -> PolicyProblem | None:
    """Why agents of this template could not work as its policy says; nothing is imported for this check."""
    policy = template.tool_policy
    denied = NamePatterns(policy.denylist)
    for nth, name in enumerate(policy.required):
        if name in denied:
            return ("required", nth), f"{name} is on the denylist, too: a tool that is denied is never offered"
    if too_risky := await _risk_problem(catalog, policy, owner):
        return too_risky
    if policy.allowlist is not None and not policy.named:
        return None
    # Who need not call a tool may answer in words.
    if template.llm_policy.can.forced_tool_choice and (problem := await _ending_problem(catalog, policy, owner)):
        return ("denylist",), problem
    problem = await _cap_problem(catalog, template, owner)
    return (("required",), problem) if problem else None


async def _risk_problem(catalog: Catalog, policy: ToolPolicy, owner: str) -> PolicyProblem | None:
    if policy.max_risk_level == RISKS[-1] or not policy.required:
        return None
    active = await catalog.active_tools([name for name in policy.required if not name.endswith(".*")], owner)
    for tool in await catalog.described(active):
        risk = tool.security_policy.risk_level
        if RISKS.index(risk) > RISKS.index(policy.max_risk_level):
            why = f"the risk of {tool.name} is {risk}, and max_risk_level is {policy.max_risk_level}"
            return ("required", policy.required.index(tool.name)), f"{why}: it would never be offered"
    return None


async def _ending_problem(catalog: Catalog, policy: ToolPolicy, owner: str) -> str | None:
    denied = NamePatterns(policy.denylist)
    left = [name for name in policy.named if name not in denied]
    may_find_others = policy.allowlist is None and policy.selection_strategy != "static"
    if FINAL_ANSWER not in denied or not (left or may_find_others):
        return None  # an agent without any tool answers in words
    if any(cls and cls.finishes for cls in map(ToolRegistry.get, left)) or await _may_finish(catalog, left, owner):
        return None
    return f"it denies {FINAL_ANSWER}, and no other tool that the policy names ends a turn: no turn would ever end"


async def _cap_problem(catalog: Catalog, template: Template, owner: str) -> str | None:
    """Why the required tools, with the added ones, exceed the cap.

    The tools of an MCP server are counted and cut when they are offered: their number is not known earlier.
    """
    policy, cls = template.tool_policy, AgentRegistry.get(template.base_agent_class)
    listed, denied = [name for name in policy.required if not name.endswith(".*")], NamePatterns(policy.denylist)
    ending = [cls.tool_name for cls in map(ToolRegistry.get, policy.named) if cls and cls.finishes]
    thinking = cls.needs if cls else ()
    every = {name for name in (*listed, *ending, *thinking) if name not in denied}
    if not ending and FINAL_ANSWER not in denied and len(every) == policy.max_tools_in_prompt:
        every |= set() if await _may_finish(catalog, policy.named, owner) else {FINAL_ANSWER}
    if len(every) <= policy.max_tools_in_prompt:
        return None
    added = ", ".join(sorted(every.difference(listed)))
    among = f" (with {added}, which its agents need)" if added else ""
    return (
        f"{len(every)} tools{among} would be offered in every step,"
        f" and max_tools_in_prompt is {policy.max_tools_in_prompt}: require fewer, or raise it"
    )


async def _may_finish(catalog: Catalog, names: Sequence[str], owner: str) -> bool:
    """May one of these tools end a turn? For a class that is not imported here, this is unknown."""
    unknown = [name for name in names if not name.endswith(".*") and ToolRegistry.get(name) is None]
    described = await catalog.tools.several(await catalog.active_tools(unknown, owner)) if unknown else []
    return any(one.runtime_binding.python_entrypoint for one in described)
