"""Turns a finished model reply into events: the reply, the tool calls, and the outcomes known at once."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

import msgspec

from longhouse import clock
from longhouse.agents import delegation, rules
from longhouse.agents.delegation import AgentTask
from longhouse.agents.requests import answer_format
from longhouse.agents.strategies.base import BaseAgent
from longhouse.agents.strategies.protocol import Intent, Reply, Request, Verdict
from longhouse.agents.tool import Tool
from longhouse.agents.tool_descriptor import smallest
from longhouse.errors import ProviderError
from longhouse.journal import events
from longhouse.journal.events import Called, Event, Fault, Output, Returned
from longhouse.journal.json_text import object_of
from longhouse.journal.session import AGENT_FAILED, Open, Session, Turn, is_thought
from longhouse.journal.transcript import Step
from longhouse.models.protocol import paid_for
from longhouse.runtime.steps import answer_check
from longhouse.tools import client_tools
from longhouse.tools.arguments import apart
from longhouse.tools.bindings.agent import CollectTool
from longhouse.tools.toolbox import Result, Toolbox, asked_for

MAX_CALLS: Final = 32
"""Calls of one reply that run; the others return a fault to the model."""
DENIED_BEFORE: Final = "this very call was not approved in this turn, and nobody is asked again: go another way"
CUT_OFF: Final = "cut_off"
DELEGATE_FIRST: Final = "ask one of the agents you are offered before you answer; this answer was not given"
MAX_RECORDED: Final = 256
"""Calls of one reply that are recorded; the rest is dropped."""


async def _takes_all(wanted: int) -> int:
    return wanted


class ReplyHandler(msgspec.Struct, frozen=True):
    """Reads one reply to one request."""

    toolbox: Toolbox
    session: Session
    turn: Turn
    request: Request
    offered: Sequence[Tool]
    must_delegate: bool = False
    """An answer before any delegation is sent back, once."""
    selection: events.Selection | None = None
    """How the offered tools were chosen."""
    recalled: tuple[str, ...] = ()
    """Ids of the remembered items that the request shows."""
    take: Callable[[int], Awaitable[int]] = _takes_all
    """Takes calls from the budget that a request's agents share: how many of so many may be made."""

    async def read(self, strategy: BaseAgent, reply: Reply) -> list[Event]:
        if reply.refusal.strip() and not reply.calls:
            # It is no answer that could be sent back: the model was asked, and does not want to.
            refused = msgspec.structs.replace(reply, text=reply.text or reply.refusal)
            replied = self._replied(refused, Verdict())
            return [replied, events.Finished(answer=reply.refusal, refused=True)]
        # Later checks of the same answer find the verdict of this one.
        verdict, misfit = strategy.interpret(self.request, reply), None
        if self.is_shaped:
            verdict, misfit = await apart(partial(self._shaped, verdict, reply))
        if misfit and answer_check.is_given_up(self.session.steps):
            return self._given_up(reply, verdict, misfit, answer_format.CODE)
        cut = _cut(reply)
        if cut and self._was_cut:
            return self._given_up(reply, verdict, cut, AGENT_FAILED)
        if verdict.answer is not None and self.must_delegate_first:
            verdict = Verdict(problem=DELEGATE_FIRST)
        replied = self._replied(reply, verdict)
        if verdict.answer is not None:
            if not verdict.answer.strip():
                raise paid_for(ProviderError("the model answered with nothing", retryable=True), reply.usage)
            return [replied, events.Finished(answer=verdict.answer)]
        new: list[Event] = [replied]
        intents = [(intent, self._tool(intent)) for intent in verdict.intents[:MAX_RECORDED]]
        finishes = any([await self._finishes(intent, tool) for intent, tool in intents if tool and tool.finishes])
        budget = await self._tool_budget(tool for _, tool in intents if tool)
        made: list[Tool] = []
        for index, (intent, tool) in enumerate(intents):
            call_id = self._call_id(index)
            fault = cut if cut and object_of(intent.arguments) is None else None
            fault = fault or self._too_much(tool, index, made, budget) or self._denied(intent, tool)
            fault = fault or await self._refusal(call_id, intent, tool, finishes)
            made += [tool] if tool and not fault else []
            new += await self._call(call_id, intent, tool, fault)
        return new

    @property
    def is_shaped(self) -> bool:
        """Must the answer be JSON that the client has described?"""
        return answer_format.is_asked(self.turn.prompted)

    def _shaped(self, verdict: Verdict, reply: Reply) -> tuple[Verdict, Fault | None]:
        """The verdict with its answer as the JSON that the client asked for, and what is wrong with an answer that is
        not."""
        if verdict.answer is not None:
            answer = answer_check.shaped(self.turn, verdict.answer, is_cut=reply.finish == "length")
            if isinstance(answer, Fault):
                return Verdict(problem=answer.message), answer
            return Verdict(answer=answer, thought=verdict.thought), None
        misfits, intents = [], []
        for intent in verdict.intents:
            tool = self._tool(intent)
            written = answer_check.in_arguments(self.turn, intent.arguments) if tool and tool.finishes else ""
            misfits += [written] if isinstance(written, Fault) else []
            shaped = written if isinstance(written, str) and written else intent.arguments
            intents.append(msgspec.structs.replace(intent, arguments=shaped))
        return msgspec.structs.replace(verdict, intents=tuple(intents)), misfits[0] if misfits else None

    @property
    def _was_cut(self) -> bool:
        """Was the last reply in this phase cut off in a call, too?"""
        before = [step for step in self.session.steps if step.phase == self.request.phase][:1]
        outcomes = (use.outcome for step in before for use in step.uses)
        return any(isinstance(one, Fault) and one.code == CUT_OFF for one in outcomes)

    def _given_up(self, reply: Reply, verdict: Verdict, misfit: Fault, code: str) -> list[Event]:
        """The turn fails: the model was asked often enough. None of the reply's calls is made."""
        new: list[Event] = [self._replied(reply, verdict)]
        for index, intent in enumerate(verdict.intents[:MAX_RECORDED]):
            called = _called(self._call_id(index), intent, None)
            new += [called, Returned(call=called.call, outcome=misfit)]
        return [*new, events.Failed(reason=misfit.message, code=code)]

    def _call_id(self, index: int) -> str:
        """Reasoning and action of one iteration share its number."""
        iteration = self.session.iteration + 1
        if self.request.phase == "reasoning":
            return f"{iteration}-reasoning" if index == 0 else f"{iteration}-reasoning-{index}"
        if self.request.phase == "action" and is_thought(self.session.transcript):
            iteration -= 1
        return f"{iteration}-action-{index}"

    @property
    def must_delegate_first(self) -> bool:
        """Must the agent delegate first, has not done so, and was not sent back for it yet?"""
        if not self.must_delegate or delegation.has_delegated(self.session):
            return False
        return any(tool.agent for tool in self.offered) and not any(_was_sent_back(s) for s in self.session.steps)

    def _tool(self, intent: Intent) -> Tool | None:
        for tool in self.offered:
            if tool.name == intent.tool:
                return tool
        return None

    async def _finishes(self, intent: Intent, tool: Tool) -> bool:
        return (
            not await apart(partial(self._sent_back, intent))
            and await self.toolbox.check(tool, intent.arguments) is None
        )

    async def _call(self, call_id: str, intent: Intent, tool: Tool | None, fault: Fault | None) -> list[Event]:
        """The events of one call, with its outcome if that is known at once."""
        called = _called(call_id, intent, tool)
        if fault:
            finishes = tool is not None and tool.finishes
            fault = rules.explained(self.session, intent.tool, intent.arguments, fault, finishes=finishes)
            return [called, Returned(call=call_id, outcome=fault)]
        if tool and tool.agent and not AgentTask.model_validate_json(intent.arguments).wait:
            handle = msgspec.json.encode({"handle": call_id, "collect_with": CollectTool.tool_name}).decode()
            return [called, Returned(call=call_id, outcome=Output(content=handle))]
        if tool is None or not tool.inline or tool.needs_approval or tool.effect == "once" or tool.remembers:
            return [called]  # a call that the client runs is among them: it returns when the client sends its result
        result = await self.toolbox.perform(Open(**msgspec.structs.asdict(called), seq=0), self.session, self.turn)
        if tool.asks and isinstance(result.outcome, Output):
            return [_called(call_id, intent, tool, question=result.outcome.content)]
        return [called, returned(call_id, result)]

    async def _tool_budget(self, tools: Iterable[Tool]) -> int | None:
        """How many calls the turn may have made after this reply. With sub-agents at work, they share the number."""
        limits, working = self.turn.limits, [tool for tool in tools if self._works(tool)]
        is_root = not self.turn.prompted.root
        if not working or (is_root and limits.tool_budget is None):
            return limits.tool_budget
        is_alone = is_root and not delegation.has_delegated(self.session)
        if is_alone and not any(tool.is_delegated for tool in working):
            return limits.tool_budget
        wanted = min(len(working), MAX_CALLS)
        return smallest(limits.tool_budget, self.turn.calls + await self.take(wanted))

    def _works(self, tool: Tool) -> bool:
        """Reasoning is not counted as a call, and tools that help to finish stay available when the budget is spent."""
        return self.request.phase != "reasoning" and not (tool.closing or tool.finishes)

    def _too_much(self, tool: Tool | None, index: int, made: Sequence[Tool], budget: int | None) -> Fault | None:
        """Budgets also apply within one reply with parallel calls: `made` are the calls before this one."""
        if index >= MAX_CALLS:
            return Fault(code="too_many_calls", message=f"only {MAX_CALLS} calls of one reply are made")
        if tool is None or tool.finishes:
            return None
        limits, turn, client = self.turn.limits, self.turn, self.turn.client_tools
        if tool.role == "client" and client and not client.parallel and any(one.role == "client" for one in made):
            return Fault(code="one_at_a_time", message="the client runs one call at a time: make it in the next step")
        searches = turn.searches_used + sum(one.role == "searches" for one in made)
        questions = turn.clarifications_used + sum(one.asks for one in made)
        for counts, what, limit, used in (
            (tool.role == "searches", "searches", limits.max_searches, searches),
            (tool.asks, "questions", limits.max_clarifications, questions),
            (self._works(tool), "calls", budget, turn.calls + sum(map(self._works, made))),
        ):
            if counts and limit is not None and used >= limit:
                return Fault(code=f"no_more_{what}", message=f"all {limit} {what} of this turn are used")
        return None

    async def _refusal(self, call_id: str, intent: Intent, tool: Tool | None, finishes: bool) -> Fault | None:
        """Why a call is refused, as a message that the model can act on."""
        if self.request.only and intent.tool != self.request.only:
            return Fault(code="reason_first", message=f"reason first: call {self.request.only}, then act")
        if tool is None:
            return Fault(code="not_offered", message=f"{intent.tool!r} is not among the tools that are open now")
        if tool.finishes and (fault := await apart(partial(self._sent_back, intent))):
            return fault
        if finishes and (why := _waits(tool)):
            # The answer may already be streaming to the client; nobody would wait for the other call.
            return Fault(code="answered", message=why)
        if tool.role == "client":
            return await apart(partial(client_tools.fault_of, tool, intent.arguments))
        runs_next = None if tool.needs_approval or tool.is_delegated else (self.session.id, call_id)
        return await self.toolbox.check(tool, intent.arguments, before=runs_next)

    def _denied(self, intent: Intent, tool: Tool | None) -> Fault | None:
        """Why a call is not asked about again: the same one, however its arguments are written, was denied before."""
        if tool is None or (tool.effect == "read" and not tool.needs_approval):
            return None  # nobody is asked about it, and it changes nothing
        denied = [use.arguments for use in rules.denied(self.session) if use.tool == intent.tool]
        is_same = asked_for(tool, intent.arguments) in [asked_for(tool, arguments) for arguments in denied]
        return Fault(code="denied", message=DENIED_BEFORE) if is_same else None

    def _sent_back(self, intent: Intent) -> Fault | None:
        """Why an answer is not taken."""
        if self.must_delegate_first:
            return Fault(code="delegate_first", message=DELEGATE_FIRST)
        found = answer_check.in_arguments(self.turn, intent.arguments) if self.is_shaped else None
        return found if isinstance(found, Fault) else None

    def _replied(self, reply: Reply, verdict: Verdict) -> events.Replied:
        refs, known = tuple([tool.ref for tool in self.offered]), self.session.offered
        return events.Replied(
            text=reply.text,
            reasoning=reply.reasoning,
            returns_reasoning=reply.returns_reasoning,
            extra=reply.extra,
            source=self.session.asked if reply.goes_back or self.session.has_thinking else "",
            calls=reply.calls[:MAX_RECORDED],
            usage=reply.usage,
            phase=self.request.phase,
            thought=verdict.thought,
            problem=verdict.problem,
            streamed_chars=reply.streamed_chars,
            finish=reply.finish,
            model=reply.model,
            offered=_missing(refs, known),
            withdrawn=_missing(known, refs),
            selection=self.selection,
            recalled=self.recalled,
            digest=self.request.digest,
        )


