"""Conversations in OpenAI's shapes: created by themselves or by what was said in them, with the items of both.

`DELETE /v1/conversations/{id}` and the interactions of a conversation are in `erasing` and `interactions`.
"""

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypedDict

import msgspec
from fastapi import APIRouter, Depends, Path, Query
from pydantic import Field

from longhouse.api import auth, wire
from longhouse.api.caller import Caller
from longhouse.api.http.json_route import JsonRoute, of_app, refuses
from longhouse.api.openai.responses import follower as following
from longhouse.api.openai.responses.request import InputItem, InputReader, ReferenceInput
from longhouse.api.openai.responses.routes import ItemListQuery, ItemPage, page_of, with_images
from longhouse.api.openai.responses.service import ResponseService
from longhouse.api.wire import Lenient, Many, Metadata
from longhouse.errors import CallerError
from longhouse.journal import events
from longhouse.journal.fold import blank
from longhouse.journal.messages import Content, ImagePart, TextPart
from longhouse.store import journals
from longhouse.store.openai import conversations, responses
from longhouse.store.openai.conversations import Conversation

MOST_ITEMS: Final = 20
"""Items that are added at once."""

Service = Annotated[ResponseService, of_app("responses")]
ConversationId = Annotated[wire.Id, Path(description="The conversation")]
ItemId = Annotated[wire.Id, Path(description="The item")]
Items = Annotated[Many[InputItem], Field(max_length=MOST_ITEMS)]


class NewConversation(Lenient):
    items: Items | None = None
    metadata: Metadata | None = None


class ChangedConversation(Lenient):
    metadata: Metadata | None


class NewItems(Lenient):
    items: Annotated[Items, Field(min_length=1)]


class ConversationObject(TypedDict):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


router = APIRouter(
    prefix="/v1/conversations", tags=["OpenAI"], dependencies=[Depends(auth.user)], route_class=JsonRoute
)


@router.post("", openapi_extra=wire.example(metadata={"topic": "weather"}))
async def create_conversation(
    caller: auth.User, service: Service, new: NewConversation
) -> wire.Json[ConversationObject]:
    """Creates a conversation; the first response in it reads the items."""
    name = f"conv_{uuid.uuid4().hex}"
    items = await _stored(service, caller, new.items or ())
    await conversations.save(service.db, caller.owner, name, metadata=new.metadata or {}, items=items)
    return wire.Json(_object(await _found(service, caller, name)))


@router.get("/{conversation_id}", responses=refuses(400))
async def get_conversation(
    caller: auth.User, service: Service, conversation_id: ConversationId
) -> wire.Json[ConversationObject]:
    """A conversation, whoever began it: one that was created, or one in which something was said."""
    return wire.Json(_object(await _found(service, caller, conversation_id)))


@router.post("/{conversation_id}", openapi_extra=wire.example(metadata={"topic": "names"}))
async def update_conversation(
    caller: auth.User, service: Service, conversation_id: ConversationId, changed: ChangedConversation
) -> wire.Json[ConversationObject]:
    """Changes the metadata of a conversation."""
    await _changeable(service, caller, conversation_id)
    await conversations.save(service.db, caller.owner, conversation_id, metadata=changed.metadata or {})
    return wire.Json(_object(await _found(service, caller, conversation_id)))


@router.get("/{conversation_id}/items", responses=refuses(400))
async def list_conversation_items(
    caller: auth.User, service: Service, conversation_id: ConversationId, asked: Annotated[ItemListQuery, Query()]
) -> wire.Json[ItemPage]:
    """All that was said and done in a conversation, and what was added to it."""
    await _found(service, caller, conversation_id)
    return wire.Json(page_of(await _items(service, caller, conversation_id), asked))


@router.post("/{conversation_id}/items", openapi_extra=wire.example(items=[{"role": "user", "content": "I am Ada."}]))
async def add_conversation_items(
    caller: auth.User, service: Service, conversation_id: ConversationId, new: NewItems
) -> wire.Json[ItemPage]:
    """Adds messages to a conversation: the next response in it reads them."""
    await _changeable(service, caller, conversation_id)
    items = await _stored(service, caller, new.items)
    await conversations.save(service.db, caller.owner, conversation_id, items=items)
    return wire.Json(page_of(items, ItemListQuery(limit=100, order="asc")))


@router.get("/{conversation_id}/items/{item_id}", responses=refuses(400))
async def get_conversation_item(
    caller: auth.User, service: Service, conversation_id: ConversationId, item_id: ItemId
) -> wire.Json[dict[str, Any]]:
    """One item of a conversation."""
    await _found(service, caller, conversation_id)
    return wire.Json(await _item(service, caller, conversation_id, item_id))


