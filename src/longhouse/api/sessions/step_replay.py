"""Asks the model of a step again, on what it saw then or on what another version would show it; nothing is recorded."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Final, NoReturn, TypedDict

import msgspec
from msgspec import structs
from pydantic import Field

from longhouse.agents.strategies.base import AgentRegistry, BaseAgent
from longhouse.agents.strategies.protocol import Intent, Reply, Request
from longhouse.agents.template import LLMPolicy, Template
from longhouse.agents.tool import Tool
from longhouse.api import auth, wire
from longhouse.api.caller import Caller
from longhouse.api.http.json_route import of_app, refuses, strict_router
from longhouse.api.pagination import Digits
from longhouse.api.sessions.replay import BeforeReply, asked_at, composed, offered_then, request_at, template_then
from longhouse.api.sessions.routes import SESSION_PATH, Sessions
from longhouse.errors import CallerError, ProviderError, SetupError
from longhouse.journal import events
from longhouse.journal.comparing import CallChange, MadeCall, call_changes, text_changes
from longhouse.journal.events import Usage
from longhouse.journal.json_text import object_of
from longhouse.models.openai import source_of
from longhouse.models.protocol import Model
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.steps.model_stream import listen
from longhouse.runtime.steps.reply_handler import MAX_RECORDED, in_order
from longhouse.runtime.workers.instances import ModelFor, strategy_of
from longhouse.store import journals
from longhouse.store.capsules import imported as capsules
from longhouse.store.limits import usage
from longhouse.store.sessions import SessionRow
from longhouse.tools.offering import Offering
from longhouse.tools.toolbox import Toolbox

router = strict_router("Sessions", auth.user)

NOT_DRY: Final = (
    "A replay is always dry: it records and does nothing. To go on from here in another way, fork the session."
)


class ReplayRequest(wire.StrictModel):
    model: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description="Another model than that of the step"
    )
    template_version: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(
        None, description="Another version of the template, active or not; its tools are chosen anew"
    )
    dry: bool = Field(True, description="Nothing but true is possible")


class SaidCall(TypedDict):
    tool: str
    arguments: str


class Said(TypedDict):
    """What a model said and called in a step."""

    text: str
    reasoning: str
    answer: str | None
    """The answer to the user; None where the step gave none."""
    calls: list[SaidCall]
    problem: str
    """Why the reply could not be read; empty if it could."""
    finish: str
    model: str
    usage: Usage | None


class ReplayedDigest(TypedDict):
    digest: str
    recorded: str
    matches: bool
    """Whether the model was sent the request of then, byte for byte."""


class TokenChange(TypedDict):
    recorded: int | None
    replayed: int | None


class StepChanges(TypedDict):
    same: bool
    """Whether the answer, the text and the calls are the same; tokens may differ."""
    text: list[str]
    answer: list[str]
    calls: list[CallChange]
    prompt_tokens: TokenChange
    completion_tokens: TokenChange


class ReplayedStep(TypedDict):
    session_id: str
    step: int
    template: str
    version: int
    request: ReplayedDigest
    recorded: Said
    replayed: Said
    changes: StepChanges


class _Question(msgspec.Struct, frozen=True):
    """What is to be asked, and whom."""

    template: Template
    request: Request
    model: Model


class StepReplays(msgspec.Struct, frozen=True):
    """What the route works with."""

    sessions: Sessions
    toolbox: Toolbox
    model_for: ModelFor | None = None
    offering: Offering | None = None

    async def question(self, row: SessionRow, then: BeforeReply, asked: ReplayRequest, caller: Caller) -> _Question:
        capsule = await capsules.capsule_of(self.sessions.db, row.id)
        if asked.template_version is not None:
            template = endpoint = await self._version(row, asked.template_version)
        else:
            known = await template_then(self.sessions, capsule, row.agent, then.turn.version)
            template = endpoint = known or _unknown(row, then)
            # A template from elsewhere says nothing of where our requests and our keys go.
            if capsule:
                endpoint = replace(template, llm_policy=LLMPolicy(model=template.llm_policy.model))
        if asked.model is not None:
            endpoint = await self._with_model(endpoint, then, asked.model, caller)
        model = await self._model_of(endpoint)
        # Thinking goes back to the endpoint that wrote it, and to no other that is asked now.
        source = source_of(model, asked.model or template.llm_policy.model or "")
        then = replace(then, replied=structs.replace(then.replied, source=source))
        if asked.template_version is not None:
            tools = await self._offered(then, template)
            request, _ = await composed(self.sessions.memory, then, template, tools)
        else:
            found = await request_at(self.sessions, self.toolbox.resolve, row.agent, then)
            request = found or _unknown(row, then)
        if asked.model is not None:
            request = replace(request, body=structs.replace(request.body, model=asked.model))
        return _Question(template, request, model)

    async def _model_of(self, endpoint: Template) -> Model:
        if self.model_for is None:
            raise CallerError("This process asks no models.", status=503, kind="server_error", code="unavailable")
        try:
            return await self.model_for(endpoint)
        except SetupError as error:
            message = f"The model of {endpoint.ref} cannot be asked by this process."
            raise CallerError(message, status=503, kind="server_error", code="provider_error") from error

    async def _version(self, row: SessionRow, version: int) -> Template:
        """A version of the session's template, active or not, that its owner may see."""
        templates = self.sessions.catalog.templates
        template = await templates.find(row.agent, version)
        is_seen = template is not None and (
            template.owner in (None, row.owner) or await templates.active(row.agent, owner=row.owner) is not None
        )
        if template is None or not is_seen or AgentRegistry.get(template.base_agent_class) is None:
            raise CallerError(f"There is no version {version} of the agent {row.agent!r}.", param="template_version")
        return template

    async def _offered(self, then: BeforeReply, template: Template) -> Sequence[Tool]:
        """The tools that this version would be offered in the step."""
        session = then.session
        if self.offering is None or session.turn is None:
            return await offered_then(then, self.toolbox.resolve)
        chosen = await self.offering.choose(session, session.turn, template)
        return in_order(session, chosen.tools)

    async def _with_model(self, template: Template, then: BeforeReply, model: str, caller: Caller) -> Template:
        """The template whose endpoint has this model: one that uses it, or else that of the step.

        An admin may ask any model. Others ask those of the agents that they may use: what they cost was decided there.
        """
        active = await self.sessions.catalog.templates.active_ones(owner=caller.owner)
        usable = {one.llm_policy.model: one for one in reversed(active) if caller.may_use(one.name)}
        if model in (template.llm_policy.model, then.replied.model):
            return template
        if model in usable:
            return usable[model]
        if caller.role != "admin":
            known = ", ".join(sorted(name for name in usable if name)) or "none"
            raise CallerError(
                f"This key may ask the models of the agents that it may use: {known}.",
                status=403,
                code="model_not_allowed",
                param="model",
            )
        return template

    async def heard(self, question: _Question, then: BeforeReply, caller: Caller) -> Reply:
        """The model's reply. What it used counts for the key, also where it failed."""
        charge = partial(usage.charge, self.sessions.db, key=caller.key, owner=caller.owner)
        name = question.request.body.model
        try:
            # On a bus of its own: nobody who follows the session sees this reply.
            reply = await listen(
                self.sessions.db, Bus(), question.model, question.request, session=then.session, fence=0
            )
        except ProviderError as error:
            if error.usage:
                await charge(model=name, usage=error.usage)
            raise CallerError(
                f"The model did not answer: {error.public_message}.", status=503, kind="server_error",
                code="provider_error", retry_after=round(error.retry_after) if error.retry_after else None,
            ) from error  # fmt: skip
        await charge(model=reply.model or name, usage=reply.usage or Usage())
        return reply