def _cut(reply: Reply) -> Fault | None:
    """What is said of a call whose arguments the model could not write to their end."""
    calls = reply.calls if reply.finish == "length" else ()
    called = [call.name for call in calls if object_of(call.arguments) is None]
    message = "The reply was cut off in its call of {}: it is longer than the model may write (max_tokens)."
    return Fault(code=CUT_OFF, message=message.format(called[-1])) if called else None


def _waits(tool: Tool) -> str | None:
    """Why a reply that gives the final answer cannot call this tool as well; None: it can."""
    if tool.asks:
        return "a reply that gives the final answer cannot ask as well"
    if tool.needs_approval and not tool.finishes:
        return f"{tool.name} needs approval: wait for it before the final answer"
    return f"wait for the result of {tool.name} before the final answer" if tool.role == "client" else None


def _was_sent_back(step: Step) -> bool:
    faults = (use.outcome for use in step.uses if isinstance(use.outcome, Fault))
    return step.problem == DELEGATE_FIRST or any(fault.code == "delegate_first" for fault in faults)


def _missing(some: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """Those that are not among the others."""
    if some == others:
        return ()
    there = set(others)
    return tuple([one for one in some if one not in there])


def in_order(session: Session, tools: Sequence[Tool]) -> list[Tool]:
    """The tools in the order of the journal, new ones last: requests can be rebuilt, and prompt caches keep working."""
    if tuple([tool.ref for tool in tools]) == session.offered:
        return list(tools)
    places = {ref: place for place, ref in enumerate(session.offered)}
    return sorted(tools, key=lambda tool: places.get(tool.ref, len(places)))


def returned(call: str, result: Result) -> Returned:
    by = events.BY_MEMORY if result.by_memory else ""
    return Returned(call=call, outcome=result.outcome, by=by, writes=result.writes, adds=result.adds)


def _called(call_id: str, intent: Intent, tool: Tool | None, question: str = "") -> Called:
    waits = bool(tool and tool.needs_approval and not question)
    is_delegated = bool(tool and tool.is_delegated)
    is_client = tool is not None and tool.role == "client"
    is_timed = tool is not None and not (tool.inline or waits or is_delegated or is_client)
    now = clock.now()
    return Called(
        call=call_id,
        provider_id=intent.provider_id,
        tool=intent.tool,
        role=tool.role if tool else "",
        version=tool.version if tool else 0,
        arguments=intent.arguments,
        effect=tool.effect if tool else "read",
        deadline=now + timedelta(seconds=tool.timeout) if tool and is_timed else None,
        call_kind="ask" if question else "agent" if is_delegated else "client" if is_client else "tool",
        question=question,
        approve_by=now + timedelta(seconds=tool.approval_timeout) if tool and waits else None,
    )
