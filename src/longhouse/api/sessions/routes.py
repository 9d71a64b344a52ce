"""Session routes: list, read, follow, answer, approve, cancel, delete."""

from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict, cast

from fastapi import Depends, Query
from pydantic import Field

from longhouse.agents.requests import window
from longhouse.agents.template import Template
from longhouse.api import auth, pagination, wire
from longhouse.api.caller import Caller
from longhouse.api.http.json_route import of_app, refuses, strict_router
from longhouse.api.openai.session_resolver import no_such_question
from longhouse.api.pagination import Omittable, Page
from longhouse.api.sessions import decisions
from longhouse.api.sessions.listing import ListedSession, listed
from longhouse.api.sessions.waiting import (
    MAX_TEXT,
    Question,
    WaitingStatus,
    background_questions,
    find_questions,
    settled,
    waiting_status,
)
from longhouse.errors import AlreadyReturned, CallerError
from longhouse.journal import events
from longhouse.journal.events import Usage
from longhouse.journal.messages import Message, ToolResult
from longhouse.journal.session import QuestionKind, Session, State, Turn
from longhouse.journal.words.visible_text import readable_json
from longhouse.memory.session_memory import SessionMemory
from longhouse.runtime.inbox import Inbox
from longhouse.store import journals
from longhouse.store import sessions as session_store
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.delegation import tree
from longhouse.store.limits import budgets
from longhouse.store.limits.budgets import SpentBudget
from longhouse.store.lists import session_counters, session_lists
from longhouse.store.lists.session_lists import SessionCounts

SearchText = Annotated[str, Field(min_length=1, max_length=200)]


class SessionFilters(wire.StrictModel):
    """The filters of a list of sessions, which are those of `session_store.FILTERS`."""

    state: Omittable[State] = Field(None, strict=False, description="In this state")
    template: Omittable[str] = Field(None, description="Of this template")
    conversation_id: Omittable[wire.Id] = Field(None, description="Of this conversation")
    since: Omittable[pagination.Moment] = Field(None, description="Opened at this moment or later")
    until: Omittable[pagination.Moment] = Field(None, description="Opened before this moment")
    q: Omittable[SearchText] = Field(None, description="With this text in its title, its task or its id")
    tool: Omittable[SearchText] = Field(None, description="In which this tool failed")

    @property
    def filters(self) -> dict[str, Any]:
        """The fields besides the page."""
        return self.model_dump(exclude={"limit", "before"})


class OwnFacets(SessionFilters):
    parent: Omittable[str] = Field(None, description="Started by this session")
    schedule: Omittable[str] = Field(None, description="To which this schedule has sent its prompt")


class OwnSessions(OwnFacets, pagination.Paged):
    pass


class Answer(wire.StrictModel):
    answer: str = Field(min_length=1, max_length=MAX_TEXT)
    call_id: str | None = None
    user: wire.UserName = None


class Approval(wire.StrictModel):
    call_id: str
    decision: events.Decision
    result: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    comment: str = Field("", max_length=MAX_TEXT)


class TurnCounters(TypedDict):
    iteration: int
    searches_used: int
    clarifications_used: int


class ContextSnapshot(TurnCounters):
    """What the tools of a session see, and have written."""

    state: State
    searches: list[Any]
    sources: dict[str, Any]
    execution_result: str | None
    current_step_reasoning: Any


class SessionQuestion(TypedDict):
    """What a session or one of its sub-agents asks a person."""

    call_id: str
    name: str
    agent: str
    session_id: str
    kind: QuestionKind | None
    text: str
    deadline: datetime | None
    tool: NotRequired[str]
    arguments: NotRequired[str]


class ForkedFrom(TypedDict):
    """The session that a branch was forked from, and the last event that both have."""

    session_id: str
    after: int


class DescribedSession(TypedDict):
    session_id: str
    template_id: str
    template: str
    version: int | None
    instance_id: str | None
    conversation_id: str
    label: str
    forked_from: ForkedFrom | None
    trace_id: str | None
    state: State
    task: str | None
    counters: TurnCounters
    context_snapshot: ContextSnapshot
    questions: list[SessionQuestion]
    queued: int
    result: str | None
    error: str | None
    usage: Usage | None
    head: int
    created_at: datetime | None
    updated_at: datetime | None


class Paused(TypedDict):
    """A turn that waits for a budget of its key."""

    budget: str
    until: datetime
    reason: str


class DetailedSession(DescribedSession):
    paused: Paused | None
    title: str


class Messages(Page[Message]):
    """A history, as messages of OpenAI's protocol."""


class Accepted(TypedDict):
    session_id: str
    state: State


class DeletedSession(TypedDict):
    id: str
    object: Literal["session.deleted"]
    deleted: bool


