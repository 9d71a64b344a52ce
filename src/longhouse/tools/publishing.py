"""Puts what this process brings with it into the catalog. Content that was published before changes nothing."""

from collections.abc import Iterable, Sequence

from longhouse.agents.template import Template
from longhouse.store.catalog import Catalog
from longhouse.tools.toolbox import BaseTool

BUILT_IN = "longhouse"
"""Who published what the program itself brings."""


async def publish_classes(catalog: Catalog, classes: Iterable[type[BaseTool]]) -> None:
    await catalog.tools.publish([cls.descriptor() for cls in classes], by=BUILT_IN, again=False)


async def publish_templates(catalog: Catalog, templates: Sequence[Template], *, by: str = BUILT_IN) -> None:
    await catalog.templates.publish(templates, by=by, again=False)
