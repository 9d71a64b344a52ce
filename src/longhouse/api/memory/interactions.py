"""Routes of the ledger: the interactions of a conversation are listed, added, deleted, compressed and pruned."""

import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

import structlog
from fastapi import Body, Path, Query
from pydantic import AfterValidator, Discriminator, Field, Tag

from longhouse.agents.template import Template
from longhouse.api import auth, pagination, wire
from longhouse.api.caller import Caller
from longhouse.api.http.json_route import of_app, refuses, strict_router
from longhouse.api.pagination import Omittable, Page
from longhouse.errors import CallerError, ProviderError
from longhouse.journal.events import Collected, Condensed, Usage
from longhouse.journal.session import Session
from longhouse.memory.ledger import Ledger, new_interaction
from longhouse.runtime.inbox import Inbox
from longhouse.runtime.steps.condense import compressed
from longhouse.runtime.workers.instances import ModelFor
from longhouse.store import journals
from longhouse.store import sessions as session_store
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.memory import interaction_cuts
from longhouse.store.memory.interactions import Interaction, Type

log = structlog.get_logger()

MOST: Final = 1_000
"""Records of one request."""
LONGEST: Final = 20_000
"""Characters of a content."""
MOST_SESSIONS: Final = 200

Name = Annotated[str, Field(min_length=1, max_length=200)]
ConversationId = Annotated[wire.Id, Path(description="The conversation")]


class InteractionFilters(pagination.Paged):
    """The query of a list of interactions."""

    agent: Omittable[str] = Field(None, description="In which this agent takes part")
    trace_id: Omittable[str] = Field(None, description="Of this trace")
    type: Omittable[Type] = Field(None, description="Questions or answers")
    source_type: Omittable[Collected] = Field(None, description="From such a source")
    target_type: Omittable[Collected] = Field(None, description="To such a target")
    since: Omittable[pagination.Moment] = Field(None, description="At this moment or later")
    until: Omittable[pagination.Moment] = Field(None, description="Before this moment")
    text: Omittable[str] = Field(None, description="With this text in the content, in any case of letters")
    query: Omittable[str] = Field(
        None, max_length=2_000, description="Found by words and meaning, the best match first; not paged"
    )


class Named(wire.StrictModel):
    """What is deleted; without a parameter, everything in the conversation."""

    agent: Omittable[str] = Field(None, min_length=1, description="Only those in which this agent takes part")
    trace_id: Omittable[str] = Field(None, min_length=1, description="Only those of this trace")


class OfAgent(wire.StrictModel):
    agent: str = Field(description="The agent", min_length=1)


class NewInteraction(wire.StrictModel):
    """An interaction that happened elsewhere; the fields are those of a record, and most may be left out."""

    id: wire.Id | None = None
    conversation_id: wire.Id | None = None
    trace_id: wire.Id | None = None
    source: Name
    source_type: Collected
    target: Name
    target_type: Collected
    content: str = Field(max_length=LONGEST)
    type: Type = "input"
    timestamp: pagination.Moment | None = None
    pair_id: wire.Id | None = None


def _distinct(given: list[NewInteraction]) -> list[NewInteraction]:
    ids = [one.id for one in given if one.id]
    if len(ids) != len(set(ids)):
        raise ValueError("two of them have the same id")
    return given


Several = Annotated[
    wire.Many[NewInteraction], Field(min_length=1, max_length=MOST), AfterValidator(_distinct), Tag("list")
]
# Told apart before they are validated: an error names the record and the field, not both forms.
OneOrMany = Annotated[
    Annotated[NewInteraction, Tag("record")] | Several,
    Discriminator(lambda given: "list" if isinstance(given, list) else "record"),
    Body(),
]


class Compression(wire.StrictModel):
    agent: Name | None = None
    keep_last: Annotated[int, Field(ge=0, le=1_000)] = 0
    """Turns that stay as they are."""


class Pruning(wire.StrictModel):
    older_than_days: Annotated[float, Field(ge=0, le=36_500)] | None = None
    max_count: Annotated[int, Field(ge=0, le=10**9)] | None = None
    max_tokens: Annotated[int, Field(ge=0, le=10**9)] | None = None


class DeletedInteractions(TypedDict):
    object: Literal["interactions.deleted"]
    conversation_id: str
    deleted: int


