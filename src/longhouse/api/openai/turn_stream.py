"""Streams a turn to a client: events become pieces of text and activity, until the turn ends or waits for a person."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgspec
from starlette.types import Scope

from longhouse.agents.naming import AGENT_PREFIX
from longhouse.agents.requests import answer_format
from longhouse.api.http import streaming
from longhouse.api.http.addresses import session_address
from longhouse.api.inflight import INFLIGHT, InflightRequest
from longhouse.api.openai import waiting_words
from longhouse.api.openai.turn_handle import TurnHandle
from longhouse.api.openai.waiting_words import WaitingWords
from longhouse.api.sessions.tail import Batch, Seen, follow
from longhouse.api.sessions.tree_reader import Activity, SubagentEvent, TreeReader
from longhouse.api.sessions.waiting import (
    Question,
    WaitingStatus,
    background_questions,
    handles_in,
    waiting_status,
)
from longhouse.errors import CallerError
from longhouse.journal import events, fingerprint
from longhouse.journal.events import Fault, Recorded
from longhouse.journal.fold import fold
from longhouse.journal.session import AGENT_FAILED, BLANK_LINE, Session, Turn, joined_text
from longhouse.journal.transcript import PromptEntry, Step, Use
from longhouse.runtime.bus.growing_text import GrowingText
from longhouse.runtime.bus.items import Fragment, JournalGrew, SubagentsChanged, Written
from longhouse.runtime.bus.local import Bus, Subscription
from longhouse.store import sessions
from longhouse.store.database import Database
from longhouse.store.limits import budgets
from longhouse.store.limits.budgets import SpentBudget

PASSED_ON: Final = "{agent} has your answer, and goes on with it."
IN_BACKGROUND: Final = "An agent that works in the background asks:"
STATUSES: Final = {
    "agent_failed": 422,
    "answer_format": 502,
    "cancelled": 409,
    "limit_reached": 422,
    "not_set_up": 503,
    "provider_error": 502,
    "session_deleted": 409,
    "template_not_found": 404,
    "unreadable_reply": 502,
}
"""HTTP status of failed turns, by code. Limits are set by the operator: no defect, and a retry would not help."""
SHOWN: Final = 2_000
"""Characters of a tool's result that are shown; the journal has the whole result."""


class WaitingCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for a decision, or for the client's result."""

    id: str
    """As /v1/sessions/{id}/questions names it; of a client's call, the id that the client is told."""
    name: str
    arguments: str
    """Of a client's call, a JSON object that fits the schema of the function."""


class ResponsePiece(msgspec.Struct, frozen=True):
    """A part of the response: text, an activity in `x_agent`, or a call that the client is to run."""

    content: str = ""
    is_refusal: bool = False
    """The content is what the model refuses with."""
    reasoning: str = ""
    activity: Activity | None = None
    role: str = ""
    """The role of the tool that the activity is about."""
    call: WaitingCall | None = None


