"""Streams a turn to a client: events become pieces of text and activity, until the turn ends or waits for a person."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from longhouse.agents.delegation import PREFIX
from longhouse.api import streaming, wire
from longhouse.api.inflight import InflightRequest
from longhouse.api.openai.turn_handle import TurnHandle
from longhouse.api.sessions.decisions import all_waiting, undecided, words_on
from longhouse.api.sessions.tail import Seen, follow
from longhouse.api.sessions.tree_reader import News, TreeReader
from longhouse.api.sessions.waiting import Question, WaitingStatus, handles_in, own, waiting_status
from longhouse.journal import events
from longhouse.journal.events import Fault, Recorded
from longhouse.journal.fold import fold
from longhouse.journal.session import Session, Turn, joined_text
from longhouse.journal.transcript import Step, Use
from longhouse.runtime.bus import Bus, Fragment, JournalGrew, SubagentsChanged, Subscription
from longhouse.store.database import Database

WITH_IT: Final = "Your message is kept, and reaches the agent once this is decided:"
BEHIND_IT: Final = "Your message is next, once this is decided:"
BEHIND_QUESTION: Final = "Your message is next, once this is answered:"
SHOWN: Final = 2_000
"""Characters of a tool's result that are shown; the journal has the whole result."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the response: text, or an activity in `x_agent`."""

    content: str = ""
    reasoning: str = ""
    activity: dict[str, Any] | None = None
    role: str = ""
    """The role of the tool that the activity is about."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the turn ended, or what it waits for."""

    session: Session
    turn: Turn | None
    """None: the prompt never became a turn."""
    error: dict[str, Any] | None = None
    asked: Question | None = None
    """The question of a sub-agent, which is asked in this response."""


