"""Puts what this process brings with it into the catalog. Content that was published before changes nothing."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from longhouse.agents.template import Template
from longhouse.agents.tool_descriptor import DEFAULTS, ToolDescriptor
from longhouse.store.catalog.catalog import BUILT_IN, Catalog
from longhouse.store.catalog.publish import Published, Terms
from longhouse.tools.base import BaseTool

FILES: Final = "files"
"""Who published what the files of a process say."""


async def publish_classes(catalog: Catalog, classes: Iterable[type[BaseTool]]) -> None:
    given = [_quiet(cls.descriptor()) for cls in classes]
    terms = Terms(over=(BUILT_IN,), keep_owner={one.name for one in given})
    await catalog.tools.publish(given, by=BUILT_IN, again=False, terms=terms)


def _quiet(own: ToolDescriptor) -> ToolDescriptor:
    """Without what a class has not changed: it says that itself, and an older release has published it so."""
    unsaid: dict[str, Any] = {name: None for name, value in DEFAULTS.items() if getattr(own, name) == value}
    return replace(own, **unsaid)


async def publish_templates(
    catalog: Catalog, templates: Sequence[Template], *, touched: Collection[str] = ()
) -> list[Published]:
    """`touched` are those that files have made or changed. What files say anew becomes active, also if it was said
    before; what they still say stays as it is in the catalog, whatever somebody has made active since. What the
    program brings replaces only what files or the program brought."""
    last = await catalog.templates.last_by([one.name for one in templates], (BUILT_IN, FILES))
    groups: dict[tuple[str, bool, bool], list[Template]] = {}
    for one in templates:
        by = FILES if one.name in touched else BUILT_IN
        digest, owner, before = last.get(one.name, ("", None, ""))
        is_anew = digest != catalog.templates.digest(one)
        is_other = is_anew or one.owner not in (None, owner)
        key = (by, is_other and FILES in (by, before), by == FILES and is_anew)
        groups.setdefault(key, []).append(one)
    published: dict[str, Published] = {}
    for (by, again, over_all), group in groups.items():
        # Neither a file nor the program can say that something is everybody's: only who it belongs to.
        terms = Terms(
            over=None if over_all else (BUILT_IN, FILES), keep_owner={one.name for one in group if one.owner is None}
        )
        done = await catalog.templates.publish(group, by=by, again=again, terms=terms)
        published |= {one.name: one for one in done}
    return [published[one.name] for one in templates]