@dataclass
class TurnStream:
    """Follows one turn and converts its events to pieces."""

    db: Database
    bus: Bus
    handle: TurnHandle
    subscription: Subscription
    """The subscription to the client's session, opened before anything could happen there."""
    address: str = ""
    """The session's page in the console, where its client can decide."""
    beat: float = streaming.HEARTBEAT_EVERY
    shows_drafts: bool = True
    """False: the client sees nothing before the end, so a restarted step needs no correction."""
    is_over: bool = False
    """The turn has ended, or waits for a person, and all pieces were sent."""
    error: CallerError | None = None
    """Why the response ended without an answer or a question."""
    question: Question | None = None
    """The question of a sub-agent, which is asked in this response."""
    client_calls: Sequence[WaitingCall] = ()
    """The calls that the client is to run, where the response ends with them."""
    last_finish: str = ""
    """Why the model stopped writing its last reply."""
    session: Session = field(init=False)
    """The session after the last event that was converted."""
    _unfolded: list[Recorded] = field(default_factory=list)
    """Replies that were just converted, and that `session` lacks for the moment."""
    _sent: GrowingText = field(default_factory=GrowingText)
    """Content that was already sent: it cannot be changed."""
    _replies: list[str] = field(default_factory=list)
    """The text of each recorded reply in this response."""
    _last_reply: int = 0
    """The seq of the last reply; fragments of steps before it are already known."""
    _draft: GrowingText = field(default_factory=GrowingText)
    _draft_of: tuple[int, int] = (0, 0)
    _is_draft_sent: bool = False
    """What was sent is the replies and the draft, to its end."""
    _reasoning: list[str] = field(default_factory=list)
    """Reasoning of the running step that was streamed."""
    _may_be_paused: bool = False
    """The turn may wait for a budget of its key."""
    _tree: TreeReader | None = None
    _handles: list[str] = field(default_factory=list)
    """Handles that the turn collects, and that the tree reader does not read yet."""

    def __post_init__(self) -> None:
        self.session = self.handle.session
        self._last_reply = last_step(self.session)
        for use in (use for step in reversed(self.session.steps) for use in step.uses if self._is_ours):
            self._follow_subagents(use)

    async def pieces(self) -> AsyncIterator[list[ResponsePiece]]:
        """Batches of pieces; an empty one is a heartbeat."""
        session = self.session
        if self.handle.passed_on_to:
            yield self._finish(WaitingWords(PASSED_ON.format(agent=self.handle.passed_on_to)))
            return
        if self.handle.is_behind:
            self.subscription.put(JournalGrew())
        # An answer to one of several questions: the next one is open already. An aside: the response lists open ones.
        pieces = await (self._list_waiting() if self.handle.is_aside else self._check_rest())
        self._may_be_paused = self.handle.is_behind
        if not self.is_over:
            await self._check_pause()
        if self.is_over:
            yield pieces
            return
        async for batch in follow(self.db, session.id, self.subscription, after=session.head, beat=self.beat):
            pieces = await self._convert(batch) if batch else []
            if batch and not self.is_over and not self.session.can_move:
                pieces += await self._check_rest()
            if not self.is_over:
                self._may_be_paused |= not batch and not self._draft  # a hint may have been lost
                await self._check_pause()
            if not self.is_over and self.handle.is_behind and not self._draft:
                pieces += self._join_draft()
            if self.is_over and not self.error:
                pieces += await self._mention_background()
            if pieces or not batch:
                yield pieces
            if self.is_over:
                return
        self._fail("the session was deleted", "session_deleted")

    @property
    def _is_ours(self) -> bool:
        return self.session.turn is not None and self.session.turn.trace == self.handle.trace

    @property
    def _is_held(self) -> bool:
        return self._tree is not None and bool(self._tree.held)

    async def _convert(self, batch: Batch) -> list[ResponsePiece]:
        pieces: list[ResponsePiece] = []
        for item in await self._in_order(batch):
            if self.is_over:
                break
            if isinstance(item, Recorded):
                pieces += self._convert_record(item, batch.sessions.get(item.seq))
                continue
            self._fold_replies()
            if not isinstance(item, SubagentEvent):
                pieces += self._convert_hint(item)
            elif item.shown and not self._waits_for_people:
                pieces.append(ResponsePiece(activity=item.shown))
        self._fold_replies()
        return pieces

    def _fold_replies(self) -> None:
        if self._unfolded:
            self.session = fold(self._unfolded, self.session)
            self._unfolded.clear()

    @property
    def _waits_for_people(self) -> bool:
        """Does the turn wait for people only? What sub-agents do meanwhile is shown after the answer."""
        return self._is_ours and not self.session.can_move and not self.session.awaits_agents

    async def _in_order(self, batch: Sequence[Seen]) -> Sequence[Seen | SubagentEvent]:
        """New events of the top session, merged with those of its sub-agents, causes before effects."""
        for item in batch:
            if isinstance(item, Recorded) and item.trace == self.handle.trace and isinstance(item.event, events.Called):
                self._follow_subagents(item.event)
        if self._tree is None:
            return batch
        while self._handles:
            await self._tree.collect(self.handle.session, self.handle.trace, self._handles.pop())
        items = await self._tree.since(batch)
        if self._tree.held:
            # The session has moved on: its new events are read, and all are shown in order.
            self.subscription.put(JournalGrew())
        return items

    def _follow_subagents(self, called: events.Called | Use) -> None:
        """Begins to follow the sub-agents of a call that delegates, or that collects a delegated result."""
        if not called.tool.startswith(AGENT_PREFIX) and called.role != "collects":
            return
        if self._tree is None:
            self._tree = TreeReader.of_turn(self.db, self.session, self.handle.trace, self.handle.seen_heads)
        if called.role == "collects":
            self._handles += handles_in(called.arguments)

    def _convert_hint(self, item: Fragment | SubagentsChanged | Written) -> list[ResponsePiece]:
        """Converts what the journal of the top session does not hold."""
        if isinstance(item, SubagentsChanged):
            return []
        if isinstance(item, Written):
            return self._join_draft()
        if item.until:
            self._may_be_paused = True  # before the turn has begun, too
            return []
        return self._convert_fragment(item) if self._is_ours else []

    def _convert_record(self, record: Recorded, after: Session | None) -> list[ResponsePiece]:
        """Converts an event of the top session; `after`: the session after it, if it is known."""
        if isinstance(record.event, events.Replied):
            self._last_reply = record.seq
            if after is None and self._is_ours:
                # Nothing of the session is shown with it, and mostly the one after the next event is known.
                self._unfolded.append(record)
                return self._convert_event(record.event)
        self.session = after or fold([*self._unfolded, record], self.session)
        self._unfolded.clear()
        turn = self.session.turn
        if turn and turn.trace == self.handle.trace:
            return self._end(turn) if turn.ended else self._convert_event(record.event)
        if not any(waiting.prompt.trace == self.handle.trace for waiting in self.session.queue):
            self._fail("the turn was cancelled", "cancelled")  # while it was still queued
        return []

    def _convert_fragment(self, fragment: Fragment) -> list[ResponsePiece]:
        if fragment.kind == "retry":
            return [self._activity("retrying", reason=fragment.text)]
        if fragment.kind == "reasoning":
            if fragment.offset == 0:
                self._reasoning.clear()
            self._reasoning.append(fragment.text)
            return [ResponsePiece(reasoning=fragment.text)]
        if not self.shows_drafts or fragment.after < self._last_reply:
            return []
        step = (fragment.after, fragment.fence)
        if step != self._draft_of:
            self._begin_draft("", step)
        if fragment.offset > len(self._draft):
            return self._join_draft()
        if fragment.offset < len(self._draft):
            return []  # already part of the draft at subscription
        self._draft.add(fragment.text)
        return self._send_new(fragment.text) if self._is_draft_sent else self._send_draft()

    def _join_draft(self) -> list[ResponsePiece]:
        """The draft of the running step at subscription; if it is unknown, the finished reply brings the text."""
        draft = self.bus.draft(self.session.id)
        if draft is None or not draft.content or not self.shows_drafts or not self._is_ours:
            return []
        if not self._last_reply <= draft.after <= self.session.head:
            return []
        self._begin_draft(str(draft.content), draft.step)
        return self._send_draft()

    def _begin_draft(self, content: str, step: tuple[int, int]) -> None:
        self._draft, self._draft_of, self._is_draft_sent = GrowingText(content), step, False

    def _send_draft(self) -> list[ResponsePiece]:
        text = joined_text([*self._replies, draft := str(self._draft)])
        pieces = self._send(text, is_whole=False)
        self._is_draft_sent = bool(draft.strip()) and text == str(self._sent)
        return pieces

    def _send(self, text: str, *, is_whole: bool) -> list[ResponsePiece]:
        """Sends the part of `text` that extends what was sent; text that does not extend it cannot be shown."""
        sent = str(self._sent)
        if text.startswith(sent):
            return self._send_new(text[len(sent) :])
        if is_whole or not sent.startswith(text):
            message = "a step was restarted and its text changed; read the answer from"
            self._fail(f"{message} /v1/sessions/{self.session.id}", "step_restarted")
        return []

    def _send_new(self, text: str) -> list[ResponsePiece]:
        self._sent.add(text)
        return [ResponsePiece(content=text)] if text else []

    async def _check_pause(self) -> None:
        """Ends the response if the turn waits for a budget of its key."""
        may_be_paused, self._may_be_paused = self._may_be_paused, False
        if may_be_paused and (spent := await budgets.paused(self.db, self.session.id)):
            self.is_over, self.error = True, waits_for_budget(spent, self.session.id)

    async def _check_rest(self) -> list[ResponsePiece]:
        """The end of the response; if the turn waits for a person, its content is what it waits for."""
        session = self.session
        if session.turn is None or session.can_move or self._is_held:
            return []
        status = await waiting_status(self.db, session)
        if not status.rests:
            return []
        if not self._is_ours:
            return await self._list_waiting()
        late = await self._convert(Batch([SubagentsChanged()]))
        return late if self._is_held else [*late, *self._ask(status)]

    def _ask(self, status: WaitingStatus) -> list[ResponsePiece]:
        """What the turn waits for: the client's calls, which programs run at once, before what people are asked;
        questions before decisions, the session's own before those of sub-agents."""
        self.client_calls = client_calls(self.session)
        if self.client_calls:
            return [*self._finish(WaitingWords("")), *(ResponsePiece(call=call) for call in self.client_calls)]
        return self._finish(waiting_words.asked(self.session, status))

    async def _list_waiting(self) -> list[ResponsePiece]:
        """The turn waits for a person and the message waits too: the response lists what is open and ends at once."""
        handle = self.handle
        told = await waiting_words.listed(
            self.db, self.session, is_aside=handle.is_aside, is_own_user=handle.is_own_user, address=self.address
        )
        return self._finish(told) if told else []

    async def _mention_background(self) -> list[ResponsePiece]:
        """What sub-agents ask that the turn has left at work: a message here would not reach them, so where to answer
        is said too. Not where a program reads the answer, and not to a repeated request: it has the same response."""
        turn, sampling = self.session.turn, self.session.turn.prompted.sampling if self.session.turn else None
        is_for_person = turn and turn.ended and not (sampling and sampling.response_format)
        # What a queued prompt asks for may be under way by now: its own response tells of it.
        if (
            not is_for_person
            or self.handle.is_behind
            or self.session.queue
            or not any(use.tool.startswith(AGENT_PREFIX) for use in self.session.uses)
        ):
            return []
        asked = [one.text_with_agent for one in await background_questions(self.db, self.session)]
        if not asked:
            return []
        place = self.address or f"/v1/sessions/{self.session.id}/questions"
        note = f"{IN_BACKGROUND}\n\n{BLANK_LINE.join(asked)}\n\nAnswer at {place}"
        return self._send(joined_text([str(self._sent)], note), is_whole=True)

    def _end(self, turn: Turn) -> list[ResponsePiece]:
        if (words := last_words(self.session)) is not None:
            return [msgspec.structs.replace(one, is_refusal=turn.refused) for one in self._finish(WaitingWords(words))]
        if turn.ended == "CANCELLED":
            self._fail("the turn was cancelled", "cancelled")
        else:
            self._fail(turn.error or "the turn failed", turn.code or "failed")
        return []

    def _finish(self, words: WaitingWords) -> list[ResponsePiece]:
        """The last content of a turn that has ended, or that waits for a person."""
        pieces = self._send(joined_text(self._replies, words.text), is_whole=True)
        self.is_over, self.question = True, words.question
        return pieces

    def _fail(self, message: str, code: str) -> None:
        self.is_over, self.error = True, failure(message, code)

    def _convert_event(self, event: events.Event) -> list[ResponsePiece]:
        match event:
            case events.Started() | events.Resumed():
                return [self._activity("started" if isinstance(event, events.Started) else "resumed")]
            case events.Replied():
                return [*self._new_reasoning("" if event.streamed_chars else event.thought), *self._new_reply(event)]
            case events.Called(role="reasons"):
                return [ResponsePiece(reasoning=event.arguments)]
            case events.Called():
                detail = {"call_id": event.call, "tool": event.tool, "arguments": event.arguments}
                role = {"ask": "asks", "client": "client"}.get(event.call_kind, "")
                return [self._activity("tool_call", role, **detail)]
            case events.Returned():
                return [self._result(event)]
        return []

    def _new_reply(self, event: events.Replied) -> list[ResponsePiece]:
        """The text of a reply that was not streamed, or not to its end."""
        text = event.text[: event.streamed_chars]
        self._replies.append(text)
        self._begin_draft("", self._draft_of)
        self.last_finish = event.finish
        return self._send(joined_text(self._replies), is_whole=False) if text else []

    def _new_reasoning(self, thought: str) -> list[ResponsePiece]:
        """The reasoning of a reply, unless the same text was already streamed."""
        streamed = "".join(self._reasoning)
        self._reasoning.clear()
        return [] if thought.strip() in streamed else [ResponsePiece(reasoning=thought)]

    def _result(self, event: events.Returned) -> ResponsePiece:
        use, outcome = use_of(self.session, event.call), event.outcome
        tool, role = (use.tool, use.role) if use else ("", "")
        status, content = ("error", outcome.message) if isinstance(outcome, Fault) else ("ok", outcome.content)
        detail = {"call_id": event.call, "tool": tool, "status": status, "content": content[:SHOWN]}
        if event.by == events.BY_MEMORY:
            detail["by"] = event.by
        return self._activity("tool_result", role, **detail)

    def _activity(self, event: str, role: str = "", **detail: Any) -> ResponsePiece:
        return ResponsePiece(activity=about(self.session, self.handle.trace, event, **detail), role=role)


