"""Plans delegation: which calls of sub-agents are allowed, and what history they carry."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from longhouse.agents.delegation import AgentTask, Delegation, delegation_of
from longhouse.agents.template import Template
from longhouse.agents.tool import Tool
from longhouse.journal.events import Called, Event, Fault, Prompted, Returned
from longhouse.journal.messages import Message
from longhouse.journal.session import Session
from longhouse.store import journals
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.delegation.delegations import Collect
from longhouse.tools.bindings.agent import CollectTool
from longhouse.tools.toolbox import Toolbox

PriorOf = Callable[[str, str, str | None, str], Awaitable[tuple[Message, ...]]]
"""Earlier messages of a conversation (its id, owner, agent, label), from an external store."""


@dataclass(slots=True)
class DelegationPlan:
    """The sub-agent calls of one reply."""

    tasks: list[Delegation] = field(default_factory=list)
    collects: list[Collect] = field(default_factory=list)
    refused: list[Returned] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)

    def refusing(self, new: Sequence[Event]) -> list[Event]:
        """The events with the refusals. A refusal replaces the handle that a call with wait=false already has."""
        refused = {one.call for one in self.refused}
        return [*(one for one in new if not (isinstance(one, Returned) and one.call in refused)), *self.refused]


@dataclass(frozen=True, slots=True)
class DelegationPlanner:
    catalog: Catalog
    toolbox: Toolbox
    db: Database
    prior: PriorOf | None = None
    """Loads the earlier messages of a sub-agent that is new to this conversation."""

    async def begun(self, session: Session, template: Template, new: Sequence[Event]) -> DelegationPlan | None:
        """The sub-agent calls among these events, which `session` already contains. None if there are none."""
        calls = [event for event in new if isinstance(event, Called) and event.call_kind == "agent"]
        returned = {event.call: event for event in new if isinstance(event, Returned)}
        calls = [call for call in calls if not _is_fault(returned.get(call.call))]
        if not calls:
            return None
        begun = DelegationPlan()
        for call in calls:
            await self._sort(session, template, call, begun)
        return begun

    async def _sort(self, session: Session, template: Template, call: Called, begun: DelegationPlan) -> None:
        tool = await self.toolbox.resolve(call.tool, call.version)
        if tool is not None and tool.collects:
            if not await self._is_full(tool, session, call, begun):
                begun.collects.append(Collect(call.call, _handle(call.arguments)))
            return
        agent = tool.agent if tool else None
        version = await self.catalog.templates.active(agent, owner=session.owner) if agent else None
        if tool is None or agent is None or version is None:
            begun.refused.append(_refused(call, "unknown_agent", f"the agent of {call.tool} is not there any more"))
        elif _depth(session) >= template.execution_policy.max_depth:
            begun.refused.append(_refused(call, "too_deep", "too many agents stand one below the other already"))
        elif not await self._is_full(tool, session, call, begun):
            begun.versions[agent] = version
            task = AgentTask.model_validate_json(call.arguments)
            delegation = delegation_of(session, template, call.call, agent, task)
            begun.tasks.append(await self._with_prior(session, delegation))

    async def _is_full(self, tool: Tool, session: Session, call: Called, begun: DelegationPlan) -> bool:
        """Is the rate limit of this minute reached? Then the call is refused; otherwise it is counted."""
        full = await self.toolbox.is_full(tool, session.owner)
        if full:
            begun.refused.append(_refused(call, full.code, full.message))
        return full is not None

    async def _with_prior(self, session: Session, delegation: Delegation) -> Delegation:
        """Adds the earlier history: from the request if the client sent it, otherwise from the external store."""
        if delegation.brings_history:
            return await self._with_brought(session, delegation)
        if self.prior is None:
            return delegation
        known = await self.prior(session.conversation, session.owner, delegation.agent, delegation.label)
        return delegation.with_prior(known)

    async def _with_brought(self, session: Session, delegation: Delegation) -> Delegation:
        """A history that came with the request is stored once, in the journal of the root session."""
        turn = session.turn
        if turn is None or not turn.prompted.root or delegation.agent in turn.prompted.contexts:
            return delegation
        told = (one.event for one in await journals.read(self.db, turn.prompted.root) if one.trace == turn.trace)
        prompt = next((event for event in told if isinstance(event, Prompted)), None)
        return delegation.with_prior(prompt.contexts.get(delegation.agent, ()) if prompt else ())


def _is_fault(returned: Returned | None) -> bool:
    return returned is not None and isinstance(returned.outcome, Fault)


def _depth(session: Session) -> int:
    return session.turn.prompted.depth if session.turn else 0


def _handle(arguments: str) -> str:
    return CollectTool.model_validate_json(arguments).handle


def _refused(call: Called, code: str, message: str) -> Returned:
    return Returned(call=call.call, outcome=Fault(code=code, message=message))