@router.delete("/{conversation_id}/items/{item_id}", responses=refuses(400, 409))
async def delete_conversation_item(
    caller: auth.User, service: Service, conversation_id: ConversationId, item_id: ItemId
) -> wire.Json[ConversationObject]:
    """Removes an item that was added and that no agent has read. What was said is erased with its conversation."""
    found = await _changeable(service, caller, conversation_id)
    if not await conversations.remove_item(service.db, caller.owner, conversation_id, item_id):
        await _item(service, caller, conversation_id, item_id)
        raise CallerError(
            "An agent has read or said this, and its journal is never changed: delete the conversation to erase it.",
            status=409,
            code="item_in_use",
        )
    return wire.Json(_object(found))


async def _found(service: ResponseService, caller: Caller, name: str) -> Conversation:
    found = await conversations.find(service.db, caller.owner, name)
    if found is None:
        raise wire.not_found("There is no such conversation.", code="conversation_not_found")
    return found


async def _changeable(service: ResponseService, caller: Caller, name: str) -> Conversation:
    """A conversation that the key may change: what is added reaches all who talk in it."""
    found = await _found(service, caller, name)
    await caller.uses_all_of(service.db, name)
    return found


async def _item(service: ResponseService, caller: Caller, conversation: str, name: str) -> dict[str, Any]:
    items = await _items(service, caller, conversation)
    found = next((item for item in items if item["id"] == name), None)
    if found is None:
        raise wire.not_found("There is no such item in this conversation.", code="item_not_found")
    return found


def _object(found: Conversation) -> ConversationObject:
    return {
        "id": found.id,
        "object": "conversation",
        "created_at": int(found.created_at.timestamp()),
        "metadata": found.metadata,
    }


async def _stored(service: ResponseService, caller: Caller, items: Sequence[Any]) -> list[dict[str, Any]]:
    """Items that are added. An agent reads the messages; the others are kept for those who list them."""
    for index, item in enumerate(items):
        if isinstance(item, ReferenceInput):
            raise CallerError("An item is added as a whole, not by its id.", param=f"items[{index}].type")
    reader = InputReader(service.db, service.library, caller.owner)
    try:
        await reader.messages(items)  # a file that cannot be read is refused now, not with the next response
    except CallerError as error:
        error.param = (error.param or "").replace("input", "items", 1)
        raise
    return await reader.kept(items, uuid.uuid4().hex)


class _Said(msgspec.Struct, frozen=True):
    """Items of one moment."""

    at: datetime
    items: list[dict[str, Any]]


async def _items(service: ResponseService, caller: Caller, conversation: str) -> list[dict[str, Any]]:
    """The items of a conversation in the order of time."""
    db, found = service.db, list[_Said]()
    names = await conversations.sessions(db, caller.owner, conversation)
    rows, base = await responses.of_sessions(db, names), blank("")
    for row in sorted(rows, key=lambda row: (row.session_id, row.after)):
        # Each begins where the one before it began, or later: the journal is read once.
        base = base if base.id == row.session_id else blank(row.session_id)
        base = await journals.load_up_to(db, base, row.after)
        builder = await following.settled(db, service.bus, row, base)
        output: list[dict[str, Any]] = msgspec.to_builtins(builder.output)
        asked = await with_images(db, row.session_id, builder.request.input)
        found.append(_Said(row.created_at, [*asked, *output]))
    told = await responses.messages(db, names)
    for name in names:
        found += await _said_in_chat(service, name, told)
    found += [
        _Said(one.created_at, [one.item]) for one in await conversations.added_items(db, caller.owner, conversation)
    ]
    return [item for said in sorted(found, key=lambda one: one.at) for item in said.items]


async def _said_in_chat(service: ResponseService, session: str, told: set[tuple[str, int]]) -> list[_Said]:
    """Messages of a session that did not come by responses, and the answers to them; `told`: those that did."""
    said, traces = list[_Said](), set[str]()
    for record in await journals.read(service.db, session, limit=1_000_000):
        name, event = f"msg_{record.trace or session[-36:]}_{record.seq}", record.event
        if isinstance(event, events.Prompted) and (session, record.seq) not in told:
            traces.add(event.trace)
            content = [part for one in event.content for part in _parts(one)]
            items = [_message(name, "user", content)]
            said.append(_Said(record.at, await with_images(service.db, session, items)))
        elif isinstance(event, events.Finished) and record.trace in traces:
            text = {"type": "output_text", "text": event.answer, "annotations": []}
            said.append(_Said(record.at, [_message(name, "assistant", [text])]))
    return said


def _message(name: str, role: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": name, "type": "message", "role": role, "status": "completed", "content": content}


def _parts(content: Content) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for part in (TextPart(text=content),) if isinstance(content, str) else content:
        if isinstance(part, ImagePart):
            parts.append(
                {"type": "input_image", "detail": part.image_url.detail or "auto", "image_url": part.image_url.url}
            )
        else:
            parts.append({"type": "input_text", "text": part.text})
    return parts
