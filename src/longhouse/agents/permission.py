"""Decides which tools the agents of a template are permitted to use in one session; pure functions."""

from longhouse.agents.naming import NamePatterns
from longhouse.agents.template import Template
from longhouse.agents.tool_descriptor import RISKS, ToolDescriptor
from longhouse.journal.events import Rights
from longhouse.journal.session import Session


def differs_by(session: Session) -> tuple[Rights | None, bool]:
    """What decides, besides the template, which tools a session may use."""
    return session.turn.rights if session.turn else None, session.side == "sub"


class Permission:
    """The tools that the agents of a template may use in one session; created once, checked for many tools."""

    def __init__(self, template: Template, session: Session) -> None:
        inherited, self._is_sub = differs_by(session)
        policy, rights = template.tool_policy, inherited or Rights()
        self._template = template.name
        self._required = NamePatterns(policy.required)
        self._allowed = None if policy.allowlist is None else NamePatterns(policy.allowlist)
        self._denied = NamePatterns((*policy.denylist, *rights.denied))
        self._risk = min(RISKS.index(policy.max_risk_level), RISKS.index(rights.max_risk))
        self._types, self._tags = policy.tool_types, frozenset(policy.tags)

    def permits(self, tool: ToolDescriptor) -> bool:
        allow = tool.security_policy.allow
        if tool.name in self._denied:
            return False
        if allow.templates is not None and self._template not in allow.templates:
            return False
        if self._is_sub and not allow.sub_agents:
            return False
        if RISKS.index(tool.security_policy.risk_level) > self._risk:
            return False
        return tool.name in self._required or self._is_allowed(tool)

    def _is_allowed(self, tool: ToolDescriptor) -> bool:
        if self._allowed is not None and tool.name not in self._allowed:
            return False
        if self._types and tool.type not in self._types:
            return False
        return not self._tags or not self._tags.isdisjoint((*tool.tags, *tool.categories))
