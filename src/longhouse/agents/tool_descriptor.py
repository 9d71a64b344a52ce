"""Tool descriptors of the catalog: description and schema, the binding to an implementation, security policy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from longhouse.agents.tool import Isolation, Remembers, RiskLevel, Tool, ToolType
from longhouse.agents.versioned import Owner, SecretName, Strict, Versioned
from longhouse.journal.events import Effect
from longhouse.journal.roles import role_of

RISKS: Final = ("low", "medium", "high")
EFFECTS: Final[tuple[Effect, ...]] = ("read", "idempotent", "once")
"""From the least to the most strict."""
DEFAULTS: Final[Mapping[str, Any]] = {
    "input_schema": {"properties": {}, "type": "object"},
    "timeout": 60.0,
    "max_output": 40_000,
    "needs_approval": False,
}
"""Defaults for fields that neither the descriptor nor a class sets; the schema in the order in which classes say it, so
that requests are the same where the class is not known."""
ISOLATED: Final = ("isolation", "max_memory", "cpu_time")
"""Fields about the process of a Python tool."""
OMITTED: Final = (*ISOLATED, "serve_over_mcp")
"""Newer fields, which stored descriptors leave out where they are not set: earlier releases refuse unknown fields."""
UNSET: Final = "silent"
"""The key under which a stored descriptor lists the fields that it leaves to its class."""

REMEMBERS_READS: Final = (
    "only a tool with the effect read can be remembered: set effect to read, or leave remembers out"
)

_Tag = Annotated[str, Field(min_length=1, max_length=100)]


@dataclass(frozen=True, slots=True)
class RuntimeBinding(Strict):
    """The implementation of the tool; exactly one of the four is set."""

    python_entrypoint: Annotated[str, Field(max_length=300)] | None = None
    """`package.module:ClassName`, from an allowed package."""
    remote_endpoint: Annotated[str, Field(max_length=2000)] | None = None
    """`https://…` or `http://…`; over gRPC, `grpcs://host:port` or `grpc://host:port`."""
    mcp: Annotated[str, Field(max_length=200)] | None = None
    """`<server>.<tool>` of a configured MCP server."""
    agent: Annotated[str, Field(max_length=128)] | None = None
    """A template whose agent does the work."""
    api_key_ref: SecretName | None = None
    """The secret that is sent to the remote endpoint."""


def one_binding(binding: RuntimeBinding) -> RuntimeBinding:
    ways = (binding.python_entrypoint, binding.remote_endpoint, binding.mcp, binding.agent)
    if sum(way is not None for way in ways) != 1:
        raise ValueError("exactly one of python_entrypoint, remote_endpoint, mcp and agent is needed")
    if binding.api_key_ref and not binding.remote_endpoint:
        raise ValueError("api_key_ref belongs to a remote_endpoint")
    return binding


@dataclass(frozen=True, slots=True)
class Allow(Strict):
    """Who may use a tool."""

    templates: tuple[_Tag, ...] | None = None
    """The only templates whose agents may use the tool; None: all."""
    sub_agents: bool = True
    """Whether sub-agents may use it."""


@dataclass(frozen=True, slots=True)
class RateLimits(Strict):
    """How often a tool may be used."""

    per_minute: Annotated[int, Field(ge=1)] | None = None
    """Rate limit: calls per minute and owner."""


@dataclass(frozen=True, slots=True)
class SecurityPolicy(Strict):
    """How much a tool may do, and for whom."""

    risk_level: RiskLevel = "low"
    allow: Allow = field(default_factory=Allow)
    rate_limits: RateLimits = field(default_factory=RateLimits)


@dataclass(frozen=True, slots=True)
class SecurityOverlay(Strict):
    """An operator's decisions on a tool, applied over its descriptors. The risk level replaces the described one; all
    other fields can only narrow what the descriptors allow."""

    risk_level: RiskLevel | None = None
    """None: the risk level of the descriptor."""
    allow: Allow = field(default_factory=Allow)
    rate_limits: RateLimits = field(default_factory=RateLimits)
    needs_approval: bool = False
    enabled: bool = True
    """False: no agent is offered the tool."""

    def policy(self, described: SecurityPolicy) -> SecurityPolicy:
        """The effective security policy."""
        return SecurityPolicy(
            risk_level=self.risk_level or described.risk_level,
            allow=self.allowing(described.allow),
            rate_limits=RateLimits(smallest(described.rate_limits.per_minute, self.rate_limits.per_minute)),
        )

    def allowing(self, described: Allow) -> Allow:
        own, templates = described.templates, self.allow.templates
        if own is not None and templates is not None:
            templates = tuple(name for name in own if name in templates)
        sub_agents = described.sub_agents and self.allow.sub_agents
        return Allow(templates=own if templates is None else templates, sub_agents=sub_agents)

    def over(self, described: "ToolDescriptor") -> "ToolDescriptor":
        approval = True if self.needs_approval else described.needs_approval
        return replace(described, security_policy=self.policy(described.security_policy), needs_approval=approval)

    def over_tool(self, tool: Tool) -> Tool:
        """The tool as agents get it, with this overlay applied."""
        per_minute = smallest(tool.per_minute, self.rate_limits.per_minute)
        return replace(tool, per_minute=per_minute, needs_approval=tool.needs_approval or self.needs_approval)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDescriptor(Versioned):
    """A version of a tool."""

    type: ToolType = "domain"
    tags: tuple[_Tag, ...] = ()
    categories: tuple[_Tag, ...] = ()
    description_short: Annotated[str, Field(max_length=4000)]
    description_long: Annotated[str, Field(max_length=20_000)] = ""
    """If set, the model gets this instead of the short description."""
    input_schema: dict[str, Any] | None = None
    """None, here and below: the class's own value if the tool is bound to a class, else the default."""
    runtime_binding: Annotated[RuntimeBinding, AfterValidator(one_binding)]
    security_policy: SecurityPolicy = field(default_factory=SecurityPolicy)
    effect: Effect | None = None
    """None: the class's own value; `once` for remote and MCP tools, which declare none; `read` for agents."""
    timeout: Annotated[float, Field(gt=0, le=86_400)] | None = None
    max_output: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    needs_approval: bool | None = None
    approval_timeout: Annotated[float, Field(gt=0, le=31_536_000)] = 86_400.0
    remembers: Remembers = ""
    """What working memory keeps of its results; only for tools whose effect is `read`. Empty: the class's own value."""
    probe: Annotated[str, Field(max_length=200)] = ""
    """The tool that says whether a call of this one took effect, where nobody knows. Empty: the class's own value."""
    isolation: Isolation | None = None
    """Where a Python tool runs. None: in a process of its own if its package is not ours."""
    max_memory: Annotated[int, Field(ge=128_000_000, le=1_000_000_000_000)] | None = None
    """Bytes that its process may take; None: 1 GB."""
    cpu_time: Annotated[float, Field(ge=1, le=86_400)] | None = None
    """Seconds of CPU time that a call may use in its process; None: as long as its timeout."""
    serve_over_mcp: bool | None = None
    """Whether clients of the MCP server may call it directly, without an agent. None: the class's own value."""
    owner: Owner | None = None
    """The only owner who sees it; None: everybody."""

    @property
    def tool(self) -> Tool:
        """The tool as agents get it. The class's requirements are unknown before it is bound: the strictest apply."""
        if self.runtime_binding.python_entrypoint:
            return _tool_of(replace(self, needs_approval=True), "once")
        is_foreign = self.runtime_binding.remote_endpoint or self.runtime_binding.mcp
        return _tool_of(self, self.effect or ("once" if is_foreign else "read"))

    def known_tool(self, known: Callable[[str], "ToolDescriptor | None"]) -> Tool | None:
        """The tool as this and its class say; None where the class is not known."""
        entrypoint = self.runtime_binding.python_entrypoint
        if entrypoint is None:
            return self.tool
        own = known(entrypoint)
        return self.bound_to(own) if own else None

    def bound_to(self, own: "ToolDescriptor") -> Tool:
        """The tool once its class is known: the stricter value of both, or the class's value where this sets none."""
        left = {name: getattr(own, name) for name in DEFAULTS if getattr(self, name) is None}
        effect = max(self.effect or "read", own.effect or "read", key=EFFECTS.index)
        approval = bool(self.needs_approval or own.needs_approval)
        set_now = {
            "needs_approval": approval,
            "remembers": self.remembers or own.remembers,
            "probe": self.probe or own.probe,
            "serve_over_mcp": own.serve_over_mcp if self.serve_over_mcp is None else self.serve_over_mcp,
        }
        return _tool_of(replace(self, **{**left, **set_now}), effect)

    def weakened(self, own: "ToolDescriptor") -> tuple[str, str] | None:
        """The first field in which this is less strict than the class, with the error message, or None."""
        if self.effect and EFFECTS.index(self.effect) < EFFECTS.index(own.effect or "read"):
            problem = f"the class says {own.effect}, and a descriptor cannot make that {self.effect}; leave effect out"
            return "effect", problem
        if self.remembers and own.effect != "read":
            return "remembers", f"{REMEMBERS_READS}; the class says {own.effect}"
        if self.needs_approval is False and own.needs_approval:
            problem = "the class needs approval, and a descriptor cannot take that away; leave needs_approval out"
            return "needs_approval", problem
        return None