def client_calls(session: Session) -> tuple[WaitingCall, ...]:
    """The calls that the client is to run, as it is told of them."""
    return tuple(
        WaitingCall(id=name, name=call.tool, arguments=call.arguments.strip() or "{}")
        for name, call in session.client_ids.items()
    )


def use_of(session: Session, call: str) -> Use | None:
    """A call of the current turn; mostly it was made in the last step."""
    for entry in reversed(session.transcript):
        if isinstance(entry, PromptEntry):
            break
        if isinstance(entry, Step):
            for use in entry.uses:
                if use.call == call:
                    return use
    return None


def last_step(session: Session) -> int:
    """The seq of the last reply or takeover: text of a step that began before it is void."""
    steps = (entry.seq for entry in reversed(session.transcript) if isinstance(entry, Step))
    return next(steps, 0)


async def record_rest(db: Database, session: Session, chain: str, text: str) -> None:
    """Records the fingerprint of what the client was sent, and will resend, if the session lacks it."""
    mark = fingerprint.grown(chain, [("assistant", text)])
    if mark != session.rest_mark:
        await sessions.mark_rest(db, mark, session.id, session.head)


def last_words(session: Session) -> str | None:
    """The answer of a turn that has ended; None: it has none.

    A client that asked for JSON cannot read an agent's words about its failure.
    """
    turn = session.turn
    is_unreadable = turn is not None and turn.code == AGENT_FAILED and answer_format.is_asked(turn.prompted)
    return None if is_unreadable else session.closing_text


