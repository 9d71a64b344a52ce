"""Selects the tools to offer in a step: required tools, tools that the policy names, and search results."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from longhouse import clock
from longhouse.agents import naming as names
from longhouse.agents import rules, tool_order
from longhouse.agents.permission import Permission
from longhouse.agents.rules import Opening
from longhouse.agents.template import Template
from longhouse.agents.tool import Tool
from longhouse.agents.tool_descriptor import RISKS, ToolDescriptor
from longhouse.errors import ProviderError
from longhouse.journal.events import Rights, Selection
from longhouse.journal.session import Session, Turn
from longhouse.models.protocol import Embedder
from longhouse.search import finder
from longhouse.search.finder import IndexSearch, SearchHit, SearchQuery
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.search import index
from longhouse.store.search.query import SearchFilters
from longhouse.store.search.vectors import Space, VectorCache, Vectors

log = structlog.get_logger()

PATIENCE: Final = 5.0
"""Timeout in seconds for the embedding of a query."""
AGAIN_AFTER: Final = 30.0
"""Seconds before a failed embedding model is tried again."""
SPARE: Final = 4
"""Extra search results: the catalog may have changed since it was indexed."""
MOST_NAMED: Final = 256
"""Tools named one by one that are checked in a step, in addition to the search results."""
LOOKED_AT: Final = 32
"""Tools of servers that are checked in one batch, when the search did not find them."""


class Finder:
    """Searches the index by words and, with an embedding model, by vectors."""

    def __init__(
        self, db: Database, embedder: Embedder | None, ready: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self.db = db
        self._ready = ready
        kept = VectorCache(db)
        self._tools, self._templates = IndexSearch(db, "tool", kept), IndexSearch(db, "template", kept)
        self._embedder = embedder
        self._space: Space | None = None
        self._ask_again_at = 0.0

    async def tools(self, asked: str | SearchQuery, filters: SearchFilters, top_k: int) -> list[SearchHit]:
        query = await self.query(asked) if isinstance(asked, str) else asked
        return await self._tools.find(query, filters, top_k)

    async def templates(self, asked: str | SearchQuery, filters: SearchFilters, top_k: int) -> list[SearchHit]:
        query = await self.query(asked) if isinstance(asked, str) else asked
        return await self._templates.find(query, filters, top_k)

    async def nearest_tools(self, text: str, count: int) -> list[str]:
        """The nearest tools by vector similarity alone, for benchmarks; empty without an embedding model."""
        query = await self.query(text)
        return await self._tools.nearest(query, count) if query.space else []

    async def query(self, text: str) -> SearchQuery:
        if self._ready:
            await self._ready()
        texts = finder.texts_of(text)
        vectors = await self._embedded(texts)
        if vectors is None or self._embedder is None:
            return SearchQuery(texts)
        dimensions = vectors.shape[1]
        if self._space is None or self._space.dimensions != dimensions:
            self._space = await index.space(self.db, self._embedder.name)
        if self._space is None or self._space.dimensions != dimensions:
            return SearchQuery(texts)  # no document is indexed with this model yet
        return SearchQuery(texts, vectors, self._space)

    async def _embedded(self, texts: Sequence[str]) -> Vectors | None:
        """None without a model, and for a while after a failure: a search does not wait for the timeout each time."""
        now = asyncio.get_running_loop().time()
        if self._embedder is None or now < self._ask_again_at:
            return None
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._embedder.embed(texts)
        except (ProviderError, TimeoutError) as error:
            self._ask_again_at = now + AGAIN_AFTER
            why = str(error) or f"no answer within {PATIENCE:.0f} seconds"
            message = "The embedding model failed; for a while, searches use words alone."
            log.warning("embedding_failed", message=message, error=why)
            return None


@dataclass(frozen=True, slots=True)
class Point:
    """A session, its template, and which tools the template's rules leave open now."""

    template: Template
    session: Session
    opening: Opening


def point_of(template: Template, session: Session, stage: str | None = None) -> Point:
    turn = session.turn
    opening = rules.opening_of(session, turn, template, clock.now(), stage=stage) if turn else Opening()
    return Point(template, session, opening)


