"""Selects the tools offered to an agent: those its template's policy permits, in the versions pinned by its turn."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import msgspec
import structlog

from longhouse.agents import entrypoints, rules
from longhouse.agents.naming import NamePatterns
from longhouse.agents.permission import Permission, differs_by
from longhouse.agents.requests import tool_order
from longhouse.agents.strategies import one_call
from longhouse.agents.strategies.base import AgentRegistry
from longhouse.agents.template import MOST_OFFERED, Template, ToolPolicy
from longhouse.agents.tool import Tool
from longhouse.agents.tool_descriptor import RISKS, ToolDescriptor
from longhouse.errors import CannotRun
from longhouse.journal.events import Selection
from longhouse.journal.session import Session, Turn
from longhouse.store.catalog.catalog import Catalog
from longhouse.tools import client_tools
from longhouse.tools.base import ToolRegistry
from longhouse.tools.bindings import python
from longhouse.tools.builtin.dialogue import FinalAnswerTool
from longhouse.tools.toolbox import Toolbox

log = structlog.get_logger()

FRESH_FOR: Final = 0.5
"""Seconds for which the active versions are cached; changes made by this process apply at once."""

AUTO_TOOLS: Final = 40
AUTO_TOKENS: Final = 10_000
"""With `max_tools_in_prompt: auto` all permitted tools are offered that are no more than these; of their definitions a
quarter of the bytes counts as tokens."""

MOST_KNOWN: Final = 10_000
MOST_FOUND: Final = 5
"""Of the tools that an agent found itself, this many of the newest are always offered."""
FINAL_ANSWER: Final = FinalAnswerTool.tool_name
"""The tool that ends a turn if the policy names no other."""


class ToolSelector(Protocol):
    async def choose(
        self,
        template: Template,
        session: Session,
        turn: Turn,
        *,
        hard_require: Sequence[str],
        active: Mapping[str, int],
    ) -> tuple[list[ToolDescriptor], Selection | None]: ...

    async def all_permitted(self, template: Template, owner: str, most: int) -> dict[str, int] | None: ...


class Offered(msgspec.Struct, frozen=True):
    """The tools of a step and how they were selected; the selection is None if all permitted tools are offered."""

    tools: Sequence[Tool]
    selection: Selection | None = None


class Known(msgspec.Struct, frozen=True):
    """A template completed with all tools that its steps need, and the active versions of the tools it names."""

    template: Template
    active: Mapping[str, int]
    changes: int
    until: float
    is_whole: bool = True
    """Whether `active` has all tools that the policy permits."""
    names_each: bool = True
    """Whether the policy names all its tools one by one."""
    lacking: str | None = None
    """Why a tool that it names cannot run in this process."""
    permitted: dict[tuple[Any, ...], Sequence[Tool]] = msgspec.field(default_factory=dict)
    """The tools that it permits, by what differs between its sessions and what has changed since."""


class Offering(msgspec.Struct):
    catalog: Catalog
    toolbox: Toolbox
    search: ToolSelector | None = None
    """Selects tools if a policy permits more than may be offered."""
    packages: Sequence[str] = ()
    """Those that tools and agent classes may come from."""
    _known: dict[tuple[str, int, str], Known] = msgspec.field(default_factory=dict)
    _warned: set[tuple[str, str]] = msgspec.field(default_factory=set)

    async def choose(self, session: Session, turn: Turn, template: Template) -> Offered:
        """The agent's own tools, and those of the client, if the template takes them."""
        own, asked = await self._own(session, turn, template), turn.client_tools
        if asked is None or not asked.tools or not template.allow_client_tools:
            return own
        tools = own.tools or await self._final_answer(session)
        open_tools = rules.open_tools(session, turn, template)
        return msgspec.structs.replace(own, tools=client_tools.beside(tools, asked, template, open_tools))

    async def _final_answer(self, session: Session) -> list[Tool]:
        """An agent without tools answers in plain text; beside the client's tools it needs one to answer with."""
        active = await self.catalog.active_tools([FINAL_ANSWER], session.owner)
        return await self.toolbox.several([*active.items()])

    async def refuse_lacking(self, template: Template, owner: str) -> None:
        """CannotRun if a package of the tools that the template names, or of its agent class, is not in this process:
        its agents are to work where it is."""
        base = template.base_agent_class
        if ":" in base and AgentRegistry.get(base) is None and (problem := entrypoints.lacking(base, self.packages)):
            raise CannotRun(problem)
        if problem := (await self._known_for(template, owner)).lacking:
            raise CannotRun(problem)

    async def _lacking(self, template: Template, active: Mapping[str, int]) -> str | None:
        """Why a tool that the template names cannot run in this process: a package is not there."""
        names, packages = set(template.tool_policy.named), (python.OURS, *self.packages)
        for tool in await self.catalog.described(active):
            entrypoint = tool.runtime_binding.python_entrypoint
            is_foreign = tool.name in names and not self.toolbox.class_of(tool)
            if is_foreign and entrypoint and (problem := entrypoints.lacking(entrypoint, packages)):
                return problem
        return None

    async def _own(self, session: Session, turn: Turn, template: Template) -> Offered:
        """The permitted tools that are available now: required ones first, never more than the policy's cap."""
        cls = AgentRegistry.get(template.base_agent_class)
        if cls and not cls.asks_model:
            return await self._one(session, turn, template)
        known = await self._known_for(template, session.owner)
        policy, found = known.template.tool_policy, session.context.get("found_tools", ())
        fits, may_search = await self._fits(session, known), found or policy.selection_strategy != "static"
        if fits or not self.search or not may_search:
            return await self._named(session, turn, known, fits=fits)
        chosen, selection = await self.search.choose(
            known.template, session, turn, hard_require=found[-MOST_FOUND:], active=known.active
        )
        if selection and selection.left_out and policy.allowlist is not None and policy.cap is None:
            self._warn_left_out(template, len(chosen), selection)
        return Offered(await self.toolbox.several([(one.name, one.version) for one in chosen]), selection)

    async def _fits(self, session: Session, known: Known) -> bool:
        """Whether all tools that the policy permits can be offered."""
        policy = known.template.tool_policy
        if not known.is_whole or len(known.active) > (policy.cap or MOST_OFFERED):
            return False
        if policy.cap or known.names_each:
            return True
        permitted = await self._permitted(session, known)
        return len(permitted) <= AUTO_TOOLS and tool_order.tokens_of(permitted) <= AUTO_TOKENS

    def _warn_left_out(self, template: Template, offered: int, selection: Selection) -> None:
        """Logs once that an agent is not offered all tools that it lists."""
        if self._is_first(template.ref, "left out"):
            message = "an agent lists more tools than it is offered in a step; max_tools_in_prompt says how many"
            left = len(selection.left_out) + selection.more
            log.warning("listed_tools_left_out", message=message, template=template.ref, offered=offered, left_out=left)

    async def _one(self, session: Session, turn: Turn, template: Template) -> Offered:
        """The tool that the prompt names, if it may be called directly, and the one that ends the turn."""
        call = one_call.wanted(turn)
        served = await self.catalog.served_tools(session.owner, names=[call.tool]) if call else []
        policy = ToolPolicy(allowlist=tuple(one.name for one in served))
        completed, active = await self._completed(replace(template, tool_policy=policy), session.owner)
        return await self._named(session, turn, Known(completed, active, 0, 0.0), fits=True)

    async def _named(self, session: Session, turn: Turn, known: Known, *, fits: bool) -> Offered:
        """The tools that the policy names, in its order; over the cap, required tools come first."""
        policy = known.template.tool_policy
        open_tools = rules.open_tools(session, turn, known.template)
        permitted = open_tools.among(await self._permitted(session, known))
        if fits and known.names_each:
            return Offered(permitted)
        tools = {tool.name: tool for tool in permitted}
        # What came in the meantime is added at the end, for providers' prompt caches.
        before = [] if known.names_each else [ref.rpartition("@")[0] for ref in session.offered]
        names = [*filter(tools.__contains__, before), *(name for name in tools if name not in before)]
        offered = names if fits else tool_order.capped(names, policy)
        selection = None
        if len(offered) < len(names):
            selection = tool_order.selection(offered, names, {}, stage=rules.stage(session, turn, known.template))
        return Offered([tools[name] for name in offered], selection)

    async def _permitted(self, session: Session, known: Known) -> Sequence[Tool]:
        """The tools that the policy names and permits, in the versions of the turn."""
        versions, pinned, overlays = known.active, tool_order.pins(session), self.catalog.overlays
        if not pinned.items() <= versions.items():
            versions = {name: pinned.get(name, version) for name, version in versions.items()}
        if overlays.is_due:
            await overlays.refresh()
        others = () if versions is known.active else tuple(versions.values())
        key = (others, *differs_by(session), overlays.changes, self.toolbox.changes)
        permitted = known.permitted.get(key)
        if permitted is None:
            permission = Permission(known.template, session)
            described = [one for one in await self.catalog.described(versions) if permission.permits(one)]
            permitted = await self.toolbox.several([(one.name, one.version) for one in described])
            if len(permitted) == len(described):  # one that cannot be called now is looked for again
                known.permitted[key] = permitted
        return permitted

    async def _known_for(self, template: Template, owner: str) -> Known:
        key, now = (template.name, template.version, owner), time.monotonic()
        known = self._known.get(key)
        if known is None or now >= known.until or known.changes != self.catalog.tools.changes:
            changes = self.catalog.tools.changes
            completed, active = await self._completed(template, owner)
            others = await self._others(completed, owner)
            every = {**active, **(others or {})}
            known = Known(
                completed,
                every,
                changes,
                until=now + FRESH_FOR,
                is_whole=others is not None,
                names_each=completed.tool_policy.names_each,
                lacking=await self._lacking(template, every),
            )
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = known
        return known

    async def _others(self, template: Template, owner: str) -> Mapping[str, int] | None:
        """The tools that the policy permits without a name; None if they are many."""
        policy = template.tool_policy
        if policy.allowlist is not None:
            return {}
        if not self.search or policy.cap is not None or policy.selection_strategy == "static":
            return None
        return await self.search.all_permitted(template, owner, AUTO_TOOLS)

    async def _completed(self, template: Template, owner: str) -> tuple[Template, dict[str, int]]:
        """The template with the tools that every step needs, and name -> active version of the tools it names.

        Added are the tool that ends a turn and the reasoning tool of the agent class. An agent without any tool
        answers in plain text.
        """
        policy = template.tool_policy
        cls = AgentRegistry.get(template.base_agent_class)
        thinking = cls.needs if cls else ()
        active = await self.catalog.active_tools((*policy.named, FINAL_ANSWER, *thinking), owner)
        named = NamePatterns(policy.named)
        own = {name: version for name, version in active.items() if name in named}
        may_find_others = policy.allowlist is None and policy.selection_strategy != "static"
        if not own and not may_find_others:
            return template, {}
        self._warn_missing(template, active)
        ending = await self._finishing(policy, own) or (FINAL_ANSWER,)
        needed = [name for name in (*ending, *thinking) if name in active]
        # First, so that the cap never removes them.
        required = tuple(dict.fromkeys((*needed, *policy.required)))
        completed = replace(template, tool_policy=replace(policy, required=required))
        return completed, {**own, **{name: active[name] for name in needed}}

    def _warn_missing(self, template: Template, active: Mapping[str, int]) -> None:
        """Logs once that a required tool is missing: its agents work without it."""
        for name in template.tool_policy.required:
            if name not in active and not name.endswith(".*") and self._is_first(template.ref, name):
                message = "a required tool is not active: agents work without it"
                log.warning("required_tool_missing", message=message, template=template.ref, tool=name)

    def _is_first(self, ref: str, about: str) -> bool:
        """Whether this was not said before of this template."""
        known = (ref, about) in self._warned
        if len(self._warned) >= MOST_KNOWN:
            self._warned.clear()
        self._warned.add((ref, about))
        return not known

    async def _finishing(self, policy: ToolPolicy, active: Mapping[str, int]) -> tuple[str, ...]:
        """The tools named by the policy that end a turn: classes, which are named one by one."""
        denied = NamePatterns(policy.denylist)
        names = [name for name in policy.named if name in active and name not in denied]
        described = await self.catalog.tools.several({name: active[name] for name in names})
        resolved = await self.toolbox.several(
            [(one.name, one.version) for one in described if one.runtime_binding.python_entrypoint]
        )
        return tuple(tool.name for tool in resolved if tool.finishes)


