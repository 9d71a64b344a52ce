"""Finds or opens the session of a chat request, and appends the request to its journal as an event."""

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Final

from msgspec import structs

from longhouse.agents.template import Template
from longhouse.agents.tool import sendable
from longhouse.api import wire
from longhouse.api.auth import Caller
from longhouse.api.openai.chat_decisions import ChatDecisions
from longhouse.api.openai.idempotency import RequestsInProgress
from longhouse.api.openai.request import ChatInput, ClientHistory, prior_of, read, text_of
from longhouse.api.openai.turn_handle import TurnHandle, seen_heads
from longhouse.api.sessions import decisions
from longhouse.api.sessions.call_names import meant
from longhouse.api.sessions.decisions import settled
from longhouse.api.sessions.waiting import Question, own, waiting_status
from longhouse.api.wire import ChatRequest
from longhouse.errors import AlreadyReturned, CallerError
from longhouse.journal import events, fingerprint, imported
from longhouse.journal.events import Opened, Prompted, Recorded
from longhouse.journal.fold import blank, fold
from longhouse.journal.session import EPHEMERAL, Session, Turn
from longhouse.journal.transcript import Step
from longhouse.runtime.delegation import PriorOf
from longhouse.runtime.inbox import Inbox
from longhouse.search.router import AUTO, Routed, Router
from longhouse.store import journals, sessions
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.delegation import tree
from longhouse.store.requests import Accepted, Repeated

