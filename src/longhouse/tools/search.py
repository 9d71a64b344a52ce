"""The few tools worth offering now, out of however many there are."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from longhouse.agents import offering, rules
from longhouse.agents.descriptor import RISKS, ToolDescriptor
from longhouse.agents.template import Template
from longhouse.errors import ProviderError
from longhouse.journal.events import Rights
from longhouse.journal.session import Session
from longhouse.models.model import Embedder
from longhouse.store import indexing, search
from longhouse.store.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.search import Filters, Hit, Query, Search
from longhouse.store.vectors import Space
from longhouse.tools.offering import permits

log = structlog.get_logger()

SPARE: Final = 4
"""Search finds so many more than are offered: the catalog may have changed since it was indexed."""


class Finder:
    """Asks the index in words and, where there is a model for them, in vectors."""

    def __init__(
        self, db: Database, embedder: Embedder | None, ready: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self.db = db
        self._ready = ready
        self._tools, self._templates = Search(db, "tool"), Search(db, "template")
        self._embedder = embedder
        self._space: Space | None = None

    async def tools(self, text: str, filters: Filters, top_k: int) -> list[Hit]:
        return await self._tools.find(await self.query(text), filters, top_k)

    async def templates(self, text: str, filters: Filters, top_k: int) -> list[Hit]:
        return await self._templates.find(await self.query(text), filters, top_k)

    async def nearest_tools(self, text: str, count: int, *, exact: bool = False) -> list[str]:
        """By the vector alone, for those who measure; nothing without a model."""
        query = await self.query(text)
        return await self._tools.nearest(query, count, exact=exact) if query.space else []

    async def query(self, text: str) -> Query:
        if self._ready:
            await self._ready()
        texts = search.texts_of(text)
        if self._embedder is None:
            return Query(texts)
        self._space = self._space or await indexing.space(self.db, self._embedder.name)
        if self._space is None:
            return Query(texts)
        try:
            vectors = await self._embedder.embed(texts)
        except ProviderError as error:
            log.warning("the embedding model failed: this search goes by words alone", error=str(error))
            return Query(texts)
        return Query(texts, vectors, self._space)


@dataclass(frozen=True, slots=True)
class ToolSearchService:
    catalog: Catalog
    finder: Finder

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
        cap = template.tool_policy.max_tools_in_prompt
        required = await self._active(session, (*template.tool_policy.required, *hard_require))
        ranked = await self._ranked(template, session, f"{query}\n{stage}" if stage else query, min(top_k, cap))
        permitted = await self._permitted(template, session, {**ranked, **required})
        best = [name for name in ranked if name in permitted][:top_k]
        names = offering.first_few([name for name in required if name in permitted], best, cap)
        return [permitted[name] for name in names]

    async def find(self, session: Session, query: str, top_k: int) -> list[ToolDescriptor]:
        """What an agent finds when it looks itself: the best for the query among what it may have."""
        assert session.turn is not None
        template = await self.catalog.templates.find(session.agent, session.turn.version)
        if template is None:
            return []
        ranked = await self._ranked(template, session, query, top_k)
        permitted = await self._permitted(template, session, ranked)
        return [permitted[name] for name in ranked if name in permitted][:top_k]

    async def get_tools_for_step(
        self, template: Template, session: Session, *, hard_require: Sequence[str] = ()
    ) -> list[ToolDescriptor]:
        """What the template's strategy offers in this step; `hard_require` is what the agent itself has found."""
        policy, cap = template.tool_policy, template.tool_policy.max_tools_in_prompt
        required = await self._active(session, (*policy.required, *hard_require))
        if policy.selection_strategy == "static" or _names_few(template):
            required |= await self._active(session, policy.named)
            permitted = await self._permitted(template, session, required)
            return list(permitted.values())[:cap]
        query = offering.query_of(session, rules.stage(session, template))
        ranked = await self._ranked(template, session, query, cap)
        before = await self._active(session, [ref.rpartition("@")[0] for ref in session.offered])
        permitted = await self._permitted(template, session, {**before, **ranked, **required})
        needed = [name for name in required if name in permitted]
        best = [name for name in ranked if name in permitted]
        if policy.selection_strategy == "retrieval_per_step":
            names = offering.first_few(needed, best, cap)
        else:
            kept = [name for name in before if name in permitted]
            names = offering.sticky(kept, needed, best, offering.used_tools(session), cap)
        return [permitted[name] for name in names]

    async def _ranked(self, template: Template, session: Session, query: str, top_k: int) -> dict[str, int]:
        """Name -> active version, the best first."""
        hits = await self.finder.tools(query, filters_of(template, session), top_k + SPARE)
        if hits or template.tool_policy.allowlist is None:
            return {hit.name: hit.version for hit in hits}
        # Nothing is indexed yet, or nothing fits: what the policy names is better than nothing.
        return await self._active(session, template.tool_policy.named)

    async def _active(self, session: Session, names: Sequence[str]) -> dict[str, int]:
        return await self.catalog.active_tools(names, session.owner) if names else {}

    async def _permitted(
        self, template: Template, session: Session, versions: Mapping[str, int]
    ) -> dict[str, ToolDescriptor]:
        """In the versions that the turn began with; the index may be a moment old, so all is checked again."""
        pinned = offering.pins(session)
        found = await self.catalog.tools.several({name: pinned.get(name, v) for name, v in versions.items()})
        return {one.name: one for one in found if permits(template, one, session)}


def filters_of(template: Template, session: Session) -> Filters:
    """The template's policy for one session: who asks, and what the agents above may not use."""
    filters = policy_filters(template)
    rights = (session.turn.rights if session.turn else None) or Rights()
    return replace(
        filters,
        caller=session.owner,
        deny=(*filters.deny, *rights.denied),
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