@dataclass(frozen=True, slots=True)
class SelectedTools:
    """The tools of a step, and how they were selected."""

    tools: list[ToolDescriptor]
    selection: Selection | None = None


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tools that may be offered, in groups that each have their own order."""

    required: list[str]
    named: list[str]
    """Tools that the policy names one by one."""
    ranked: list[str]
    """Tools that the search found, the best first."""
    others: list[str]
    """Tools that the policy names by a `<server>.*` pattern and the search did not find."""
    permitted: Mapping[str, ToolDescriptor]
    scores: Mapping[str, float]

    @property
    def in_line(self) -> list[str]:
        return tool_order.in_line(self.named, self.ranked, self.others)

    def chosen(self, names: Sequence[str], query: str, stage: str) -> SelectedTools:
        selection = tool_order.selection(names, (*self.required, *self.in_line), self.scores, query, stage)
        return SelectedTools([self.permitted[name] for name in names], selection)


@dataclass(frozen=True, slots=True)
class ToolSearchService:
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
        cap, point = template.tool_policy.max_tools_in_prompt, point_of(template, session, stage)
        found = await self._candidates(point, query, min(top_k, cap), hard_require=hard_require)
        names = tool_order.first_few(found.required, found.in_line[:top_k], cap)
        return [found.permitted[name] for name in names]

    async def find(self, session: Session, query: str, top_k: int) -> list[ToolDescriptor]:
        """The search by an agent itself: the best tools for the query among those it may use."""
        turn = session.turn
        template = await self.catalog.templates.find(session.agent, turn.version) if turn else None
        if template is None:
            return []
        point = point_of(template, session)
        ranked = await self._ranked(point, query, top_k)
        if not ranked:
            # The index is empty, or nothing matches: the tools that the policy names are better than nothing.
            named = template.tool_policy.named if template.tool_policy.allowlist is not None else ()
            return list((await self._permitted(point, await self._active(session, named))).values())[:top_k]
        permitted = await self._permitted(point, {hit.name: hit.version for hit in ranked})
        return [permitted[hit.name] for hit in ranked if hit.name in permitted][:top_k]

    async def get_tools_for_step(
        self, template: Template, session: Session, *, hard_require: Sequence[str] = ()
    ) -> list[ToolDescriptor]:
        """The tools that the template's strategy offers in this step; `hard_require` are those that the agent found."""
        if session.turn is None:
            return []
        return (await self.choose(template, session, session.turn, hard_require=hard_require)).tools

    async def choose(
        self,
        template: Template,
        session: Session,
        turn: Turn,
        *,
        hard_require: Sequence[str] = (),
        active: Mapping[str, int] | None = None,
    ) -> SelectedTools:
        """The tools of a step; `active` are the versions of the tools that the policy names, where they are known."""
        policy, cap = template.tool_policy, template.tool_policy.max_tools_in_prompt
        point = point_of(template, session)
        if policy.selection_strategy == "static" or _names_few(template):
            named = await self._active(session, (*policy.required, *hard_require, *policy.named))
            permitted = await self._permitted(point, named)
            selection = tool_order.selection(
                list(permitted)[:cap], permitted, {}, stage=rules.stage(session, turn, template)
            )
            return SelectedTools(list(permitted.values())[:cap], selection if selection.left_out else None)
        query, stage = tool_order.query_of(session, turn), rules.stage(session, turn, template)
        before = [ref.rpartition("@")[0] for ref in session.offered]
        found = await self._candidates(point, query, cap, hard_require=hard_require, before=before, active=active)
        if policy.selection_strategy == "retrieval_per_step":
            return found.chosen(tool_order.first_few(found.required, found.in_line, cap), query, stage)
        line = tool_order.line_up(found.required, found.named, found.ranked, found.others, cap)
        kept = [name for name in before if name in found.permitted]
        return found.chosen(tool_order.sticky(kept, line, tool_order.used_tools(session), cap), query, stage)

    async def _candidates(
        self,
        point: Point,
        query: str,
        top_k: int,
        *,
        hard_require: Sequence[str] = (),
        before: Sequence[str] = (),
        active: Mapping[str, int] | None = None,
    ) -> Candidates:
        """All tools that may be offered; `before` are those offered in the last step, `active` is as in `choose`."""
        policy, session = point.template.tool_policy, point.session
        needed, allowed = (*policy.required, *hard_require), policy.allowlist or ()
        if active is None:
            active = await self._active(session, (*needed, *allowed))
        more = await self._active(session, [name for name in (*hard_require, *before) if name not in active])
        known = {**active, **more}
        named, dozens = [name for name in allowed if name in known][:MOST_NAMED], [*filter(_is_many, allowed)]
        # Enough results to rank the named tools among themselves, whatever ranks between them.
        hits = await self._ranked(point, query, top_k + len(named))
        required = spread(needed, known)
        versions = {name: known[name] for name in (*required, *named, *before) if name in known}
        versions |= {hit.name: hit.version for hit in hits}
        permitted = await self._permitted(point, versions)
        # Of a server with very many tools, those that the search did not find are left out of the selection record.
        is_worth_it = len(permitted) < policy.max_tools_in_prompt or len(known) <= MOST_NAMED
        unseen = (name for name in spread(dozens, known) if name not in versions) if is_worth_it else ()
        others = await self._others(point, {name: known[name] for name in unseen})
        return Candidates(
            required=[name for name in required if name in permitted],
            named=[name for name in named if name in permitted],
            ranked=[hit.name for hit in hits if hit.name in permitted],
            others=list(others),
            permitted=permitted | others,
            scores={hit.name: hit.score for hit in hits},
        )

    async def _others(self, point: Point, versions: Mapping[str, int]) -> dict[str, ToolDescriptor]:
        """The first of these tools that may be offered, until the policy's cap is reached."""
        found: dict[str, ToolDescriptor] = {}
        pairs = list(versions.items())
        for start in range(0, len(pairs), LOOKED_AT):
            found |= await self._permitted(point, dict(pairs[start : start + LOOKED_AT]))
            if len(found) >= point.template.tool_policy.max_tools_in_prompt:
                break
        return found

    async def _ranked(self, point: Point, query: str, top_k: int) -> list[SearchHit]:
        return await self.finder.tools(query, filters_of(point), top_k + SPARE)

    async def _active(self, session: Session, names: Sequence[str]) -> dict[str, int]:
        return await self.catalog.active_tools(names, session.owner) if names else {}

    async def _permitted(self, point: Point, versions: Mapping[str, int]) -> dict[str, ToolDescriptor]:
        """The tools that may be offered now, in the versions that the turn started with.

        The index may be out of date, so every permission is checked again.
        """
        pinned, permission = tool_order.pins(point.session), Permission(point.template, point.session)
        found = await self.catalog.described({name: pinned.get(name, v) for name, v in versions.items()})
        return {one.name: one for one in found if permission.covers(one) and await self._is_open(point, one)}

    async def _is_open(self, point: Point, one: ToolDescriptor) -> bool:
        # A remote tool's descriptor says all about it; the others depend on what they are bound to.
        if self.resolve is None or one.runtime_binding.remote_endpoint:
            return point.opening.is_wide or point.opening.leaves(one.tool)
        tool = await self.resolve(one.name, one.version)
        return tool is not None and point.opening.leaves(tool)


