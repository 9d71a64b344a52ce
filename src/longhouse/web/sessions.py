"""Sessions as resources: list, read, follow, answer, cancel."""

import base64
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field, StrictStr

from longhouse import clock
from longhouse.agents import window
from longhouse.agents.catalog import Catalog
from longhouse.agents.template import Template
from longhouse.errors import AlreadyReturned, CallerError
from longhouse.journal import events
from longhouse.journal.events import Event, Fault, Output, Recorded
from longhouse.journal.session import Open, Session, State, fold
from longhouse.runtime.bus import Bus, Draft, Fragment
from longhouse.store import journals, views
from longhouse.store.database import Database
from longhouse.web import access, stream, wire
from longhouse.web.follow import follow
from longhouse.web.turns import Turns

MAX_PAGE: Final = 200
RACES: Final = 20
"""How often a cancel folds again because the session moved on meanwhile."""


class Answer(wire.Strict):
    answer: StrictStr = Field(min_length=1, max_length=200_000)
    call_id: StrictStr | None = None


class Approval(wire.Strict):
    call_id: StrictStr
    decision: Literal["happened", "did_not_happen", "give_up"]
    result: StrictStr | None = None
    comment: StrictStr = ""


class Sessions:
    """What can be done with a session from outside; the routes below only translate."""

    def __init__(self, db: Database, bus: Bus, catalog: Catalog, turns: Turns) -> None:
        self.db = db
        self.bus = bus
        self.catalog = catalog
        self.turns = turns

    async def load(self, session_id: str) -> Session:
        row = await views.session(self.db, session_id, access.LOCAL.owner)
        if row is None:
            raise wire.not_found("There is no such session.", code="session_not_found")
        return await journals.load(self.db, session_id, row.head)

    async def answer(self, session_id: str, text: str, call_id: str | None) -> Session:
        session = await self.load(session_id)
        asked = [call for call in session.questions if call_id in (None, call.call)]
        if not asked:
            raise _conflict("There is no open question to answer: it was answered already, or never asked.")
        try:
            attached = await self.turns.answer(session, asked[0].call, text)
        except AlreadyReturned:
            raise _conflict("This question was answered already.") from None
        self.bus.appended(session_id, attached.session.head)
        return attached.session

    async def decide(self, session_id: str, approval: Approval) -> Session:
        """Settles a call whose outcome nobody knows."""
        session = await self.load(session_id)
        if not any(call.call == approval.call_id for call in session.uncertain):
            raise _conflict("There is no open decision on this call: it was settled already, or never asked.")
        new: list[Event] = [
            events.Decided(call=approval.call_id, decision=approval.decision, by="user", comment=approval.comment)
        ]
        if approval.decision == "happened":
            new.append(events.Returned(call=approval.call_id, outcome=Output(content=approval.result or ""), by="user"))
        if approval.decision == "give_up":
            fault = Fault(code="given_up", message="nobody knows whether it happened, and it was given up")
            new.append(events.Returned(call=approval.call_id, outcome=fault, by="user"))
        trace = session.turn.trace if session.turn else ""
        try:
            placed = await journals.add(self.db, session_id, new, trace=trace)
        except AlreadyReturned:
            raise _conflict("This call was settled already.") from None
        self.bus.appended(session_id, placed.seq)
        return await journals.catch_up(self.db, session)

    async def cancel(self, session_id: str) -> Session:
        """Ends the running turn, or the next one waiting; a session that rests stays as it is."""
        for _ in range(RACES):
            session = await self.load(session_id)
            if session.turn and session.is_running:
                trace = session.turn.trace
            elif session.queue:
                trace = session.queue[0].prompt.trace
            else:
                return session
            fault = Fault(code="cancelled", message="the turn was cancelled")
            new: list[Event] = [events.Returned(call=call, outcome=fault) for call in session.open]
            new.append(events.Cancelled(trace=trace, by="user"))
            at = clock.now()
            recorded = [Recorded(seq=session.head + 1 + i, at=at, event=event) for i, event in enumerate(new)]
            after = fold(recorded, session)
            if placed := await journals.cancel(self.db, session, new, after=after):
                self.bus.stop(session_id)
                self.bus.appended(session_id, placed.seq)
                return after
        raise CallerError("The session moved on each time; try again.", status=409, code="busy")

    async def events(
        self, session: Session, after: int, *, until_rest: bool, deltas: bool
    ) -> AsyncGenerator[bytes, None]:
        """Facts with ids; fragments without. Facts after the id come first, then the draft of the running step."""
        with self.bus.subscribed(session.id) as subscription:
            # A draft is shown after the facts that its step was decided at, even if they came while we read.
            while (page := await journals.read(self.db, session.id, after)) or self._is_ahead(session.id, after):
                yield b"".join(_fact(session.id, record) for record in page)
                session = fold((record for record in page if record.seq > session.head), session)
                after = page[-1].seq if page else after
            if until_rest and not session.can_move:
                return
            if deltas and (draft := self.bus.draft(session.id)):
                yield _snapshot(draft)
            beat = stream.HEARTBEAT_EVERY
            async for batch in follow(self.db, session.id, subscription, after=after, beat=beat):
                pieces = []
                for item in batch:
                    if isinstance(item, Recorded):
                        session = fold([item], session)
                        pieces.append(_fact(session.id, item))
                    elif deltas:
                        pieces.append(_delta(item))
                if pieces or not batch:
                    yield b"".join(pieces) or stream.HEARTBEAT
                if batch and until_rest and not session.can_move:
                    return

    def _is_ahead(self, session_id: str, seq: int) -> bool:
        draft = self.bus.draft(session_id)
        return draft is not None and draft.after > seq


