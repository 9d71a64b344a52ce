"""Computes a session's state from its journal: `fold` is pure, the same events always give the same session."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, assert_never

from msgspec.structs import asdict, replace

from longhouse.errors import UnknownShape
from longhouse.journal import events, open_calls, remembered
from longhouse.journal.events import Event, Output, Recorded
from longhouse.journal.json_text import value_of
from longhouse.journal.session import (
    AGENT_FAILED,
    Artifact,
    Ended,
    Open,
    Session,
    Turn,
    Waiting,
    are_waiting,
    is_thought,
)
from longhouse.journal.transcript import ImportedMessages, PromptEntry, Step, Summary, Use

FOLD_VERSION: Final = 21
"""Stored with every snapshot; raise it when `fold` computes something else, and old snapshots are ignored."""


def fold(recorded: Iterable[Recorded], session: Session) -> Session:
    """`session` with these events applied. Start from `blank(id)` or from a snapshot."""
    builder = _Builder(session)
    for record in recorded:
        builder.add(record.event, record.seq, record.at)
    return builder.freeze()


def extended(session: Session, new: Iterable[Event], at: datetime) -> Session:
    """The session with events applied that were just appended to its journal, or are about to be."""
    builder = _Builder(session)
    for seq, event in enumerate(new, session.head + 1):
        builder.add(event, seq, at)
    return builder.freeze()


def blank(session_id: str) -> Session:
    return Session(id=session_id, agent="", owner="", conversation="")


class _Builder:
    """The mutable state of `fold`: a long journal is processed without a copy at every event."""

    def __init__(self, session: Session) -> None:
        self.base = session
        self.turn = session.turn
        self.worked_at = session.turn.worked_at if session.turn else None
        self.queue = session.queue
        self.open = dict(session.open)
        self.transcript = list(session.transcript)
        self.offered = session.offered
        self.context = session.context
        self.memory = session.memory
        self.iteration = session.iteration
        self.lost = session.lost
        self.excused = session.excused
        self.retried = session.retried
        self.head = session.head
        self.updated_at = session.updated_at

    def freeze(self) -> Session:
        return replace(
            self.base,
            turn=self._turn(),
            queue=self.queue,
            open=self.open,
            transcript=tuple(self.transcript),
            offered=self.offered,
            context=self.context,
            memory=self.memory,
            iteration=self.iteration,
            lost=self.lost,
            excused=self.excused,
            retried=self.retried,
            head=self.head,
            updated_at=self.updated_at,
        )

    def _turn(self) -> Turn | None:
        turn = self.turn
        if turn is None or self.worked_at is None or turn.worked_at == self.worked_at:
            return turn
        return replace(turn, worked_at=self.worked_at)

    def add(self, event: Event, seq: int, at: datetime) -> None:  # noqa: PLR0912 - one case for each kind of event
        was_waiting = self._is_waiting() if self.open else False
        match event:  # the kinds that every step has come first
            case events.Replied():
                self._reply(event, seq, self._turn_at(seq))
            case events.Called():
                self._call(event, seq, at)
            case events.Returned():
                self._return(event, at)
            case events.Opened():
                self.base = replace(self.base, **asdict(event), created_at=at)
            case events.Prompted():
                self._prompt(event, seq, at)
            case events.Started():
                self._start(event, seq, at)
            case events.Decided():
                self._decide(event, seq, at)
            case events.Condensed():
                self._condense(event)
            case events.Spent():
                self.turn = self.turn and replace(self.turn, usage=_total(self.turn.usage, event.usage))
                if self.turn and event.waited:
                    self.turn = replace(self.turn, waited=self.turn.waited + event.waited)
                if event.title is not None:
                    self.base = replace(self.base, title=event.title)
            case events.Noted():
                self._note(event, seq)
            case events.Stored():
                self.base = replace(self.base, files=(*self.base.files, Artifact(seq=seq, at=at, file=event)))
            case events.Resumed():
                self._resume(event, seq, at)
            case events.Finished():
                self._end(self._turn_at(seq), "COMPLETED", answer=event.answer, refused=event.refused)
            case events.Failed():
                # When the agent itself reports that it failed, the reason is its answer.
                answer = event.reason if event.code == AGENT_FAILED else None
                self._end(self._turn_at(seq), "FAILED", answer=answer, error=event.reason, code=event.code)
            case events.Cancelled():
                self._cancel(event.trace)
            case _:
                assert_never(event)
        self.head, self.updated_at = seq, at
        is_waiting = self._is_waiting() if self.open else False
        if self.turn and is_waiting != was_waiting:
            rested = replace(self.turn, resting_since=at, delegated_seconds=0.0)
            self.turn = rested if is_waiting else _woken(self.turn, at)
            self.worked_at = at
        elif isinstance(event, events.Finished | events.Failed) or (
            type(event) not in events.OUTSIDE and self._is_working()
        ):
            self.worked_at = at

    def _is_working(self) -> bool:
        return self.turn is not None and not self.turn.ended and self.turn.resting_since is None

    def _resume(self, event: events.Resumed, seq: int, at: datetime) -> None:
        self.lost += event.counts
        self.excused += event.excused
        if self.turn and self.worked_at and self._is_working():
            # Nobody knows how much of the time before a takeover the lost worker has worked: none of it counts.
            idle = (at - self.worked_at).total_seconds()
            self.turn = replace(self.turn, waited=self.turn.waited + idle)
        open_calls.apply(self.open, event, seq, at)

    def _is_waiting(self) -> bool:
        return self.turn is not None and not self.turn.ended and are_waiting(self.open)

    def _advanced(self) -> None:
        """There is progress: what took workers down before is not what runs next."""
        self.lost, self.excused, self.retried = 0, 0, False

    def _turn_at(self, seq: int) -> Turn:
        if self.turn is None:
            raise UnknownShape(
                f"the journal of {self.base.id} has an event of a turn at {seq}, before any turn started"
            )
        return self.turn

    def _prompt(self, event: events.Prompted, seq: int, at: datetime) -> None:
        if self.turn and event.reply_to is None:
            self.turn = replace(self.turn, last_chat_message_at=at, resumed_outside_chat_at=None)
        last = self.transcript[-1] if self.transcript else None
        if not event.aside or not self.open or not self.turn or not isinstance(last, Step | PromptEntry):
            self.queue += (Waiting(seq=seq, prompt=event),)
            return
        if isinstance(last, Step):
            self.transcript[-1] = replace(last, asides=(*last.asides, *event.content))
        else:  # the turn's first step lost its workers: there is only its task yet, which this is added to
            self.transcript += [replace(last, content=content) for content in event.content]
        self.turn = replace(self._joined(self.turn, event.user), chain=event.chain, reply_texts=())
        self._offer(event.client_tools)

    def _offer(self, tools: events.ClientTools | None) -> None:
        """What the client offers to run from here on; None: nothing has changed."""
        if self.turn and tools is not None:
            self.turn = replace(self.turn, client_tools=tools)

    def _joined(self, turn: Turn, user: str | None) -> Turn:
        """The turn after a message of this user: one of another than the session's makes it that one's."""
        return turn if self.base.is_own_user(user) else replace(turn, user=user)

    def _start(self, event: events.Started, seq: int, at: datetime) -> None:
        waiting = next((waiting for waiting in self.queue if waiting.seq == event.prompt), None)
        if waiting is None:
            raise UnknownShape(
                f"the journal of {self.base.id} starts at {seq} with a prompt, {event.prompt}, that does not wait in it"
            )
        self.queue = tuple(other for other in self.queue if other is not waiting)
        self._advanced()
        prompt = waiting.prompt
        self._clean(event.cleaned)
        # Reasoning about the last task does not apply to this one.
        self.context = {name: value for name, value in self.context.items() if name != "current_step_reasoning"}
        if prompt.prior:
            self.transcript.append(ImportedMessages(seq=seq, messages=prompt.prior))
        self.transcript += [
            PromptEntry(seq=seq, content=content, date=event.date, form=event.form) for content in prompt.content
        ]
        prompted = replace(prompt, prior=(), client_tools=None)
        self.worked_at = at
        self.turn = turn = Turn(
            **asdict(event), prompted=prompted, started_at=at, worked_at=at, chain=prompt.chain, user=prompt.user
        )
        self._offer(prompt.client_tools)
        self.memory = replace(self.memory, query=turn.task[: remembered.MAX_QUERY])

    def _clean(self, parts: tuple[events.Cleanable, ...]) -> None:
        if "conversation" in parts:
            self.transcript = []
        if "context" in parts:
            self.context = {}
        if "artifacts" in parts:
            self.base = replace(self.base, files=())
        self.memory = remembered.cleaned(self.memory, parts)

    def _reply(self, event: events.Replied, seq: int, turn: Turn) -> None:
        # An action belongs to the iteration of the reasoning before it.
        step = 0 if event.phase == "action" and is_thought(self.transcript) else 1
        self._advanced()
        self.iteration += step
        if event.withdrawn:
            self.offered = tuple(ref for ref in self.offered if ref not in event.withdrawn)
        self.offered += event.offered
        offered = event.offered if turn.pins else self.offered
        self.turn = replace(
            turn,
            usage=_total(turn.usage, event.usage),
            iteration=turn.iteration + step,
            is_thinking=event.phase == "reasoning",
            unreadable=turn.unreadable + 1 if event.problem else 0,
            reply_texts=(*turn.reply_texts, event.text[: event.streamed_chars]),
            pins=_pinned(turn.pins, offered) if offered else turn.pins,
            recalled=turn.recalled or event.recalled,
        )
        if event.thought:
            self.context = {**self.context, "current_step_reasoning": _thought(event.thought)}
        text = event.thought or event.text
        thought = bool(event.thought)
        entry = Step(seq=seq, text=text, phase=event.phase, problem=event.problem, thought=thought)
        if event.source:
            reasoning = event.reasoning if event.returns_reasoning else ""
            signed = {call.id: call.extra for call in event.calls if call.extra}
            entry = replace(entry, source=event.source, reasoning=reasoning, extra=event.extra, signed=signed)
        self.transcript.append(entry)

    def _call(self, event: events.Called, seq: int, at: datetime) -> None:
        if self.turn and not self.turn.is_thinking:
            self.turn = replace(self.turn, calls=self.turn.calls + 1)
        if event.call_kind == "client" and self.turn and self.turn.client_tools:
            self._offer(replace(self.turn.client_tools, must_call=()))
        step = self.transcript[-1]
        assert isinstance(step, Step)
        use = Use(
            call=event.call,
            tool=event.tool,
            role=event.role,
            arguments=event.arguments,
            question=event.question,
            effect=event.effect,
            extra=step.signed.get(event.provider_id, ""),
        )
        self.transcript[-1] = replace(step, uses=(*step.uses, use))
        open_calls.apply(self.open, event, seq, at)

    def _return(self, event: events.Returned, at: datetime) -> None:
        call = self.open.pop(event.call)
        self._advanced()
        date = at.date().isoformat() if call.call_kind == "ask" and self.turn and self.turn.form else ""
        if found := self._step_of(event.call):
            index, step = found
            uses = [
                replace(use, outcome=event.outcome, date=date) if use.call == event.call else use for use in step.uses
            ]
            self.transcript[index] = replace(step, uses=tuple(uses))
        turn = self.turn
        if turn is None:
            return
        if event.user is not None:
            turn = self._joined(turn, event.user)
        if call.is_due:
            self.worked_at = at
        else:  # no tool has given the outcome
            turn = _answered(turn, call, event, at)
        if event.spent:
            turn = _charged_for_subagent(turn, event, event.spent)
        self.turn = self._write(turn, event.writes, event.adds) if event.writes or event.adds else turn
        self._offer(event.client_tools)

    def _step_of(self, call: str) -> tuple[int, Step] | None:
        """The step that made a call, and its index: the last one, or close to it, so the search begins at the end."""
        for index in range(len(self.transcript) - 1, -1, -1):
            step = self.transcript[index]
            if isinstance(step, Step):
                for use in step.uses:
                    if use.call == call:
                        return index, step
        return None

    def _write(self, turn: Turn, writes: dict[str, Any], adds: dict[str, Any]) -> Turn:
        """Writes to the context; the turn, with what belongs to it."""
        context = {**self.context, **writes}
        for name, added in adds.items():
            context[name] = _added(context.get(name), added)
        state, result = context.pop("state", None), context.pop("execution_result", None)
        searches = context.pop("searches_used", 0)
        self.context = context
        if state in ("COMPLETED", "FAILED") and not turn.verdict:
            turn = replace(turn, verdict=state, answer=result if result is not None else "")
        return replace(turn, searches_used=turn.searches_used + searches) if searches else turn

    def _note(self, event: events.Noted, seq: int) -> None:
        if not event.about:
            self.base = replace(self.base, notes=(*self.base.notes, event.text))
            return
        if event.deleted:
            self._delete(event.deleted)
            return
        use = self._use(event.call) if event.call else None
        content = use.outcome.content if use and isinstance(use.outcome, Output) else ""
        arguments = use.arguments if use else ""
        self.memory = remembered.noted(self.memory, event, seq, arguments=arguments, content=content)

    def _delete(self, turns: tuple[int, ...]) -> None:
        """Marks turns as deleted; a summary that may tell of one, and what was read up to the last one, go at once."""
        deleted = tuple(sorted({*self.base.deleted, *turns}))
        self.base = replace(self.base, deleted=deleted)
        self.transcript = [one for one in self.transcript if not isinstance(one, Summary) or one.seq < min(turns)]
        later = [one.seq for one in self.transcript if isinstance(one, PromptEntry) and one.seq > max(turns)]
        self.memory = remembered.since(self.memory, min(later, default=self.head))

    def _use(self, call: str) -> Use | None:
        """A call of the transcript."""
        found = self._step_of(call)
        return next(use for use in found[1].uses if use.call == call) if found else None

    def _condense(self, event: events.Condensed) -> None:
        self._advanced()
        self.turn = self.turn and replace(self.turn, usage=_total(self.turn.usage, event.usage))
        if event.deleted < len(self.base.deleted):
            return  # a turn was deleted while it was written, or its writer, of an earlier release, shows such turns
        kept = [entry for entry in self.transcript if entry.seq > event.upto]
        if self.turn and not self.turn.ended:
            # The task of a running turn stays; its steps still count for the rules, but are not sent to the model.
            began = max((entry.seq for entry in self.transcript if isinstance(entry, PromptEntry)), default=0)
            present = (entry for entry in self.transcript if began <= entry.seq <= event.upto)
            kept = [*(entry for entry in present if isinstance(entry, PromptEntry | Step)), *kept]
        self.transcript = [Summary(seq=event.upto, text=event.summary), *kept]

    def _decide(self, event: events.Decided, seq: int, at: datetime) -> None:
        asked = self.open.get(event.call)
        if event.decision == "unknown" or asked is None or asked.probed:
            # Nobody was asked: a client that waits for the turn goes on to wait.
            open_calls.apply(self.open, event, seq, at)
            return
        if self.turn:
            # Decided outside the chat: what follows is not sent to the chat, and its client keeps the old fingerprint.
            self.turn = replace(self.turn, chain=event.chain, reply_texts=())
            if event.via == "chat":
                self.turn = replace(self.turn, last_chat_message_at=at, resumed_outside_chat_at=None)
            elif self.turn.resting_since:
                self.turn = replace(self.turn, resumed_outside_chat_at=at)
        if asked.is_step:
            self._decide_step(event)
        open_calls.apply(self.open, event, seq, at)

    def _decide_step(self, event: events.Decided) -> None:
        """Tried again, the step counts lost workers anew."""
        if event.decision == "did_not_happen":
            self.lost, self.retried = 0, True
        elif self.turn:
            self.turn = replace(self.turn, is_given_up=True)

    def _cancel(self, trace: str) -> None:
        left = tuple(waiting for waiting in self.queue if waiting.prompt.trace != trace)
        if len(left) < len(self.queue):
            self.base = replace(self.base, withdrawn=True)
            self.queue = left
        if self.turn and self.turn.trace == trace and not self.turn.ended:
            self._end(self.turn, "CANCELLED")

    def _end(self, turn: Turn, ended: Ended, answer: str | None = None, **why: Any) -> None:
        self._advanced()
        open_calls.drop_step(self.open)
        self.turn = replace(turn, ended=ended, answer=answer, **why)
        if answer and self.transcript and isinstance(step := self.transcript[-1], Step):
            self.transcript[-1] = replace(step, answer=answer)


def _pinned(pins: dict[str, int], refs: Iterable[str]) -> dict[str, int]:
    """The version that a turn has of each tool: the first one it was offered."""
    new = {name: int(version) for name, _, version in (ref.rpartition("@") for ref in refs)}
    return {**new, **pins}


def _thought(text: str) -> Any:
    """Structured reasoning as a JSON value; plain text, or JSON that is nested too deeply, stays a string."""
    value = value_of(text)
    return text if value is None else value


def _added(there: Any, added: Any) -> Any:
    if isinstance(added, list):
        return [*(there or ()), *added]
    if isinstance(added, dict):
        return {**(there or {}), **added}
    return (there or 0) + added


def _woken(turn: Turn, at: datetime) -> Turn:
    if turn.resting_since is None:
        return turn
    rested = (at - turn.resting_since).total_seconds()
    # Parallel sub-agents work longer in sum than the rest lasted; ones that wait for a person work shorter.
    delegated_seconds = min(max(0.0, rested), turn.delegated_seconds)
    subagents = replace(turn.subagents, seconds=turn.subagents.seconds + delegated_seconds)
    return replace(turn, waited=turn.waited + rested - delegated_seconds, resting_since=None, subagents=subagents)


def _answered(turn: Turn, call: Open, event: events.Returned, at: datetime) -> Turn:
    """The turn after the outcome of a call that waited for a person, the client or an agent."""
    if call.call_kind == "ask" and isinstance(event.outcome, Output):
        turn = replace(turn, clarifications_used=turn.clarifications_used + 1, chain=event.chain, reply_texts=())
    if call.is_client and event.by:
        turn = replace(turn, chain=event.chain, reply_texts=())
    if call.awaits_decision and not event.by:
        turn = replace(turn, chain="")  # no client gets this: the old fingerprint stays valid
    if call.approve_by and not event.by and turn.resting_since:
        turn = replace(turn, resumed_outside_chat_at=at)
    return turn


def _total(before: events.Usage, usage: events.Usage | None) -> events.Usage:
    if usage is None:
        return before
    return events.Usage(
        prompt_tokens=before.prompt_tokens + usage.prompt_tokens,
        completion_tokens=before.completion_tokens + usage.completion_tokens,
        total_tokens=before.total_tokens + usage.total_tokens,
        cached_tokens=before.cached_tokens + usage.cached_tokens,
        reasoning_tokens=before.reasoning_tokens + usage.reasoning_tokens,
    )


def _charged_for_subagent(turn: Turn, event: events.Returned, spent: events.Usage) -> Turn:
    """The turn, charged with what a sub-agent used for it."""
    subagents = replace(
        turn.subagents, tokens=turn.subagents.tokens + spent.total_tokens, calls=turn.subagents.calls + event.calls
    )
    return replace(
        turn,
        usage=_total(turn.usage, spent),
        calls=turn.calls + event.calls,
        delegated_seconds=turn.delegated_seconds + event.seconds,
        subagents=subagents,
    )