SESSION_ID: Final = re.compile(r".+_[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
MAX_TOLD: Final = 1_000_000
"""Events of a journal that are read in one query."""
ENDS: Final = (events.Finished, events.Failed, events.Cancelled)


@dataclass
class SessionResolver:
    db: Database
    catalog: Catalog
    inbox: Inbox
    router: Router | None = None
    prior: PriorOf | None = None
    """Loads the history of a new conversation from an external store."""
    under_way: RequestsInProgress = field(default_factory=RequestsInProgress)

    def __post_init__(self) -> None:
        self._deciding = ChatDecisions(self.db, self.inbox)

    async def attach(self, caller: Caller, request: ChatRequest, body: bytes, headers: Mapping[str, str]) -> TurnHandle:
        """Finds or opens the session of this request and appends the new messages."""
        asked = read(caller, request, body, headers)
        if repeated := await self._repeated(asked):
            return await self._again(repeated, asked)
        try:
            with self.under_way.placing(asked.accepted):
                return await self._place(asked)
        except journals.NotThere:
            # The session was deleted meanwhile.
            raise unknown_model(request.model) from None
        except Repeated:
            if repeated := await self._repeated(asked):
                return await self._again(repeated, asked)
        # The idempotency key is held by an expired request.
        await sessions.forget_requests(self.db)
        return await self._place(asked)

    # A repeated request

    async def _repeated(self, asked: ChatInput) -> sessions.Turned | None:
        accepted = asked.accepted
        if accepted.key:
            turned = await sessions.request_by_key(self.db, accepted.owner, accepted.key)
            if turned and turned.digest != accepted.digest:
                raise CallerError("This Idempotency-Key was used with another body.", status=422, code="key_reused")
            return turned
        if not accepted.is_retry:
            return None
        turned = await sessions.request_by_digest(self.db, accepted.owner, accepted.digest)
        while turned is None and await self.under_way.others(accepted):
            turned = await sessions.request_by_digest(self.db, accepted.owner, accepted.digest)
        return turned

    async def _again(self, turned: sessions.Turned, asked: ChatInput) -> TurnHandle:
        """Follows the turn from the event of the first request on."""
        session = await journals.load_up_to(self.db, blank(turned.session_id), turned.seq)
        is_beneath = session.turn is not None and bool(session.turn.prompted.root) and asked.request.model != session.id
        so_far = await self._seen_heads_again(session, turned, is_beneath=is_beneath)
        if session.turn is None or not is_beneath:
            [placed] = await journals.read(self.db, session.id, turned.seq - 1, 1)
            return TurnHandle(
                session=session,
                trace=turned.trace_id,
                is_behind=True,
                seen_heads=so_far,
                is_aside=isinstance(placed.event, Prompted) and placed.event.aside,
                is_own_user=decisions.is_own_user(session, asked.user),
            )
        # An answer to a sub-agent: the client follows the turn of the top session, from the answer on.
        told = await journals.read(self.db, session.turn.prompted.root, limit=MAX_TOLD)
        root = fold(takewhile(partial(_was_before, session, turned.trace_id), told), blank(session.turn.prompted.root))
        if asked.said.resends:
            root = root.with_chain(asked.chain((*asked.said.before, *asked.said.new)))
        resends = asked.said.resends
        return TurnHandle(
            session=root, trace=turned.trace_id, is_behind=True, answers_beneath=resends, seen_heads=so_far
        )

    async def _seen_heads_again(
        self, session: Session, turned: sessions.Turned, *, is_beneath: bool
    ) -> Mapping[str, int]:
        """`TurnHandle.seen_heads` as it was for the first request."""
        if session.turn is None or (session.turn.trace != turned.trace_id and not is_beneath):
            return {}
        before = await journals.load_up_to(self.db, blank(session.id), turned.seq - 1)
        return await seen_heads(self.db, before, session.updated_at)

    # A new request

    async def _place(self, asked: ChatInput) -> TurnHandle:
        if asked.request.model != AUTO:
            return await self._settle(asked)
        routed = await self._routed(asked)
        return replace(await self._settle(asked.to(routed.template)), routed=routed)

    async def _settle(self, asked: ChatInput) -> TurnHandle:
        """Finds the session of the request, or opens one."""
        owner, request, said = asked.caller.owner, asked.request, asked.said
        if SESSION_ID.fullmatch(request.model):
            row = await sessions.session(self.db, request.model, owner)
            if row is None:
                raise unknown_model(request.model)
            return await self._continue(asked, row.id, await asked.prompt(self.db), resent=False)
        conversation = asked.conversation
        template, version = await self.template(request.model, owner)
        prompt = await asked.prompt(self.db, version=version)
        if request.brings_memory:
            return await self._open_briefly(asked, template, prompt)
        if asked.named_by == "caller" and not said.resends:
            found = await sessions.root(self.db, owner=owner, conversation_id=conversation or "", agent=template.name)
            if found:
                return await self._continue(asked, found, prompt, resent=False)
            return await self._open(asked, template, prompt, conversation=conversation, label="")
        rested = await sessions.rested(
            self.db, asked.chain(said.before), owner=owner, agent=template.name, conversation_id=conversation
        )
        if rested and rested.is_newest:
            return await self._continue(asked, rested.session_id, prompt, resent=True)
        prompt = structs.replace(prompt, prior=await prior_of(self.db, said.before))
        conversation = rested.conversation_id if rested else conversation
        label = await self._label(owner, template, conversation, prompt)
        return await self._open(asked, template, prompt, conversation=conversation, label=label)

    async def _routed(self, asked: ChatInput) -> Routed:
        """Chooses the template: a conversation keeps its own; a new one gets the best match for its first message."""
        owner, said = asked.caller.owner, asked.said
        chain = asked.chain(said.before) if said.resends else None
        known = await sessions.agent_of(self.db, owner, conversation=asked.conversation, fingerprint=chain)
        if known:
            return Routed(known, "it has answered in this conversation before", 1.0)
        first = next((message.text for message in (*said.before, *said.new) if message.role == "user"), "")
        if self.router is None:
            raise unknown_model(AUTO)
        return await self.router.choose(first, owner)

    async def _open_briefly(self, asked: ChatInput, template: Template, prompt: Prompted) -> TurnHandle:
        """Opens a session for one request with the history that the caller sends; later requests never find it."""
        request = asked.request
        prior = await prior_of(self.db, [*(request.context or ()), *asked.said.before])
        contexts = {}
        for name, said in (request.subagent_contexts or {}).items():
            wire.checked_id(name, "subagent_contexts")
            told = imported.read([one.model_dump(exclude_none=True) for one in said])
            contexts[name] = sendable(imported.as_messages(told))
        prompt = structs.replace(prompt, prior=prior, contexts=contexts, chain="")
        label = f"{EPHEMERAL}{uuid.uuid4().hex}"
        return await self._open(asked, template, prompt, conversation=asked.conversation, label=label)

    async def _label(self, owner: str, template: Template, conversation: str | None, prompt: Prompted) -> str:
        """The label of a new session: empty for the first of a conversation; a differing history opens a branch."""
        if conversation is None:
            return ""
        if not await sessions.root(self.db, owner=owner, conversation_id=conversation, agent=template.name):
            return ""
        return f"branch-{hashlib.sha256(f'{prompt.chain}{prompt.trace}'.encode()).hexdigest()[:8]}"

    async def _open(
        self, asked: ChatInput, template: Template, prompt: Prompted, *, conversation: str | None, label: str
    ) -> TurnHandle:
        if asked.reply_to is not None:
            raise names_nothing(asked.reply_to, "metadata.reply_to")  # a new session has no questions
        if self.prior and conversation and not label and not prompt.prior:
            known = await self.prior(conversation, asked.caller.owner, None, "")
            prompt = structs.replace(prompt, prior=known)
        opened = Opened(
            agent=template.name,
            version=template.version,
            owner=asked.caller.owner,
            user=asked.user,
            conversation=conversation or str(uuid.uuid4()),
            label=label,
        )
        asked.caller.opens_session()
        proposed = f"{template.name}_{uuid.uuid4()}"
        task = text_of(prompt.content)
        delivered = await self.inbox.open(proposed, opened, prompt, task=task, accepted=asked.accepted)
        return TurnHandle(session=delivered.session, trace=prompt.trace, is_behind=delivered.is_behind)

    async def _continue(self, asked: ChatInput, session_id: str, prompt: Prompted, *, resent: bool) -> TurnHandle:
        """The message answers an open question; without one it is the next prompt."""
        session = await journals.load(self.db, session_id)
        if not resent:
            prompt = structs.replace(prompt, chain=_continued(session, asked.said))
        reply_to = asked.reply_to
        if reply_to is not None and has_asked(session, reply_to) and reply_to not in session.open:
            return await self._answered_again(asked, session, prompt)
        waiting = await meant(self.db, session, reply_to)
        questions = [one for one in waiting if one.call.call_kind == "ask"]
        if session.turn and questions:
            return await self._answer_first(asked, session, session.turn, prompt, questions[0])
        if reply_to is not None and not waiting:
            raise await self._misnamed(session, reply_to)
        on = waiting[0] if reply_to is not None else None
        if met := await self._deciding.meet(asked, session, prompt, meant=on):
            return met
        if reply_to is not None:
            raise settled("The call that metadata.reply_to names was decided already, or its time is over.")
        return await self._queue(asked, session, prompt)

    async def _answered_again(self, asked: ChatInput, session: Session, prompt: Prompted) -> TurnHandle:
        """A message that names an answered question of the session is the next prompt, if no other question is open."""
        below = await waiting_status(self.db, session)
        if any(one.call.call_kind == "ask" for one in (*own(session), *below.questions)):
            raise settled("The question that metadata.reply_to names was answered already; another one is open.")
        return await self._queue(asked, session, prompt)

    async def _answer_first(
        self, asked: ChatInput, session: Session, turn: Turn, prompt: Prompted, question: Question
    ) -> TurnHandle:
        """The message answers this question; if another answer came first, it answers no other question."""
        is_own = question.session.id == session.id
        try:
            if not is_own:
                return await self._answer_beneath(asked, session, turn, prompt, question)
            text, call = text_of(prompt.content), question.call.call
            return await self.answer(session, call, text, chain=prompt.chain, accepted=asked.accepted)
        except AlreadyReturned:
            session = await journals.catch_up(self.db, session)
        if asked.reply_to is not None and is_own:
            return await self._answered_again(asked, session, prompt)
        if asked.reply_to is not None:
            raise settled("The question that metadata.reply_to names was answered already.")
        met = await self._deciding.meet(asked, session, prompt, may_decide=False)
        return met or await self._queue(asked, session, prompt)

    async def _answer_beneath(
        self, asked: ChatInput, session: Session, turn: Turn, prompt: Prompted, question: Question
    ) -> TurnHandle:
        """Answers a sub-agent, whatever state the others are in; the client follows the turn of the top session."""
        accepted, text = asked.followed_in(turn.trace), text_of(prompt.content)
        done = await self.answer(question.session, question.call.call, text, accepted=accepted)
        followed = session.with_chain(prompt.chain)
        return TurnHandle(session=followed, trace=turn.trace, answers_beneath=True, seen_heads=done.seen_heads)

    async def _queue(self, asked: ChatInput, session: Session, prompt: Prompted) -> TurnHandle:
        """The message is the next prompt."""
        delivered = await self.inbox.prompt(session, prompt, accepted=asked.accepted)
        return TurnHandle(session=delivered.session, trace=prompt.trace, is_behind=delivered.is_behind)

    async def _misnamed(self, session: Session, reply_to: str) -> CallerError:
        """The error for a message whose `reply_to` is not the id of an open question."""
        if await tree.was_answered(self.db, session, reply_to):
            return settled("The question that metadata.reply_to names was answered already.")
        return names_nothing(reply_to, "metadata.reply_to")

    async def answer(
        self, session: Session, call: str, text: str, *, chain: str = "", accepted: Accepted | None = None
    ) -> TurnHandle:
        """Appends the answer to a question; raises AlreadyReturned if another answer came first."""
        before = await seen_heads(self.db, session)
        delivered = await self.inbox.answer(session, call, text, chain=chain, accepted=accepted)
        is_behind = delivered.is_behind
        return TurnHandle(session=delivered.session, trace=session.trace, is_behind=is_behind, seen_heads=before)

    # The session that the request names

    async def template(self, model: str, owner: str) -> tuple[Template, int | None]:
        name, _, version = model.partition("@")
        number = int(version) if version.isdecimal() and len(version) < 10 else None
        template = await self.catalog.templates.find(name, owner=owner)
        if template and number is not None:
            template = await self.catalog.templates.find(name, number)
        if template is None or (version and number is None):
            raise unknown_model(model)
        return template, number


def unknown_model(model: str) -> CallerError:
    shown = model if len(model) <= 100 else f"{model[:100]}…"
    return wire.not_found(f"The model {shown!r} does not exist; see GET /v1/models.", code="model_not_found")


def names_nothing(call: str, param: str) -> CallerError:
    return CallerError(f"No question has the id {call[:100]!r}.", param=param)


def _was_before(answered: Session, trace: str, record: Recorded) -> bool:
    """Did this happen before the answer? The end of the answer's own turn never did, whatever the clocks say."""
    is_end = record.trace == trace and isinstance(record.event, ENDS)
    return not is_end and answered.updated_at is not None and record.at <= answered.updated_at


def has_asked(session: Session, call: str) -> bool:
    """Is this a question of the session, open or answered?"""
    uses = (use for entry in session.transcript if isinstance(entry, Step) for use in entry.uses)
    return any(use.question and use.call == call for use in uses)


def _continued(session: Session, said: ClientHistory) -> str:
    """The fingerprint for a client that sent only new messages: the session's conversation plus these messages.

    Empty if it cannot be known: during a running turn, or after a failed one.
    """
    mark = None if session.can_move else session.rest_mark
    return fingerprint.grown(mark, ((message.role, message.text) for message in said.new)) if mark else ""
