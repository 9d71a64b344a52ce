"""Selects the tools to offer in a step: required tools, tools that the policy names, and search results."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from longhouse.agents import naming as names
from longhouse.agents import rules
from longhouse.agents.permission import Permission
from longhouse.agents.requests import tool_order
from longhouse.agents.requests.tool_order import Candidates
from longhouse.agents.rules import OpenTools
from longhouse.agents.template import Template
from longhouse.agents.tool import Tool
from longhouse.agents.tool_descriptor import RISKS, ToolDescriptor
from longhouse.journal.events import Rights, Selection
from longhouse.journal.session import Session, Turn
from longhouse.search.finder import Finder
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.search.query import SearchFilters

SPARE: Final = 4
"""Extra search results: the catalog may have changed since it was indexed."""
MOST_NAMED: Final = 256
"""Tools named one by one that are checked in a step, in addition to the search results."""
CHECKED_AT_ONCE: Final = 32
"""Tools of servers that are checked in one batch, when the search did not find them."""


class StepState:
    """A session, its template, which tools it permits, and which of them its rules leave open now."""

    def __init__(self, template: Template, session: Session, stage: str | None = None) -> None:
        self.template, self.session, self.permission = template, session, Permission(template, session)
        turn = session.turn
        self.open_tools = rules.open_tools(session, turn, template, stage=stage) if turn else OpenTools()


class ToolSearchService(msgspec.Struct, frozen=True):
    catalog: Catalog
    finder: Finder
    resolve: Callable[[str, int], Awaitable[Tool | None]] | None = None
    """Resolves a version of a tool as it runs here; None where it cannot run. Without it, descriptors are used."""

    async def select(  # noqa: PLR0917 - people know it with these, in this order
        self,
        template: Template,
        session: Session,
        query: str,
        top_k: int,
        stage: str | None = None,
        hard_require: Sequence[str] = (),
    ) -> list[ToolDescriptor]:
        """Required tools first, then those that the policy names, then the others by rank; at most the policy's cap.

        The stage selects which of the template's rules apply; its name is not part of the search query.
        """
        state = StepState(template, session, stage)
        found, permitted, _ = await self._candidates(state, query, top_k, hard_require=hard_require)
        cap = template.tool_policy.cap or found.auto_cap
        return [permitted[name] for name in tool_order.first_few(found.required, found.in_order[:top_k], cap)]

    async def all_permitted(self, template: Template, owner: str, most: int) -> dict[str, int] | None:
        """Name -> active version of all tools that the policy permits; None if they are more than `most`."""
        return await self.finder.all_tools(replace(policy_filters(template), caller=owner), most)

    async def find(self, session: Session, query: str, top_k: int) -> list[ToolDescriptor]:
        """The search by an agent itself: the best tools for the query among those it may use."""
        turn = session.turn
        template = await self.catalog.templates.find(session.agent, turn.version) if turn else None
        if template is None:
            return []
        state = StepState(template, session)
        hits = await self.finder.tools(query, filters_of(state), top_k + SPARE)
        if not hits:
            # The index is empty, or nothing matches: the tools that the policy names are better than nothing.
            named = template.tool_policy.named if template.tool_policy.allowlist is not None else ()
            return list((await self._permitted(state, await self._active(session, named))).values())[:top_k]
        permitted = await self._permitted(state, {hit.name: hit.version for hit in hits})
        return [permitted[hit.name] for hit in hits if hit.name in permitted][:top_k]

    async def get_tools_for_step(
        self, template: Template, session: Session, *, hard_require: Sequence[str] = ()
    ) -> list[ToolDescriptor]:
        """The tools that the template's strategy offers in this step; `hard_require` are those that the agent found."""
        if session.turn is None:
            return []
        return (await self.choose(template, session, session.turn, hard_require=hard_require))[0]

    async def choose(
        self,
        template: Template,
        session: Session,
        turn: Turn,
        *,
        hard_require: Sequence[str] = (),
        active: Mapping[str, int] | None = None,
    ) -> tuple[list[ToolDescriptor], Selection | None]:
        """The tools of a step, and how they were selected if some were left out.

        `active` are the versions of the tools that the policy names, where they are known.
        """
        policy, cap = template.tool_policy, template.tool_policy.cap
        state, stage = StepState(template, session), rules.stage(session, turn, template)
        if policy.selection_strategy == "static":
            named = await self._active(session, (*policy.required, *hard_require, *policy.named))
            permitted = await self._permitted(state, named)
            names = list(permitted)[:cap] if cap else tool_order.capped(permitted, policy)
            selection = tool_order.selection(names, permitted, {}, stage=stage)
            return [permitted[name] for name in names], selection if selection.left_out else None
        query, before = tool_order.query_of(session, turn), [ref.rpartition("@")[0] for ref in session.offered]
        found, permitted, scores = await self._candidates(
            state, query, cap or tool_order.BY_DOZEN, hard_require=hard_require, before=before, active=active
        )
        cap = cap or found.auto_cap
        if policy.selection_strategy == "retrieval_per_step":
            names = tool_order.first_few(found.required, found.in_order, cap)
        else:
            kept = [name for name in before if name in permitted]
            names = tool_order.sticky(kept, found, tool_order.used_tools(session), cap)
        selection = tool_order.selection(names, (*found.required, *found.in_order), scores, query, stage)
        return [permitted[name] for name in names], selection

    async def _candidates(
        self,
        state: StepState,
        query: str,
        top_k: int,
        *,
        hard_require: Sequence[str] = (),
        before: Sequence[str] = (),
        active: Mapping[str, int] | None = None,
    ) -> tuple[Candidates, dict[str, ToolDescriptor], dict[str, float]]:
        """All tools that may be offered: their names, their descriptors, and the scores of those that were found.

        `before` are those offered in the last step, `active` is as in `choose`.
        """
        policy, session = state.template.tool_policy, state.session
        needed, allowed = (*policy.required, *hard_require), policy.allowlist or ()
        if active is None:
            active = await self._active(session, (*needed, *allowed))
        named, dozens = [name for name in allowed if name in active][:MOST_NAMED], [*filter(_is_pattern, allowed)]
        # Enough results to rank the named tools among themselves, whatever ranks between them.
        hits = await self.finder.tools(query, filters_of(state), top_k + len(named) + SPARE)
        found = {hit.name: hit.version for hit in hits}
        more = [name for name in (*hard_require, *before) if name not in active]
        known = {**active, **{name: found[name] for name in more if name in found}}
        known |= await self._active(session, [name for name in more if name not in found])
        required = expanded(needed, known)
        versions = {name: known[name] for name in (*required, *named, *before) if name in known}
        versions |= found
        permitted = await self._permitted(state, versions)
        # Of a server with very many tools, those that the search did not find are left out of the selection record.
        is_worth_it = len(permitted) < top_k or len(known) <= MOST_NAMED
        unseen = (name for name in expanded(dozens, known) if name not in versions) if is_worth_it else ()
        others = await self._others(state, {name: known[name] for name in unseen}, top_k)
        candidates = Candidates(
            required=[name for name in required if name in permitted],
            named=[name for name in named if name in permitted],
            ranked=[hit.name for hit in hits if hit.name in permitted],
            others=list(others),
        )
        return candidates, permitted | others, {hit.name: hit.score for hit in hits}

    async def _others(self, state: StepState, versions: Mapping[str, int], most: int) -> dict[str, ToolDescriptor]:
        """The first of these tools that may be offered, until there are `most`."""
        found: dict[str, ToolDescriptor] = {}
        pairs = list(versions.items())
        for start in range(0, len(pairs), CHECKED_AT_ONCE):
            found |= await self._permitted(state, dict(pairs[start : start + CHECKED_AT_ONCE]))
            if len(found) >= most:
                break
        return found

    async def _active(self, session: Session, names: Sequence[str]) -> dict[str, int]:
        return await self.catalog.active_tools(names, session.owner) if names else {}

    async def _permitted(self, state: StepState, versions: Mapping[str, int]) -> dict[str, ToolDescriptor]:
        """The tools that may be offered now, in the versions that the turn started with.

        The index may be out of date, so every permission is checked again.
        """
        pinned = tool_order.pins(state.session)
        found = await self.catalog.described({name: pinned.get(name, v) for name, v in versions.items()})
        return {one.name: one for one in found if state.permission.permits(one) and await self._is_open(state, one)}

    async def _is_open(self, state: StepState, one: ToolDescriptor) -> bool:
        # A remote tool's descriptor says all about it; the others depend on what they are bound to.
        if self.resolve is None or one.runtime_binding.remote_endpoint:
            return state.open_tools.is_all_open or state.open_tools.includes(one.tool)
        tool = await self.resolve(one.name, one.version)
        return tool is not None and state.open_tools.includes(tool)


