"""The routes of responses."""

import copy
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, TypedDict

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import Field

from longhouse.api import auth, wire
from longhouse.api.http.json_route import JsonRoute, of_app, refuses
from longhouse.api.http.streaming import EventStream
from longhouse.api.openai.responses.objects import DeletedResponse, ResponseEvents, ResponseObject
from longhouse.api.openai.responses.request import ResponseRequest, parts_in
from longhouse.api.openai.responses.service import ResponseService
from longhouse.api.openai.turn_stream import STATUSES
from longhouse.api.pagination import Digits
from longhouse.errors import CallerError
from longhouse.journal.messages import FILE_SCHEME
from longhouse.store import files
from longhouse.store.database import Database

EXAMPLE: Final = wire.example(model="tool_calling_agent", input="Hello", background=True)

Service = Annotated[ResponseService, of_app("responses")]
ResponseId = Annotated[str, Path(description="The response")]
Number = Annotated[int, Field(ge=0), Digits]


class Followed(wire.Lenient):
    """How a response is read."""

    stream: Literal["true", "false"] = "false"
    starting_after: Number | None = None


class ItemListQuery(wire.Lenient):
    """A page of items."""

    limit: Annotated[int, Field(ge=1, le=100), Digits] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


class ItemPage(TypedDict):
    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool


router = APIRouter(tags=["OpenAI"], dependencies=[Depends(auth.user)], route_class=JsonRoute)


@router.post("/v1/responses", openapi_extra=EXAMPLE, responses=refuses(404, *STATUSES.values()))
async def create_response(
    caller: auth.User, service: Service, asked: ResponseRequest, request: Request
) -> wire.Json[ResponseObject] | EventStream[ResponseEvents] | wire.Json[wire.Envelope]:
    """Sends a message to an agent; the response is a turn of a session. `previous_response_id` goes on with it."""
    row, handle = await service.create(caller, asked, await request.body(), request.headers)
    follower = await service.follow(request.scope, row, handle)
    if asked.stream:
        return follower.streamed()
    if not asked.background:
        return await follower.whole()
    await follower.settle()
    return wire.Json(follower.builder.object())


@router.get("/v1/responses/{response_id}", responses=refuses(400))
async def get_response(
    caller: auth.User,
    service: Service,
    response_id: ResponseId,
    asked: Annotated[Followed, Query()],
    request: Request,
) -> wire.Json[ResponseObject] | EventStream[ResponseEvents]:
    """A response as it is now; or its stream, from its beginning or after the event `starting_after`."""
    if asked.stream == "false":
        return wire.Json((await service.read(caller, response_id)).object())
    follower = await service.follow(request.scope, await service.find(caller, response_id))
    await follower.settle()
    starting_after = -1 if asked.starting_after is None else asked.starting_after
    if starting_after >= len(follower.builder.events):
        raise CallerError(
            f"The stream has no event {starting_after} yet: its last one is {len(follower.builder.events) - 1}.",
            param="starting_after",
        )
    return follower.streamed(starting_after)


@router.delete("/v1/responses/{response_id}", responses=refuses(409))
async def delete_response(caller: auth.User, service: Service, response_id: ResponseId) -> wire.Json[DeletedResponse]:
    """Deletes a response: with the last one of its session, all that was said in it."""
    await service.delete(caller, response_id)
    return wire.Json(DeletedResponse(id=response_id))


@router.post("/v1/responses/{response_id}/cancel", responses=refuses(409))
async def cancel_response(caller: auth.User, service: Service, response_id: ResponseId) -> wire.Json[ResponseObject]:
    """Cancels a response that has not ended, in the background or not, wherever it runs."""
    return wire.Json((await service.cancel(caller, response_id)).object())


@router.get("/v1/responses/{response_id}/input_items", responses=refuses(400))
async def list_input_items(
    caller: auth.User, service: Service, response_id: ResponseId, asked: Annotated[ItemListQuery, Query()]
) -> wire.Json[ItemPage]:
    """What a response was asked."""
    builder = await service.read(caller, response_id)
    items = await with_images(service.db, builder.row.session_id, builder.request.input)
    return wire.Json(page_of(items, asked))


@router.post("/v1/responses/compact", include_in_schema=False)
@router.post("/v1/responses/input_tokens", include_in_schema=False)
async def refuse_unoffered() -> wire.Json[wire.Envelope]:
    raise CallerError(
        "This is not offered: a session that grows too long is summarised by itself, and what a response took is in its"
        " usage.",
        status=404,
        code="not_offered",
    )


def page_of(items: list[dict[str, Any]], asked: ItemListQuery) -> ItemPage:
    """A page of items, which are given in the order of time."""
    ordered = items if asked.order == "asc" else items[::-1]
    if asked.after is not None:
        names = [item["id"] for item in ordered]
        if asked.after not in names:
            raise no_such_item()
        ordered = ordered[names.index(asked.after) + 1 :]
    return item_page(ordered[: asked.limit], has_more=len(ordered) > asked.limit)


def item_page(data: list[dict[str, Any]], *, has_more: bool) -> ItemPage:
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else "",
        "last_id": data[-1]["id"] if data else "",
        "has_more": has_more,
    }


def no_such_item() -> CallerError:
    return CallerError("There is no item with this id.", param="after")


async def with_images(db: Database, session: str, items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items that were read from a session, with the images that they name, in messages and in results of functions.

    What a client wrote has come through types that hold no address of a file.
    """
    read = copy.deepcopy(list(items))
    images = [part for part in parts_in(read) if part["type"] == "input_image"]
    digests = {part["image_url"].removeprefix(FILE_SCHEME) for part in images}
    urls = await files.data_urls(db, session, digests) if digests else {}
    for image in images:
        address = image["image_url"]
        image["image_url"] = urls.get(address.removeprefix(FILE_SCHEME), address)
        image.pop("media_type", None)
    return read
