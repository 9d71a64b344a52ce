"""Plays recorded turns again with another version of their template, before it is activated.

The model is asked for real. Tools are not run: a call that the record has, by name and arguments, gets the outcome that
it had; where the record has none, the agent went another way, and nobody knows how it would have gone on. Nothing is
written to a journal.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from longhouse.agents import rules
from longhouse.agents.delegation import capped_by_caller, narrowed
from longhouse.agents.requests import window
from longhouse.agents.strategies.base import BaseAgent
from longhouse.agents.template import Template
from longhouse.agents.tool_descriptor import ToolDescriptor
from longhouse.errors import ProviderError
from longhouse.journal import events
from longhouse.journal.comparing import CallChange, MadeCall, call_changes, text_changes
from longhouse.journal.events import Called, Event, Recorded, Replied, Returned, Started, Usage
from longhouse.journal.fold import blank, extended, fold
from longhouse.journal.session import Open, Session, Turn
from longhouse.memory.session_memory import SessionMemory
from longhouse.models.openai import source_of
from longhouse.models.protocol import Model
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.engine import cleaned_parts
from longhouse.runtime.recorder import settled_with
from longhouse.runtime.steps.condense import condensed
from longhouse.runtime.steps.model_stream import listen
from longhouse.runtime.steps.reply_handler import ReplyHandler, in_order
from longhouse.runtime.workers.instances import ModelFor, strategy_of
from longhouse.store.database import Database
from longhouse.store.limits.usage import Used
from longhouse.tools.bindings.base import Binding, Work, class_binding
from longhouse.tools.offering import Offering
from longhouse.tools.toolbox import Toolbox

Outcome = events.Stored | Returned | events.Noted
Status = Literal["same", "changed", "another_way", "failed", "skipped"]
TRIES: Final = 3
"""Attempts at a reply of a model that fails for a while."""
TextAt = Callable[[int], Awaitable[str]]
"""What a request before the reply of this seq showed from memory, where that is known apart from the session."""


class DescribedTools(Toolbox):
    """Tools that are described and not run; only classes of this process that are pure and instant are called."""

    async def _binding_of(self, descriptor: ToolDescriptor) -> Binding | None:
        way = descriptor.runtime_binding
        cls = self._classes.get(way.python_entrypoint or "") or self._named.get(descriptor.name)
        if way.python_entrypoint and cls:
            return class_binding(cls, descriptor)
        tool = descriptor.bound_to(descriptor) if way.python_entrypoint else descriptor.tool
        return Binding(tool, _never)


def _never(arguments: str) -> Work:
    async def refuse(*_: object) -> str:
        raise AssertionError("a replay runs no tools")

    return refuse


class RecordedTurn(msgspec.Struct, frozen=True):
    """A turn of a journal, and the session before it."""

    number: int
    before: Session
    records: Sequence[Recorded]
    """From its `Started` on."""

    @property
    def started(self) -> Started:
        first = self.records[0].event
        assert isinstance(first, Started)
        return first

    @property
    def end(self) -> Event | None:
        return self._end.event if self._end else None

    @property
    def is_inherited(self) -> bool:
        """Whether it ended before the fork, in the origin of this branch."""
        origins = self.before.origins
        return bool(origins) and self._end is not None and self._end.seq <= origins[-1].after

    @property
    def _end(self) -> Recorded | None:
        trace = self.started.trace
        ends = (one for one in self.records if isinstance(one.event, events.ENDS))
        return next(
            (one for one in ends if not isinstance(one.event, events.Cancelled) or one.event.trace == trace), None
        )


def turns_of(session_id: str, records: Sequence[Recorded], *, only_own: bool = False) -> Iterator[RecordedTurn]:
    """The turns of a journal, in order; `only_own`: without those that were over before a branch began."""
    starts = [nth for nth, one in enumerate(records) if isinstance(one.event, Started)]
    session, done = blank(session_id), 0
    for number, (start, after) in enumerate(zip(starts, [*starts[1:], len(records)], strict=True), start=1):
        session, done = fold(records[done:start], session), start
        turn = RecordedTurn(number, session, records[start:after])
        if not (only_own and turn.is_inherited):
            yield turn


class Went(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn went."""

    steps: int
    calls: tuple[MadeCall, ...]
    answer: str | None
    ended: str
    """Empty: it did not come to its end."""
    prompt_tokens: int
    completion_tokens: int

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class TurnReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is different in a turn."""

    turn: int
    status: Status
    reason: str = ""
    """Why it has another way, failed, or was not replayed."""
    step: int | None = None
    """The step at which it went another way."""
    recorded: Went | None = None
    replayed: Went | None = None
    answer: tuple[str, ...] = ()
    """The lines of the answer that differ."""
    calls: tuple[CallChange, ...] = ()
    """The calls that differ."""

    @property
    def is_another_way(self) -> bool:
        """Whether more than the words of the answer is different."""
        then, now = self.recorded, self.replayed
        if self.status != "changed" or then is None or now is None:
            return self.status in ("another_way", "failed")
        return bool(self.calls) or then.steps != now.steps or then.ended != now.ended


def went(records: Sequence[Event], turn: Turn | None) -> Went:
    """How a turn with these events went; its final answer is no call here, and thoughts are not compared. `turn`: as it
    is at its end; None: it did not come to it."""
    replies = [one for one in records if isinstance(one, Replied)]
    usages = [one.usage for one in replies if one.usage]
    return Went(
        steps=len(replies),
        calls=tuple(
            MadeCall(one.tool, one.arguments)
            for one in records
            if isinstance(one, Called) and one.role not in ("finishes", "reasons")
        ),
        answer=turn.answer if turn and turn.ended else None,
        ended=turn.ended if turn else "",
        prompt_tokens=sum(one.prompt_tokens for one in usages),
        completion_tokens=sum(one.completion_tokens for one in usages),
    )


class _Record:
    """The outcomes of recorded calls, by tool and arguments."""

    def __init__(self, records: Sequence[Recorded]) -> None:
        keys = {one.event.call: MadeCall(one.event.tool, one.event.arguments).key for one in records
                if isinstance(one.event, Called)}  # fmt: skip
        self._outcomes: dict[object, list[list[Outcome]]] = {}
        found: dict[str, list[Outcome]] = {call: [] for call in keys}
        for event in (one.event for one in records):
            if isinstance(event, events.Stored | Returned) or (isinstance(event, events.Noted) and event.call):
                found.get(event.call, []).append(event)
        for call, key in keys.items():
            if any(isinstance(event, Returned) for event in found[call]):
                self._outcomes.setdefault(key, []).append(found[call])

    def outcome(self, call: Open) -> Sequence[Event] | None:
        """The recorded outcome of the same call, with this call's id; several come in turn, the last repeatedly."""
        known = self._outcomes.get(MadeCall(call.tool, call.arguments).key)
        if not known:
            return None
        found = known.pop(0) if len(known) > 1 else known[0]
        return [replace(one, call=call.call) for one in found]


