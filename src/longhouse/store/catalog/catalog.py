"""The catalog of tools and templates: active versions that an owner may see, security overlays, rate limits."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from longhouse.agents import delegation, tool_descriptor
from longhouse.agents.naming import AGENT_PREFIX
from longhouse.agents.strategies.one_call import ONE_CALL
from longhouse.agents.template import AUTO, Template
from longhouse.agents.tool_descriptor import SecurityOverlay, ToolDescriptor
from longhouse.store.catalog.overlays import Overlaid, Overlays
from longhouse.store.catalog.publish import ANY, PublishTerms
from longhouse.store.catalog.repository import VersionRepository
from longhouse.store.database import Database, Executor, Transaction

BUILT_IN: Final = "longhouse"
"""The publisher name of built-in tools and templates."""
MOST_SERVED: Final = 1000
FILES: Final = "files"
"""The publisher name of tools and templates from configuration files."""

OWNERS: Final = """
    SELECT name, active, owner FROM catalog_names
    WHERE kind = 'template' AND name = ANY(:names) AND active IS NOT NULL ORDER BY name
"""

_VISIBLE: Final = "kind = 'tool' AND active IS NOT NULL AND (owner IS NULL OR owner = :owner)"
# Name by name: among a thousand tools the planner would rather read them all. LIMIT keeps it from joining otherwise.
ACTIVE_NAMES: Final = f"""
    SELECT n.name, n.active FROM unnest(:names::text[]) AS asked (name)
    CROSS JOIN LATERAL (SELECT name, active FROM catalog_names WHERE {_VISIBLE} AND name = asked.name LIMIT 1) n
"""
# A prefix as a range that the primary key's index serves ("C" collation).
ACTIVE_RANGE: Final = f"""
    SELECT name, active FROM catalog_names WHERE {_VISIBLE} AND name >= :prefix AND name < :prefix || U&'\\FFFF'
    ORDER BY name LIMIT :limit
"""

SERVED: Final = f"""
    SELECT name, active FROM catalog_names n WHERE {_VISIBLE} AND EXISTS (
        SELECT FROM catalog_versions v WHERE v.kind = n.kind AND v.name = n.name AND v.version = n.active
        AND coalesce(
            v.descriptor ->> 'serve_over_mcp', v.descriptor -> 'runtime_binding' ->> 'python_entrypoint', 'false'
        ) <> 'false'
    )
    ORDER BY name LIMIT :limit
"""

# Name and entrypoint of the active tools and agents whose classes are code.
ENTRYPOINTS: Final = """
    SELECT n.name, coalesce(
        v.descriptor -> 'runtime_binding' ->> 'python_entrypoint', v.descriptor ->> 'base_agent_class'
    ) AS entrypoint
    FROM catalog_names n JOIN catalog_versions v ON (v.kind, v.name, v.version) = (n.kind, n.name, n.active)
    WHERE v.descriptor -> 'runtime_binding' ->> 'python_entrypoint' IS NOT NULL
    OR v.descriptor ->> 'base_agent_class' LIKE '%:%'
    ORDER BY n.name
"""

# Also inactive and retired names: a name that once existed is not a typing error.
THERE: Final = """
    SELECT name FROM catalog_names WHERE kind = 'tool' AND name = ANY(:names) AND (owner IS NULL OR owner = :owner)
"""

# The letters are those of `naming.letters`.
SPELLED: Final = """
    SELECT name FROM catalog_names
    WHERE kind = 'tool' AND translate(lower(name), '_-', '') = ANY(:letters) AND (owner IS NULL OR owner = :owner)
"""

USE: Final = """
    INSERT INTO tool_uses AS t (owner, tool, minute, used) VALUES (:owner, :tool, date_trunc('minute', now()), 1)
    ON CONFLICT (owner, tool, minute) DO UPDATE SET used = t.used + 1 WHERE t.used < :per_minute
    RETURNING true
"""
COULD_USE: Final = """
    SELECT NOT EXISTS (
        SELECT FROM tool_uses
        WHERE owner = :owner AND tool = :tool AND minute = date_trunc('minute', now()) AND used >= :per_minute
    )