def comparable(content: dict[str, Any]) -> dict[str, Any]:
    """The content by which descriptors are compared. Without a class, an unset field equals the default."""
    if _is_of_class(content):
        return content
    return {name: value for name, value in content.items() if not _is_default(name, value)}


def to_row(content: dict[str, Any]) -> dict[str, Any]:
    """The descriptor as a stored row: every field is filled in, since earlier releases read it so."""
    unset = [name for name in DEFAULTS if content.get(name) is None]
    filled = {**content, **{name: DEFAULTS[name] for name in unset}}
    filled = {name: value for name, value in filled.items() if name not in OMITTED or value is not None}
    return {**filled, UNSET: unset} if _is_of_class(content) else filled


def from_row(row: dict[str, Any]) -> dict[str, Any]:
    """The descriptor as it was published. Old rows do not tell set defaults from unset fields: all are unset."""
    if not _is_of_class(row):
        return row
    content = {name: value for name, value in row.items() if name != UNSET}
    unset = row.get(UNSET, [name for name, value in content.items() if _is_default(name, value)])
    return {**content, **dict.fromkeys(unset)}


def _is_of_class(content: Mapping[str, Any]) -> bool:
    return bool((content.get("runtime_binding") or {}).get("python_entrypoint"))


def _is_default(name: str, value: Any) -> bool:
    return name in DEFAULTS and value == DEFAULTS[name]


def _tool_of(descriptor: ToolDescriptor, effect: Effect) -> Tool:
    given = {name: getattr(descriptor, name) for name in DEFAULTS}
    known = {name: DEFAULTS[name] if value is None else value for name, value in given.items()}
    remembers = descriptor.remembers if effect == "read" else ""
    return Tool(
        name=descriptor.name,
        version=descriptor.version,
        description=descriptor.description_long or descriptor.description_short,
        schema=known.pop("input_schema"),
        effect=effect,
        **known,
        approval_timeout=descriptor.approval_timeout,
        per_minute=descriptor.security_policy.rate_limits.per_minute,
        agent=descriptor.runtime_binding.agent,
        # Whoever returns outlines, pages or passages is a source of knowledge, wherever it runs.
        role=role_of(descriptor.name) or ("knowledge" if remembers else ""),
        remembers=remembers,
        probe=descriptor.probe if effect == "once" else "",
        is_served=bool(descriptor.serve_over_mcp),
    )


def smallest(one: int | None, other: int | None) -> int | None:
    """The smaller of two limits; None is no limit."""
    return min((limit for limit in (one, other) if limit is not None), default=None)
