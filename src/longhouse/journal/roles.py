"""The roles of tools: code asks which role a call has, and never what its tool is called."""

from collections.abc import Mapping
from typing import Final, Literal

Role = Literal["", "finishes", "asks", "reasons", "plans", "searches", "collects", "reports"]
"""Empty: the tool does work of its own that nothing else depends on."""

ROLES: Final[Mapping[str, Role]] = {
    "finalanswertool": "finishes",
    "clarificationtool": "asks",
    "reasoningtool": "reasons",
    "generateplantool": "plans",
    "websearchtool": "searches",
    "collecttool": "collects",
    "createreporttool": "reports",
}
"""Tool -> its role, for calls that were recorded without one, as earlier releases did. A tool that is published under
one of these names takes over its role."""
FORM: Final = frozenset({"finishes", "reasons"})
"""Roles of tools by which an agent thinks and answers: their calls are form, not work."""


def role_of(tool: str) -> Role:
    return ROLES.get(tool, "")


def tools_of(role: Role) -> tuple[str, ...]:
    """The names in `ROLES` that have this role."""
    return tuple(name for name, its in ROLES.items() if its == role)
