"""Open questions over all of a caller's sessions: clarifications, approvals, calls whose outcome is unknown, and steps
that lost their workers.

As a list, or as a stream of the whole list after each change.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypedDict

from fastapi import Query, Request
from pydantic import BeforeValidator, Field
from pydantic.json_schema import WithJsonSchema

from longhouse import clock
from longhouse.api import auth, pagination, wire
from longhouse.api.http import streaming
from longhouse.api.http.json_route import Answers, of_app, strict_router
from longhouse.api.pagination import MAX_PAGE, Omittable, Page
from longhouse.api.sessions.routes import SESSION_PATH, Held
from longhouse.api.sessions.waiting import tree_ids
from longhouse.errors import CallerError
from longhouse.journal.session import QuestionKind
from longhouse.journal.words.question_words import subagent_label, text_of
from longhouse.journal.words.visible_text import readable_json
from longhouse.runtime.bus.local import Bus
from longhouse.store.database import Database
from longhouse.store.lists import questions, session_counters
from longhouse.store.lists.questions import OpenQuestion, Position, QuestionFilter

EVERY: Final = 1.0
"""Seconds between two reads of a stream's page: other processes send no hints, and a busy server sends many."""
SHARED_FOR: Final = 0.2
"""Seconds for which the checksums of all owners are taken as current, however many streams ask for theirs."""
QUESTION: Final[dict[str, Any]] = {
    "root": "boss_8c5e2f0a-6d1b-4c3e-9a57-1f0e2d3c4b5a",
    "session_id": "clerk_1f0e2d3c-4b5a-4c3e-9a57-8c5e2f0a6d1b",
    "agent": "clerk",
    "owner": "shop",
    "user": None,
    "conversation_id": "conv_1",
    "title": "Pay the bill of May.",
    "kind": "approval",
    "call_id": "1-action-0",
    "name": "clerk/1-action-0",
    "tool": "pay",
    "arguments": '{"to": "Bob"}',
    "is_cut": False,
    "text": "May pay run?",
    "deadline": "2026-02-01T12:00:00Z",
    "opened_at": "2026-01-31T12:00:00Z",
}


def _position(text: Any) -> Position:
    try:
        due_by, at, seq, session_id = base64.urlsafe_b64decode(text).decode().split(" ", 3)
        if "\x00" in session_id or not seq.isdecimal() or len(seq) > 18:
            raise ValueError("no such position")
        return pagination.in_utc(due_by), pagination.in_utc(at), session_id, int(seq)
    except ValueError:
        raise ValueError("It should be the `next` of an earlier page") from None


def _cursor(one: OpenQuestion) -> str:
    due_by, at, session_id, seq = one.position
    return base64.urlsafe_b64encode(f"{due_by.isoformat()} {at.isoformat()} {seq} {session_id}".encode()).decode()


class OwnQuestions(pagination.Limited):
    kind: Omittable[QuestionKind] = Field(None, description="Of this kind")
    agent: Omittable[str] = Field(None, description="Asked by this agent")
    # Typed as a tuple, FastAPI would read it from several parameters of the same name.
    before: Omittable[Annotated[Any, BeforeValidator(_position), WithJsonSchema({"type": "string"})]] = Field(
        None, description="The `next` of the page before"
    )


class AllQuestions(OwnQuestions):
    owner: Omittable[wire.Id] = Field(None, description="Of this owner")


