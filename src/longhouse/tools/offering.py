"""Which tools an agent is offered now: what its template's policy permits, in the versions that its turn began with."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import structlog

from longhouse import clock
from longhouse.agents import rules, tool_order
from longhouse.agents.naming import Names
from longhouse.agents.permission import Permission
from longhouse.agents.strategies.base import AgentRegistry
from longhouse.agents.template import Template, ToolPolicy
from longhouse.agents.tool import Tool
from longhouse.agents.tool_descriptor import ToolDescriptor
from longhouse.journal.events import Selection
from longhouse.journal.session import Session
from longhouse.store.catalog.catalog import Catalog
from longhouse.tools.base import ToolRegistry
from longhouse.tools.builtin.dialogue import FinalAnswerTool
from longhouse.tools.toolbox import Toolbox

log = structlog.get_logger()

FRESH_FOR: Final = 0.5
"""Seconds for which is believed what the catalog said to be active; what we change ourselves holds at once."""

MOST_KNOWN: Final = 10_000
MOST_FOUND: Final = 5
"""Tools that an agent found itself, the newest of them, which it is offered for sure."""
FINAL_ANSWER: Final = FinalAnswerTool.tool_name
"""Ends a turn where the policy names no tool of its own for that."""


class Chosen(Protocol):
    @property
    def tools(self) -> Sequence[ToolDescriptor]: ...
    @property
    def selection(self) -> Selection | None: ...


class ToolSelector(Protocol):
    async def choose(
        self, template: Template, session: Session, *, hard_require: Sequence[str], active: Mapping[str, int]
    ) -> Chosen: ...


@dataclass(frozen=True, slots=True)
class Offered:
    """The tools of a step, and how they were chosen; None where all that is permitted is offered."""

    tools: list[Tool]
    selection: Selection | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """A template with all that its steps need, and the active versions of the tools that it then names."""

    template: Template
    active: Mapping[str, int]
    changes: int
    until: float


@dataclass(slots=True)
class Offering:
    catalog: Catalog
    toolbox: Toolbox
    search: ToolSelector | None = None
    """Chooses where a policy permits more than may be offered."""
    _known: dict[tuple[str, str], Known] = field(default_factory=dict)
    _told: set[tuple[str, str]] = field(default_factory=set)

    async def choose(self, session: Session, template: Template) -> Offered:
        """The permitted tools that are open now: required ones, then others, never more than the policy's cap."""
        known = await self._look(template, session.owner)
        found = session.context.get("found_tools", ())
        if self.search and (found or not _names_all(known.template.tool_policy, known.active)):
            needed = found[-MOST_FOUND:]
            chosen = await self.search.choose(known.template, session, hard_require=needed, active=known.active)
            taken = [await self.toolbox.resolve(one.name, one.version) for one in chosen.tools]
            return Offered([tool for tool in taken if tool], chosen.selection)
        return await self._named(session, known)

    async def _named(self, session: Session, known: Known) -> Offered:
        """What the policy names, in its order; where that is too much, required tools first."""
        policy, pinned = known.template.tool_policy, tool_order.pins(session)
        versions = {name: pinned.get(name, version) for name, version in known.active.items()}
        permission = Permission(known.template, session)
        opening = rules.opening_of(session, known.template, clock.now())
        tools: dict[str, Tool] = {}
        for one in await self.catalog.described(versions):
            tool = await self.toolbox.resolve(one.name, one.version) if permission.covers(one) else None
            if tool and opening.leaves(tool):
                tools[tool.name] = tool
        if len(tools) <= policy.max_tools_in_prompt:
            return Offered(list(tools.values()))
        required = Names(policy.required)
        first = [name for name in tools if name in required]
        names = tool_order.first_few(first, tools, policy.max_tools_in_prompt)
        selection = tool_order.selection(names, tools, {}, stage=rules.stage(session, known.template))
        return Offered([tools[name] for name in names], selection)

    async def _look(self, template: Template, owner: str) -> Known:
        key, now = (template.ref, owner), asyncio.get_running_loop().time()
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
        """The template with what every step of its agents needs, and name -> active version of what it names.

        That is what ends a turn, and what the agent's class thinks with. An agent without any tool ends in words.
        """
        policy = template.tool_policy
        cls = AgentRegistry.get(template.base_agent_class)
        thinking = cls.needs if cls else ()
        active = await self.catalog.active_tools((*policy.named, FINAL_ANSWER, *thinking), owner)
        named = Names(policy.named)
        own = {name: version for name, version in active.items() if name in named}
        if not own and not _searches(policy):
            return template, {}
        self._tell_missing(template, active)
        ending = await self._finishing(policy, own) or (FINAL_ANSWER,)
        needed = [name for name in (*ending, *thinking) if name in active]
        # First in line, so that no cap cuts them off.
        required = tuple(dict.fromkeys((*needed, *policy.required)))
        completed = replace(template, tool_policy=replace(policy, required=required))
        return completed, {**own, **{name: active[name] for name in needed}}

    def _tell_missing(self, template: Template, active: Mapping[str, int]) -> None:
        """Says once that a required tool is not there: its agents work without it."""
        for name in template.tool_policy.required:
            if name not in active and not name.endswith(".*") and (template.ref, name) not in self._told:
                if len(self._told) >= MOST_KNOWN:
                    self._told.clear()
                self._told.add((template.ref, name))
                log.warning("a required tool is not active: agents work without it", template=template.ref, tool=name)

    async def _finishing(self, policy: ToolPolicy, active: Mapping[str, int]) -> tuple[str, ...]:
        """Those of the tools that the policy names which end a turn: classes, which are named one by one."""
        denied = Names(policy.denylist)
        names = [name for name in policy.named if name in active and name not in denied]
        described = await self.catalog.tools.several({name: active[name] for name in names})
        classes = [one for one in described if one.runtime_binding.python_entrypoint]
        taken = [await self.toolbox.resolve(one.name, one.version) for one in classes]
        return tuple(tool.name for tool in taken if tool and tool.finishes)


