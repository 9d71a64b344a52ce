"""A tool or a template as search sees it: texts to be found by, and facts to be filtered by."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from longhouse.agents.schema.describe import parameters
from longhouse.agents.template import SYSTEM_PROMPT
from longhouse.agents.tool_descriptor import RISKS, Allow, SecurityOverlay
from longhouse.search import ranking, tokenizer
from longhouse.search.ranking import Field
from longhouse.store.search.index import Document

RECIPE: Final = 4
"""Counts up when texts are read or weighed in another way: an index that was made in the old way is made again."""
TELLING_TYPES: Final = ("domain", "aux")
"""Types of tools that say what an agent is for; every agent plans, asks, answers and calls others with the rest."""
GIST: Final = 2000
"""Characters that are embedded; a vector of more would be of everything and nothing."""
PROMPT: Final = 500
"""Characters of a prompt that stand in for capabilities: who the agent is comes first, the rules come later."""
MOST_TOOLS: Final = 40
"""Tools whose descriptions are part of a template's text; with more it would say everything."""
MOST_NAMED: Final = 1000
"""Tools by which a template may be found."""
AS_DESCRIBED: Final = SecurityOverlay()


class _Security(msgspec.Struct):
    risk_level: str = "low"
    allow: Allow = msgspec.field(default_factory=Allow)


class ToolFacts(msgspec.Struct):
    """What search reads of a tool's descriptor."""

    name: str
    type: str = "domain"
    tags: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    description_short: str = ""
    description_long: str = ""
    input_schema: dict[str, Any] = msgspec.field(default_factory=dict)
    security_policy: _Security = msgspec.field(default_factory=_Security)


class _Policy(msgspec.Struct):
    required: tuple[str, ...] = ()
    allowlist: tuple[str, ...] | None = None


class _Meta(msgspec.Struct):
    capabilities: str = ""
    tags: tuple[str, ...] = ()


class _Prompts(msgspec.Struct):
    system_prompt: str = ""


class TemplateFacts(msgspec.Struct):
    """What search reads of a template."""

    name: str
    prompt_pack: _Prompts = msgspec.field(default_factory=_Prompts)
    tool_policy: _Policy = msgspec.field(default_factory=_Policy)
    multi_agent_meta: _Meta = msgspec.field(default_factory=_Meta)

    @property
    def named_tools(self) -> tuple[str, ...]:
        """Tools it names; `<server>.*` stands for all of a server."""
        return (*self.tool_policy.required, *(self.tool_policy.allowlist or ()))

    @property
    def told(self) -> str:
        """What it says of itself; of one that says nothing, how its own prompt begins."""
        prompt = self.prompt_pack.system_prompt
        return self.multi_agent_meta.capabilities or ("" if prompt == SYSTEM_PROMPT else prompt[:PROMPT])


def of_tool(tool: ToolFacts, overlay: SecurityOverlay = AS_DESCRIBED) -> Document:
    """`overlay` is what an operator has decided about it: what is switched off is there for no template."""
    known = parameters(tool.input_schema)
    names = " ".join(name for name, _ in known if name)
    fields: dict[Field, str] = {
        "name": tool.name,
        "short": tool.description_short,
        "long": tool.description_long.removeprefix(tool.description_short),
        "labels": " ".join(dict.fromkeys((*tool.tags, *tool.categories))),
        "parameters": names,
        "details": " ".join(text for _, text in known if text),
    }
    said = tool.description_short or tool.description_long
    allow, risk = overlay.allowing(tool.security_policy.allow), overlay.risk_level or tool.security_policy.risk_level
    return Document(
        weights=ranking.weights(fields),
        gist=f"{tokenizer.spaced(tokenizer.own_part(tool.name))}: {said} {tokenizer.spaced(names)}"[:GIST],
        type=tool.type,
        risk=RISKS.index(risk) if risk in RISKS else RISKS.index("high"),
        tags=(*tool.tags, *tool.categories),
        templates=allow.templates if overlay.enabled else (),
        sub_agents=allow.sub_agents,
    )


def of_template(template: TemplateFacts, tools: Sequence[ToolFacts], named: Sequence[str]) -> Document:
    """An agent is known by what it says of itself and by what its tools can do; `named` are all that it may use."""
    tools = [tool for tool in tools if tool.type in TELLING_TYPES][:MOST_TOOLS]
    meta = template.multi_agent_meta
    names = " ".join(tokenizer.spaced(tool.name) for tool in tools)
    fields: dict[Field, str] = {
        "name": template.name,
        "short": template.told,
        "labels": " ".join(meta.tags),
        "parameters": names,
        "details": " ".join(f"{tool.name} {tool.description_short}" for tool in tools),
    }
    return Document(
        weights=ranking.weights(fields),
        gist=f"{tokenizer.spaced(template.name)}: {template.told} {' '.join(meta.tags)} {names}"[:GIST],
        tags=meta.tags,
        tools=tuple(named),
    )
