"""Plans delegation: which calls of sub-agents are allowed, and what history they carry."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from longhouse.agents.delegation import AgentTask, Delegation, delegation_of
from longhouse.agents.naming import NamePatterns
from longhouse.agents.template import Template
from longhouse.journal.events import Called, Event, Fault, Outcome, Prompted, Returned
from longhouse.journal.messages import Message
from longhouse.journal.session import Session, Turn
from longhouse.store import journals
from longhouse.store.access import keys
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.delegation.delegations import Collect
from longhouse.store.projections import HistoryOf
from longhouse.tools.bindings.agent import CollectTool
from longhouse.tools.toolbox import Toolbox

PriorOf = Callable[[str, str, Sequence[HistoryOf]], Awaitable[list[tuple[Message, ...]]]]
"""Earlier messages of a conversation (its id and owner) for each that is asked for, from an external store."""


class DelegationPlan(msgspec.Struct):
    """The sub-agent calls of one reply."""

    tasks: list[Delegation] = msgspec.field(default_factory=list)
    collects: list[Collect] = msgspec.field(default_factory=list)
    faults: dict[str, Outcome] = msgspec.field(default_factory=dict)
    """Call -> why it is refused."""


class DelegationPlanner(msgspec.Struct, frozen=True):
    catalog: Catalog
    toolbox: Toolbox
    db: Database
    prior: PriorOf | None = None
    """Loads the earlier messages of sub-agents that are new to this conversation."""

    async def plan(self, session: Session, template: Template, new: Sequence[Event]) -> DelegationPlan | None:
        """The sub-agent calls among these events, which `session` already contains. None if there are none."""
        made = [event for event in new if type(event) is Called and event.call_kind == "agent"]
        if not made or session.turn is None:
            return None
        failed = {event.call for event in new if isinstance(event, Returned) and isinstance(event.outcome, Fault)}
        calls = [call for call in made if call.call not in failed]
        if not calls:
            return None
        plan = DelegationPlan()
        for call in calls:
            match await self._planned(session, session.turn, template, call):
                case Delegation() as task:
                    plan.tasks.append(task)
                case Collect() as collect:
                    plan.collects.append(collect)
                case Fault() as fault:
                    plan.faults[call.call] = fault
        plan.tasks = await self._with_prior(session, session.turn, plan.tasks)
        return plan

    async def _planned(
        self, session: Session, turn: Turn, template: Template, call: Called
    ) -> Delegation | Collect | Fault:
        """The rate limit is checked last: a call that passes it is counted."""
        tool = await self.toolbox.resolve(call.tool, call.version)
        if tool is not None and tool.role == "collects":
            handle = CollectTool.model_validate_json(call.arguments).handle
            return await self.toolbox.count_call(tool, session.owner) or Collect(call.call, handle)
        agent = tool.agent if tool else None
        version = await self.catalog.templates.active(agent, owner=session.owner) if agent else None
        if tool is None or agent is None or version is None:
            return Fault(code="unknown_agent", message=f"the agent of {call.tool} is not there any more")
        allowed = await keys.templates_of(self.db, session.id)
        top = (turn.prompted.root or session.id).rpartition("_")[0]
        # Below an agent that the key may use, those that a template names; what an open policy finds is anybody.
        is_part = allowed is not None and top in allowed and call.tool in NamePatterns(template.tool_policy.named)
        if allowed is not None and agent not in allowed and not is_part:
            return Fault(code="not_allowed", message=f"the key of this request may not use the agent {agent}")
        if turn.prompted.depth >= template.execution_policy.max_depth:
            return Fault(code="too_deep", message="too many agents stand one below the other already")
        if full := await self.toolbox.count_call(tool, session.owner):
            return full
        task = AgentTask.model_validate_json(call.arguments)
        return delegation_of(session, turn, template, task, call=call.call, agent=agent, version=version)

    async def _with_prior(self, session: Session, turn: Turn, tasks: Sequence[Delegation]) -> list[Delegation]:
        """Adds earlier histories: from the request where the client sent them, the others from the external store."""
        asked = [HistoryOf(one.agent, one.label) for one in tasks if not one.brings_history]
        known = iter(await self.prior(session.conversation, session.owner, asked) if self.prior and asked else ())
        return [
            await self._with_brought(turn, one) if one.brings_history else one.with_prior(next(known, ()))
            for one in tasks
        ]

    async def _with_brought(self, turn: Turn, delegation: Delegation) -> Delegation:
        """A history that came with the request is stored once, in the journal of the root session."""
        root = turn.prompted.root
        if not root or delegation.agent in turn.prompted.contexts:
            return delegation
        of_turn = (one.event for one in await journals.read(self.db, root) if one.trace == turn.trace)
        prompt = next((event for event in of_turn if isinstance(event, Prompted)), None)
        return delegation.with_prior(prompt.contexts.get(delegation.agent, ()) if prompt else ())
