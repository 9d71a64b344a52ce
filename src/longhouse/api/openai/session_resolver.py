"""Finds or opens the session of a chat request, and appends the request to its journal as an event."""

import hashlib
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from itertools import takewhile
from typing import Final

from msgspec import structs

from longhouse.agents.naming import AGENT_PREFIX, SESSION_ID
from longhouse.agents.template import Template
from longhouse.agents.tool import sendable
from longhouse.api import repeating, wire
from longhouse.api.caller import Caller
from longhouse.api.model_names import find_template
from longhouse.api.openai import client_tools
from longhouse.api.openai.request import ApprovalAnswer, ChatInput, ClientHistory, parse, prior_of, text_of
from longhouse.api.openai.turn_handle import TurnHandle, append_reply, seen_heads
from longhouse.api.sessions import decisions
from longhouse.api.sessions.waiting import Question, find_questions, named, settled, waiting_status
from longhouse.api.wire import ChatRequest
from longhouse.errors import AlreadyReturned, CallerError, ReadOnlySession
from longhouse.journal import events, fingerprint, imported
from longhouse.journal.events import Opened, Prompted, Recorded
from longhouse.journal.fold import blank, fold
from longhouse.journal.session import EPHEMERAL, Session
from longhouse.runtime.inbox import Inbox
from longhouse.runtime.steps.delegation import PriorOf
from longhouse.runtime.workers.resident_sessions import ResidentSessions
from longhouse.search.router import AUTO, Routed, Router
from longhouse.store import files, journals, sessions
from longhouse.store.capsules import imported as capsules
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.delegation import tree
from longhouse.store.openai import responses
from longhouse.store.projections import HistoryOf
from longhouse.store.requests import Repeated
from longhouse.validation_messages import did_you_mean

MAX_EVENTS: Final = 1_000_000
"""Events of a journal that are read in one query."""
ANSWERED: Final = "The question that metadata.reply_to names was answered already"


