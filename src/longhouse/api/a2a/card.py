"""The agent card of a template: what it can, where it is reached, and how to come in."""

from typing import Any, Final, TypedDict
from urllib.parse import quote

from starlette.types import Scope

import longhouse
from longhouse.agents.template import Template
from longhouse.api.a2a.wire import TEXT
from longhouse.api.http import addresses

VERSIONS: Final = ("1.0", "0.3")
"""Of the protocol, the preferred one first."""
KEY: Final = "api_key"


class AgentInterface(TypedDict):
    url: str
    protocolBinding: str
    protocolVersion: str


class AgentSkill(TypedDict):
    id: str
    name: str
    description: str
    tags: list[str]


class AgentCard(TypedDict):
    """As 1.0 has it, with the fields by which clients of 0.3 find the same."""

    name: str
    description: str
    version: str
    supportedInterfaces: list[AgentInterface]
    capabilities: dict[str, bool]
    defaultInputModes: list[str]
    defaultOutputModes: list[str]
    skills: list[AgentSkill]
    securitySchemes: dict[str, dict[str, Any]]
    securityRequirements: list[dict[str, Any]]
    url: str
    protocolVersion: str
    preferredTransport: str
    security: list[dict[str, list[str]]]


def card_of(template: Template, scope: Scope) -> AgentCard:
    url = f"{addresses.base_of(scope)}/a2a/{quote(template.name)}"
    about = template.multi_agent_meta.capabilities or f"The agent {template.name}."
    tags = list(template.multi_agent_meta.tags)
    scheme = {"scheme": "Bearer", "description": f"An API key of this Longhouse {longhouse.__version__}."}
    return {
        "name": template.name,
        "description": about,
        "version": str(template.version),
        "supportedInterfaces": [
            {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": version} for version in VERSIONS
        ],
        "capabilities": {"streaming": True, "pushNotifications": False, "extendedAgentCard": False},
        "defaultInputModes": [TEXT],
        "defaultOutputModes": [TEXT],
        "skills": [{"id": template.name, "name": template.name, "description": about, "tags": tags}],
        # Clients of 0.3 read the type of a scheme; those of 1.0 read the name of its field.
        "securitySchemes": {KEY: {"type": "http", **scheme, "httpAuthSecurityScheme": scheme}},
        "securityRequirements": [{"schemes": {KEY: {"list": []}}}],
        "url": url,
        "protocolVersion": "0.3.0",
        "preferredTransport": "JSONRPC",
        "security": [{KEY: []}],
    }