@dataclass
class TurnStream:
    """Follows one turn and converts its events to pieces; at the end, `ending` says how it ended."""

    db: Database
    bus: Bus
    attached: TurnHandle
    subscription: Subscription
    """The subscription to the client's session, opened before anything could happen there."""
    beat: float = streaming.HEARTBEAT_EVERY
    shows_drafts: bool = True
    """False: the client sees nothing before the end, so a restarted step needs no correction."""
    ending: Ending | None = None
    sent: str = ""
    """Content that was already sent: it cannot be changed."""
    _said: list[str] = field(default_factory=list)
    """The text of each recorded reply in this response."""
    _replied: int = 0
    """The seq of the last reply; fragments of steps before it are already known."""
    _draft: str = ""
    _draft_of: tuple[int, int] = (0, 0)
    _aloud: list[str] = field(default_factory=list)
    """Reasoning of the running step that was streamed."""
    _tree: TreeReader | None = None
    _handles: list[str] = field(default_factory=list)
    """Handles that the turn collects, and that the tree reader does not read yet."""
    _session: Session = field(init=False)

    def __post_init__(self) -> None:
        self._session = self.attached.session
        steps = (entry.seq for entry in reversed(self._session.transcript) if isinstance(entry, Step))
        self._replied = next(steps, 0)
        for use in (use for step in reversed(self._session.steps) for use in step.uses if self._is_ours):
            self._notice(use)

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """Batches of pieces; an empty one is a heartbeat."""
        session = self._session
        if self.attached.is_behind:
            self.subscription.put(JournalGrew())
        # An answer to one of several questions: the next one is open already. An aside: the response lists open ones.
        pieces = await (self._say_what_waits() if self.attached.is_aside else self._rest())
        if self.ending is not None:
            yield pieces
            return
        async for batch in follow(self.db, session.id, self.subscription, after=session.head, beat=self.beat):
            pieces = await self._tell(batch) if batch else []
            if self.ending is None and batch:
                pieces += await self._rest()
            if self.ending is None and self.attached.is_behind and not self._draft:
                pieces += self._join()
            if pieces or not batch:
                yield pieces
            if self.ending is not None:
                return
        self.ending = Ending(self._session, None, _error("the session was deleted", "session_deleted"))

    @property
    def _is_ours(self) -> bool:
        return self._session.turn is not None and self._session.turn.trace == self.attached.trace

    async def _tell(self, batch: Sequence[Seen]) -> list[Piece]:
        pieces: list[Piece] = []
        for item in await self._in_order(batch):
            if self.ending is not None:
                break
            if not isinstance(item, News):
                pieces += self._see(item)
            elif item.shown and not self._rests_alone:
                pieces.append(Piece(activity=item.shown))
        return pieces

    @property
    def _rests_alone(self) -> bool:
        """Does the turn wait for people only? What sub-agents do meanwhile is shown after the answer."""
        return self._is_ours and not self._session.can_move and not self._session.awaits_agents

    async def _in_order(self, batch: Sequence[Seen]) -> Sequence[Seen | News]:
        """New events of the top session, merged with those of its sub-agents, causes before effects."""
        for fact in (item for item in batch if isinstance(item, Recorded) and item.trace == self.attached.trace):
            if isinstance(fact.event, events.Called):
                self._notice(fact.event)
        if self._tree is None:
            return batch
        while self._handles:
            await self._tree.collect(self.attached.session, self.attached.trace, self._handles.pop())
        items = await self._tree.since(batch)
        if self._tree.held:
            # The session has moved on: its new events are read, and all are shown in order.
            self.subscription.put(JournalGrew())
        return items

    def _notice(self, called: events.Called | Use) -> None:
        """Begins to follow the sub-agents of a call that delegates, or that collects a delegated result."""
        if not called.tool.startswith(PREFIX) and called.role != "collects":
            return
        if self._tree is None:
            self._tree = TreeReader.of_turn(self.db, self._session, self.attached.trace, self.attached.seen_heads)
        if called.role == "collects":
            self._handles += handles_in(called.arguments)

    @property
    def _is_held(self) -> bool:
        return self._tree is not None and bool(self._tree.held)

    def _see(self, item: Seen) -> list[Piece]:
        if isinstance(item, SubagentsChanged):
            return []
        if isinstance(item, Fragment):
            return self._hear(item) if self._is_ours else []
        self._session = fold([item], self._session)
        if isinstance(item.event, events.Replied):
            self._replied = item.seq
        turn = self._session.turn
        if self._is_ours and turn and turn.ended:
            return self._end(turn)
        if self._was_dropped:
            self.ending = Ending(self._session, None, _cancelled())
            return []
        return self._activity(item.event) if self._is_ours else []

    @property
    def _was_dropped(self) -> bool:
        """Was the prompt cancelled while it was still queued?"""
        waits = any(waiting.prompt.trace == self.attached.trace for waiting in self._session.queue)
        return not waits and not self._is_ours

    def _hear(self, fragment: Fragment) -> list[Piece]:
        if fragment.kind == "reasoning":
            if fragment.offset == 0:
                self._aloud.clear()
            self._aloud.append(fragment.text)
            return [Piece(reasoning=fragment.text)]
        if not self.shows_drafts or fragment.after < self._replied:
            return []
        step = (fragment.after, fragment.fence)
        if step != self._draft_of:
            self._draft, self._draft_of = "", step
        if fragment.offset > len(self._draft):
            return self._join()
        if fragment.offset < len(self._draft):
            return []  # already part of the draft at subscription
        self._draft += fragment.text
        return self._say_draft()

    def _join(self) -> list[Piece]:
        """The draft of the running step at subscription; if it is unknown, the finished reply brings the text."""
        draft = self.bus.draft(self._session.id)
        if draft is None or not self.shows_drafts or not self._is_ours:
            return []
        if not self._replied <= draft.after <= self._session.head:
            return []
        self._draft, self._draft_of = draft.content, (draft.after, draft.fence)
        return self._say_draft()

    def _say_draft(self) -> list[Piece]:
        return self._say(joined_text([*self._said, self._draft]), is_whole=False)

    def _say(self, text: str, *, is_whole: bool) -> list[Piece]:
        """Sends the part of `text` that extends what was sent; text that does not extend it cannot be shown."""
        if text.startswith(self.sent):
            new, self.sent = text[len(self.sent) :], text
            return [Piece(content=new)] if new else []
        if is_whole or not self.sent.startswith(text):
            self.ending = Ending(self._session, self._session.turn, _step_restarted(self._session))
        return []

    async def _rest(self) -> list[Piece]:
        """The end of the response; if the turn waits for a person, its content is what it waits for."""
        session = self._session
        if session.turn is None or session.can_move or self._is_held:
            return []
        below = await waiting_status(self.db, session)
        if not below.rests:
            return []
        if not self._is_ours:
            return await self._say_what_waits()
        late = await self._tell([SubagentsChanged()])
        return late if self._is_held else [*late, *self._ask_now(below)]

    def _ask_now(self, below: WaitingStatus) -> list[Piece]:
        """What the turn waits for: questions before decisions, the session's own before those of sub-agents."""
        session = self._session
        questions = [one for one in below.questions if one.call.call_kind == "ask"]
        if not session.questions and questions:
            return self._ask(questions[0].spoken, questions[0])
        waiting = all_waiting(session, below)
        if session.questions or all(one.session.id == session.id for one in waiting):
            return self._ask(session.last_words or "")
        return self._ask(words_on(waiting, session), self._beneath(waiting))

    async def _say_what_waits(self) -> list[Piece]:
        """The turn waits for a person and the message waits too: the response lists what is open and ends at once."""
        if not self.attached.is_aside and (questions := await self._questions()):
            first = questions[0]
            beneath = self._beneath(questions)
            return self._ask(f"{BEHIND_QUESTION}\n\n{first.spoken if beneath else first.text}", beneath)
        waiting = await undecided(self.db, self._session)
        if not waiting:
            return []
        note = WITH_IT if self.attached.is_aside else BEHIND_IT
        words = words_on(waiting, self._session, is_own_user=self.attached.is_own_user)
        return self._ask(f"{note}\n\n{words}", self._beneath(waiting))

    async def _questions(self) -> list[Question]:
        below = await waiting_status(self.db, self._session)
        return [one for one in (*own(self._session), *below.questions) if one.call.call_kind == "ask"]

    def _beneath(self, waiting: Sequence[Question]) -> Question | None:
        """The first open question, if a sub-agent asks it."""
        return None if waiting[0].session.id == self._session.id else waiting[0]

    def _ask(self, words: str, asked: Question | None = None) -> list[Piece]:
        """The last content of a turn that waits for a person."""
        pieces = self._say(joined_text(self._said, words), is_whole=True)
        self.ending = self.ending or Ending(self._session, self._session.turn, asked=asked)
        return pieces

    def _end(self, turn: Turn) -> list[Piece]:
        words = self._session.last_words
        if words is not None:
            pieces = self._say(joined_text(self._said, words), is_whole=True)
            self.ending = self.ending or Ending(self._session, turn)
            return pieces
        error = _cancelled() if turn.ended == "CANCELLED" else _failed(turn)
        self.ending = Ending(self._session, turn, error)
        return []

    def _activity(self, event: events.Event) -> list[Piece]:
        pieces: list[Piece] = []
        match event:
            case events.Started():
                pieces = [self._act("started")]
            case events.Replied():
                pieces = [*self._think("" if event.said else event.thought), *self._reply(event)]
            case events.Called(role="reasons"):
                pieces = [Piece(reasoning=event.arguments)]
            case events.Called(call_kind="tool" | "agent"):
                pieces = [self._act("tool_call", call_id=event.call, tool=event.tool, arguments=event.arguments)]
            case events.Returned():
                pieces = [self._returned(event)]
            case events.Resumed():
                pieces = [self._act("resumed")]
        return pieces

    def _reply(self, event: events.Replied) -> list[Piece]:
        """The text of a reply that was not streamed, or not to its end."""
        self._said.append(event.text[: event.said])
        self._draft = ""
        return self._say(joined_text(self._said), is_whole=False)

    def _think(self, thought: str) -> list[Piece]:
        """A thought, unless the same text was already streamed."""
        aloud = "".join(self._aloud)
        self._aloud.clear()
        return [] if thought.strip() in aloud else [Piece(reasoning=thought)]

    def _returned(self, event: events.Returned) -> Piece:
        uses = (use for step in self._session.steps for use in step.uses)
        tool, role = next(((use.tool, use.role) for use in uses if use.call == event.call), ("", ""))
        fault = event.outcome if isinstance(event.outcome, Fault) else None
        content = fault.message if fault else event.outcome.content  # type: ignore[union-attr]  # else an Output
        status = "error" if fault else "ok"
        told = {"call_id": event.call, "tool": tool, "status": status, "content": content[:SHOWN]}
        return replace(self._act("tool_result", **told), role=role)

    def _act(self, event: str, **detail: Any) -> Piece:
        return Piece(activity=about(self._session, self.attached.trace, event, **detail))