def _unknown(row: SessionRow, then: BeforeReply) -> NoReturn:
    message = f"This step cannot be replayed: {row.agent}@{then.turn.version} is not known here any more."
    raise CallerError(message, status=409, code="template_not_found")


@router.post(
    f"{SESSION_PATH}/steps/{{step}}/replay",
    openapi_extra=wire.example(model="gpt-4o-mini"),
    responses=refuses(409, 429, 503),
)
async def replay_step(
    caller: auth.User,
    replays: Annotated[StepReplays, of_app("replays")],
    session_id: str,
    step: Annotated[int, Digits],
    asked: ReplayRequest,
) -> wire.Json[ReplayedStep]:
    """Asks the model of the session's n-th reply again, and tells what is different: its text, its calls, its tokens.

    No tool runs and nothing is appended to the session; the tokens count for your key. Without `model` and
    `template_version` the model is sent the very request of then.
    """
    if not asked.dry:
        raise CallerError(NOT_DRY, param="dry")
    row = await replays.sessions.find(caller, session_id)
    caller.uses(row.agent)
    caller.spends()
    then = await asked_at(replays.sessions.db, row.id, step)
    question = await replays.question(row, then, asked, caller)
    strategy = strategy_of(question.template.base_agent_class)
    reply = await replays.heard(question, then, caller)
    recorded = await _recorded(replays.sessions, row.id, then)
    replayed = _replayed(strategy, question.request, reply)
    return wire.Json(
        {
            "session_id": row.id,
            "step": step,
            "template": question.template.name,
            "version": question.template.version,
            "request": {
                "digest": question.request.digest,
                "recorded": then.replied.digest,
                "matches": question.request.digest == then.replied.digest,
            },
            "recorded": recorded,
            "replayed": replayed,
            "changes": _changes(recorded, replayed),
        }
    )


