"""The few tools worth offering now, out of however many there are."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from longhouse import clock
from longhouse.agents import names, offering, rules
from longhouse.agents.descriptor import RISKS, ToolDescriptor
from longhouse.agents.rules import Opening
from longhouse.agents.template import Template
from longhouse.agents.tool import Tool
from longhouse.errors import ProviderError
from longhouse.journal.events import Rights
from longhouse.journal.session import Session
from longhouse.models.model import Embedder
from longhouse.store import indexing, search
from longhouse.store.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.search import Filters, Hit, Query, Search
from longhouse.store.vectors import Kept, Space, Vectors
from longhouse.tools.offering import Permission

log = structlog.get_logger()

PATIENCE: Final = 5.0
"""Seconds for the vector of a query."""
AGAIN_AFTER: Final = 30.0
"""Seconds after which a model that failed is asked again."""
SPARE: Final = 4
"""Search finds so many more than are offered: the catalog may have changed since it was indexed."""


class Finder:
    """Asks the index in words and, where there is a model for them, in vectors."""

    def __init__(
        self, db: Database, embedder: Embedder | None, ready: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self.db = db
        self._ready = ready
        kept = Kept(db)
        self._tools, self._templates = Search(db, "tool", kept), Search(db, "template", kept)
        self._embedder = embedder
        self._space: Space | None = None
        self._ask_again_at = 0.0

    async def tools(self, asked: str | Query, filters: Filters, top_k: int) -> list[Hit]:
        query = await self.query(asked) if isinstance(asked, str) else asked
        return await self._tools.find(query, filters, top_k)

    async def templates(self, asked: str | Query, filters: Filters, top_k: int) -> list[Hit]:
        query = await self.query(asked) if isinstance(asked, str) else asked
        return await self._templates.find(query, filters, top_k)

    async def nearest_tools(self, text: str, count: int) -> list[str]:
        """By the vector alone, for those who measure; nothing without a model."""
        query = await self.query(text)
        return await self._tools.nearest(query, count) if query.space else []

    async def query(self, text: str) -> Query:
        if self._ready:
            await self._ready()
        texts = search.texts_of(text)
        vectors = await self._embedded(texts)
        if vectors is None or self._embedder is None:
            return Query(texts)
        dimensions = vectors.shape[1]
        if self._space is None or self._space.dimensions != dimensions:
            self._space = await indexing.space(self.db, self._embedder.name)
        if self._space is None or self._space.dimensions != dimensions:
            return Query(texts)  # nothing is indexed with this model yet
        return Query(texts, vectors, self._space)

    async def _embedded(self, texts: Sequence[str]) -> Vectors | None:
        """None without a model, and for a while after it has failed: a search is not worth waiting for it each time."""
        now = asyncio.get_running_loop().time()
        if self._embedder is None or now < self._ask_again_at:
            return None
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._embedder.embed(texts)
        except (ProviderError, TimeoutError) as error:
            self._ask_again_at = now + AGAIN_AFTER
            why = str(error) or f"no answer within {PATIENCE:.0f} seconds"
            log.warning("the embedding model failed: for a while, searches go by words alone", error=why)
            return None


@dataclass(frozen=True, slots=True)
class Point:
    """Where a session of a template is: what is open to it now."""

    template: Template
    session: Session
    opening: Opening


def point_of(template: Template, session: Session) -> Point:
    opening = rules.opening_of(session, template, clock.now()) if session.turn else Opening()
    return Point(template, session, opening)


@dataclass(frozen=True, slots=True)
class ToolSearchService:
    catalog: Catalog
    finder: Finder
    taken: Callable[[str, int], Awaitable[Tool | None]] | None = None
    """A version of a tool as it would run here; None where it cannot. Without it, tools are what the catalog says."""

    async def select(  # noqa: PLR0917 - people know it with these, in this order
        self,
        template: Template,
        session: Session,
        query: str,
        top_k: int,
        stage: str | None = None,
        hard_require: Sequence[str] = (),
    ) -> list[ToolDescriptor]:
        """Required tools first, then the best for the query; never more than the policy's cap."""
        cap, point = template.tool_policy.max_tools_in_prompt, point_of(template, session)
        required = await self._active(session, (*template.tool_policy.required, *hard_require))
        ranked = await self._ranked(point, f"{query}\n{stage}" if stage else query, min(top_k, cap))
        permitted = await self._permitted(point, {**ranked, **required})
        best = [name for name in ranked if name in permitted][:top_k]
        chosen = offering.first_few([name for name in required if name in permitted], best, cap)
        return [permitted[name] for name in chosen]

    async def find(self, session: Session, query: str, top_k: int) -> list[ToolDescriptor]:
        """What an agent finds when it looks itself: the best for the query among what it may have."""
        assert session.turn is not None
        template = await self.catalog.templates.find(session.agent, session.turn.version)
        if template is None:
            return []
        point = point_of(template, session)
        ranked = await self._ranked(point, query, top_k)
        permitted = await self._permitted(point, ranked)
        return [permitted[name] for name in ranked if name in permitted][:top_k]

    async def get_tools_for_step(
        self, template: Template, session: Session, *, hard_require: Sequence[str] = ()
    ) -> list[ToolDescriptor]:
        """What the template's strategy offers in this step; `hard_require` is what the agent itself has found."""
        policy, cap = template.tool_policy, template.tool_policy.max_tools_in_prompt
        point = point_of(template, session)
        required = await self._active(session, (*policy.required, *hard_require))
        if policy.selection_strategy == "static" or _names_few(template):
            required |= await self._active(session, policy.named)
            permitted = await self._permitted(point, required)
            return list(permitted.values())[:cap]
        query = offering.query_of(session, rules.stage(session, template))
        ranked = await self._ranked(point, query, cap)
        before = await self._active(session, [ref.rpartition("@")[0] for ref in session.offered])
        permitted = await self._permitted(point, {**before, **ranked, **required})
        needed = [name for name in required if name in permitted]
        best = [name for name in ranked if name in permitted]
        if policy.selection_strategy == "retrieval_per_step":
            chosen = offering.first_few(needed, best, cap)
        else:
            kept = [name for name in before if name in permitted]
            chosen = offering.sticky(kept, needed, best, offering.used_tools(session), cap)
        return [permitted[name] for name in chosen]

    async def _ranked(self, point: Point, query: str, top_k: int) -> dict[str, int]:
        """Name -> active version, the best first."""
        policy = point.template.tool_policy
        hits = await self.finder.tools(query, filters_of(point), top_k + SPARE)
        if hits or policy.allowlist is None:
            return {hit.name: hit.version for hit in hits}
        # Nothing is indexed yet, or nothing fits: what the policy names is better than nothing.
        return await self._active(point.session, policy.named)

    async def _active(self, session: Session, names: Sequence[str]) -> dict[str, int]:
        return await self.catalog.active_tools(names, session.owner) if names else {}

    async def _permitted(self, point: Point, versions: Mapping[str, int]) -> dict[str, ToolDescriptor]:
        """What may be offered now, in the versions that the turn began with.

        The index may be a moment old, so all is checked again.
        """
        pinned, permission = offering.pins(point.session), Permission(point.template, point.session)
        found = await self.catalog.tools.several({name: pinned.get(name, v) for name, v in versions.items()})
        return {one.name: one for one in found if permission.covers(one) and await self._is_open(point, one)}

    async def _is_open(self, point: Point, one: ToolDescriptor) -> bool:
        # What a remote tool is, its description says; the others are what they are bound to.
        if self.taken is None or one.runtime_binding.remote_endpoint:
            return point.opening.is_wide or point.opening.leaves(one.tool)
        tool = await self.taken(one.name, one.version)
        return tool is not None and point.opening.leaves(tool)


def filters_of(point: Point) -> Filters:
    """The template's policy for one session: who asks, what the agents above may not use, what is closed now."""
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


def policy_filters(template: Template) -> Filters:
    """The template's policy, as far as search can apply it before it ranks."""
    policy = template.tool_policy
    return Filters(
        allow=policy.allowlist,
        deny=policy.denylist,
        types=policy.tool_types,
        tags=policy.tags,
        max_risk=policy.max_risk_level,
        template=template.name,
    )


def _names_few(template: Template) -> bool:
    """Does the policy name all the tools there are for it, and no more than may be offered?"""
    policy = template.tool_policy
    is_plain = policy.allowlist is not None and not any(name.endswith(".*") for name in policy.named)
    return is_plain and len(policy.named) <= policy.max_tools_in_prompt