def routes(sessions: Sessions) -> APIRouter:
    router = APIRouter(tags=["Sessions"])
    bare = [Depends(wire.no_query)]

    @router.get("/v1/sessions", response_model=None)
    async def list_sessions(request: Request) -> Response:
        """Your sessions, newest first; filtered by state, template, conversation_id, parent, since, until."""
        known = ("state", "template", "conversation_id", "parent", "since", "until", "limit", "before")
        query = wire.query(request, known)
        filters = views.Filters(
            owner=access.LOCAL.owner,
            state=_state(query.get("state")),
            template=query.get("template"),
            conversation_id=_conversation(query),
            parent=query.get("parent"),
            since=_moment(query, "since"),
            until=_moment(query, "until"),
        )
        limit = _number(query, "limit", default=50, least=1, most=MAX_PAGE)
        rows = await views.sessions(sessions.db, filters, before=_cursor(query.get("before")), limit=limit + 1)
        page, has_more = rows[:limit], len(rows) > limit
        following = _cursor_of(page[-1]) if has_more else None
        return wire.Json(
            {"object": "list", "data": [_listed(row) for row in page], "has_more": has_more, "next": following}
        )

    @router.get("/v1/sessions/{session_id}", response_model=None, dependencies=bare)
    async def get_session(session_id: str) -> Response:
        """One session: its state, what it is doing, what it waits for, what came of it."""
        return wire.Json(described(await sessions.load(session_id)))

    @router.get("/v1/sessions/{session_id}/messages", response_model=None, dependencies=bare)
    async def get_messages(session_id: str) -> Response:
        """The session's history as OpenAI messages."""
        session = await sessions.load(session_id)
        template = sessions.catalog.active(session.agent) or Template(name=session.agent, tools=())
        history = list(window.history(session, template))
        return wire.Json({"object": "list", "data": history, "has_more": False, "next": None})

    @router.get("/v1/sessions/{session_id}/events", response_model=None)
    async def get_events(session_id: str, request: Request) -> Response:
        """What happens, as server-sent events; continue with `Last-Event-ID` or `after`."""
        query = wire.query(request, ("after", "until", "deltas"))
        after = request.headers.get("last-event-id") or query.get("after") or "0"
        until = query.get("until", "rest")
        if until not in ("rest", "never"):
            raise CallerError("until must be 'rest' or 'never'.", param="until")
        deltas = query.get("deltas", "true")
        if deltas not in ("true", "false"):
            raise CallerError("deltas must be 'true' or 'false'.", param="deltas")
        session = await sessions.load(session_id)
        if not (after.isascii() and after.isdecimal() and len(after) < 19 and int(after) <= session.head):
            raise CallerError("The event id to continue from is not one of this session.", param="after")
        pieces = sessions.events(session, int(after), until_rest=until == "rest", deltas=deltas == "true")
        return stream.EventStream(pieces)

    @router.post(
        "/v1/sessions/{session_id}/clarification",
        response_model=None,
        status_code=202,
        dependencies=bare,
        openapi_extra=wire.described(Answer, answer="Oslo"),
    )
    async def clarify(session_id: str, request: Request) -> Response:
        """Answers the oldest open question, or the one that `call_id` names."""
        answer = wire.parse(Answer, await wire.read_body(request))
        session = await sessions.answer(session_id, answer.answer, answer.call_id)
        return wire.Json({"session_id": session_id, "state": session.state}, status_code=202)

    @router.post(
        "/v1/sessions/{session_id}/approval",
        response_model=None,
        status_code=202,
        dependencies=bare,
        openapi_extra=wire.described(Approval, call_id="3-action-0", decision="happened", result="paid"),
    )
    async def approve(session_id: str, request: Request) -> Response:
        """Says what became of a call whose worker was lost: happened (with its result), did_not_happen, give_up."""
        approval = wire.parse(Approval, await wire.read_body(request))
        session = await sessions.decide(session_id, approval)
        return wire.Json({"session_id": session_id, "state": session.state}, status_code=202)

    @router.post("/v1/sessions/{session_id}/cancel", response_model=None, status_code=202, dependencies=bare)
    async def cancel(session_id: str, request: Request) -> Response:
        """Ends the running turn, or the next one waiting."""
        await wire.refuse_body(request)
        session = await sessions.cancel(session_id)
        return wire.Json({"session_id": session_id, "state": session.state}, status_code=202)

    return router