@dataclass
class _SharedPage:
    """The first page of a list, read once for all streams that show it."""

    asked: QuestionFilter
    followers: int = 0
    encoded: bytes = b""
    """The event of the stream; empty: not read yet."""
    read_at: float = 0.0
    mark: object = None
    outdated_at: datetime | None = None
    """The earliest deadline on the page: a question past it is left out."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def pause(self) -> float:
        """Seconds until it may be read again."""
        return self.read_at + EVERY - asyncio.get_running_loop().time()

    def is_current(self, mark: object, now: datetime) -> bool:
        is_outdated = self.outdated_at is not None and self.outdated_at <= now
        return bool(self.encoded) and mark == self.mark and not is_outdated


class QuestionFeed:
    """Streams of open questions: woken by appends in this process, and by a poll for those of others."""

    def __init__(self, db: Database, bus: Bus) -> None:
        self.db = db
        self._pages: dict[QuestionFilter, _SharedPage] = {}
        self._changed = asyncio.Event()
        self._marks: dict[str | None, int | None] = {}
        self._marks_until = 0.0
        self._lock = asyncio.Lock()
        bus.on_append.append(lambda session_id: self._changed.set())

    async def follow(self, asked: QuestionFilter) -> AsyncGenerator[bytes, None]:
        """The page, and again after each change."""
        sent, sent_at, time = b"", 0.0, asyncio.get_running_loop().time
        with self._shared(asked) as page:
            while True:
                await self._refresh(page)
                if (piece := page.encoded) != sent or time() - sent_at >= streaming.HEARTBEAT_EVERY:
                    yield piece if piece != sent else streaming.HEARTBEAT
                    sent, sent_at = piece, time()
                with suppress(TimeoutError):
                    async with asyncio.timeout(EVERY):
                        await self._changed.wait()
                await asyncio.sleep(max(0.0, page.pause))

    @contextmanager
    def _shared(self, asked: QuestionFilter) -> Iterator[_SharedPage]:
        page = self._pages.setdefault(asked, _SharedPage(asked))
        page.followers += 1
        try:
            yield page
        finally:
            page.followers -= 1
            if not page.followers:
                del self._pages[asked]

    async def _refresh(self, page: _SharedPage) -> None:
        """Reads the page if something may have changed, at most once in `EVERY` seconds."""
        async with page.lock:
            if page.encoded and page.pause > 0:
                return
            mark, now = await self._mark(page.asked), clock.now()
            if not page.is_current(mark, now):
                found = await questions.open_questions(self.db, page.asked, now)
                page.mark, page.outdated_at = mark, found[0].deadline if found else None
                page.encoded = streaming.named("questions", await _page(self.db, found, page.asked.limit - 1))
            page.read_at = asyncio.get_running_loop().time()

    async def _mark(self, asked: QuestionFilter) -> object:
        """What changes with the first page of this list."""
        if asked.kind or asked.agent:
            return object()  # such a page may lie anywhere in the list: it is read again
        time = asyncio.get_running_loop().time
        async with self._lock:
            if time() >= self._marks_until or asked.owner not in self._marks:
                self._changed.clear()
                owners = {page.owner for page in self._pages}
                self._marks = dict.fromkeys(owners) | await questions.marks(self.db, owners)
                self._marks_until = time() + SHARED_FOR
            return self._marks[asked.owner]


Feed = Annotated[QuestionFeed, of_app("questions")]
LISTED: Final[Answers] = {
    200: wire.answer(
        "One page; with `Accept: text/event-stream`, the event `questions` with the first page,"
        " at once and after each change.",
        pagination.page([QUESTION]),
    )
}


class ShownQuestion(TypedDict):
    """What a session asks a person."""

    root: str
    """The session that is answered at, with `name` as `call_id`."""
    session_id: str
    agent: str
    owner: str
    user: str | None
    conversation_id: str
    title: str
    kind: QuestionKind
    call_id: str
    name: str
    tool: str | None
    arguments: str | None
    is_cut: bool
    text: str
    deadline: datetime | None
    opened_at: datetime


ListedQuestions = wire.Json[Page[ShownQuestion]]
QuestionStream = streaming.EventStream[
    streaming.Event[Literal["questions"], Page[ShownQuestion]] | streaming.Event[Literal["error"], wire.Envelope]
]

router = strict_router("Sessions", auth.user)
admin_router = strict_router("Admin", auth.admin)


@router.get("/v1/questions", responses=LISTED)
async def list_questions(
    caller: auth.User, feed: Feed, request: Request, query: Annotated[OwnQuestions, Query()]
) -> ListedQuestions | QuestionStream:
    """What your sessions and their sub-agents ask a person: the earliest deadline first, then the oldest.

    Answer at the session `root`, with `name` as `call_id`. `Accept: text/event-stream` follows the first page.
    """
    return await _answer(feed, request, query, caller.owner)


@admin_router.get("/admin/questions", responses=LISTED)
async def list_all_questions(
    feed: Feed, request: Request, query: Annotated[AllQuestions, Query()]
) -> ListedQuestions | QuestionStream:
    """The same for the sessions of all owners; answer at `/admin/sessions/{root}`."""
    return await _answer(feed, request, query, query.owner)


@router.get(f"{SESSION_PATH}/questions", responses={200: wire.answer("All of them.", pagination.page([QUESTION]))})
async def list_session_questions(caller: auth.User, sessions: Held, session_id: str) -> ListedQuestions:
    """What the session and its sub-agents ask a person."""
    row = await sessions.find(caller, session_id)
    asked = QuestionFilter(owner=row.owner, ids=tuple(await tree_ids(sessions.db, row.id)), limit=MAX_PAGE + 1)
    found = await questions.open_questions(sessions.db, asked, clock.now())
    return wire.Json(await _page(sessions.db, found, MAX_PAGE))


async def _answer(
    feed: QuestionFeed, request: Request, query: OwnQuestions, owner: str | None
) -> ListedQuestions | QuestionStream:
    asked = QuestionFilter(owner=owner, agent=query.agent, kind=query.kind, limit=query.fetched)
    if "text/event-stream" not in request.headers.get("accept", ""):
        found = await questions.open_questions(feed.db, asked, clock.now(), query.before)
        return wire.Json(await _page(feed.db, found, query.limit))
    if query.before is not None:
        raise CallerError("A stream shows the first page: leave out `before`.", param="before")
    return streaming.EventStream(feed.follow(asked))


async def _page(db: Database, found: list[OpenQuestion], limit: int) -> Page[ShownQuestion]:
    rows, following = found[:limit], _cursor(found[limit - 1]) if len(found) > limit else None
    counters = await session_counters.counted(db, {one.root: one.root_head for one in rows})
    return pagination.page([_described(one, counters[one.root].shown_title) for one in rows], following)


def _described(one: OpenQuestion, title: str) -> ShownQuestion:
    is_own, is_call = one.session_id == one.root, one.kind != "clarification" and bool(one.tool)
    return wire.body_of(
        ShownQuestion,
        one,
        title=title,
        name=one.call_id if is_own else subagent_label(one.agent, one.label, one.call_id),
        tool=one.tool if is_call else None,
        arguments=readable_json(one.arguments) if is_call else None,
        is_cut=one.is_cut and is_call,
        text=text_of(one.kind, one.tool, one.question, doubt=one.doubt),
    )