PolicyProblem = tuple[tuple[str | int, ...], str]
"""A field of the policy, and what is wrong with it."""


async def policy_problem(catalog: Catalog, template: Template, owner: str) -> PolicyProblem | None:
    """Why agents of this template could not work as its policy says; nothing is imported for this check."""
    policy = template.tool_policy
    denied = NamePatterns(policy.denylist)
    for nth, name in enumerate(policy.required):
        if name in denied:
            return ("required", nth), f"{name} is on the denylist, too: a tool that is denied is never offered"
    if too_risky := await _risk_problem(catalog, policy, owner):
        return too_risky
    if policy.allowlist is not None and not policy.named:
        return None
    # Who need not call a tool may answer in words.
    if template.llm_policy.can.forced_tool_choice and (problem := await _ending_problem(catalog, policy, owner)):
        return ("denylist",), problem
    problem = _cap_problem(template)
    return (("required",), problem) if problem else None


async def _risk_problem(catalog: Catalog, policy: ToolPolicy, owner: str) -> PolicyProblem | None:
    if policy.max_risk_level == RISKS[-1] or not policy.required:
        return None
    active = await catalog.active_tools([name for name in policy.required if not name.endswith(".*")], owner)
    for tool in await catalog.described(active):
        risk = tool.security_policy.risk_level
        if RISKS.index(risk) > RISKS.index(policy.max_risk_level):
            why = f"the risk of {tool.name} is {risk}, and max_risk_level is {policy.max_risk_level}"
            return ("required", policy.required.index(tool.name)), f"{why}: it would never be offered"
    return None


