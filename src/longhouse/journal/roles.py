"""The roles of tools: code checks the role of a call, never the name of its tool."""

from collections.abc import Mapping
from typing import Final, Literal

Role = Literal["", "finishes", "asks", "reasons", "plans", "searches", "collects", "reports", "knowledge", "client"]
"""Empty: an ordinary tool, which nothing else depends on; `client`: the client runs it."""

ROLES: Final[Mapping[str, Role]] = {
    "finalanswertool": "finishes",
    "clarificationtool": "asks",
    "reasoningtool": "reasons",
    "generateplantool": "plans",
    "websearchtool": "searches",
    "collecttool": "collects",
    "createreporttool": "reports",
}
"""Tool name -> role, for calls that earlier releases recorded without a role. A tool that is published under one of
these names gets its role."""
FORM: Final = frozenset({"finishes", "reasons"})
"""Roles of the tools that carry reasoning and answers: their calls do not count as work."""


def role_of(tool: str) -> Role:
    return ROLES.get(tool, "")


def tools_of(role: Role) -> tuple[str, ...]:
    """The names in `ROLES` that have this role."""
    return tuple(name for name, its in ROLES.items() if its == role)
