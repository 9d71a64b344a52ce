"""Publishes the process's own tools and templates. Content that was published before changes nothing."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from longhouse.agents.template import Template
from longhouse.agents.tool_descriptor import DEFAULTS, ToolDescriptor
from longhouse.store.catalog.catalog import BUILT_IN, Catalog
from longhouse.store.catalog.publish import Published, PublishTerms
from longhouse.tools.base import BaseTool

FILES: Final = "files"
"""The publisher of templates from configuration files."""


async def publish_classes(catalog: Catalog, classes: Iterable[type[BaseTool]]) -> None:
    given = [_without_defaults(cls.descriptor()) for cls in classes]
    terms = PublishTerms(over=(BUILT_IN,), keep_owner={one.name for one in given})
    await catalog.tools.publish(given, by=BUILT_IN, again=False, terms=terms)


def _without_defaults(own: ToolDescriptor) -> ToolDescriptor:
    """The descriptor without default values: the class provides them, and earlier releases published this form."""
    unset: dict[str, Any] = {name: None for name, value in DEFAULTS.items() if getattr(own, name) == value}
    return replace(own, **unset)


async def publish_templates(
    catalog: Catalog, templates: Sequence[Template], *, touched: Collection[str] = ()
) -> list[Published]:
    """Publishes built-in templates and those of files; `touched` are the names that files have defined or changed.

    A template that differs from the last one of the files becomes active, even if an earlier version was the same. An
    unchanged one leaves the catalog alone, whatever version is active now. Built-in templates replace only versions
    that were published by files or by the program.
    """
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
        # Neither files nor the program can make a template public: they can only name its owner.
        terms = PublishTerms(
            over=None if over_all else (BUILT_IN, FILES), keep_owner={one.name for one in group if one.owner is None}
        )
        done = await catalog.templates.publish(group, by=by, again=again, terms=terms)
        published |= {one.name: one for one in done}
    return [published[one.name] for one in templates]