async def _ending_problem(catalog: Catalog, policy: ToolPolicy, owner: str) -> str | None:
    denied = NamePatterns(policy.denylist)
    left = [name for name in policy.named if name not in denied]
    may_find_others = policy.allowlist is None and policy.selection_strategy != "static"
    if FINAL_ANSWER not in denied or not (left or may_find_others):
        return None  # an agent without any tool answers in words
    if any(cls and cls.finishes for cls in map(ToolRegistry.get, left)) or await _may_finish(catalog, left, owner):
        return None
    return f"it denies {FINAL_ANSWER}, and no other tool that the policy names ends a turn: no turn would ever end"


def _cap_problem(template: Template) -> str | None:
    """Why the required tools of a template, with the added ones, exceed the cap; with `auto`, why all that it names one
    by one cannot be offered.

    The tools of an MCP server are counted and cut when they are offered: their number is not known earlier.
    """
    policy = template.tool_policy
    cap, listed = policy.cap or MOST_OFFERED, policy.whole if policy.cap is None else policy.required
    every = _counted(template, listed)
    if len(every) <= cap:
        return None
    added = ", ".join(sorted(every.difference(listed)))
    among = f" (with {added}, which its agents need)" if added else ""
    remedy = f"max_tools_in_prompt is {cap}: require fewer, or raise it"
    if policy.cap is None:
        remedy = f"{cap} is the most: name groups as server.*, or set max_tools_in_prompt, and the best are offered"
    return f"{len(every)} tools{among} would be offered in every step, and {remedy}"


