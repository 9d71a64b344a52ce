"""Puts what this process brings with it into the catalog. Content that was published before changes nothing."""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from longhouse.agents.template import Template
from longhouse.store.catalog import BUILT_IN, Catalog
from longhouse.store.shelf import Published
from longhouse.tools.toolbox import BaseTool

FILES: Final = "files"
"""Who published what the files of a process say."""


async def publish_classes(catalog: Catalog, classes: Iterable[type[BaseTool]]) -> None:
    await catalog.tools.publish([cls.descriptor() for cls in classes], by=BUILT_IN, again=False)


async def publish_templates(
    catalog: Catalog, templates: Sequence[Template], *, touched: Collection[str] = ()
) -> list[Published]:
    """`touched` are those that files have made or changed. What files say anew becomes active, also if it was said
    before; what they still say stays as it is in the catalog, whatever somebody has made active since."""
    last = await catalog.templates.last_by([one.name for one in templates], (BUILT_IN, FILES))
    groups: dict[tuple[str, bool], list[Template]] = {}
    for one in templates:
        by = FILES if one.name in touched else BUILT_IN
        digest, owner, before = last.get(one.name, ("", None, ""))
        is_other = (digest, owner) != (catalog.templates.digest(one), one.owner)
        groups.setdefault((by, is_other and FILES in (by, before)), []).append(one)
    published: dict[str, Published] = {}
    for (by, again), group in groups.items():
        published |= {one.name: one for one in await catalog.templates.publish(group, by=by, again=again)}
    return [published[one.name] for one in templates]