def filters_of(state: StepState) -> SearchFilters:
    """The filters of one session: owner, the template's policy, the rights of calling agents, and closed tools."""
    filters, session, open_tools = policy_filters(state.template), state.session, state.open_tools
    rights = (session.turn.rights if session.turn else None) or Rights()
    allow = filters.allow
    for kept in open_tools.kept:
        allow = kept if allow is None else names.intersection(allow, kept)
    return replace(
        filters,
        caller=session.owner,
        allow=allow,
        deny=(*filters.deny, *rights.denied, *open_tools.excluded),
        max_risk=min(filters.max_risk, rights.max_risk, key=RISKS.index),
        is_sub=session.side == "sub",
    )


def policy_filters(template: Template) -> SearchFilters:
    """The parts of the template's policy that search can apply before it ranks."""
    policy = template.tool_policy
    return SearchFilters(
        allow=policy.allowlist,
        deny=policy.denylist,
        types=policy.tool_types,
        tags=policy.tags,
        max_risk=policy.max_risk_level,
        template=template.name,
    )


def _is_pattern(name: str) -> bool:
    return name.endswith(".*")


def expanded(names: Sequence[str], known: Mapping[str, int]) -> list[str]:
    """The known ones of these names, in order; `<prefix>.*` is expanded."""
    found: dict[str, None] = {}
    for name in names:
        if _is_pattern(name):
            found |= dict.fromkeys(one for one in known if one.startswith(name[:-1]))
        elif name in known:
            found[name] = None
    return list(found)
