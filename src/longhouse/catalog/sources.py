"""Publishes the process's own tools and templates. Content that was published before changes nothing."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from longhouse.agents.template import Template
from longhouse.agents.tool_descriptor import DEFAULTS, ToolDescriptor
from longhouse.store.catalog.catalog import BUILT_IN, FILES, Catalog
from longhouse.store.catalog.publish import LOCK, Published, PublishTerms
from longhouse.store.catalog.repository import NEVER, T, VersionRepository
from longhouse.store.database import Transaction
from longhouse.tools.base import BaseTool


async def publish_classes(catalog: Catalog, classes: Iterable[type[BaseTool]]) -> None:
    given = [_without_defaults(cls.descriptor()) for cls in classes]
    if await catalog.tools.has(given):
        return  # nothing would change, as at nearly every start
    terms = PublishTerms(over=(BUILT_IN,), keep_owner={one.name for one in given})
    await catalog.tools.publish(given, by=BUILT_IN, again=False, terms=terms)


def _without_defaults(own: ToolDescriptor) -> ToolDescriptor:
    """The descriptor without default values: the class provides them, and earlier releases published this form."""
    unset: dict[str, Any] = {name: None for name, value in DEFAULTS.items() if getattr(own, name) == value}
    return replace(own, **unset)


async def publish_files(
    catalog: Catalog, tools: Sequence[ToolDescriptor], templates: Sequence[Template], *, touched: Collection[str] = ()
) -> tuple[list[Published], list[Published]]:
    """Publishes the tools of files, and the templates, in one transaction: agents never come without their tools.

    `touched`: the templates that files have defined or changed; the others are built in."""

    async def publish(tx: Transaction) -> tuple[list[Published], list[Published]]:
        await tx.lock(*LOCK)
        done = await _publish_changed(catalog.tools, tools, {one.name for one in tools}, tx)
        return done, await _publish_changed(catalog.templates, templates, touched, tx)

    return await catalog.db.together(publish)


async def _publish_changed(
    repository: VersionRepository[T], given: Sequence[T], touched: Collection[str], tx: Transaction
) -> list[Published]:
    """Publishes what files and the program bring.

    What differs from the last one of the files becomes active, even if an earlier version was the same. What is
    unchanged leaves the catalog alone, whatever version is active now. What the program brings replaces only versions
    that were published by files or by the program.
    """
    last = await repository.last_by([one.name for one in given], (BUILT_IN, FILES), tx)
    before = [last.get(one.name, NEVER) for one in given]
    anew = [was.digest != repository.digest(one) for one, was in zip(given, before, strict=True)]
    changed = [
        is_anew or one.owner not in (None, was.owner) for one, was, is_anew in zip(given, before, anew, strict=True)
    ]
    if not any(changed):
        return [Published(was.name, was.version, was.is_active, is_new=False) for was in before]
    groups: dict[tuple[str, bool, bool], list[T]] = {}
    for one, was, is_anew, is_changed in zip(given, before, anew, changed, strict=True):
        by = FILES if one.name in touched else BUILT_IN
        key = (by, is_changed and FILES in (by, was.published_by), by == FILES and is_anew)
        groups.setdefault(key, []).append(one)
    published: dict[str, Published] = {}
    for (by, again, over_all), group in groups.items():
        # Neither files nor the program can make a name public: they can only name its owner.
        terms = PublishTerms(
            over=None if over_all else (BUILT_IN, FILES), keep_owner={one.name for one in group if one.owner is None}
        )
        done = await repository.publish(group, by=by, again=again, terms=terms, tx=tx)
        published |= {one.name: one for one in done}
    return [published[one.name] for one in given]
