"""Which tools an agent is offered now: what its template's policy permits, in the versions that its turn began with."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from longhouse.agents.descriptor import RISKS, ToolDescriptor
from longhouse.agents.template import Template, ToolPolicy
from longhouse.agents.tool import Tool
from longhouse.journal.events import Rights
from longhouse.journal.session import Session
from longhouse.store.catalog import Catalog
from longhouse.tools.toolbox import Toolbox

FRESH_FOR: Final = 0.5
"""Seconds for which is believed what the catalog said to be active; what we change ourselves holds at once."""

MOST_KNOWN: Final = 10_000
MOST_FOUND: Final = 5
"""Tools that an agent found itself, the newest of them, which it is offered for sure."""


class Search(Protocol):
    async def get_tools_for_step(
        self, template: Template, session: Session, *, hard_require: Sequence[str] = ()
    ) -> list[ToolDescriptor]: ...


@dataclass(slots=True)
class Offering:
    catalog: Catalog
    toolbox: Toolbox
    search: Search | None = None
    """Chooses where a policy permits more than may be offered."""
    _known: dict[tuple[str, str], tuple[float, int, dict[str, int]]] = field(default_factory=dict)

    async def tools(self, session: Session, template: Template) -> list[Tool]:
        """Required tools first, then the others that are named, in their order; never more than the policy's cap."""
        policy = template.tool_policy
        found = session.context.get("found_tools", ())
        active = await self._active(template, session.owner)
        if self.search and (found or not _names_all(policy, active)):
            chosen = await self.search.get_tools_for_step(template, session, hard_require=found[-MOST_FOUND:])
            taken = [await self.toolbox.taken(one.name, one.version) for one in chosen]
            return [tool for tool in taken if tool]
        pinned = _pinned(session)
        offered: list[Tool] = []
        for name, version in active.items():
            if len(offered) == policy.max_tools_in_prompt:
                break
            descriptor = await self.catalog.tools.find(name, pinned.get(name, version))
            if descriptor and permits(template, descriptor, session):
                tool = await self.toolbox.taken(name, descriptor.version)
                offered += [tool] if tool else []
        return offered

    async def _active(self, template: Template, owner: str) -> dict[str, int]:
        """Name -> active version of the tools that the template names."""
        key, now = (template.ref, owner), asyncio.get_running_loop().time()
        until, changes, known = self._known.get(key, (0.0, 0, {}))
        if now >= until or changes != self.catalog.tools.changes:
            changes = self.catalog.tools.changes
            known = await self.catalog.active_tools(template.tool_policy.named, owner)
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = (now + FRESH_FOR, changes, known)
        return known


def _names_all(policy: ToolPolicy, active: Mapping[str, int]) -> bool:
    """Does the policy name all the tools that there are for it, and no more than may be offered?"""
    if policy.selection_strategy == "static":
        return True
    return policy.allowlist is not None and len(active) <= policy.max_tools_in_prompt


def permits(template: Template, tool: ToolDescriptor, session: Session) -> bool:
    """May this template's agents have the tool, in this session?"""
    policy, allow = template.tool_policy, tool.security_policy.allow
    if tool.name in policy.denylist:
        return False
    if allow.templates is not None and template.name not in allow.templates:
        return False
    if session.side == "sub" and not allow.sub_agents:
        return False
    rights = (session.turn.rights if session.turn else None) or Rights()
    if tool.name in rights.denied:
        return False
    most = min(RISKS.index(policy.max_risk_level), RISKS.index(rights.max_risk))
    if RISKS.index(tool.security_policy.risk_level) > most:
        return False
    return tool.name in policy.required or _is_of_kind(policy, tool)


def _is_of_kind(policy: ToolPolicy, tool: ToolDescriptor) -> bool:
    if policy.tool_types and tool.type not in policy.tool_types:
        return False
    return not policy.tags or bool({*policy.tags} & {*tool.tags, *tool.categories})


def _pinned(session: Session) -> dict[str, int]:
    """The versions that the running turn has been offered: it keeps them to its end."""
    return session.turn.pins if session.turn else {}