class Sessions:
    """What the routes about sessions work with."""

    def __init__(self, inbox: Inbox, catalog: Catalog, memory: SessionMemory) -> None:
        self.inbox = inbox
        self.db = inbox.db
        self.bus = inbox.bus
        self.catalog = catalog
        self.memory = memory

    async def find(self, caller: Caller, session_id: str) -> session_store.SessionRow:
        """The caller's session; a session of another owner is not found."""
        row = await session_store.session(self.db, session_id, caller.owner)
        if row is None:
            raise no_such_session()
        return row

    async def load(self, caller: Caller, session_id: str, *, acts: bool = False) -> Session:
        """`acts`: the caller makes it go on, for which its key must be allowed to use the template."""
        row = await self.find(caller, session_id)
        if acts:
            caller.uses(row.agent)
        return await journals.load(self.db, session_id, row.head)


OFTEN: Final = 50
"""Events that are counted again and again for those who ask for one session, before they are kept."""

Held = Annotated[Sessions, of_app("sessions")]
SESSION_PATH: Final = "/v1/sessions/{session_id}"

router = strict_router("Sessions", auth.user)


async def _load(caller: auth.User, sessions: Held, session_id: str) -> Session:
    return await sessions.load(caller, session_id)


Loaded = Annotated[Session, Depends(_load)]
"""The caller's session that the path names. Not for routes with a body, whose mistakes are reported first."""


@router.get("/v1/sessions")
async def list_sessions(
    caller: auth.User, sessions: Held, asked: Annotated[OwnSessions, Query()]
) -> wire.Json[Page[ListedSession]]:
    """Your sessions, newest first, with titles and counters; filtered by state, template, conversation_id, parent,
    since, until, q (text in title, task or id) and tool (one that failed)."""
    found = await session_lists.search(
        sessions.db, before=asked.before, limit=asked.fetched, owner=caller.owner, **asked.filters
    )
    rows, following = asked.cut(found, pagination.by("created_at"))
    return wire.Json(pagination.page(await listed(sessions.db, rows), following))


@router.get("/v1/sessions/facets")
async def count_sessions(
    caller: auth.User, sessions: Held, asked: Annotated[OwnFacets, Query()]
) -> wire.Json[SessionCounts]:
    """How many of your sessions are in which state, of which agent, and in how many a tool failed; filtered as the
    list is. Of the newest 10,000 sessions; `is_complete` says whether these are all."""
    counts: Any = {**await session_lists.facets(sessions.db, owner=caller.owner, **asked.filters)}
    del counts["owners"]
    return wire.Json(counts)


@router.get(SESSION_PATH)
async def get_session(sessions: Held, session: Loaded) -> wire.Json[DetailedSession]:
    """One session: its state, its current activity, what it waits for, its results."""
    return wire.Json(await detailed(sessions.db, session))


@router.get(f"{SESSION_PATH}/messages")
async def get_messages(sessions: Held, session: Loaded) -> wire.Json[Messages]:
    """The session's history as OpenAI messages; a call that still waits has no result in it."""
    template = await sessions.catalog.templates.find(session.agent) or Template(name=session.agent)
    waiting = {call.call for call in session.open.values() if not call.question}
    said = [
        message
        for message in window.history(session, template)
        if not (isinstance(message, ToolResult) and message.tool_call_id in waiting)
    ]
    return wire.Json(pagination.page(said))


@router.post(
    f"{SESSION_PATH}/clarification", status_code=202, openapi_extra=wire.example(answer="Oslo"), responses=refuses(409)
)
async def clarify(caller: auth.User, sessions: Held, session_id: str, answer: Answer) -> wire.Json[Accepted]:
    """Answers the oldest open question, or the one that `call_id` names."""
    session, call_id = await sessions.load(caller, session_id, acts=True), answer.call_id
    user = caller.user(answer.user) or ""
    questions = await find_questions(sessions.db, session, call_id, lambda one: one.call.call_kind == "ask")
    if not questions and call_id is not None and not await tree.was_answered(sessions.db, session, call_id):
        raise no_such_question(call_id, "call_id")
    if not questions:
        raise settled("There is no open question to answer: it was answered already, or never asked.")
    asked = questions[0]
    caller.uses(asked.session.agent)
    try:
        delivered = await sessions.inbox.answer(
            asked.session, asked.call.call, answer.answer, user=user, by=caller.decider
        )
    except AlreadyReturned:
        raise settled("This question was answered already.") from None
    except journals.NotThere:
        raise no_such_session() from None
    is_own = asked.session is session
    return _accepted(delivered.session if is_own else await sessions.load(caller, session_id))


