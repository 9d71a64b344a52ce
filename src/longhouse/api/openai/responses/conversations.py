"""Conversations in OpenAI's shapes: created by themselves or by what was said in them, with the items of both.

`DELETE /v1/conversations/{id}` and the interactions of a conversation are in `erasing` and `interactions`.
"""

import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Final, Literal, TypedDict

import msgspec
from fastapi import APIRouter, Depends, Path, Query
from pydantic import Field

from longhouse.api import auth, wire
from longhouse.api.caller import Caller
from longhouse.api.http.json_route import JsonRoute, of_app, refuses
from longhouse.api.openai.responses.request import InputItem, InputReader, ReferenceInput, kept, text_part
from longhouse.api.openai.responses.routes import (
    ItemListQuery,
    ItemPage,
    item_page,
    no_such_item,
    with_images,
)
from longhouse.api.openai.responses.service import ResponseService
from longhouse.api.openai.responses.stored import PREFIX
from longhouse.api.wire import Lenient, Many, Metadata
from longhouse.errors import CallerError
from longhouse.journal import events
from longhouse.journal.messages import Content, ImagePart, TextPart
from longhouse.journal.session import Session
from longhouse.store import journals
from longhouse.store.database import Database
from longhouse.store.openai import conversations, responses
from longhouse.store.openai.conversations import ADDED, RESPONSE, Conversation, Unit

MOST_ITEMS: Final = 20
"""Items that are added at once."""
LONGEST_NAME: Final = 512
"""Characters of the id of an item."""
MOST_BYTES: Final = 8_000_000
"""Of a page of items: with the one that passes this it ends."""
UNITS: Final = 20
"""What is looked for at once; each is read by itself."""

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


class NamedConversation(msgspec.Struct, frozen=True):
    """A conversation of the caller, by its name."""

    service: ResponseService
    caller: Caller
    name: str

    @property
    def where(self) -> tuple[Database, str, str]:
        return self.service.db, self.caller.owner, self.name

    async def found(self) -> Conversation:
        found = await conversations.find(*self.where)
        if found is None:
            raise wire.not_found("There is no such conversation.", code="conversation_not_found")
        return found

    async def shown(self) -> wire.Json[ConversationObject]:
        found = await self.found()
        return wire.Json(
            {
                "id": found.id,
                "object": "conversation",
                "created_at": int(found.created_at.timestamp()),
                "metadata": found.metadata,
            }
        )

    async def check_changeable(self) -> None:
        """Refuses a key that may not change the conversation: what is added reaches all who talk in it."""
        await self.found()
        await self.caller.uses_all_of(self.service.db, self.name)

    async def item(self, name: str) -> dict[str, Any]:
        found = await self._with_item(name)
        if found is None:
            raise wire.not_found("There is no such item in this conversation.", code="item_not_found")
        return next(item for item in found[1] if item["id"] == name)

    async def page(self, asked: ItemListQuery) -> ItemPage:
        """A page is read item by item until it is full: what was added may be large."""
        page, size = list[dict[str, Any]](), 0
        async with aclosing(self._listed(asked)) as items:
            async for item in items:
                if len(page) == asked.limit or size > MOST_BYTES:
                    return item_page(page, has_more=True)
                page.append(item)
                size += len(msgspec.json.encode(item))
        return item_page(page, has_more=False)

    async def _listed(self, asked: ItemListQuery) -> AsyncGenerator[dict[str, Any], None]:
        """The items of a conversation in the order that was asked for, each read when it is wanted."""
        beyond, newest_first = None, asked.order == "desc"
        step = -1 if newest_first else 1
        if asked.after is not None:
            found = await self._with_item(asked.after)
            if found is None:
                raise no_such_item()
            beyond, items = found[0], found[1][::step]
            place = [item["id"] for item in items].index(asked.after)
            for item in items[place + 1 :]:
                yield item
        while units := await conversations.units(*self.where, beyond=beyond, newest_first=newest_first, limit=UNITS):
            bases = await _bases(self.service.db, units)
            for unit in units:
                for item in (await self._items_of(unit, bases.get(unit)))[::step]:
                    yield item
            beyond = units[-1]

    async def _with_item(self, name: str) -> tuple[Unit, list[dict[str, Any]]] | None:
        """What holds the item of this id, and the items of it."""
        if len(name) > LONGEST_NAME or "\0" in name:
            return None
        for unit in await conversations.units_with(*self.where, name):
            items = await self._items_of(unit)
            if any(item["id"] == name for item in items):
                return unit, items
        return None

    async def _items_of(self, unit: Unit, base: Session | None = None) -> list[dict[str, Any]]:
        """In the order of time; none if it was deleted meanwhile. `base`: the session before a response, if known."""
        db, name = self.service.db, f"msg_{unit.named}"
        if unit.kind == ADDED:
            item = await conversations.item(db, unit.named)
            return [item] if item else []
        if unit.kind == RESPONSE:
            row = await responses.find(db, f"{PREFIX}{unit.named}", self.caller.owner)
            if row is None:
                return []
            builder = await self.service.settled(row, base)
            output: list[dict[str, Any]] = msgspec.to_builtins(builder.output)
            return [*await with_images(db, row.session_id, builder.request.input), *output]
        for record in await journals.read(db, unit.place, unit.seq - 1, 1):
            match record.event:
                case events.Finished(answer=answer):
                    return [_message(name, "assistant", [text_part(answer, "output_text")])]
                case events.Prompted(content=said):
                    content = [part for one in said for part in _parts(one)]
                    return await with_images(db, unit.place, [_message(name, "user", content)])
        return []