def usage_between(before: Session, after: Session, trace: str) -> events.Usage:
    """What a turn used between two moments; a session that was in another turn then had used nothing of it."""
    first, last = (
        one.turn.usage if one.turn and one.turn.trace == trace else events.Usage() for one in (before, after)
    )
    names = events.Usage.__struct_fields__
    return events.Usage(**{name: getattr(last, name) - getattr(first, name) for name in names})


def failure(message: str, code: str) -> CallerError:
    """The error for a client whose turn has ended without an answer."""
    is_refused = code in ("template_not_found", "limit_reached", AGENT_FAILED)
    kind = "invalid_request_error" if is_refused else "server_error"
    return CallerError(message, status=STATUSES.get(code, 500), kind=kind, code=code)


def waits_for_budget(spent: SpentBudget, session_id: str) -> CallerError:
    """The error for a client whose turn waits for a budget of its key: that may take a month."""
    goes_on = f"; the turn goes on by itself then, or once the budget is raised: /v1/sessions/{session_id}"
    return budgets.exceeded(spent, goes_on)


@contextmanager
def following(scope: Scope, db: Database, bus: Bus, handle: TurnHandle) -> Iterator[TurnStream]:
    """Follows a turn from now on.

    Called right after the commit, with no `await` in between, it misses no hint of the worker.
    """
    inflight: InflightRequest = scope[INFLIGHT]
    inflight.session = session_id = handle.session.id
    with bus.subscribed(session_id) as subscription:
        yield TurnStream(db, bus, handle, subscription, session_address(scope, session_id))


def follow_turn(scope: Scope, db: Database, bus: Bus, handle: TurnHandle) -> TurnStream:
    """The same until the request is over."""
    inflight: InflightRequest = scope[INFLIGHT]
    return inflight.opened.enter_context(following(scope, db, bus, handle))


def about(session: Session, trace: str, event: str, **detail: Any) -> Activity:
    """The one schema of `x_agent`."""
    shown: Any = {
        "event": event,
        "agent": session.agent,
        "session_id": session.id,
        "conversation_id": session.conversation,
        "trace_id": trace,
        "depth": session.turn.prompted.depth if session.turn else 0,
        "state": session.state,
        **detail,
    }
    return cast("Activity", shown)