async def crowding(catalog: Catalog, template: Template, owner: str) -> str | None:
    """Why not all that a template requires can be offered, with what is added to it; nothing is imported for that.

    All that a server has is counted when it is offered, and cut there: nobody knows before how much that will be.
    """
    policy, cls = template.tool_policy, AgentRegistry.get(template.base_agent_class)
    if policy.allowlist is not None and not policy.named:
        return None
    listed, denied = [name for name in policy.required if not name.endswith(".*")], Names(policy.denylist)
    ending = [cls.tool_name for cls in map(ToolRegistry.get, policy.named) if cls and cls.finishes]
    thinking = cls.needs if cls else ()
    every = {name for name in (*listed, *ending, *thinking) if name not in denied}
    if not ending and FINAL_ANSWER not in denied and len(every) == policy.max_tools_in_prompt:
        every |= set() if await _may_finish(catalog, policy, owner) else {FINAL_ANSWER}
    if len(every) <= policy.max_tools_in_prompt:
        return None
    added = ", ".join(sorted(every.difference(listed)))
    among = f" (with {added}, which its agents need)" if added else ""
    return (
        f"{len(every)} tools{among} would be offered in every step,"
        f" and max_tools_in_prompt is {policy.max_tools_in_prompt}: require fewer, or raise it"
    )


async def _may_finish(catalog: Catalog, policy: ToolPolicy, owner: str) -> bool:
    """May one of the tools that the policy names end a turn? A class that was not imported here has not said so."""
    unknown = [name for name in policy.named if not name.endswith(".*") and ToolRegistry.get(name) is None]
    described = await catalog.tools.several(await catalog.active_tools(unknown, owner)) if unknown else []
    return any(one.runtime_binding.python_entrypoint for one in described)


def _searches(policy: ToolPolicy) -> bool:
    """May the agent be offered what its policy does not name?"""
    return policy.allowlist is None and policy.selection_strategy != "static"


def _names_all(policy: ToolPolicy, active: Mapping[str, int]) -> bool:
    """Does the policy name all the tools that there are for it, and no more than may be offered?"""
    if policy.selection_strategy == "static":
        return True
    return policy.allowlist is not None and len(active) <= policy.max_tools_in_prompt