class CompressedMemory(TypedDict):
    session_id: str
    agent: str
    compressed: bool
    reason: NotRequired[str]
    """Why it is not."""
    upto: NotRequired[int]
    summary: NotRequired[str]
    usage: NotRequired[Usage | None]


class RebuiltMemory(TypedDict):
    session_id: str
    agent: str
    messages: Sequence[dict[str, Any]]


class Interactions:
    """What the routes of the ledger work with."""

    def __init__(self, ledger: Ledger, inbox: Inbox, catalog: Catalog, model_for: ModelFor) -> None:
        self.ledger = ledger
        self.inbox = inbox
        self._catalog = catalog
        self._model_for = model_for
        self._at_work: set[str] = set()

    async def compress(self, owner: str, conversation: str, asked: Compression) -> list[CompressedMemory]:
        """Summarises the sessions of the conversation, or those of one agent; all of them are at rest."""
        rows = await session_store.sessions(
            self.inbox.db, owner=owner, conversation_id=conversation, template=asked.agent, limit=MOST_SESSIONS
        )
        ids = {row.id for row in rows}
        for row in rows:
            if row.id in self._at_work:
                raise _busy(row.agent)
        # Before they are read: whoever comes while this is at work would summarise the same once more.
        self._at_work |= ids
        try:
            found = [await journals.load(self.inbox.db, row.id) for row in rows]
            for session in found:
                if session.is_running or session.queue:
                    raise _busy(session.agent)
            return [await self._compress(session, asked.keep_last) for session in found]
        finally:
            self._at_work -= ids

    async def _compress(self, session: Session, keep_last: int) -> CompressedMemory:
        summary = await self._summary(session, keep_last)
        if summary and not await self.inbox.condense(session, summary):
            raise _busy(session.agent)
        about: CompressedMemory = {
            "session_id": session.id,
            "agent": session.agent,
            "compressed": summary is not None,
        }
        if summary is None:
            return {**about, "reason": "There is nothing new to summarise."}
        return {**about, "upto": summary.upto, "summary": summary.summary, "usage": summary.usage}

    async def _summary(self, session: Session, keep_last: int) -> Condensed | None:
        version = session.turn.version if session.turn else None
        template = await self._catalog.templates.find(session.agent, version or None) or Template(name=session.agent)
        cut = await interaction_cuts.cut_turns(self.inbox.db, session.id)
        try:
            return await compressed(session, template, await self._model_for(template), keep_last=keep_last, cut=cut)
        except ProviderError as error:
            raise CallerError(
                f"The model wrote no summary: {error.public_message}", status=503, kind="server_error",
                code="provider_error", retry_after=round(error.retry_after) if error.retry_after else None,
            ) from error  # fmt: skip


Held = Annotated[Interactions, of_app("interactions")]
PATH: Final = "/v1/conversations/{conversation_id}/interactions"
EXAMPLE: Final[dict[str, Any]] = {
    "source": "user",
    "source_type": "user",
    "target": "researcher",
    "target_type": "agent",
    "content": "By phone: the deadline is Friday.",
    "type": "input",
}

router = strict_router("Interactions", auth.user)


@router.get(PATH)
async def list_interactions(
    caller: auth.User, held: Held, conversation_id: ConversationId, asked: Annotated[InteractionFilters, Query()]
) -> wire.Json[Page[Interaction]]:
    """Who said what to whom in a conversation, newest first; with `query`, the best match first."""
    filters = asked.filters
    query = filters.pop("query")
    if query is not None:
        if asked.before is not None:
            raise CallerError("A list by `query` has one page: raise `limit` instead of `before`.", param="before")
        found = await held.ledger.search(caller.owner, conversation_id, query, limit=asked.limit, **filters)
        return wire.Json(pagination.page(found))
    rows = await held.ledger.retrieve(
        caller.owner, conversation_id, before=asked.before, limit=asked.fetched, **filters
    )
    return wire.Json(asked.page(rows, pagination.by("timestamp")))


