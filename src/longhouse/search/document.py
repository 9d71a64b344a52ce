"""Builds the search document of a tool or a template: weighted terms, text to embed, and fields to filter by."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from longhouse.agents.schema import resolve
from longhouse.agents.template import SYSTEM_PROMPT, MultiAgentMeta, PromptPack
from longhouse.agents.tool_descriptor import RISKS, Allow, SecurityOverlay
from longhouse.search import ranking, tokenizer
from longhouse.search.ranking import Field
from longhouse.store.search.index import IndexedText

RECIPE: Final = 4
"""Version of the indexing method. Increase it when texts are tokenized or weighted differently: indexes are rebuilt."""
DESCRIPTIVE_TYPES: Final = ("domain", "aux")
"""Tool types that show what an agent is for; all agents have the other types, to plan, ask, answer and delegate."""
GIST: Final = 2000
"""Characters that are embedded; the vector of a longer text would be too general."""
PROMPT: Final = 500
"""Characters of a prompt used in place of missing capabilities: the role comes first in a prompt, rules come later."""
MOST_TOOLS: Final = 40
"""Tools whose descriptions are part of a template's text; more would make it match everything."""
MOST_NAMED: Final = 1000
"""Tools by which a template can be found."""
AS_DESCRIBED: Final = SecurityOverlay()
DEPTH: Final = 6
"""Maximum depth of nested schemas that are read; a list of alternatives counts as a level."""
MOST_PROPERTIES: Final = 200
MOST_CHOICES: Final = 20
"""Enum values that are read: the first ones show what the choice is about."""


class _Security(msgspec.Struct):
    risk_level: str = "low"
    allow: Allow = msgspec.field(default_factory=Allow)


class ToolFacts(msgspec.Struct):
    """The fields of a tool's descriptor that search reads."""

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


class TemplateFacts(msgspec.Struct):
    """The fields of a template that search reads."""

    name: str
    prompt_pack: PromptPack = msgspec.field(default_factory=PromptPack)
    tool_policy: _Policy = msgspec.field(default_factory=_Policy)
    multi_agent_meta: MultiAgentMeta = msgspec.field(default_factory=MultiAgentMeta)

    @property
    def named_tools(self) -> tuple[str, ...]:
        """The tools it names; `<server>.*` means all tools of a server."""
        return (*self.tool_policy.required, *(self.tool_policy.allowlist or ()))

    @property
    def about(self) -> str:
        """Its capabilities; without them, the beginning of its own prompt."""
        prompt = self.prompt_pack.system_prompt
        return self.multi_agent_meta.capabilities or ("" if prompt == SYSTEM_PROMPT else prompt[:PROMPT])


def of_tool(tool: ToolFacts, overlay: SecurityOverlay = AS_DESCRIBED) -> IndexedText:
    """The document of a tool; `overlay` is the operator's decision: a disabled tool is available to no template."""
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
    description = tool.description_short or tool.description_long
    allow, risk = overlay.allowing(tool.security_policy.allow), overlay.risk_level or tool.security_policy.risk_level
    return IndexedText(
        weights=ranking.weights(fields),
        gist=f"{tokenizer.spaced(tokenizer.own_part(tool.name))}: {description} {tokenizer.spaced(names)}"[:GIST],
        type=tool.type,
        risk=RISKS.index(risk) if risk in RISKS else RISKS.index("high"),
        tags=(*tool.tags, *tool.categories),
        templates=allow.templates if overlay.enabled else (),
        sub_agents=allow.sub_agents,
    )


def of_template(template: TemplateFacts, tools: Sequence[ToolFacts], named: Sequence[str]) -> IndexedText:
    """The document of a template: its own text and what its tools can do; `named` are all tools that it may use."""
    tools = [tool for tool in tools if tool.type in DESCRIPTIVE_TYPES][:MOST_TOOLS]
    meta = template.multi_agent_meta
    names = " ".join(tokenizer.spaced(tool.name) for tool in tools)
    fields: dict[Field, str] = {
        "name": template.name,
        "short": template.about,
        "labels": " ".join(meta.tags),
        "parameters": names,
        "details": " ".join(f"{tool.name} {tool.description_short}" for tool in tools),
    }
    return IndexedText(
        weights=ranking.weights(fields),
        gist=f"{tokenizer.spaced(template.name)}: {template.about} {' '.join(meta.tags)} {names}"[:GIST],
        tags=meta.tags,
        tools=tuple(named),
    )


def parameters(schema: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and descriptions of a schema's properties, nested ones included."""
    # Each reference is followed once: its target is described once, and a schema may refer to itself.
    return list(islice(_properties(schema, DEPTH, schema, {"#"}), MOST_PROPERTIES))


def _properties(schema: Any, depth: int, root: Mapping[str, Any], followed: set[str]) -> Iterator[tuple[str, str]]:
    if depth == 0 or not isinstance(schema, dict):
        return
    schema = resolve.inlined(schema, root, followed) or schema
    properties = schema.get("properties")
    for name, inner in properties.items() if isinstance(properties, dict) else ():
        yield name, " ".join(_texts(inner))
        yield from _properties(inner, depth - 1, root, followed)
    yield from _properties(schema.get("items"), depth - 1, root, followed)
    listed = (schema.get(key) for key in ("anyOf", "oneOf", "allOf"))
    for part in (part for parts in listed if isinstance(parts, list) for part in parts):
        # The description of a part belongs to the property that contains the part.
        yield from (("", text) for text in _texts(part))
        yield from _properties(part, depth - 1, root, followed)


def _texts(schema: Any) -> list[str]:
    """The description and the enum values."""
    if not isinstance(schema, dict):
        return []
    choices = schema.get("enum")
    words = [schema.get("description"), *(choices if isinstance(choices, list) else ())[:MOST_CHOICES]]
    return [word for word in words if isinstance(word, str)]
