"""Search explained: what would be found for a query, and what each leg has to say about it."""

from dataclasses import asdict, replace
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field, StrictStr

from longhouse.api import auth, wire
from longhouse.api import pagination as query
from longhouse.api.admin import docs
from longhouse.search.directory import AgentDirectory, AgentHit
from longhouse.search.finder import Hit
from longhouse.search.selection import Finder, policy_filters
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.search.query import Filters


class Asked(wire.Strict):
    query: StrictStr = Field(min_length=1, max_length=10_000)
    top_k: int = Field(default=10, ge=1, le=100, strict=True)
    template: StrictStr | None = Field(default=None, max_length=160)
    """As an agent of this template would find them, by its policy."""
    stage: StrictStr | None = Field(default=None, max_length=64, deprecated=True)
    """Changes nothing any more: the word of a stage is not searched for."""
    owner: StrictStr | None = Field(default=None, max_length=128)
    """What this owner may see; without one, what everybody may."""


EXAMPLE = {"query": "send an e-mail to the customer", "top_k": 5}
LEGS = {"lexical": 1.0, "semantic": 0.84, "clause": 0.0}
FOUND = {"name": "send_mail", "version": 1, "score": 0.92}
TOOL = {**FOUND, "legs": LEGS}
BY_TOOL = {"own": None, "tool": {**FOUND, **LEGS}}
AGENT = {"name": "postmaster", "version": 2, "score": 0.8, "confidence": 0.7, "legs": BY_TOOL}


def routes(catalog: Catalog, finder: Finder) -> APIRouter:
    router = APIRouter(tags=["Admin"], dependencies=[Depends(auth.admin), Depends(query.none)])

    @router.post(
        "/admin/tools/search",
        response_model=None,
        openapi_extra=wire.described(Asked, **EXAMPLE),
        responses={200: docs.answer("Tools, the best first.", docs.page(TOOL))},
    )
    async def search_tools(request: Request) -> Response:
        """Tools ranked for a query, with the score of each leg."""
        asked = wire.parse(Asked, await wire.read_body(request))
        filters = await _filters(catalog, asked)
        hits = await finder.tools(asked.query, filters, asked.top_k)
        return wire.Json({"object": "list", "data": [_tool(hit) for hit in hits], "has_more": False, "next": None})

    @router.post(
        "/admin/directory/search",
        response_model=None,
        openapi_extra=wire.described(Asked, **EXAMPLE),
        responses={200: docs.answer("Agents, the best first.", docs.page(AGENT))},
    )
    async def search_directory(request: Request) -> Response:
        """Agents ranked for a query, by their own text and by the best of their tools."""
        asked = wire.parse(Asked, await wire.read_body(request))
        hits = await AgentDirectory(finder).search(asked.query, asked.top_k, owner=asked.owner)
        return wire.Json({"object": "list", "data": [_agent(hit) for hit in hits], "has_more": False, "next": None})

    return router


async def _filters(catalog: Catalog, asked: Asked) -> Filters:
    if asked.template is None:
        return Filters(caller=asked.owner)
    template = await catalog.templates.find(asked.template)
    if template is None:
        raise wire.not_found(f"There is no active template {asked.template[:100]!r}.", code="template_not_found")
    return replace(policy_filters(template), caller=asked.owner)


def _tool(hit: Hit) -> dict[str, Any]:
    legs = {"lexical": hit.lexical, "semantic": hit.semantic, "clause": hit.clause}
    return {"name": hit.name, "version": hit.version, "score": hit.score, "legs": legs}


def _agent(hit: AgentHit) -> dict[str, Any]:
    return {
        "name": hit.name,
        "version": hit.version,
        "score": hit.score,
        "confidence": hit.confidence,
        "legs": {"own": asdict(hit.own) if hit.own else None, "tool": asdict(hit.tool) if hit.tool else None},
    }