@dataclass
class Rehearsal:
    """Plays turns with one version of a template."""

    db: Database
    template: Template
    model_for: ModelFor
    toolbox: Toolbox
    offering: Offering
    memory: SessionMemory
    packages: Sequence[str] = ()
    used: defaultdict[str, Used] = field(default_factory=lambda: defaultdict(Used))
    """Model -> what was used of it."""

    async def check(self) -> None:
        """Raises SetupError if this process lacks the class of the template, or what its model is asked with."""
        strategy_of(self.template.base_agent_class, self.packages)
        await self.model_for(self.template)

    async def play(self, turn: RecordedTurn, remembered: TextAt | None = None) -> TurnReport:
        """`remembered`: tells what requests showed from memory, where that memory is elsewhere."""
        end = turn.end
        if end is None or isinstance(end, events.Cancelled):
            why = "it has not ended" if end is None else "it was cancelled"
            return TurnReport(turn=turn.number, status="skipped", reason=why)
        recorded = went([one.event for one in turn.records], fold(turn.records, turn.before).turn)
        playing = _Playing(self, turn, remembered)
        try:
            await playing.play()
        except ProviderError as error:
            if error.usage:
                self.count("", error.usage)
            reason = f"the model did not answer: {error.public_message}"
            return TurnReport(turn=turn.number, status="failed", reason=reason, recorded=recorded)
        replayed = playing.went
        calls = [one for one in call_changes(recorded.calls, replayed.calls) if one.change != "same"]
        if playing.reason:
            return TurnReport(
                turn=turn.number, status="another_way", reason=playing.reason, step=playing.steps, recorded=recorded,
                replayed=replayed, calls=tuple(calls),
            )  # fmt: skip
        answer = tuple(text_changes(recorded.answer or "", replayed.answer or ""))
        same = not calls and not answer and (recorded.steps, recorded.ended) == (replayed.steps, replayed.ended)
        status: Status = "same" if same else "changed"
        return TurnReport(
            turn=turn.number, status=status, recorded=recorded, replayed=replayed, answer=answer, calls=tuple(calls)
        )

    def count(self, model: str, used: Usage | None, *, replies: int = 0) -> None:
        total = self.used[model or self.template.llm_policy.model or ""]
        total.replies += replies
        if used:
            total.add(used)


