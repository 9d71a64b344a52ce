"""The templates that this process knows, each in its versions."""

from collections.abc import Iterable
from typing import Final

from longhouse.agents.template import Template

BUILT_IN: Final = (Template(name="tool_calling_agent", tools=("clarificationtool", "finalanswertool", "clocktool")),)


class Catalog:
    def __init__(self, templates: Iterable[Template] = BUILT_IN) -> None:
        self._versions = {(template.name, template.version): template for template in templates}
        self._active: dict[str, Template] = {}
        for template in self._versions.values():
            if template.version >= self._active.get(template.name, template).version:
                self._active[template.name] = template

    def templates(self) -> list[Template]:
        return list(self._versions.values())

    def names(self) -> list[str]:
        return list(self._active)

    def active(self, name: str) -> Template | None:
        return self._active.get(name)

    def find(self, name: str, version: int | None = None) -> Template | None:
        """The named version, or the active one."""
        return self.active(name) if version is None else self._versions.get((name, version))