async def _named(caller: auth.User, service: Service, conversation_id: ConversationId) -> NamedConversation:
    return NamedConversation(service, caller, conversation_id)


Named = Annotated[NamedConversation, Depends(_named)]
router = APIRouter(
    prefix="/v1/conversations", tags=["OpenAI"], dependencies=[Depends(auth.user)], route_class=JsonRoute
)


@router.post("", openapi_extra=wire.example(metadata={"topic": "weather"}))
async def create_conversation(
    caller: auth.User, service: Service, new: NewConversation
) -> wire.Json[ConversationObject]:
    """Creates a conversation; the first response in it reads the items."""
    named = NamedConversation(service, caller, f"conv_{uuid.uuid4().hex}")
    items = await _stored(service, caller, new.items or ())
    await conversations.save(*named.where, metadata=new.metadata or {}, items=items)
    return await named.shown()


@router.get("/{conversation_id}", responses=refuses(400))
async def get_conversation(named: Named) -> wire.Json[ConversationObject]:
    """A conversation, whoever began it: one that was created, or one in which something was said."""
    return await named.shown()


@router.post("/{conversation_id}", openapi_extra=wire.example(metadata={"topic": "names"}))
async def update_conversation(named: Named, changed: ChangedConversation) -> wire.Json[ConversationObject]:
    """Changes the metadata of a conversation."""
    await named.check_changeable()
    await conversations.save(*named.where, metadata=changed.metadata or {})
    return await named.shown()


@router.get("/{conversation_id}/items", responses=refuses(400))
async def list_conversation_items(named: Named, asked: Annotated[ItemListQuery, Query()]) -> wire.Json[ItemPage]:
    """All that was said and done in a conversation, and what was added to it."""
    await named.found()
    return wire.Json(await named.page(asked))


@router.post("/{conversation_id}/items", openapi_extra=wire.example(items=[{"role": "user", "content": "I am Ada."}]))
async def add_conversation_items(named: Named, new: NewItems) -> wire.Json[ItemPage]:
    """Adds messages to a conversation: the next response in it reads them."""
    await named.check_changeable()
    items = await _stored(named.service, named.caller, new.items)
    await conversations.save(*named.where, items=items)
    return wire.Json(item_page(items, has_more=False))


@router.get("/{conversation_id}/items/{item_id}", responses=refuses(400))
async def get_conversation_item(
    caller: auth.User, service: Service, conversation_id: ConversationId, item_id: ItemId
) -> wire.Json[dict[str, Any]]:
    """One item of a conversation."""
    named = NamedConversation(service, caller, conversation_id)
    await named.found()
    return wire.Json(await named.item(item_id))


@router.delete("/{conversation_id}/items/{item_id}", responses=refuses(400, 409))
async def delete_conversation_item(
    caller: auth.User, service: Service, conversation_id: ConversationId, item_id: ItemId
) -> wire.Json[ConversationObject]:
    """Removes an item that was added and that no agent has read. What was said is erased with its conversation."""
    named = NamedConversation(service, caller, conversation_id)
    await named.check_changeable()
    if not await conversations.remove_item(*named.where, item_id):
        await named.item(item_id)
        raise CallerError(
            "An agent has read or said this, and its journal is never changed: delete the conversation to erase it.",
            status=409,
            code="item_in_use",
        )
    return await named.shown()


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
    return kept(items, uuid.uuid4().hex)


async def _bases(db: Database, units: Sequence[Unit]) -> dict[Unit, Session]:
    """The sessions as they were before these responses: each journal is folded once."""
    bases, last = dict[Unit, Session](), dict[str, Session]()
    for unit in sorted((one for one in units if one.kind == RESPONSE), key=lambda one: one.seq):
        if known := last.get(unit.place):
            base = await journals.load_up_to(db, known, unit.seq)
        else:
            base = await journals.load_at(db, unit.place, unit.seq)
        bases[unit] = last[unit.place] = base
    return bases


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