"""
FORGET_USES: Final = "DELETE FROM tool_uses WHERE minute < now() - interval '2 minutes'"


class Templates(VersionRepository[Template]):
    """Versions of templates; each has a tool `agent.<name>`, by which other agents find and call it."""

    def __init__(
        self, db: Database, tools: VersionRepository[ToolDescriptor], complete: Callable[[Template], Template]
    ) -> None:
        super().__init__(db, "template", Template, complete, digested=_digested_template, to_row=_row_of_template)
        self._tools = tools

    async def find(self, name: str, version: int | None = None, *, owner: str | None = None) -> Template | None:
        """Also the template of direct calls, which is published nowhere."""
        return ONE_CALL if name == ONE_CALL.name else await super().find(name, version, owner=owner)

    async def deactivate(self, name: str, *, retire: bool = False) -> bool:
        done = await super().deactivate(name, retire=retire)
        if done:
            await self._tools.deactivate(f"{AGENT_PREFIX}{name}", retire=retire)
        return done

    async def _activated(self, tx: Transaction, names: set[str], terms: PublishTerms = ANY) -> None:
        rows = await tx.rows(OWNERS, names=list(names)) if names else []
        owners = {row["name"]: row["owner"] for row in rows}
        templates = await self.several({row["name"]: int(row["active"]) for row in rows}, tx)
        tools = [delegation.as_tool(replace(one, owner=owners[one.name])) for one in templates]
        # Terms that protect other publishers' templates protect the tools `agent.<name>` in the same way.
        over = ANY if terms.over is None else PublishTerms(over=(BUILT_IN,))
        await self._tools.publish(tools, by=BUILT_IN, terms=over, tx=tx)


def _digested_template(content: dict[str, Any]) -> dict[str, Any]:
    # Digests leave defaults out, and this one was another number in earlier releases: versions with it are others.
    return {**content, "tool_policy": {"max_tools_in_prompt": AUTO, **content.get("tool_policy", {})}}


def _row_of_template(content: dict[str, Any]) -> dict[str, Any]:
    # Earlier releases do not know `auto`; they take their own default for what is left out.
    policy = {name: value for name, value in content["tool_policy"].items() if value != AUTO}
    return {**content, "tool_policy": policy}


class Catalog:
    """Tools and templates. `model` is the default for templates that name no model."""

    def __init__(self, db: Database, *, model: str | None = None) -> None:
        self.db = db
        self.overlays = Overlays(db)
        self.is_served: Callable[[ToolDescriptor], Awaitable[bool]] = _says_so
        """Whether a tool is served over MCP: where its descriptor does not say, who can load its class is asked."""
        # A tool's descriptor may leave fields unset, which its class then decides.
        self.tools: VersionRepository[ToolDescriptor] = VersionRepository(
            db,
            "tool",
            ToolDescriptor,
            digested=tool_descriptor.comparable,
            to_row=tool_descriptor.to_row,
            from_row=tool_descriptor.from_row,
        )
        self.templates = Templates(db, self.tools, lambda one: _with_model(one, model))

    async def active_tools(self, names: Iterable[str], owner: str) -> dict[str, int]:
        """Name -> active version, of the tools that this owner may see; in the order asked, `<prefix>.*` expanded.

        A tool that an operator has switched off is left out, whichever version is active.
        """
        found = await active_versions(self.db, list(names), owner)
        await self.overlays.refresh()
        return self.overlays.without_off(found)

    async def described(self, versions: Mapping[str, int]) -> list[ToolDescriptor]:
        """These versions in the order asked, with their security overlays applied; without tools switched off."""
        await self.overlays.refresh()
        found = await self.tools.several(self.overlays.without_off(versions))
        return [over.over(one) if (over := self.overlays.of(one.name)) else one for one in found]

    async def served_tools(self, owner: str, *, names: Collection[str] | None = None) -> list[ToolDescriptor]:
        """The tools that this owner's clients may call directly; all of them by name, or those among `names`."""
        if names is None:
            versions: Mapping[str, int] = dict(await self.db.rows(SERVED, owner=owner, limit=MOST_SERVED))
        else:
            versions = await active_versions(self.db, [name for name in names if not name.endswith(".*")], owner)
        direct = [tool for tool in await self.described(versions) if _may_be_direct(tool)]
        return [tool for tool in direct if await self.is_served(tool)]

    async def overlay(self, name: str, overlay: SecurityOverlay, *, seen: Overlaid | None, by: str) -> None:
        """Sets an operator's security overlay on a tool; it holds for every version."""
        await self.overlays.set(name, overlay, seen=seen, by=by)
        self.tools.changes += 1

    async def switched_off(self, names: Iterable[str], owner: str) -> set[str]:
        """The tools among these that this owner may see but that are not active, or are switched off."""
        existing = await self.existing_tools([name for name in names if not name.endswith(".*")], owner)
        return existing - (await self.active_tools(existing, owner)).keys()

    async def existing_tools(self, names: Collection[str], owner: str) -> set[str]:
        """The tools among these that this owner may see, active or not."""
        return set(await self.db.column(THERE, names=[*names], owner=owner)) if names else set()

    async def spelled_tools(self, letters: Collection[str], owner: str) -> set[str]:
        """The tools that this owner may see whose names have these letters, in whichever spelling; active or not."""
        return set(await self.db.column(SPELLED, letters=[*letters], owner=owner)) if letters else set()

    async def may_use(self, owner: str, tool: str, per_minute: int) -> bool:
        """Counts one use of a tool with a rate limit; False when the limit of this minute is reached."""
        return bool(await self.db.value(USE, owner=owner, tool=tool, per_minute=per_minute))

    async def could_use(self, owner: str, tool: str, per_minute: int) -> bool:
        """Whether the limit of this minute allows one more use; it is not counted."""
        return bool(await self.db.value(COULD_USE, owner=owner, tool=tool, per_minute=per_minute))

    async def forget_uses(self) -> None:
        await self.db.run(FORGET_USES)


async def active_versions(
    db: Executor, names: Sequence[str], owner: str | None, limit: int | None = None
) -> dict[str, int]:
    """Name -> active version, of the tools that this owner may see, in the order asked; `<prefix>.*` is expanded.

    With `limit`, the first ones.
    """
    plain = [name for name in names if not name.endswith(".*")]
    found = dict(await db.rows(ACTIVE_NAMES, names=plain, owner=owner)) if plain else {}
    versions: dict[str, int] = {}
    for name in names:
        if name in found:
            versions[name] = found[name]
        elif name.endswith(".*"):
            versions |= dict(await db.rows(ACTIVE_RANGE, prefix=name[:-1], owner=owner, limit=limit))
    return dict(islice(versions.items(), limit))


async def _says_so(tool: ToolDescriptor) -> bool:
    return bool(tool.serve_over_mcp)


def _may_be_direct(tool: ToolDescriptor) -> bool:
    """Whether the tool is not kept for the agents of some templates."""
    templates = tool.security_policy.allow.templates
    return templates is None or ONE_CALL.name in templates


def _with_model(template: Template, model: str | None) -> Template:
    policy = template.llm_policy
    return replace(template, llm_policy=replace(policy, model=policy.model or model))