@router.post(
    f"{SESSION_PATH}/approval",
    status_code=202,
    openapi_extra=wire.example(call_id="3-action-0", decision="happened", result="paid"),
    responses=refuses(409),
)
async def approve(caller: auth.User, sessions: Held, session_id: str, approval: Approval) -> wire.Json[Accepted]:
    """Approves or denies a waiting call; or reports the outcome of a call whose worker was lost:
    happened (with its result), did_not_happen, give_up. Of a step that lost three workers, did_not_happen says that it
    is tried again, and give_up ends its turn."""
    decision, first = approval.decision, None
    for _ in range(decisions.RACES):
        session = await sessions.load(caller, session_id, acts=True)
        fits = partial(decisions.is_possible, decision)
        found = await find_questions(sessions.db, session, approval.call_id, fits)
        if not found or (first and not found[0].is_same(first)):
            raise settled(await decisions.why_not(sessions.db, session, approval.call_id, decision))
        first = found[0]
        decided = decisions.decided(caller, first, decision, comment=approval.comment)
        try:
            await sessions.inbox.decide(first.session, decided, approval.result)
        except journals.NotThere:
            continue
        return _accepted(await journals.catch_up(sessions.db, session))
    raise decisions.too_many_races()


@router.post(f"{SESSION_PATH}/cancel", status_code=202, responses=refuses(409))
async def cancel(caller: auth.User, sessions: Held, session: Loaded) -> wire.Json[Accepted]:
    """Cancels the running turn, or the next queued one; in an idle session, its background delegations."""
    caller.uses(session.agent)
    return _accepted(await sessions.inbox.cancel(session, by=caller.decider))


@router.delete(SESSION_PATH)
async def forget(caller: auth.User, sessions: Held, session_id: str) -> wire.Json[DeletedSession]:
    """Deletes the session and the sub-agents that it called: none of their content is left."""
    caller.uses((await sessions.find(caller, session_id)).agent)
    if not await sessions.inbox.forget(session_id, caller.owner):
        raise no_such_session()
    return wire.Json({"id": session_id, "object": "session.deleted", "deleted": True})


def _accepted(session: Session) -> wire.Json[Accepted]:
    return wire.Json({"session_id": session.id, "state": session.state}, status_code=202)


async def detailed(db: Database, session: Session) -> DetailedSession:
    """A session with all details, and its title."""
    counters = await session_counters.counted(db, {session.id: session.head}, may_lag=OFTEN)
    status = await waiting_status(db, session)
    questions = [*status.questions, *await background_questions(db, session, status.questions)]
    return {
        **described(session, status),
        "questions": [_question(one, session) for one in questions],
        "paused": _paused(await budgets.paused(db, session.id)) if session.is_running or session.queue else None,
        "title": counters[session.id].shown_title,
    }


def _paused(spent: SpentBudget | None) -> Paused | None:
    return {"budget": spent.name, "until": spent.until, "reason": f"{spent.words}."} if spent else None


def described(session: Session, status: WaitingStatus) -> DescribedSession:
    """A session with all details; its state includes that of its sub-agents."""
    turn = session.turn
    return wire.body_of(
        DescribedSession,
        session,
        session_id=session.id,
        template_id=session.agent,
        template=session.agent,
        version=turn.version if turn else session.version,
        instance_id=turn.instance if turn else None,
        conversation_id=session.conversation,
        forked_from=forked_from(session.origins[-1]) if session.origins else None,
        trace_id=turn.trace if turn else None,
        state=status.state or session.state,
        task=turn.task if turn else None,
        counters=_counters(turn),
        context_snapshot=snapshot_of(session, status),
        questions=[_question(one, session) for one in status.questions],
        queued=len(session.queue),
        result=turn.answer if turn and turn.ended else None,
        error=turn.error if turn else None,
        usage=turn.usage if turn else None,
    )


def forked_from(origin: events.Origin) -> ForkedFrom:
    return {"session_id": origin.session, "after": origin.after}


def snapshot_of(session: Session, status: WaitingStatus) -> ContextSnapshot:
    turn = session.turn
    return {
        "state": status.state or session.state,
        **_counters(turn),
        "searches": session.context.get("searches", []),
        "sources": session.context.get("sources", {}),
        "execution_result": turn.answer if turn else None,
        "current_step_reasoning": session.context.get("current_step_reasoning"),
    }


def _counters(turn: Turn | None) -> TurnCounters:
    counters = {name: getattr(turn, name, 0) for name in TurnCounters.__annotations__}
    return cast("TurnCounters", counters)


def _question(question: Question, top: Session) -> SessionQuestion:
    session, call = question.session, question.call
    shown: SessionQuestion = {
        "call_id": call.call,
        "name": question.label(top),
        "agent": session.agent,
        "session_id": session.id,
        "kind": call.question_kind,
        "text": question.text,
        "deadline": call.approve_by,
    }
    if not call.question:
        shown |= {"tool": call.tool, "arguments": readable_json(call.arguments)}
    return shown


def no_such_session() -> CallerError:
    return wire.not_found("There is no such session.", code="session_not_found")