def follow_turn(visit: InflightRequest, db: Database, bus: Bus, attached: TurnHandle) -> TurnStream:
    """Follows a turn from now on until the request is over.

    Called right after the commit, with no `await` in between, it misses no hint of the worker.
    """
    visit.session = attached.session.id
    return TurnStream(db, bus, attached, visit.opened.enter_context(bus.subscribed(attached.session.id)))


def about(session: Session, trace: str, event: str, **detail: Any) -> dict[str, Any]:
    """The one schema of `x_agent`."""
    return {
        "event": event,
        "agent": session.agent,
        "session_id": session.id,
        "conversation_id": session.conversation,
        "trace_id": trace,
        "depth": session.turn.prompted.depth if session.turn else 0,
        "state": session.state,
        **detail,
    }


def _error(message: str, code: str) -> dict[str, Any]:
    return wire.envelope(message, kind="server_error", code=code)


def _failed(turn: Turn) -> dict[str, Any]:
    message, code = turn.error or "the turn failed", turn.code or "failed"
    if code in ("template_not_found", "limit_reached"):
        return wire.envelope(message, kind="invalid_request_error", code=code)
    return _error(message, code)


def _cancelled() -> dict[str, Any]:
    return _error("the turn was cancelled", "cancelled")


def _step_restarted(session: Session) -> dict[str, Any]:
    return _error(
        f"a step was restarted and its text changed; read the answer from /v1/sessions/{session.id}", "step_restarted"
    )
