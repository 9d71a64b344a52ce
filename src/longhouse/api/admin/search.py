"""Search routes for operators: ranked results of a query, with the score of each search method."""

from typing import Annotated, TypedDict

from msgspec.structs import replace
from pydantic import Field

from longhouse.api import auth, pagination, wire
from longhouse.api.admin import docs
from longhouse.api.http.json_route import of_app, refuses, strict_router
from longhouse.api.pagination import Page
from longhouse.search.directory import AgentDirectory, AgentHit
from longhouse.search.finder import Finder, SearchHit
from longhouse.search.selection import policy_filters
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.search.query import SearchFilters


class SearchRequest(wire.StrictModel):
    query: str = Field(min_length=1, max_length=10_000)
    top_k: int = Field(default=10, ge=1, le=100)
    template: str | None = Field(default=None, max_length=160)
    """Search with the policy of this template."""
    stage: str | None = Field(default=None, max_length=64, deprecated=True)
    """Has no effect: the stage is no longer part of the search."""
    owner: str | None = Field(default=None, max_length=128)
    """Search what this owner may see; without an owner, what is public."""


class Legs(TypedDict):
    """The score of each search method."""

    lexical: float
    semantic: float | None
    clause: float | None


class FoundTool(TypedDict):
    name: str
    version: int
    score: float
    legs: Legs


class AgentLegs(TypedDict):
    own: SearchHit | None
    """By its own text."""
    tool: SearchHit | None
    """By its best tool."""


class FoundAgent(TypedDict):
    name: str
    version: int
    score: float
    confidence: float
    legs: AgentLegs


EXAMPLE = wire.example(query="send an e-mail to the customer", top_k=5)
LEGS = {"lexical": 1.0, "semantic": 0.84, "clause": 0.0}
FOUND = {"name": "send_mail", "version": 1, "score": 0.92}
TOOL = {**FOUND, "legs": LEGS}
BY_TOOL = {"own": None, "tool": {**FOUND, **LEGS}}
AGENT = {"name": "postmaster", "version": 2, "score": 0.8, "confidence": 0.7, "legs": BY_TOOL}

router = strict_router("Admin", auth.admin)
TheFinder = Annotated[Finder, of_app("finder")]


@router.post(
    "/admin/tools/search",
    openapi_extra=EXAMPLE,
    responses={200: docs.listed("Tools, best first.", TOOL), **refuses(404)},
)
async def search_tools(
    catalog: Annotated[Catalog, of_app("catalog")], finder: TheFinder, asked: SearchRequest
) -> wire.Json[Page[FoundTool]]:
    """Tools ranked for a query, with the score of each search method."""
    filters = await _filters(catalog, asked)
    return wire.Json(pagination.page([_tool(hit) for hit in await finder.tools(asked.query, filters, asked.top_k)]))


@router.post(
    "/admin/directory/search", openapi_extra=EXAMPLE, responses={200: docs.listed("Agents, best first.", AGENT)}
)
async def search_directory(finder: TheFinder, asked: SearchRequest) -> wire.Json[Page[FoundAgent]]:
    """Agents ranked for a query, by their own text and by their best tools."""
    hits = await AgentDirectory(finder).search(asked.query, asked.top_k, owner=asked.owner)
    return wire.Json(pagination.page([_agent(hit) for hit in hits]))


async def _filters(catalog: Catalog, asked: SearchRequest) -> SearchFilters:
    if asked.template is None:
        return SearchFilters(caller=asked.owner)
    template = await catalog.templates.find(asked.template)
    if template is None:
        raise wire.not_found(f"There is no active template {asked.template[:100]!r}.", code="template_not_found")
    return replace(policy_filters(template), caller=asked.owner)


def _tool(hit: SearchHit) -> FoundTool:
    return wire.body_of(FoundTool, hit, legs=wire.body_of(Legs, hit))


def _agent(hit: AgentHit) -> FoundAgent:
    return wire.body_of(FoundAgent, hit, legs=wire.body_of(AgentLegs, hit))