def filters_of(point: Point) -> SearchFilters:
    """The filters of one session: owner, the template's policy, the rights of calling agents, and closed tools."""
    filters, session, opening = policy_filters(point.template), point.session, point.opening
    rights = (session.turn.rights if session.turn else None) or Rights()
    allow = filters.allow
    for kept in opening.kept:
        allow = kept if allow is None else names.in_both(allow, kept)
    return replace(
        filters,
        caller=session.owner,
        allow=allow,
        deny=(*filters.deny, *rights.denied, *opening.excluded),
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


def _is_many(name: str) -> bool:
    return name.endswith(".*")


def spread(names: Sequence[str], known: Mapping[str, int]) -> list[str]:
    """The known ones of these names, in order; `<prefix>.*` is expanded."""
    found: dict[str, None] = {}
    for name in names:
        if _is_many(name):
            found |= dict.fromkeys(one for one in known if one.startswith(name[:-1]))
        elif name in known:
            found[name] = None
    return list(found)


def _names_few(template: Template) -> bool:
    """Whether the policy names all its tools one by one, and no more than may be offered."""
    policy = template.tool_policy
    is_plain = policy.allowlist is not None and not any(_is_many(name) for name in policy.named)
    return is_plain and len(policy.named) <= policy.max_tools_in_prompt
