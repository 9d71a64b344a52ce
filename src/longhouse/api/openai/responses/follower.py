"""Follows a response: reads its journal, shows what is being written, and ends when its turn does, or waits."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from longhouse import clock
from longhouse.api import wire
from longhouse.api.http import streaming
from longhouse.api.openai import waiting_words
from longhouse.api.openai.responses.builder import ResponseBuilder
from longhouse.api.openai.responses.objects import ErrorEvent, ResponseEvents, ResponseObject, StreamEvent
from longhouse.api.openai.responses.stored import WaitingEnd
from longhouse.api.openai.turn_handle import TurnHandle
from longhouse.api.openai.turn_stream import (
    PASSED_ON,
    WaitingCall,
    client_calls,
    failure,
    record_rest,
    waits_for_budget,
)
from longhouse.api.sessions.decisions import all_waiting
from longhouse.api.sessions.tail import follow
from longhouse.api.sessions.waiting import Question, WaitingStatus, waiting_status
from longhouse.errors import CallerError
from longhouse.journal.events import Recorded
from longhouse.runtime.bus.items import Fragment, JournalGrew, SubagentsChanged, Written
from longhouse.runtime.bus.local import Bus, Subscription
from longhouse.store import journals
from longhouse.store.database import Database
from longhouse.store.limits import budgets
from longhouse.store.openai import responses
from longhouse.store.openai.responses import ResponseRow, ShownText

PACE: Final = 0.1
"""Seconds between two portions of text that is still being written: each is a statement."""
RACES: Final = 20
"""How often the end of a response is written anew because its session moved on meanwhile."""


@dataclass
class ResponseFollower:
    """One client of a response, or nobody: then it is only read."""

    db: Database
    bus: Bus
    builder: ResponseBuilder
    address: str = ""
    """The session's page in the console."""
    subscription: Subscription | None = None
    chain: str = ""
    """The fingerprint of all that the client has sent, if it is known."""
    beat: float = streaming.HEARTBEAT_EVERY
    error: CallerError | None = None
    """Why the stream ends before the response does."""
    sent: int = 0
    """How many events were given out."""
    _show_at: float = 0.0
    _is_told_of_pause: bool = False

    @property
    def row(self) -> ResponseRow:
        return self.builder.row

    async def catch_up(self) -> None:
        """Reads what has happened and what was shown since."""
        builder = self.builder
        while not builder.is_over:
            facts = await journals.read(self.db, self.row.session_id, builder.session.head)
            # After the events: what was shown before one of them is there by now.
            self._merge(facts, await responses.shown_texts(self.db, self.row.id, *builder.shown_at))
            if len(facts) < journals.PAGE:
                return

    async def settle(self) -> None:
        """Reads all; if the turn waits for somebody, the response has ended."""
        await self.catch_up()
        await self._check_rest()

    async def batches(self, *, is_live: bool) -> AsyncIterator[Sequence[StreamEvent]]:
        """Batches of new events until the end; an empty one is a heartbeat.

        `is_live`: text is given out while it is written.
        """
        assert self.subscription is not None
        await self.settle()
        self._is_told_of_pause = True
        await self._check_pause()
        if is_live:
            await self._show_draft()
        yield self._new()
        if not self.builder.is_over and not self.error:
            head = self.builder.session.head
            async for batch in follow(self.db, self.row.session_id, self.subscription, after=head, beat=self.beat):
                await self._take(batch, is_live=is_live)
                new = self._new()
                if new or not batch:
                    yield new
                if self.builder.is_over or self.error:
                    break
            else:
                self.error = failure("the session was deleted", "session_deleted")
        if self.builder.is_over:
            await self._tidy()
            await self._record_fingerprint()

    async def _take(self, batch: Sequence[Any], *, is_live: bool) -> None:
        if facts := [one for one in batch if isinstance(one, Recorded) and one.seq > self.builder.session.head]:
            shown = await responses.shown_texts(self.db, self.row.id, *self.builder.shown_at)
            self._merge(facts, shown)
        if not batch and self.subscription:
            self.subscription.put(JournalGrew())  # a hint may have been lost
        fragments = [one for one in batch if isinstance(one, Fragment | Written)]
        if is_live and fragments:
            await self._show_draft()
        if facts or not batch or any(isinstance(one, SubagentsChanged) for one in batch):
            await self._check_rest()
        self._is_told_of_pause |= not batch or any(isinstance(one, Fragment) and one.until for one in fragments)
        await self._check_pause()

    def _merge(self, facts: Sequence[Recorded], shown: Sequence[ShownText]) -> None:
        """Takes both in their order: what was shown at a head comes before the event after it."""
        left = deque(shown)
        for fact in facts:
            while left and left[0].seq < fact.seq:
                self.builder.show(left.popleft())
            self.builder.add(fact)
        while left and left[0].seq <= self.builder.session.head:
            self.builder.show(left.popleft())

    async def _show_draft(self) -> None:
        """Shows what is being written; it is written down first, so that it stays what it is."""
        now = asyncio.get_running_loop().time
        if (wait := self._show_at - now()) > 0:
            await asyncio.sleep(wait)
        builder, draft = self.builder, self.bus.draft(self.row.session_id)
        if draft is None or not draft.content or builder.is_over or not builder.is_ours:
            return
        for text in builder.unshown(draft.so_far):
            if not await responses.show(self.db, self.row.id, self.row.session_id, text):
                # Another process has shown something, or the reply is recorded.
                await self.catch_up()
                return
            builder.show(text)
            self._show_at = now() + PACE

    async def _check_rest(self) -> None:
        builder = self.builder
        for _ in range(RACES):
            session = builder.session
            if builder.is_over or session.turn is None or session.can_move:
                return
            status = await waiting_status(self.db, session)
            rest = await self._rest(status) if status.rests else None
            if rest is None or await self._end(rest):
                return
            await self.catch_up()

    async def end_with(self, text: str) -> None:
        """Ends the response with these words, whatever its turn does."""
        for _ in range(RACES):
            if self.builder.is_over or await self._end(WaitingEnd(seq=self._head, at=clock.now(), text=text)):
                return
            await self.catch_up()

    @property
    def _head(self) -> int:
        return self.builder.session.head

    async def _end(self, rest: WaitingEnd) -> bool:
        """Writes down how the response ends; False if the session has moved on."""
        written = await responses.end_at_rest(self.db, self.row.id, self.row.session_id, self._head, rest)
        if written:
            self.builder.rest(written)
        return written is not None

    async def _rest(self, status: WaitingStatus) -> WaitingEnd | None:
        """What the turn waits for; None: the response is not over."""
        session, at = self.builder.session, clock.now()
        if not self.builder.is_ours:
            if self.builder.request.background:
                return None  # it is queued, and nobody waits for it
            told = await waiting_words.listed(self.db, session, is_aside=False, address=self.address)
            return WaitingEnd(seq=session.head, at=at, text=told.text) if told else None
        if session.client_calls:
            calls = client_calls(session)
            return WaitingEnd(seq=session.head, at=at, waiting_for="function_call", calls=calls)
        text = waiting_words.asked(session, status).text
        questions = [one for one in status.questions if one.call.call_kind == "ask"]
        if questions:
            call_id = questions[0].label(session)
            return WaitingEnd(seq=session.head, at=at, text=text, waiting_for="clarification", call_id=call_id)
        waiting = all_waiting(status)
        call_id = waiting[0].label(session) if waiting else ""
        approvals = tuple(self._approval(one) for one in waiting if one.call.question_kind == "approval")
        return WaitingEnd(
            seq=session.head, at=at, text=text, waiting_for="approval", call_id=call_id, approvals=approvals
        )

    def _approval(self, question: Question) -> WaitingCall:
        call = question.call
        return WaitingCall(id=question.label(self.builder.session), name=call.tool, arguments=call.arguments)

    async def _check_pause(self) -> None:
        """Leaves the client if the turn waits for a budget of its key; a response in the background goes on."""
        is_told, self._is_told_of_pause = self._is_told_of_pause, False
        if is_told and not self.builder.is_over and (spent := await budgets.paused(self.db, self.row.session_id)):
            self.error = waits_for_budget(spent, self.row.session_id)

    async def _tidy(self) -> None:
        """Drops what was shown before it was recorded, if the journal alone says the same."""
        if self.builder.shown_at == (0, 0):
            return
        alone = ResponseBuilder(self.row, self.builder.base)
        alone.known_rest = self.builder.known_rest
        for fact in await journals.read(self.db, self.row.session_id, self.row.after):
            alone.add(fact)
        if alone.events == self.builder.events:
            await responses.drop_shown(self.db, self.row.id)

    async def _record_fingerprint(self) -> None:
        """Records the fingerprint of what the client was sent, and will resend, if the session lacks it."""
        builder, rest = self.builder, self.builder.known_rest
        if not self.chain or builder.status != "completed" or (rest and rest.calls):
            return
        await record_rest(self.db, builder.session, self.chain, builder.text)

    def _new(self) -> Sequence[StreamEvent]:
        new = self.builder.events[self.sent :]
        self.sent = len(self.builder.events)
        return new

    # What a client gets

    async def begin(self, handle: TurnHandle) -> None:
        """What is known as soon as the request is committed: some responses end at once."""
        self.chain = handle.chain
        if handle.passed_on_to:
            await self.end_with(PASSED_ON.format(agent=handle.passed_on_to))
        elif handle.is_aside:
            told = await waiting_words.listed(
                self.db, handle.session, is_aside=True, is_own_user=handle.is_own_user, address=self.address
            )
            await self.end_with(told.text if told else "")

    async def whole(self) -> wire.Json[ResponseObject] | wire.Json[wire.Envelope]:
        """The response, when it has ended."""
        async for _ in self.batches(is_live=False):
            pass
        shown = self.builder.object()
        error = self.error
        if error is None and shown.status == "cancelled":
            error = failure("the response was cancelled", "cancelled")
        elif error is None and shown.error:
            error = failure(shown.error.message, shown.x_agent.code)
        if error is None:
            return wire.Json(shown)
        refused = wire.error_response(error)
        refused.headers["x-should-retry"] = "false"  # the request is in the journal: a retry would only duplicate it
        return refused

    def streamed(self, starting_after: int = -1) -> streaming.EventStream[ResponseEvents]:
        return streaming.EventStream(self.chunks(starting_after), error=self.encoded)

    async def chunks(self, starting_after: int) -> AsyncGenerator[bytes, None]:
        async for batch in self.batches(is_live=True):
            new = [event for event in batch if event.sequence_number > starting_after]
            yield b"".join(streaming.named(event.type, event) for event in new) if new else streaming.HEARTBEAT
        if self.error:
            yield self.encoded(self.error)

    def encoded(self, error: CallerError) -> bytes:
        """An error event. It has the number of the event before it, so a client that resumes misses nothing."""
        number = max(0, self.sent - 1)
        event = ErrorEvent(sequence_number=number, code=error.code, message=str(error), param=error.param)
        return streaming.named("error", event)