@router.post(PATH, status_code=201, openapi_extra=wire.example(**EXAMPLE), responses=refuses(409))
async def add_interactions(
    caller: auth.User, held: Held, conversation_id: ConversationId, given: OneOrMany
) -> wire.Json[Page[Interaction]]:
    """Adds one interaction or a list: the agents that take part see them from their next step on."""
    many, trace = given if isinstance(given, list) else [given], uuid.uuid4().hex
    for one in many:
        if one.conversation_id not in (None, conversation_id):
            raise CallerError("conversation_id is not that of the path.", param="conversation_id")
    new = [_new(one, conversation_id, trace) for one in many]
    await caller.uses_all_of(held.inbox.db, conversation_id, begun=True)
    added = await held.ledger.add(caller.owner, conversation_id, new)
    for session_id, head in added.noted:
        held.inbox.bus.noted(session_id, head)
    return wire.Json(pagination.page(added.data), status_code=201)


@router.delete(PATH)
async def delete_interactions(
    caller: auth.User, held: Held, conversation_id: ConversationId, named: Annotated[Named, Query()]
) -> wire.Json[DeletedInteractions]:
    """Deletes what `agent` or `trace_id` name, and no more; without them, the whole conversation's."""
    await caller.uses_all_of(held.inbox.db, conversation_id)
    count = await held.ledger.delete(caller.owner, conversation_id, agent=named.agent or "", trace=named.trace_id or "")
    log.info("interactions_deleted", **_who(caller, conversation_id), **named.model_dump(), count=count)
    return wire.Json({"object": "interactions.deleted", "conversation_id": conversation_id, "deleted": count})


@router.post(f"{PATH}/prune", openapi_extra=wire.example(max_count=1_000))
async def prune_interactions(
    caller: auth.User, held: Held, conversation_id: ConversationId, asked: Pruning
) -> wire.Json[DeletedInteractions]:
    """Deletes the oldest: those that are too old, and those beyond a number of records or of tokens."""
    if all(value is None for value in asked.model_dump().values()):
        raise CallerError("Say what to prune by: older_than_days, max_count or max_tokens.")
    await caller.uses_all_of(held.inbox.db, conversation_id)
    count = await held.ledger.prune(caller.owner, conversation_id, **asked.model_dump())
    log.info("interactions_pruned", **_who(caller, conversation_id), **asked.model_dump(), count=count)
    return wire.Json({"object": "interactions.deleted", "conversation_id": conversation_id, "deleted": count})


@router.post(f"{PATH}/compress", openapi_extra=wire.example(agent="researcher", keep_last=2), responses=refuses(409))
async def compress_interactions(
    caller: auth.User, held: Held, conversation_id: ConversationId, asked: Compression
) -> wire.Json[Page[CompressedMemory]]:
    """Has the agent's model summarise its memory, once: where nothing is new, no model is called."""
    if asked.agent is not None:
        caller.uses(asked.agent)
    elif caller.templates is not None:
        raise CallerError("This key may not use all agents: name one.", param="agent")
    caller.spends()
    data = await held.compress(caller.owner, conversation_id, asked)
    count = sum(one["compressed"] for one in data)
    log.info("interactions_compressed", **_who(caller, conversation_id), **asked.model_dump(), count=count)
    return wire.Json(pagination.page(data))


@router.get(f"{PATH}/memory")
async def rebuild_memory(
    caller: auth.User, held: Held, conversation_id: ConversationId, asked: Annotated[OfAgent, Query()]
) -> wire.Json[Page[RebuiltMemory]]:
    """The messages of an agent's sessions, rebuilt from the ledger alone."""
    found = await held.ledger.rebuild(caller.owner, conversation_id, asked.agent)
    data: list[RebuiltMemory] = [
        {"session_id": one, "agent": asked.agent, "messages": messages} for one, messages in found.items()
    ]
    return wire.Json(pagination.page(data))


def _who(caller: Caller, conversation: str) -> dict[str, str | None]:
    """Who did it, and in which conversation, for the log."""
    return {"conversation": conversation, "owner": caller.owner, "by": caller.key}


def _new(one: NewInteraction, conversation: str, trace: str) -> Interaction:
    given = one.model_dump(exclude={"conversation_id", "timestamp", "trace_id", "pair_id"})
    return new_interaction(
        conversation, at=one.timestamp, pair_id=one.pair_id or "", trace_id=one.trace_id or trace, **given
    )


def _busy(agent: str) -> CallerError:
    return CallerError(
        f"The agent {agent!r} is at work in this conversation: compress its memory when it rests.",
        status=409,
        code="session_busy",
    )