async def _recorded(sessions: Sessions, session_id: str, then: BeforeReply) -> Said:
    replied, called = then.replied, list[events.Called]()
    for record in await journals.read(sessions.db, session_id, then.seq, 2 * MAX_RECORDED):
        if isinstance(record.event, events.Replied | events.Started):
            break
        if isinstance(record.event, events.Called):
            called.append(record.event)
    answers = (_answer_in(one.arguments) for one in called if one.role == "finishes")
    is_answer = not called and not replied.thought and not replied.problem
    answer = replied.text if is_answer else next(answers, None)
    return _said(replied, answer, called, replied.problem)


def _replayed(strategy: BaseAgent, request: Request, reply: Reply) -> Said:
    verdict = strategy.interpret(request, reply)
    finishing = {tool.name for tool in request.offered if tool.finishes or tool.role == "finishes"}
    answers = (_answer_in(one.arguments) for one in verdict.intents if one.tool in finishing)
    answer = verdict.answer if verdict.answer is not None else next(answers, None)
    return _said(reply, answer, verdict.intents, verdict.problem)


def _said(
    reply: events.Replied | Reply, answer: str | None, calls: Iterable[events.Called | Intent], problem: str
) -> Said:
    said = [wire.body_of(SaidCall, one) for one in calls]
    return wire.body_of(Said, reply, answer=answer, calls=said, problem=problem)


def _answer_in(arguments: str) -> str | None:
    answer = (object_of(arguments) or {}).get("answer")
    return answer if isinstance(answer, str) else None


def _changes(recorded: Said, replayed: Said) -> StepChanges:
    calls = call_changes(_made(recorded), _made(replayed))
    texts = text_changes(recorded["text"], replayed["text"])
    answers = text_changes(recorded["answer"] or "", replayed["answer"] or "")
    then, now = recorded["usage"], replayed["usage"]
    return {
        "same": not texts and not answers and all(one.change == "same" for one in calls),
        "text": texts,
        "answer": answers,
        "calls": calls,
        "prompt_tokens": {
            "recorded": then.prompt_tokens if then else None,
            "replayed": now.prompt_tokens if now else None,
        },
        "completion_tokens": {
            "recorded": then.completion_tokens if then else None,
            "replayed": now.completion_tokens if now else None,
        },
    }


def _made(said: Said) -> list[MadeCall]:
    return [MadeCall(**one) for one in said["calls"]]