@dataclass
class SessionResolver:
    db: Database
    catalog: Catalog
    inbox: Inbox
    router: Router | None = None
    prior: PriorOf | None = None
    """Loads the history of a new conversation from an external store."""
    resident: ResidentSessions = field(default_factory=ResidentSessions)
    in_progress: repeating.RequestsInProgress = field(default_factory=repeating.RequestsInProgress)

    async def attach(self, caller: Caller, request: ChatRequest, body: bytes, headers: Mapping[str, str]) -> TurnHandle:
        """Finds or opens the session of this request and appends the new messages."""
        return await self.accept(parse(caller, request, body, headers))

    async def accept(self, chat: ChatInput) -> TurnHandle:
        """The same for a request that was read already."""
        if repeated := await self._repeated(chat):
            return await self._reattach(repeated, chat)
        try:
            with self.in_progress.writing(chat.accepted):
                return await self._written(chat)
        except journals.NotThere:
            # The session was deleted meanwhile.
            raise unknown_model(chat.request.model) from None
        except Repeated:
            if repeated := await self._repeated(chat):
                return await self._reattach(repeated, chat)
        except CallerError as error:
            # The same request, with the same idempotency key, may have taken what was left.
            if error.status == HTTPStatus.TOO_MANY_REQUESTS and (repeated := await self._repeated(chat)):
                return await self._reattach(repeated, chat)
            raise
        # The idempotency key is held by an expired request.
        await sessions.forget_requests(self.db)
        return await self._written(chat)

    async def _written(self, chat: ChatInput) -> TurnHandle:
        """Writes the request; the worker that serves it goes on from its session, if it is in this process."""
        async with files.for_append(self.db):
            handle = await self._place(chat)
            self.resident.note(handle.session)
            return handle

    # A repeated request

    async def _repeated(self, chat: ChatInput) -> sessions.AcceptedRequest | None:
        accepted = chat.accepted
        if accepted.key:
            return await repeating.accepted_before(self.db, accepted)
        if not accepted.is_retry:
            return None
        accepted_before = await sessions.request_by_digest(self.db, accepted.owner, accepted.digest)
        while accepted_before is None and await self.in_progress.others(accepted):
            accepted_before = await sessions.request_by_digest(self.db, accepted.owner, accepted.digest)
        return accepted_before

    async def _reattach(self, accepted_before: sessions.AcceptedRequest, chat: ChatInput) -> TurnHandle:
        """Follows the turn from the event of the first request on."""
        session = await journals.load_up_to(self.db, blank(accepted_before.session_id), accepted_before.seq)
        turn, trace = session.turn, accepted_before.trace_id
        heads: Mapping[str, int] = {}
        is_subagent = turn is not None and bool(turn.prompted.root) and chat.request.model != session.id
        if turn and (turn.trace == trace or is_subagent):
            before = await journals.load_up_to(self.db, blank(session.id), accepted_before.seq - 1)
            heads = await seen_heads(self.db, before, session.updated_at)
        if turn is None or not is_subagent:
            [placed] = await journals.read(self.db, session.id, accepted_before.seq - 1, 1)
            is_aside = isinstance(placed.event, Prompted) and placed.event.aside
            is_own_user = decisions.is_own_user(session, chat.user)
            handle = TurnHandle(session, trace, is_behind=True, seen_heads=heads)
            return structs.replace(handle, is_aside=is_aside, is_own_user=is_own_user, repeats=accepted_before)

        def was_before(record: Recorded) -> bool:
            """Did this happen before the answer? The end of its own turn never did, whatever the clocks say."""
            is_end = record.trace == trace and isinstance(record.event, events.ENDS)
            return not is_end and session.updated_at is not None and record.at <= session.updated_at

        # An answer to a sub-agent: the client follows the turn of the top session, from the answer on.
        records = await journals.read(self.db, turn.prompted.root, limit=MAX_EVENTS)
        root = fold(takewhile(was_before, records), blank(turn.prompted.root))
        chain = chat.chain if chat.history.resends else None
        handle = TurnHandle(root, trace, is_behind=True, client_chain=chain, seen_heads=heads)
        return structs.replace(handle, repeats=accepted_before)

    # A new request

    async def _place(self, chat: ChatInput) -> TurnHandle:
        chat.caller.spends()
        if chat.approvals:
            return await self._decide(chat)
        if SESSION_ID.fullmatch(chat.request.model):
            return await self._continue_named(chat)
        if chat.request.model != AUTO:
            return await self._find_or_open(chat)
        routed = await self.routed(chat)
        request = chat.request.model_copy(update={"model": routed.template})
        return structs.replace(await self._find_or_open(replace(chat, request=request)), routed=routed)

    async def _find_or_open(self, chat: ChatInput) -> TurnHandle:
        template, version = await self.template(chat.request.model, chat.caller.owner)
        chat.caller.uses(template.name)
        chat = await self._with_tools(chat, template)
        prompt = await chat.prompt(self.db, version=version)
        return structs.replace(await self._place_with(chat, template, prompt), template=template)

    async def _place_with(self, chat: ChatInput, template: Template, prompt: Prompted) -> TurnHandle:
        owner, request, history, conversation = chat.caller.owner, chat.request, chat.history, chat.conversation
        if request.brings_memory:
            return await self._open_once(chat, template, prompt)
        if branch := chat.branch:
            prior = (*branch.prior, *chat.added, *await prior_of(self.db, history.known))
            label = await self._label(owner, template, branch.conversation, prompt)
            prompt = structs.replace(prompt, prior=prior, chain="")
            return await self._open(chat, template, prompt, conversation=branch.conversation, label=label)
        if chat.is_named and not history.resends:
            found = await sessions.find(self.db, owner=owner, conversation=conversation or "", agent=template.name)
            if found:
                return await self._continue(chat, found, prompt, resent=False)
            return await self._open(chat, template, prompt, conversation=conversation, label="")
        rested = await self._rested(chat, template)
        if rested and not await self._may_add(chat, rested.session_id):
            rested = None
        if rested and (rested.is_newest or (history.results and not history.new)):
            return await self._continue(chat, rested.session_id, prompt, resent=True)
        prompt = structs.replace(prompt, prior=await prior_of(self.db, history.known))
        conversation = rested.conversation_id if rested else conversation
        label = await self._label(owner, template, conversation, prompt)
        return await self._open(chat, template, prompt, conversation=conversation, label=label)

    async def _continue_named(self, chat: ChatInput) -> TurnHandle:
        """The model is a session."""
        request, owner = chat.request, chat.caller.owner
        row = await sessions.session(self.db, request.model, owner)
        if row is None:
            # Sessions from capsules belong to nobody; those who see all of them are told why they stay as they are.
            if chat.caller.role == "admin" and await capsules.capsule_of(self.db, request.model):
                raise ReadOnlySession
            raise unknown_model(request.model)
        chat.caller.uses(row.agent)
        chat = await self._with_tools(chat, await self.catalog.templates.find(row.agent, owner=owner))
        return await self._continue(chat, row.id, await chat.prompt(self.db, version=chat.version), resent=False)

    async def _rested(self, chat: ChatInput, template: Template) -> sessions.Rested | None:
        """The session that has stopped where the history of the request ends: by the calls that our last message made,
        or by all its texts."""
        history, where = chat.history, {"owner": chat.caller.owner, "agent": template.name}
        if mark := client_tools.mark_of(history.before):
            found = await sessions.rested(self.db, mark, **where, conversation_id=chat.conversation)
            if found:
                return found
        return await sessions.rested(self.db, chat.known_chain, **where, conversation_id=chat.conversation)

    async def _may_add(self, chat: ChatInput, session_id: str) -> bool:
        """Whether the request may add to this session; one that is not to be stored goes on in a copy of what is."""
        response = chat.accepted.response
        return response is None or response.is_stored or await responses.takes_unstored(self.db, session_id)

    async def _with_tools(self, chat: ChatInput, template: Template | None) -> ChatInput:
        """The request with the functions that its client runs, if the agent takes them."""
        request = chat.request
        if not request.tools or request.brings_memory or template is None or not template.allow_client_tools:
            return chat
        tools = client_tools.read(request.tools, request.tool_choice, request.parallel_tool_calls)
        # Results are taken in any case: a tool of the agent may have come to the same name since.
        if tools is not None and not chat.history.results:
            await client_tools.check_names(tools, self.catalog, template, chat.caller.owner)
        return replace(chat, client_tools=tools)

    async def routed(self, chat: ChatInput) -> Routed:
        """Chooses the template: a conversation keeps its own; a new one gets the best match for its first message."""
        owner, history = chat.caller.owner, chat.history
        chain = client_tools.mark_of(history.before) or chat.known_chain if history.resends else None
        known = await sessions.agent_of(self.db, owner, conversation=chat.conversation, fingerprint=chain)
        if known:
            return Routed(known, "it has answered in this conversation before", 1.0)
        first = next((message.text for message in history.all if message.role == "user"), "")
        if self.router is None:
            raise unknown_model(AUTO)
        return await self.router.choose(first, owner, allowed=chat.caller.templates)

    async def _open_once(self, chat: ChatInput, template: Template, prompt: Prompted) -> TurnHandle:
        """Opens a session for one request with the history that the caller sends. Later requests find it only while it
        waits for a person: what the chat says next is for it."""
        request, contexts = chat.request, {}
        waiting = await sessions.waiting_once(self.db, chat.caller.owner, chat.conversation or "", template.name)
        if waiting:
            return await self._continue(chat, waiting, prompt, resent=False)
        await self._check_agents(request.subagent_contexts or {}, chat.caller.owner)
        prior = await prior_of(self.db, [*(request.context or ()), *chat.history.known])
        for name, messages in (request.subagent_contexts or {}).items():
            read = imported.read([one.model_dump(exclude_none=True) for one in messages])
            contexts[name] = sendable(imported.as_messages(read))
        prompt = structs.replace(prompt, prior=prior, contexts=contexts, chain="")
        label = f"{EPHEMERAL}{uuid.uuid4().hex}"
        return await self._open(chat, template, prompt, conversation=chat.conversation, label=label)

    async def _check_agents(self, names: Collection[str], owner: str) -> None:
        """Refuses the history of an agent that there never was: it would be lost."""
        tools = [f"{AGENT_PREFIX}{wire.checked_id(name, 'subagent_contexts')}" for name in names]
        known = await self.catalog.existing_tools(tools, owner)
        for name, tool in zip(names, tools, strict=True):
            if tool not in known:
                near = did_you_mean(name, await self.catalog.templates.names(owner=owner))
                message = f"There is no agent {name!r} whose history subagent_contexts could be{near or '.'}"
                raise CallerError(message, param="subagent_contexts")

    async def _label(self, owner: str, template: Template, conversation: str | None, prompt: Prompted) -> str:
        """The label of a new session: empty for the first of a conversation; a differing history opens a branch."""
        if conversation is None:
            return ""
        if not await sessions.find(self.db, owner=owner, conversation=conversation, agent=template.name):
            return ""
        return f"branch-{hashlib.sha256(f'{prompt.chain}{prompt.trace}'.encode()).hexdigest()[:8]}"

    async def _open(
        self, chat: ChatInput, template: Template, prompt: Prompted, *, conversation: str | None, label: str
    ) -> TurnHandle:
        if chat.reply_to is not None:
            raise no_such_question(chat.reply_to, "metadata.reply_to")  # a new session has no questions
        if not chat.history.new:
            first = chat.history.results[0]
            raise client_tools.unknown_call(first.id, first.param)  # and no calls
        if self.prior and conversation and not label and not prompt.prior:
            [known] = await self.prior(conversation, chat.caller.owner, [HistoryOf()])
            prompt = structs.replace(prompt, prior=known)
        opened = Opened(
            agent=template.name,
            version=template.version,
            owner=chat.caller.owner,
            user=chat.user,
            conversation=conversation or str(uuid.uuid4()),
            label=label,
        )
        chat.caller.spends(begins_turn=True)
        await chat.caller.opens_session()
        proposed = f"{template.name}_{uuid.uuid4()}"
        task = text_of(prompt.content)
        delivered = await self.inbox.open(proposed, opened, prompt, task=task, accepted=chat.accepted)
        return TurnHandle(delivered.session, prompt.trace, is_behind=delivered.is_behind)

    async def _continue(self, chat: ChatInput, session_id: str, prompt: Prompted, *, resent: bool) -> TurnHandle:
        """The message answers an open question; without one it is the next prompt."""
        session, reply_to = await self.resident.load(self.db, session_id), chat.reply_to
        if not resent:
            prompt = structs.replace(prompt, chain=_continued(session, chat.history))
        if chat.history.results and (handle := await self._take_results(chat, session, prompt)):
            return handle
        if reply_to is None and (handle := await self._instead(chat, session, prompt)):
            return handle
        if reply_to is not None and _has_asked(session, reply_to) and reply_to not in session.open:
            return await self._answered_again(chat, session, prompt)
        waiting = await find_questions(self.db, session, reply_to)
        questions = [one for one in waiting if one.call.call_kind == "ask"]
        if session.turn and questions:
            return await self._answer(chat, session, prompt, questions[0])
        if reply_to is not None and not waiting:
            if await tree.was_answered(self.db, session, reply_to):
                raise settled(f"{ANSWERED}.")
            raise no_such_question(reply_to, "metadata.reply_to")
        on = waiting[0] if reply_to is not None else None
        if handle := await self._decide_in_chat(chat, session, prompt, about=on):
            return handle
        if on is not None and on.call.is_client:
            raise settled(f"{on.call.tool} runs at the client: send its result as a tool message.")
        if reply_to is not None:
            raise settled(
                "The call that metadata.reply_to names was decided already, its deadline has passed, or the turn does"
                f" not wait for it: see /v1/sessions/{session.id}/questions, and decide at …/approval."
            )
        return await self._queue(chat, session, prompt)

    async def _take_results(self, chat: ChatInput, session: Session, prompt: Prompted) -> TurnHandle | None:
        """The results of calls that the client runs, and what the user said with them, go to the running turn. None if
        these calls have returned and the user has written more: that is the next prompt."""
        history, given = chat.history, chat.history.results
        if history.new and not client_tools.are_known(session, given):
            return None  # results of calls that others have made: they are part of the history
        for _ in range(decisions.RACES):
            results = client_tools.results_for(session, given)
            if not results:
                break
            try:
                return await self._give(chat, session, results, prompt)
            except AlreadyReturned:
                session = await journals.catch_up(self.db, session)
        if history.new:
            return None
        if not client_tools.are_same(session, given):
            raise client_tools.refused(session, given)
        return await self._followed_again(chat, session)

    async def _followed_again(self, chat: ChatInput, session: Session) -> TurnHandle:
        """The same results once more: their client follows the turn again, from these results on."""
        calls = client_tools.calls_of(session, chat.history.results)
        records = await journals.read(self.db, session.id, limit=MAX_EVENTS)
        last = max((one for one in records if events.call_of(one.event) in calls), key=lambda one: one.seq)
        again = sessions.AcceptedRequest(chat.accepted.digest, session.id, last.trace, last.seq)
        return await self._reattach(again, chat)

    async def _instead(self, chat: ChatInput, session: Session, prompt: Prompted) -> TurnHandle | None:
        """The user writes instead of the client sending results: the calls end without, and the agent reads the message
        with that. None if no call waits for the client."""
        while session.client_calls and not session.can_move:
            faults = {call.call: client_tools.NOT_RUN for call in session.client_calls}
            try:
                return await self._give(chat, session, faults, prompt)
            except AlreadyReturned:
                session = await journals.catch_up(self.db, session)
        return None

    async def _give(
        self, chat: ChatInput, session: Session, results: Mapping[str, events.Outcome], prompt: Prompted
    ) -> TurnHandle:
        """Returns calls of the client, with what the user said; what it offers now is what the request offers."""
        offered = chat.client_tools or events.ClientTools()
        has_changed = session.turn is not None and offered != (session.turn.client_tools or events.ClientTools())
        before = await seen_heads(self.db, session)
        delivered = await self.inbox.give_results(
            session,
            results,
            by=chat.caller.decider,
            user=prompt.user,
            chain=prompt.chain,
            aside=structs.replace(prompt, client_tools=None) if prompt.content else None,
            client_tools=offered if has_changed else None,
            accepted=chat.accepted,
        )
        return TurnHandle(delivered.session, session.trace, is_behind=delivered.is_behind, seen_heads=before)

    async def _decide(self, chat: ChatInput) -> TurnHandle:
        """Decides on calls of a session and its sub-agents: all that wait in one session in one append. The client
        follows the turn from the last one on."""
        row, left = await sessions.session(self.db, chat.request.model, chat.caller.owner), list(chat.approvals)
        if row is None:
            raise unknown_model(chat.request.model)
        chat.caller.uses(row.agent)
        for _ in range(decisions.RACES + len(left)):
            session = await journals.load(self.db, row.id)
            found = [await self._undecided(session, one) for one in left]
            # Those of sub-agents first: the session goes on with the last one.
            asking = max((one.session for one in found), key=lambda one: one.id != session.id)
            these = [index for index, one in enumerate(found) if one.session.id == asking.id]
            # All of them are checked before the first is written.
            decided = [
                decisions.decided(
                    chat.caller,
                    question,
                    one.decision,
                    comment=one.comment,
                    chat=session,
                    user=chat.request.user,
                )
                for question, one in zip(found, left, strict=True)
            ]
            is_last = len(these) == len(left)
            accepted = chat.accepted if is_last else None
            chain = chat.chain if chat.history.resends else _continued(session, chat.history)
            try:
                handle = await append_reply(
                    self.inbox,
                    session,
                    found[these[0]],
                    [decided[index] for index in these],
                    chain=chain,
                    accepted=accepted,
                )
            except journals.NotThere:
                if await sessions.session(self.db, row.id, chat.caller.owner) is None:
                    raise  # the session was deleted meanwhile
                continue
            if is_last:
                return handle
            left = [one for index, one in enumerate(left) if index not in these]
        raise decisions.too_many_races()

    async def _decide_in_chat(
        self,
        chat: ChatInput,
        session: Session,
        prompt: Prompted,
        *,
        about: Question | None = None,
        may_decide: bool = True,
    ) -> TurnHandle | None:
        """If calls wait for a decision, the message decides; if it is no decision, it is queued for the running turn,
        and the response lists what waits.

        `about` is the call that the client named: no other call is decided.
        """
        for _ in range(decisions.RACES):
            waiting = await decisions.undecided(self.db, session)
            if session.turn is None or not named(waiting, session, chat.reply_to):
                return None
            is_own_user = decisions.is_own_user(session, chat.user)
            text = text_of(prompt.content) if len(prompt.content) == 1 else ""
            found = decisions.read(text, waiting, session, chat.reply_to) if is_own_user and may_decide else None
            # After a lost race, the message was not about the call that waits now.
            may_decide = found is not None and (about is None or found[0].is_same(about))
            try:
                if found and may_decide:
                    about, decision = found
                    decided = decisions.decided(chat.caller, about, decision, chat=session, user=chat.request.user)
                    return await append_reply(
                        self.inbox, session, about, [decided], chain=prompt.chain, accepted=chat.accepted
                    )
                aside = structs.replace(prompt, trace=session.turn.trace, aside=True)
                delivered = await self.inbox.prompt(session, aside, accepted=chat.accepted)
                return TurnHandle(delivered.session, aside.trace, is_aside=True, is_own_user=is_own_user)
            except journals.NotThere:
                if await sessions.session(self.db, session.id, session.owner) is None:
                    raise  # the session was deleted meanwhile
                session = await journals.catch_up(self.db, session)
        raise decisions.too_many_races()

    async def _undecided(self, session: Session, approval: ApprovalAnswer) -> Question:
        fits = partial(decisions.is_possible, approval.decision)
        found = await find_questions(self.db, session, approval.call, fits)
        if not found:
            raise settled(await decisions.why_not(self.db, session, approval.call, approval.decision))
        return found[0]

    async def _answered_again(self, chat: ChatInput, session: Session, prompt: Prompted) -> TurnHandle:
        """A message that names an answered question of the session is the next prompt, if no other question is open."""
        status = await waiting_status(self.db, session)
        if any(one.call.call_kind == "ask" for one in status.questions):
            raise settled(f"{ANSWERED}; another one is open.")
        return await self._queue(chat, session, prompt)

    async def _answer(self, chat: ChatInput, session: Session, prompt: Prompted, question: Question) -> TurnHandle:
        """The message answers this question; if another answer came first, it answers no other question."""
        chat.caller.uses(question.session.agent)
        text, by = text_of(prompt.content), chat.caller.decider
        of_request = {"chain": prompt.chain, "user": prompt.user}
        try:
            return await append_reply(self.inbox, session, question, text, by=by, **of_request, accepted=chat.accepted)
        except AlreadyReturned:
            session = await journals.catch_up(self.db, session)
        if chat.reply_to is None:
            handle = await self._decide_in_chat(chat, session, prompt, may_decide=False)
            return handle or await self._queue(chat, session, prompt)
        if question.session.id == session.id:
            return await self._answered_again(chat, session, prompt)
        raise settled(f"{ANSWERED}.")

    async def _queue(self, chat: ChatInput, session: Session, prompt: Prompted) -> TurnHandle:
        """The message is the next prompt."""
        chat.caller.spends(begins_turn=True)
        delivered = await self.inbox.prompt(session, prompt, accepted=chat.accepted)
        is_own_user = decisions.is_own_user(session, chat.user)
        return TurnHandle(delivered.session, prompt.trace, is_behind=delivered.is_behind, is_own_user=is_own_user)

    async def template(self, model: str, owner: str) -> tuple[Template, int | None]:
        """The template that a request names, and the version, if it names one."""
        found = await find_template(self.catalog, model, owner)
        if found is None:
            raise unknown_model(model)
        return found


def unknown_model(model: str) -> CallerError:
    shown = model if len(model) <= 100 else f"{model[:100]}…"
    return wire.not_found(f"The model {shown!r} does not exist; see GET /v1/models.", code="model_not_found")


def no_such_question(call: str, param: str) -> CallerError:
    return CallerError(f"No question has the id {call[:100]!r}.", param=param)


def _has_asked(session: Session, call: str) -> bool:
    """Is this a question of the session, open or answered?"""
    return any(use.question and use.call == call for use in session.uses)


def _continued(session: Session, history: ClientHistory) -> str:
    """The fingerprint for a client that sent only new messages: the session's conversation plus these messages.

    Empty if it cannot be known: during a running turn, or after a failed one.
    """
    mark = None if session.can_move else session.text_mark
    new = (*history.answers, *history.new)
    return fingerprint.grown(mark, ((message.role, message.text) for message in new)) if mark else ""
