"""A tool as the catalog describes it: what it is for, how it is bound to something that runs, who may use it."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

from pydantic import AfterValidator, ConfigDict, Field

from longhouse.agents.tool import RiskLevel, Tool, ToolType
from longhouse.journal.events import Effect

_STRICT: Final = ConfigDict(extra="forbid")
RISKS: Final = ("low", "medium", "high")

_Tag = Annotated[str, Field(min_length=1, max_length=100)]


@dataclass(frozen=True, slots=True)
class RuntimeBinding:
    """What runs when the tool is called; exactly one of the four."""

    __pydantic_config__ = _STRICT

    python_entrypoint: Annotated[str, Field(max_length=300)] | None = None
    """`package.module:ClassName`, from a package that the process allows."""
    remote_endpoint: Annotated[str, Field(max_length=2000)] | None = None
    mcp: Annotated[str, Field(max_length=200)] | None = None
    """`<server>.<tool>` of a configured MCP server."""
    agent: Annotated[str, Field(max_length=128)] | None = None
    """A template whose agent does the work."""
    api_key_ref: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")] | None = None
    """The name of a secret that goes to the remote endpoint; never a key."""


def _one_binding(binding: RuntimeBinding) -> RuntimeBinding:
    ways = (binding.python_entrypoint, binding.remote_endpoint, binding.mcp, binding.agent)
    if sum(way is not None for way in ways) != 1:
        raise ValueError("exactly one of python_entrypoint, remote_endpoint, mcp and agent is needed")
    if binding.api_key_ref and not binding.remote_endpoint:
        raise ValueError("api_key_ref belongs to a remote_endpoint")
    return binding


@dataclass(frozen=True, slots=True)
class Allow:
    __pydantic_config__ = _STRICT

    templates: tuple[_Tag, ...] | None = None
    """The only templates whose agents may use the tool; None: all."""
    sub_agents: bool = True
    """May agents use it that were called by another agent?"""


@dataclass(frozen=True, slots=True)
class RateLimits:
    __pydantic_config__ = _STRICT

    per_minute: Annotated[int, Field(ge=1)] | None = None
    """Calls of one owner that are made in a minute."""


@dataclass(frozen=True, slots=True)
class SecurityPolicy:
    __pydantic_config__ = _STRICT

    risk_level: RiskLevel = "low"
    allow: Allow = field(default_factory=Allow)
    rate_limits: RateLimits = field(default_factory=RateLimits)


@dataclass(frozen=True, slots=True)
class SecurityOverlay:
    """What an operator has decided about a tool, over whatever its descriptions say. The risk is the operator's word;
    all else only narrows what they say."""

    __pydantic_config__ = _STRICT

    risk_level: RiskLevel | None = None
    """None: as described."""
    allow: Allow = field(default_factory=Allow)
    rate_limits: RateLimits = field(default_factory=RateLimits)
    needs_approval: bool = False
    enabled: bool = True
    """Off: no agent is offered the tool."""

    def policy(self, described: SecurityPolicy) -> SecurityPolicy:
        """The policy that holds."""
        return SecurityPolicy(
            risk_level=self.risk_level or described.risk_level,
            allow=self.allowing(described.allow),
            rate_limits=RateLimits(per_minute=self._limit(described.rate_limits.per_minute)),
        )

    def allowing(self, described: Allow) -> Allow:
        own, templates = described.templates, self.allow.templates
        both = templates if own is None or templates is None else tuple(name for name in own if name in templates)
        return Allow(
            templates=own if templates is None else both, sub_agents=described.sub_agents and self.allow.sub_agents
        )

    def over(self, described: "ToolDescriptor") -> "ToolDescriptor":
        return replace(
            described,
            security_policy=self.policy(described.security_policy),
            needs_approval=described.needs_approval or self.needs_approval,
        )

    def over_tool(self, tool: Tool) -> Tool:
        """The tool as an agent meets it."""
        return replace(
            tool,
            per_minute=self._limit(tool.per_minute),
            needs_approval=tool.needs_approval or self.needs_approval,
        )

    def _limit(self, described: int | None) -> int | None:
        limits = [limit for limit in (described, self.rate_limits.per_minute) if limit is not None]
        return min(limits, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDescriptor:
    __pydantic_config__ = _STRICT

    name: str
    version: int = 1
    """Given by the catalog."""
    type: ToolType = "domain"
    tags: tuple[_Tag, ...] = ()
    categories: tuple[_Tag, ...] = ()
    description_short: Annotated[str, Field(max_length=4000)]
    description_long: Annotated[str, Field(max_length=20_000)] = ""
    """What the model is told instead of the short one, where it is there."""
    input_schema: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    runtime_binding: Annotated[RuntimeBinding, AfterValidator(_one_binding)]
    security_policy: SecurityPolicy = field(default_factory=SecurityPolicy)
    effect: Effect | None = None
    """None: `once` for remote and MCP tools, which do not say; `read` for the others."""
    timeout: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    max_output: Annotated[int, Field(ge=1, le=100_000_000)] = 40_000
    needs_approval: bool = False
    approval_timeout: Annotated[float, Field(gt=0, le=31_536_000)] = 86_400.0
    owner: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:@-]{1,128}$")] | None = None
    """Who alone sees it; None: everybody."""

    @property
    def ref(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def tool(self) -> Tool:
        """The tool as an agent meets it."""
        is_foreign = self.runtime_binding.remote_endpoint or self.runtime_binding.mcp
        return Tool(
            name=self.name,
            version=self.version,
            description=self.description_long or self.description_short,
            schema=self.input_schema,
            effect=self.effect or ("once" if is_foreign else "read"),
            timeout=self.timeout,
            max_output=self.max_output,
            needs_approval=self.needs_approval,
            approval_timeout=self.approval_timeout,
            per_minute=self.security_policy.rate_limits.per_minute,
            agent=self.runtime_binding.agent,
        )