def described(session: Session) -> dict[str, Any]:
    """A session in all that a client may want to know of it."""
    turn = session.turn
    counters = {
        "iteration": turn.iteration if turn else 0,
        "searches_used": turn.searches_used if turn else 0,
        "clarifications_used": turn.clarifications_used if turn else 0,
    }
    return {
        "session_id": session.id,
        "template_id": session.agent,
        "template": session.agent,
        "version": turn.version if turn else session.opened_version,
        "instance_id": turn.instance if turn else None,
        "conversation_id": session.conversation,
        "label": session.label,
        "trace_id": turn.trace if turn else None,
        "state": session.state,
        "task": turn.task if turn else None,
        "counters": counters,
        "context_snapshot": snapshot_of(session),
        "questions": [_question(session, call) for call in (*session.questions, *session.uncertain)],
        "queued": len(session.queue),
        "result": turn.answer if turn and turn.ended else None,
        "error": turn.error if turn else None,
        "usage": msgspec.to_builtins(turn.usage) if turn else None,
        "head": session.head,
        "created_at": session.created_at,
        "updated_at": session.updated_at,
    }


def snapshot_of(session: Session) -> dict[str, Any]:
    turn = session.turn
    return {
        "state": session.state,
        "iteration": turn.iteration if turn else 0,
        "searches_used": turn.searches_used if turn else 0,
        "clarifications_used": turn.clarifications_used if turn else 0,
        "searches": session.context.get("searches", []),
        "sources": session.context.get("sources", {}),
        "execution_result": turn.answer if turn else None,
        "current_step_reasoning": session.context.get("current_step_reasoning"),
    }


def _question(session: Session, call: Open) -> dict[str, Any]:
    return {
        "call_id": call.call,
        "agent": session.agent,
        "session_id": session.id,
        "kind": "unknown_outcome" if call.uncertain else "clarification",
        "text": call.question or f"Did {call.tool} happen?",
        "deadline": call.deadline,
    }


def _listed(row: views.Row) -> dict[str, Any]:
    return {
        "session_id": row.id,
        "template_id": row.agent,
        "template": row.agent,
        "version": row.version,
        "conversation_id": row.conversation_id,
        "label": row.label,
        "parent": row.parent,
        "trace_id": row.trace_id,
        "state": row.state,
        "task": row.task,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }


def _fact(session_id: str, record: Recorded) -> bytes:
    value = {
        "seq": record.seq,
        "at": record.at,
        "session_id": session_id,
        "trace_id": record.trace,
        "worker": record.worker,
        "fence": record.fence,
        "event": record.event,
    }
    return stream.named(events.kind_of(record.event), value, record.seq)


def _delta(fragment: Fragment) -> bytes:
    value = {
        "after": fragment.after,
        "fence": fragment.fence,
        "offset": fragment.offset,
        "kind": fragment.kind,
        "text": fragment.text,
    }
    return stream.named("delta", value)


def _snapshot(draft: Draft) -> bytes:
    value = {
        "after": draft.after,
        "fence": draft.fence,
        "content": draft.content,
        "reasoning": draft.reasoning,
    }
    return stream.named("delta.snapshot", value)


def _conflict(message: str) -> CallerError:
    return CallerError(message, status=409, code="already_settled")


def _conversation(query: dict[str, str]) -> str | None:
    return wire.checked_id(query["conversation_id"], "conversation_id") if "conversation_id" in query else None


def _state(value: str | None) -> str | None:
    if value is not None and value not in State.__members__:
        raise CallerError(f"state must be one of {', '.join(State)}.", param="state")
    return value


def _moment(query: dict[str, str], name: str) -> datetime | None:
    if name not in query:
        return None
    try:
        return _in_utc(query[name])
    except (ValueError, OverflowError):
        raise CallerError(f"{name} must be ISO 8601 with a zone, such as 2026-01-31T12:00:00Z.", param=name) from None


def _in_utc(text: str) -> datetime:
    """A moment that Postgres can be asked about: with a zone, and still a year of four digits in UTC."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a moment needs a zone")
    return moment.astimezone(UTC)


def _number(query: dict[str, str], name: str, *, default: int, least: int, most: int) -> int:
    value = query.get(name, str(default))
    if not (value.isascii() and value.isdecimal() and len(value) < 10 and least <= int(value) <= most):
        raise CallerError(f"{name} must be a number from {least} to {most}.", param=name)
    return int(value)


def _cursor_of(row: views.Row) -> str:
    return base64.urlsafe_b64encode(f"{row.created_at.isoformat()} {row.id}".encode()).decode()


def _cursor(value: str | None) -> tuple[datetime, str] | None:
    if value is None:
        return None
    try:
        moment, _, session_id = base64.urlsafe_b64decode(value).decode().partition(" ")
        if "\x00" in session_id:
            raise ValueError("no id holds a NUL")
        return _in_utc(moment), session_id
    except (ValueError, OverflowError):
        raise CallerError("before must be the `next` of an earlier page.", param="before") from None
