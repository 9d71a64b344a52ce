"""Creates, finds, cancels and deletes responses."""

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
from msgspec import structs
from starlette.types import Scope

from longhouse.agents.naming import SESSION_ID
from longhouse.agents.template import Streaming
from longhouse.api import wire
from longhouse.api.caller import Caller
from longhouse.api.http.addresses import session_address
from longhouse.api.inflight import INFLIGHT, InflightRequest
from longhouse.api.openai.request import ApprovalAnswer, BranchStart, ChatInput, parse, prior_of
from longhouse.api.openai.responses.builder import ResponseBuilder
from longhouse.api.openai.responses.follower import ResponseFollower
from longhouse.api.openai.responses.objects import (
    FunctionCallItem,
    McpApprovalRequest,
    McpCall,
    OutputItem,
    OutputMessage,
)
from longhouse.api.openai.responses.request import (
    APPROVAL_REQUEST,
    ApprovalInput,
    CallInput,
    InputReader,
    MessageInput,
    PassedOverInput,
    ReferenceInput,
    ResponseRequest,
    decisions_in,
    has_message_beside,
    in_a_conversation,
    renamed,
)
from longhouse.api.openai.responses.stored import APPROVAL, PREFIX, approval_calls
from longhouse.api.openai.session_resolver import SessionResolver
from longhouse.api.openai.turn_handle import TurnHandle
from longhouse.api.sessions.waiting import find_questions
from longhouse.errors import CallerError
from longhouse.journal.conversation import dialogue_messages, shown
from longhouse.journal.messages import Message
from longhouse.journal.session import Session
from longhouse.memory.documents.library import DocumentLibrary
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.inbox import Inbox
from longhouse.search.router import AUTO
from longhouse.store import files, journals, sessions
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.openai import conversations, responses
from longhouse.store.openai.responses import NewResponse, ResponseRow

_ITEM: Final = re.compile(r"(?:msg|rs|mcp|fc)_([0-9a-f]{32})_(\d{1,6})")
_APPROVAL: Final = re.compile(rf"{APPROVAL}([0-9a-f]{{32}})_[0-9a-f]+")


class _Destination(msgspec.Struct, frozen=True):
    """Where a request goes."""

    model: str
    """A template, or the session that goes on."""
    shown_model: str
    branch: BranchStart | None = None
    version: int | None = None
    """The version of the agent that the request names, where a session goes on."""

    @property
    def agent(self) -> str:
        """The agent that answers, as far as it is known."""
        is_session = SESSION_ID.fullmatch(self.model) is not None
        return self.model.rpartition("_")[0] if is_session else self.model.partition("@")[0]