class _Playing:
    """One turn as it is played."""

    def __init__(self, rehearsal: Rehearsal, turn: RecordedTurn, remembered: TextAt | None) -> None:
        self._rehearsal = rehearsal
        self._template = rehearsal.template
        self._turn = turn
        self._remembered = remembered
        self._record = _Record(turn.records)
        self._replies = [one for one in turn.records if isinstance(one.event, Replied)]
        self._at = turn.records[0].at
        self._new: list[Event] = []
        self._session = turn.before
        self.steps = 0
        self.reason = ""
        """Why it cannot go on; empty if it has come to its end."""

    @property
    def went(self) -> Went:
        return went(self._new, None if self.reason else self._session.turn)

    async def play(self) -> None:
        self._begin()
        strategy = strategy_of(self._template.base_agent_class, self._rehearsal.packages)
        model = await self._rehearsal.model_for(self._template)
        while (turn := self._session.running_turn) and not self.reason:
            if end := rules.overdue(turn):
                code, reason = end
                self._add([events.Failed(reason=reason, code=code)])
                return
            chosen = await self._rehearsal.offering.choose(self._session, turn, self._template)
            offered = in_order(self._session, chosen.tools)
            asked = source_of(model, self._template.llm_policy.model or "")
            session = replace(self._session, asked=asked)
            request = strategy.propose(replace(session, recall=await self._text(turn)), self._template, offered)
            if summary := await condensed(session, self._template, model, request.body):
                self._rehearsal.count("", summary.usage)
                self._add([summary])
                continue
            handler = ReplyHandler(
                self._rehearsal.toolbox, session, turn, request, offered,
                must_delegate=self._template.execution_policy.must_delegate, selection=chosen.selection,
            )  # fmt: skip
            self._add(await self._read(handler, strategy, model))
            self.steps += 1
            self._answer()

    async def _read(self, handler: ReplyHandler, strategy: BaseAgent, model: Model) -> list[Event]:
        """The events of the model's reply; a model that fails for a while is asked again."""
        for left in reversed(range(TRIES)):
            try:
                reply = await listen(self._rehearsal.db, Bus(), model, handler.request, session=self._session, fence=0)
                self._rehearsal.count(reply.model, reply.usage, replies=1)
                return await handler.read(strategy, reply)
            except ProviderError as error:
                if not error.retryable or not left:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _begin(self) -> None:
        """Starts the turn as this version would have; what was noted with its start is noted."""
        template, then = self._template, self._turn.started
        prompt = next(one.prompt for one in self._session.queue if one.seq == then.prompt)
        started = replace(
            then,
            version=template.version,
            limits=capped_by_caller(template.execution_policy.limits, prompt.budget),
            rights=narrowed(prompt.rights, template),
            cleaned=cleaned_parts(self._session, template),
            form=window.FORM,
            wants_title=False,
        )
        first = self._turn.records[0].at
        noted = [one.event for one in self._turn.records[1:] if one.at == first and isinstance(one.event, events.Noted)]
        self._session = extended(self._session, [started, *noted], self._at)

    async def _text(self, turn: Turn) -> str:
        """What was remembered then: the same items, as they are now."""
        known = self._replies[min(self.steps, len(self._replies) - 1)] if self._replies else None
        if self._remembered:
            return await self._remembered(known.seq) if known else ""
        first = self._replies[0].event if self._replies else None
        recalled = first.recalled if isinstance(first, Replied) else ()
        # A turn that has begun searches nothing.
        begun = replace(turn, recalled=recalled, iteration=turn.iteration + 1)
        text, _ = await self._rehearsal.memory.text_for(self._session, begun, self._template)
        return text

    def _answer(self) -> None:
        """Answers the open calls from the record; without one, the agent went another way."""
        for call in list(self._session.open.values()):
            outcome = self._record.outcome(call)
            if outcome is None:
                self.reason = f"went another way at step {self.steps}: no such {call.tool} call on record"
                return
            self._add(outcome)

    def _add(self, new: Sequence[Event]) -> None:
        self._session, settled = settled_with(self._session, new, self._at)
        self._new += settled


def status_of(reports: Sequence[TurnReport]) -> Status:
    """The status of a session: that of its turn that is the most different."""
    order: Mapping[Status, int] = {"skipped": 0, "same": 1, "changed": 2, "another_way": 3, "failed": 4}
    return max((one.status for one in reports), key=order.__getitem__, default="skipped")