def named_tools_warning(template: Template) -> str | None:
    """What a template's own cap leaves out of the tools that it names one by one."""
    policy = template.tool_policy
    named = len(_counted(template, policy.whole))
    left_out = named - (policy.cap or named)
    if left_out <= 0:
        return None
    is_or_are = "is" if left_out == 1 else "are"
    says = f"{named} tools are named, and max_tools_in_prompt is {policy.cap}"
    return f"{says}: {left_out} of them {is_or_are} left out at each step"


def _counted(template: Template, names: Sequence[str]) -> set[str]:
    """Those of these tools that are named one by one, with the ones that agents of the template need."""
    policy, cls = template.tool_policy, AgentRegistry.get(template.base_agent_class)
    if policy.allowlist is not None and not policy.named:
        return set()
    denied = NamePatterns(policy.denylist)
    classes = [(name, ToolRegistry.get(name)) for name in policy.named if name not in denied]
    # Of a class that is not imported here nobody knows whether it ends a turn: a place is kept for what does.
    ending = [name for name, tool in classes if tool and tool.finishes] or [FINAL_ANSWER]
    listed = [name for name in names if not name.endswith(".*")]
    thinking = cls.needs if cls else ()
    return {name for name in (*listed, *ending, *thinking) if name not in denied}


async def _may_finish(catalog: Catalog, names: Sequence[str], owner: str) -> bool:
    """May one of these tools end a turn? For a class that is not imported here, this is unknown."""
    unknown = [name for name in names if not name.endswith(".*") and ToolRegistry.get(name) is None]
    described = await catalog.tools.several(await catalog.active_tools(unknown, owner)) if unknown else []
    return any(one.runtime_binding.python_entrypoint for one in described)