class ResponseService(msgspec.Struct, frozen=True):
    db: Database
    bus: Bus
    catalog: Catalog
    inbox: Inbox
    resolver: SessionResolver
    library: DocumentLibrary | None = None

    # Create

    async def create(
        self, caller: Caller, request: ResponseRequest, body: bytes, headers: Mapping[str, str]
    ) -> tuple[ResponseRow, TurnHandle]:
        """Commits a request; the response that it begins, or that it began when it was sent before."""
        request = request.checked()
        hex_id = uuid.uuid4().hex
        items = await self._resolved(caller, request.items)
        approvals = await self._approvals(caller, items)
        if approvals and has_message_beside(items):
            await self._refuse_undecided(approvals)
            items, approvals = [item for item in items if not isinstance(item, ApprovalInput)], []
        place = await self._place(caller, request, approvals)
        reader = InputReader(self.db, self.library, caller.owner)
        sent = await reader.messages(items)
        if not sent:
            raise CallerError("There is no message in the input.", param="input")
        try:
            chat = parse(caller, request.as_chat(sent, place.model), body, headers)
            chat = replace(chat, branch=place.branch, version=place.version)
            if request.store is False:
                if chat.is_named and request.previous_response_id is None:
                    raise in_a_conversation()
                chat = replace(chat, conversation=None, is_named=False)
            if place.model == AUTO:
                chat, place = await self._routed(chat, place)
            async with files.for_append(self.db):
                added, used = await self._added(caller, request, place)
                kept = request.stored(
                    place.shown_model,
                    await reader.stored(items, hex_id),
                    shows_reasoning=await self._shows_reasoning(place),
                )
                stored = msgspec.json.encode(kept).decode()
                new = NewResponse(f"{PREFIX}{hex_id}", stored, request.store is not False, items=used)
                decided = tuple(answer for _, answer in approvals)
                accepted = structs.replace(chat.accepted, response=new)
                chat = replace(chat, accepted=accepted, added=added, approvals=decided)
                if decided:  # in the fingerprint, as in other requests of this client
                    chat = replace(chat, model=place.shown_model)
                await self._settle_named(caller, place, chat.conversation)
                handle = await self.resolver.accept(chat)
        except CallerError as error:
            raise renamed(error) from None
        return await self._row(caller, new.response, handle), handle

    async def _routed(self, chat: ChatInput, place: _Destination) -> tuple[ChatInput, _Destination]:
        """The same for the agent that is chosen."""
        chat.caller.spends()
        chosen = (await self.resolver.routed(chat)).template
        request = chat.request.model_copy(update={"model": chosen})
        return replace(chat, request=request), structs.replace(place, model=chosen)

    async def _row(self, caller: Caller, response: str, handle: TurnHandle) -> ResponseRow:
        if again := handle.repeats:
            row = await responses.placed(self.db, again.session_id, again.seq)
            if row is None:
                message = "This request was answered before, and its response was deleted or has another route."
                raise CallerError(message, status=409, code="already_settled")
            return row
        return await self.find(caller, response)

    async def _place(
        self, caller: Caller, request: ResponseRequest, approvals: Sequence[tuple[ResponseRow, ApprovalAnswer]]
    ) -> _Destination:
        if approvals:
            row = approvals[0][0]
            if any(one.session_id != row.session_id for one, _ in approvals):
                raise CallerError("These approvals belong to different sessions.", param="input")
            await self.settled(row)
            return _Destination(row.session_id, request.model or row.session_id.rpartition("_")[0])
        if request.previous_response_id is not None:
            return await self._after(caller, request, request.previous_response_id)
        if request.model is None:
            raise CallerError("Name a model: an agent, or auto; see GET /v1/models.", param="model")
        is_session = SESSION_ID.fullmatch(request.model) is not None
        if is_session and request.store is False:
            return await self._copy_of(caller, request.model)
        place = _Destination(request.model, request.model)
        if request.conversation_id is None or is_session or place.agent == AUTO:
            return place
        # An agent that is new in a conversation reads what was said there.
        known = await conversations.sessions(self.db, caller.owner, request.conversation_id)
        if not known or await self._session_of(caller, place, request.conversation_id):
            return place
        last = await journals.load(self.db, known[-1])
        return structs.replace(place, branch=BranchStart(request.conversation_id, _dialogue(last)))

    async def _copy_of(self, caller: Caller, session_id: str) -> _Destination:
        """A session that is named by a request that is not to be stored: a copy of it, unless it waits."""
        row = await sessions.session(self.db, session_id, caller.owner)
        if row is None or await responses.takes_unstored(self.db, row.id):
            return _Destination(session_id, session_id)
        session = await journals.load(self.db, row.id)
        return _Destination(session.agent, session_id, BranchStart(None, _dialogue(session)))

    async def _after(self, caller: Caller, request: ResponseRequest, previous: str) -> _Destination:
        """Goes on with the session of a response; from one that others have followed since, a branch of it begins."""
        row = await responses.find(self.db, previous, caller.owner)
        builder = await self.settled(row) if row else None
        if row is None or builder is None or _is_gone(builder):
            raise CallerError(
                "There is no previous response with this id.",
                status=404,
                code="previous_response_not_found",
                param="previous_response_id",
            )
        session = await self.resolver.resident.load(self.db, row.session_id)
        asked = (request.model or AUTO).partition("@")[0]
        is_same_agent = asked in (AUTO, session.agent, session.id)
        rows = await responses.of_sessions(self.db, [session.id])
        queued = any(waiting.prompt.trace == row.trace_id for waiting in session.queue)
        is_newest = rows[-1].id == row.id and (session.trace == row.trace_id or queued)
        is_open = builder.known_rest is not None and bool(builder.known_rest.waiting_for)
        model = request.model if request.model not in (None, AUTO, session.id) else session.agent
        assert model is not None
        if not is_same_agent and SESSION_ID.fullmatch(asked):
            raise CallerError("It names another session than that of the previous response.", param="model")
        if is_newest and is_same_agent and (request.store is not False or is_open or not row.is_stored):
            version = (await self.resolver.template(model, caller.owner))[1] if "@" in model else None
            return _Destination(session.id, model, version=version)
        conversation = None if request.store is False else session.conversation
        branch = BranchStart(conversation, _dialogue(builder.session))
        return _Destination(model, model, branch)

    async def _settle_named(self, caller: Caller, place: _Destination, conversation: str | None) -> None:
        """Ends the responses of a turn that waits: what follows belongs to the next one."""
        row = await self._session_of(caller, place, conversation)
        if row and row.trace_id and row.state.startswith("WAITING"):
            for one in await responses.unended(self.db, row.id, row.trace_id):
                await self.settled(one)

    async def _session_of(
        self, caller: Caller, place: _Destination, conversation: str | None
    ) -> sessions.SessionRow | None:
        """The session that a request names, by itself or by its conversation."""
        session_id: str | None = place.model
        if not SESSION_ID.fullmatch(place.model):
            named = conversation or ""
            session_id = await sessions.find(self.db, owner=caller.owner, conversation=named, agent=place.agent)
        return await sessions.session(self.db, session_id, caller.owner) if session_id else None

    async def _approvals(self, caller: Caller, items: Sequence[Any]) -> list[tuple[ResponseRow, ApprovalAnswer]]:
        """The decisions of a request, with the responses that asked for them."""
        found: list[tuple[ResponseRow, ApprovalAnswer]] = []
        for index, item in decisions_in(items):
            param = f"input[{index}].approval_request_id"
            match = _APPROVAL.fullmatch(item.approval_request_id)
            row = await responses.find(self.db, f"{PREFIX}{match[1]}", caller.owner) if match else None
            call = approval_calls(row).get(item.approval_request_id) if row else None
            if row is None or call is None:
                raise CallerError("There is no approval request with this id.", status=404, param=param)
            if any(one.session_id == row.session_id and answer.call == call for one, answer in found):
                raise CallerError("There are two decisions on this call.", param=param)
            found.append((row, ApprovalAnswer(call, "approve" if item.approve else "deny", item.reason or "")))
        return found

    async def _refuse_undecided(self, approvals: Sequence[tuple[ResponseRow, ApprovalAnswer]]) -> None:
        """Refuses decisions beside a message, unless all were taken before: then they are history, whose answer the
        client has never got."""
        for row, answer in approvals:
            session = await journals.load(self.db, row.session_id)
            try:
                waiting = await find_questions(self.db, session, answer.call)
            except CallerError as error:
                if error.code != "already_settled":
                    raise
                continue
            if waiting:
                raise CallerError("Send decisions in a request of their own, and messages after it.", param="input")

    async def _resolved(self, caller: Caller, items: Sequence[Any]) -> list[Any]:
        """The items, and instead of those that refer to one of an earlier response that one."""
        outputs: dict[str, Sequence[OutputItem]] = {}
        resolved = []
        for index, item in enumerate(items):
            if not isinstance(item, ReferenceInput):
                resolved.append(item)
                continue
            match = _ITEM.fullmatch(item.id) or _APPROVAL.fullmatch(item.id)
            if match and match[1] not in outputs:
                row = await responses.find(self.db, f"{PREFIX}{match[1]}", caller.owner)
                outputs[match[1]] = (await self.settled(row)).output if row else ()
            found = next((one for one in outputs[match[1]] if one.id == item.id), None) if match else None
            if found is None:
                raise CallerError("There is no item with this id.", status=404, param=f"input[{index}].id")
            resolved.append(_as_input(found))
        return resolved

    async def _added(
        self, caller: Caller, request: ResponseRequest, place: _Destination
    ) -> tuple[tuple[Message, ...], tuple[str, ...]]:
        """The messages that were added to the conversation since its last response, and their ids; an answer to a
        question comes without them, and the next prompt brings them."""
        if request.conversation_id is None:
            return (), ()
        row = await self._session_of(caller, place, request.conversation_id)
        if row and row.state.startswith("WAITING"):
            return (), ()
        added = await conversations.unread_items(self.db, caller.owner, request.conversation_id)
        reader = InputReader(self.db, self.library, caller.owner)
        items = [MessageInput.model_validate(one) for one in added if one.get("type") == "message"]
        system = [one for one in items if one.role in ("system", "developer")]
        sent = await reader.messages([one for one in items if one not in system])
        return await prior_of(self.db, sent), tuple(one["id"] for one in added)

    async def _shows_reasoning(self, place: _Destination) -> bool:
        template = await self.catalog.templates.find(place.agent)
        return (template.llm_policy.streaming if template else Streaming()).reasoning

    # Read, cancel, delete

    async def find(self, caller: Caller, response: str) -> ResponseRow:
        is_id = re.fullmatch(rf"{PREFIX}[0-9a-f]{{32}}", response) is not None
        row = await responses.find(self.db, response, caller.owner) if is_id else None
        if row is None:
            raise not_found()
        return row

    async def _opened(self, row: ResponseRow, base: Session | None) -> ResponseFollower:
        """The response of this row, of which nothing is read yet. `base`: its session, if it is known as of some
        moment."""
        if base is None or (base.id, base.head) != (row.session_id, row.after):
            base = await journals.load_at(self.db, row.session_id, row.after)
        return ResponseFollower(self.db, self.bus, ResponseBuilder(row, base))

    async def settled(self, row: ResponseRow, base: Session | None = None) -> ResponseBuilder:
        """The response as it is now."""
        follower = await self._opened(row, base)
        await follower.settle()
        return follower.builder

    async def read(self, caller: Caller, response: str) -> ResponseBuilder:
        """The response as it is now; one that is not stored is there while it runs."""
        builder = await self.settled(await self.find(caller, response))
        if builder.is_over and not builder.row.is_stored:
            raise not_found()
        return builder

    async def follow(self, scope: Scope, row: ResponseRow, handle: TurnHandle | None = None) -> ResponseFollower:
        """A client follows the response until its request is over; `handle`: it has just begun it."""
        inflight: InflightRequest = scope[INFLIGHT]
        inflight.session = row.session_id
        subscription = inflight.opened.enter_context(self.bus.subscribed(row.session_id))
        follower = await self._opened(row, handle.session if handle else None)
        follower.subscription, follower.address = subscription, session_address(scope, row.session_id)
        if handle:
            await follower.begin(handle)
        return follower

    async def cancel(self, caller: Caller, response: str) -> ResponseBuilder:
        """Cancels the turn of a response that has not ended; of one that has, nothing changes."""
        builder = await self.read(caller, response)
        caller.uses(builder.session.agent)
        if builder.is_over:
            return builder
        session = await journals.load(self.db, builder.row.session_id)
        await self.inbox.cancel(session, by=caller.decider, trace=builder.row.trace_id)
        return await self.read(caller, response)

    async def delete(self, caller: Caller, response: str) -> None:
        """Deletes a response; with the last one of its session, the session."""
        row = await self.find(caller, response)
        builder = await self.settled(row)
        caller.uses(builder.session.agent)
        if not builder.is_over:
            session = await journals.load(self.db, row.session_id)
            await self.inbox.cancel(session, by=caller.decider, trace=row.trace_id)
        if await responses.is_last(self.db, row.id, row.session_id):
            await self.inbox.forget(row.session_id, row.owner)
        else:
            await responses.delete(self.db, row.id)


def _as_input(item: OutputItem) -> Any:
    """An item of a response as a client would send it."""
    match item:
        case OutputMessage(content=content):
            return MessageInput(role="assistant", content="".join(part.text for part in content))
        case FunctionCallItem() as call:
            return CallInput(type="function_call", call_id=call.call_id, name=call.name, arguments=call.arguments)
        case McpApprovalRequest():
            return PassedOverInput(type=APPROVAL_REQUEST)
    return PassedOverInput(type="mcp_call" if isinstance(item, McpCall) else "reasoning")


def _is_gone(builder: ResponseBuilder) -> bool:
    """Whether nobody can continue from a response: it is not stored, and has ended. One that waited for an answer
    stays, for the answer and for repeats of its request."""
    has_waited = builder.known_rest is not None and builder.known_rest.waiting_for
    return builder.is_over and not builder.row.is_stored and not has_waited


def not_found() -> CallerError:
    return wire.not_found("There is no response with this id.", code="response_not_found")


def _dialogue(session: Session) -> tuple[Message, ...]:
    """What was said in a session, without calls of tools."""
    return tuple(message for entry in shown(session) for message in dialogue_messages(entry))
