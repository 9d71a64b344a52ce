"""What the name of a model stands for: an agent, or one version of it."""

from longhouse.agents.template import Template
from longhouse.store.catalog.catalog import Catalog


async def find_template(catalog: Catalog, model: str, owner: str) -> tuple[Template, int | None] | None:
    """The template that `agent` or `agent@version` names, and the version, if it is named; None: there is none."""
    name, _, version = model.partition("@")
    template = await catalog.templates.find(name, owner=owner)
    if not version:
        return (template, None) if template else None
    if template is None or not (version.isascii() and version.isdecimal() and len(version) < 10):
        return None
    template = await catalog.templates.find(name, int(version))
    return (template, int(version)) if template else None
