"""Security overlays: operators' decisions over the descriptors of single tools: risk, limits, approval, on or off."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict, cast

import msgspec
import pydantic
import structlog

from longhouse.agents.adapters import adapter_of
from longhouse.agents.tool import Remembers, RiskLevel, Tool
from longhouse.agents.tool_descriptor import SecurityOverlay, SecurityPolicy
from longhouse.catalog import drafts
from longhouse.errors import CallerError
from longhouse.journal.events import Effect
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.catalog.overlays import Overlaid, set_fields
from longhouse.store.catalog.publish import retry_on_change
from longhouse.store.catalog.repository import Version
from longhouse.tools.base import ToolRegistry
from longhouse.validation_messages import explain

log = structlog.get_logger()

LONGEST: Final = 100_000


def shown(entry: Overlaid | None) -> dict[str, Any] | None:
    """An overlay as the API shows it."""
    if entry is None:
        return None
    return {**set_fields(entry.overlay), "changed_by": entry.changed_by, "changed_at": entry.changed_at}


class AllowedUse(TypedDict):
    templates: Sequence[str] | None
    sub_agents: bool


class CallLimits(TypedDict):
    per_minute: int | None


class HeldPolicy(TypedDict):
    risk_level: RiskLevel
    allow: AllowedUse
    rate_limits: CallLimits
    needs_approval: bool
    enabled: bool


@dataclass(frozen=True, slots=True)
class EffectiveTool:
    """How calls of a tool are handled: as its descriptor, its class and the operator's overlay say together."""

    effect: Effect
    needs_approval: bool
    probe: str
    remembers: Remembers
    risk_level: RiskLevel


class PolicyOfTool(TypedDict):
    """The policy that a tool describes, the overlay of the operator, and what holds."""

    name: str
    described: HeldPolicy
    overlay: dict[str, Any] | None
    effective: HeldPolicy


async def policy_of(catalog: Catalog, tool: Version, known: Tool | None) -> PolicyOfTool:
    """The policy that the tool describes, the operator's overlay, and the effective policy.

    `tool` is the active version, or the latest; `known`: the tool with what its class says.
    """
    await catalog.overlays.refresh()
    entry = catalog.overlays.entry(tool.name)
    overlay = entry.overlay if entry else SecurityOverlay()
    policy = _described(tool.descriptor)
    needs_approval = known.needs_approval if known else bool(tool.descriptor.get("needs_approval"))
    described = _held(policy, needs_approval=needs_approval, enabled=True)
    effective = _held(
        overlay.policy(policy),
        needs_approval=needs_approval or overlay.needs_approval,
        enabled=overlay.enabled,
    )
    return {"name": tool.name, "described": described, "overlay": shown(entry), "effective": effective}


def effective(tool: Tool, descriptor: Mapping[str, Any], entry: Overlaid | None) -> EffectiveTool:
    """How calls of a tool are handled under an operator's overlay."""
    overlay = entry.overlay if entry else SecurityOverlay()
    return EffectiveTool(
        effect=tool.effect,
        needs_approval=tool.needs_approval or overlay.needs_approval,
        probe=tool.probe,
        remembers=tool.remembers,
        risk_level=overlay.policy(_described(descriptor)).risk_level,
    )


def _described(descriptor: Mapping[str, Any]) -> SecurityPolicy:
    return msgspec.convert(descriptor.get("security_policy") or {}, SecurityPolicy)


def _held(policy: SecurityPolicy, *, needs_approval: bool, enabled: bool) -> HeldPolicy:
    held = {**msgspec.to_builtins(policy), "needs_approval": needs_approval, "enabled": enabled}
    return cast("HeldPolicy", held)


async def decide(catalog: Catalog, tool: Version, change: Callable[[dict[str, Any]], Any], *, by: str) -> None:
    """Replaces a tool's overlay by what `change` makes of the present one. It applies at once and is logged."""

    async def attempt() -> None:
        await catalog.overlays.refresh()
        seen = catalog.overlays.entry(tool.name)
        overlay = _parsed(change(set_fields(seen.overlay) if seen else {}))
        _refuse_approval(tool, overlay)
        await catalog.overlay(tool.name, overlay, seen=seen, by=by)
        message = "The security policy of a tool was changed."
        log.info("security_overlay_changed", message=message, tool=tool.name, by=by, overlay=set_fields(overlay))

    await retry_on_change(attempt)


def _parsed(fields: Any) -> SecurityOverlay:
    text = msgspec.json.encode(fields)
    if len(text) > LONGEST or b"\\u0000" in text:
        raise CallerError(f"Nothing is changed: it is longer than {LONGEST} bytes, or holds a NUL character.")
    try:
        return adapter_of(SecurityOverlay).validate_json(text, strict=True)
    except pydantic.ValidationError as error:
        drafts.refuse([drafts.Problem(0, *found) for found in explain(error)], result="Nothing is changed")
        raise


def _refuse_approval(tool: Version, overlay: SecurityOverlay) -> None:
    """Refuses approval for a call that is part of its reply or that another agent answers: it has no moment to wait."""
    cls = ToolRegistry.get(tool.name)
    is_agent = (tool.descriptor.get("runtime_binding") or {}).get("agent") is not None
    is_at_once = cls is not None and (cls.inline or cls.asks or cls.finishes or cls.tool_role == "collects")
    if overlay.needs_approval and (is_agent or is_at_once):
        instead = "let the tools that it uses need approval" if is_agent else "leave it out"
        raise CallerError(
            f"Nothing is changed. needs_approval: {tool.name} is called at once; {instead}.", param="needs_approval"
        )
