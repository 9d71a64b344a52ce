"""Computes a session's state from its journal: `fold` is pure, the same events always give the same session."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, Literal, assert_never

from msgspec.structs import replace

from longhouse.errors import UnknownShape
from longhouse.journal import events
from longhouse.journal.events import Event, Output, Recorded
from longhouse.journal.json_text import value_of
from longhouse.journal.messages import text_of
from longhouse.journal.session import (
    AGENT_FAILED,
    Artifact,
    Open,
    Session,
    Turn,
    Waiting,
    is_thought,
    side_by_side,
)
from longhouse.journal.transcript import Heard, Step, Summary, Told, Use

FOLD_VERSION: Final = 12
"""Stored with every snapshot; raise it when `fold` computes something else, and old snapshots are ignored."""


def fold(recorded: Iterable[Recorded], session: Session) -> Session:
    """`session` with these events applied. Start from `blank(id)` or from a snapshot."""
    builder = _Builder(session)
    for record in recorded:
        builder.add(record)
    return builder.freeze()


def extended(session: Session, new: Iterable[Event], at: datetime) -> Session:
    """The session with events applied that were just appended to its journal, or are about to be."""
    return fold((Recorded(seq=session.head + 1 + nth, at=at, event=event) for nth, event in enumerate(new)), session)


def blank(session_id: str) -> Session:
    return Session(id=session_id, agent="", owner="", conversation="")


class _Builder:
    """The mutable state of `fold`: a long journal is processed without a copy at every event."""

    def __init__(self, session: Session) -> None:
        self.base = session
        self.turn = session.turn
        self.queue = list(session.queue)
        self.open = dict(session.open)
        self.transcript = list(session.transcript)
        self.offered = list(session.offered)
        self.context = session.context
        self.notes = list(session.notes)
        self.files = list(session.files)
        self.iteration = session.iteration
        self.lost = session.lost
        self.head = session.head
        self.updated_at = session.updated_at

    def freeze(self) -> Session:
        return replace(
            self.base,
            turn=self.turn,
            queue=tuple(self.queue),
            open=self.open,
            transcript=tuple(self.transcript),
            offered=tuple(self.offered),
            context=self.context,
            notes=tuple(self.notes),
            files=tuple(self.files),
            iteration=self.iteration,
            lost=self.lost,
            head=self.head,
            updated_at=self.updated_at,
        )

    def add(self, record: Recorded) -> None:
        was_waiting = self._is_waiting
        self._apply(record.event, record.seq, record.at)
        self.head = record.seq
        self.updated_at = record.at
        if self.turn and self._is_waiting != was_waiting:
            self.turn = _rested(self.turn, record.at) if self._is_waiting else _woken(self.turn, record.at)

    @property
    def _is_waiting(self) -> bool:
        if self.turn is None or self.turn.ended or not self.open:
            return False
        return not any(call.is_due for call in self.open.values())

    def _apply(self, event: Event, seq: int, at: datetime) -> None:  # noqa: PLR0912 - one case for each kind of event
        match event:
            case events.Opened():
                self.base = replace(
                    self.base,
                    agent=event.agent,
                    owner=event.owner,
                    user=event.user,
                    conversation=event.conversation,
                    side=event.side,
                    label=event.label,
                    opened_version=event.version,
                    created_at=at,
                )
            case events.Prompted():
                self._hear(event, seq, at)
            case events.Started():
                self._start(event, seq, at)
            case events.Replied():
                self._reply(event, seq)
            case events.Called():
                self._call(event, seq, at)
            case events.Returned():
                self._return(event, at)
            case events.Decided():
                self._decide(event, at)
            case events.Condensed():
                self._condense(event)
            case events.Spent():
                self._spend(event.usage)
            case events.Noted():
                self.notes.append(event.text)
            case events.Stored():
                self.files.append(Artifact(seq=seq, at=at, file=event))
            case events.Resumed():
                self._resume(event)
            case events.Finished():
                self._end("COMPLETED", answer=event.answer)
            case events.Failed():
                # When the agent itself reports that it failed, the reason is its answer.
                answer = event.reason if event.code == AGENT_FAILED else None
                self._end("FAILED", answer=answer, error=event.reason, code=event.code)
            case events.Cancelled():
                self.queue = [waiting for waiting in self.queue if waiting.prompt.trace != event.trace]
                if self.turn and self.turn.trace == event.trace and not self.turn.ended:
                    self._end("CANCELLED")
            case _:
                assert_never(event)

    def _hear(self, event: events.Prompted, seq: int, at: datetime) -> None:
        if self.turn and event.reply_to is None:
            self.turn = replace(self.turn, spoke=at, moved_on=None)
        step = self.transcript[-1] if self.transcript else None
        if not event.aside or not self.open or not self.turn or not isinstance(step, Step):
            self.queue.append(Waiting(seq=seq, prompt=event))
            return
        self.transcript[-1] = replace(step, asides=(*step.asides, *event.content))
        self.turn = replace(self.turn, chain=event.chain, said=())

    def _start(self, event: events.Started, seq: int, at: datetime) -> None:
        waiting = next((waiting for waiting in self.queue if waiting.seq == event.prompt), None)
        if waiting is None:
            raise UnknownShape(
                f"the journal of {self.base.id} starts at {seq} with a prompt, {event.prompt}, that does not wait in it"
            )
        self.queue.remove(waiting)
        self.lost = 0
        prompt = waiting.prompt
        self._clean(event.cleaned)
        # Reasoning about the last task does not apply to this one.
        self.context = {name: value for name, value in self.context.items() if name != "current_step_reasoning"}
        if prompt.prior:
            self.transcript.append(Told(seq=seq, messages=prompt.prior))
        self.transcript += [
            Heard(seq=seq, content=content, date=event.date, form=event.form) for content in prompt.content
        ]
        self.turn = Turn(
            trace=event.trace,
            prompt=event.prompt,
            version=event.version,
            instance=event.instance,
            limits=event.limits,
            date=event.date,
            started_at=at,
            task=_task_of(prompt),
            form=event.form,
            system=prompt.system,
            sampling=prompt.sampling,
            chain=prompt.chain,
            reply_to=prompt.reply_to,
            depth=prompt.depth,
            root=prompt.root,
            rights=event.rights,
            shared=prompt.shared,
            contexts=prompt.contexts,
            named=prompt.named,
            ephemeral=prompt.ephemeral,
            purse=prompt.purse,
            approve_in_chat=event.approve_in_chat,
        )

    def _clean(self, parts: tuple[events.Cleanable, ...]) -> None:
        if "conversation" in parts:
            self.transcript = []
        if "context" in parts:
            self.context = {}
        if "artifacts" in parts:
            self.files = []

    def _reply(self, event: events.Replied, seq: int) -> None:
        assert self.turn is not None
        # An action belongs to the iteration of the reasoning before it.
        step = 0 if event.phase == "action" and is_thought(self.transcript) else 1
        self.lost = 0
        self.iteration += step
        usage = event.usage or events.Usage()
        gone = set(event.withdrawn)
        self.offered = [ref for ref in self.offered if ref not in gone] + list(event.offered)
        self.turn = replace(
            self.turn,
            iteration=self.turn.iteration + step,
            is_thinking=event.phase == "reasoning",
            tokens=self.turn.tokens + usage.total_tokens,
            unreadable=self.turn.unreadable + 1 if event.problem else 0,
            usage=_sum(self.turn.usage, usage),
            said=(*self.turn.said, event.text[: event.said]),
            pins=_pinned(self.turn.pins, event.offered if self.turn.pins else self.offered),
        )
        if event.thought:
            self.context = {**self.context, "current_step_reasoning": _thought(event.thought)}
        text = event.thought or event.text
        thought = bool(event.thought)
        self.transcript.append(Step(seq=seq, text=text, phase=event.phase, problem=event.problem, thought=thought))

    def _call(self, event: events.Called, seq: int, at: datetime) -> None:
        if self.turn and not self.turn.is_thinking:
            self.turn = replace(self.turn, calls=self.turn.calls + 1)
        step = self.transcript[-1]
        assert isinstance(step, Step)
        use = Use(
            call=event.call,
            tool=event.tool,
            role=event.role,
            arguments=event.arguments,
            question=event.question,
            effect=event.effect,
        )
        self.transcript[-1] = replace(step, uses=(*step.uses, use))
        self.open[event.call] = Open(
            call=event.call,
            tool=event.tool,
            version=event.version,
            arguments=event.arguments,
            effect=event.effect,
            kind=event.call_kind,
            seq=seq,
            at=at,
            question=event.question,
            deadline=event.deadline,
            approve_by=event.approve_by,
        )

    def _return(self, event: events.Returned, at: datetime) -> None:
        call = self.open.pop(event.call)
        self.lost = 0
        date = at.date().isoformat() if call.kind == "ask" and self.turn and self.turn.form else ""
        # The step that made the call is the last one, or close to it: search from the end.
        for index in range(len(self.transcript) - 1, -1, -1):
            entry = self.transcript[index]
            if isinstance(entry, Step) and any(use.call == event.call for use in entry.uses):
                uses = tuple(
                    replace(use, outcome=event.outcome, date=date) if use.call == event.call else use
                    for use in entry.uses
                )
                self.transcript[index] = replace(entry, uses=uses)
                break
        if self.turn is None:
            return
        if call.kind == "ask" and isinstance(event.outcome, Output):
            used = self.turn.clarifications_used + 1
            self.turn = replace(self.turn, clarifications_used=used, chain=event.chain, said=())
        if (call.uncertain or call.approve_by) and not event.by:
            self.turn = replace(self.turn, chain="")  # no client gets this: the old fingerprint stays valid
        if call.approve_by and not event.by and self.turn.resting_since:
            self.turn = replace(self.turn, moved_on=at)
        if event.spent:
            self.turn = _charged(self.turn, event, event.spent)
        if event.writes or event.adds:
            self._write(event.writes, event.adds)

    def _write(self, writes: dict[str, Any], adds: dict[str, Any]) -> None:
        assert self.turn is not None
        context = {**self.context, **writes}
        for name, added in adds.items():
            context[name] = _added(context.get(name), added)
        state, result = context.pop("state", None), context.pop("execution_result", None)
        if state in ("COMPLETED", "FAILED") and not self.turn.verdict:
            self.turn = replace(self.turn, verdict=state, answer=result if result is not None else "")
        if searches := context.pop("searches_used", 0):
            self.turn = replace(self.turn, searches_used=self.turn.searches_used + searches)
        self.context = context

    def _spend(self, usage: events.Usage) -> None:
        if self.turn:
            tokens = self.turn.tokens + usage.total_tokens
            self.turn = replace(self.turn, tokens=tokens, usage=_sum(self.turn.usage, usage))

    def _condense(self, event: events.Condensed) -> None:
        self.lost = 0
        if event.usage:
            self._spend(event.usage)
        kept = [entry for entry in self.transcript if entry.seq > event.upto]
        if self.turn and not self.turn.ended:
            # The task of a running turn stays; its steps still count for the rules, but are not sent to the model.
            began = max((entry.seq for entry in self.transcript if isinstance(entry, Heard)), default=0)
            present = (entry for entry in self.transcript if began <= entry.seq <= event.upto)
            kept = [*(entry for entry in present if isinstance(entry, Heard | Step)), *kept]
        self.transcript = [Summary(seq=event.upto, text=event.summary), *kept]

    def _decide(self, event: events.Decided, at: datetime) -> None:
        call = self.open.get(event.call)
        if call and self.turn and event.decision != "unknown":
            # Decided outside the chat: what follows is not sent to the chat, and its client keeps the old fingerprint.
            self.turn = replace(self.turn, chain=event.chain, said=())
            if event.via == "chat":
                self.turn = replace(self.turn, spoke=at, moved_on=None)
            elif self.turn.resting_since:
                self.turn = replace(self.turn, moved_on=at)
        if call and event.decision == "did_not_happen":
            self.open[event.call] = replace(call, uncertain=False, doubt="", deadline=None)
        if call and event.decision == "approve":
            self.open[event.call] = replace(call, approve_by=None)
        if call and event.decision == "unknown":
            self.open[event.call] = replace(call, uncertain=True, doubt=event.comment)

    def _resume(self, event: events.Resumed) -> None:
        """Calls that a lost worker may have started and that must not run twice become uncertain: a person decides."""
        self.lost += event.is_loss
        for call in side_by_side(self.open.values()):  # the others were not running
            is_doubtful = call.effect == "once" and call.call not in event.unbegun
            self.open[call.call] = replace(
                call, lost=call.lost + event.is_loss, uncertain=call.uncertain or is_doubtful
            )

    def _end(
        self,
        ended: Literal["COMPLETED", "FAILED", "CANCELLED"],
        *,
        answer: str | None = None,
        error: str | None = None,
        code: str | None = None,
    ) -> None:
        assert self.turn is not None
        self.lost = 0
        self.turn = replace(self.turn, ended=ended, answer=answer, error=error, code=code)
        if answer and self.transcript and isinstance(step := self.transcript[-1], Step):
            self.transcript[-1] = replace(step, answer=answer)


def _pinned(pins: dict[str, int], refs: Iterable[str]) -> dict[str, int]:
    """The version that a turn has of each tool: the first one it was offered."""
    new = {name: int(version) for name, _, version in (ref.rpartition("@") for ref in refs)}
    return {**new, **pins} if new else pins


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


def _task_of(prompt: events.Prompted) -> str:
    return "\n\n".join(text_of(content) for content in prompt.content)


def _sum(one: events.Usage, other: events.Usage) -> events.Usage:
    return events.Usage(
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        completion_tokens=one.completion_tokens + other.completion_tokens,
        total_tokens=one.total_tokens + other.total_tokens,
        cached_tokens=one.cached_tokens + other.cached_tokens,
    )


def _rested(turn: Turn, at: datetime) -> Turn:
    return replace(turn, resting_since=at, delegated_seconds=0.0)


def _woken(turn: Turn, at: datetime) -> Turn:
    if turn.resting_since is None:
        return turn
    rested = max(0.0, (at - turn.resting_since).total_seconds())
    # Parallel sub-agents work longer in sum than the rest lasted; ones that wait for a person work shorter.
    delegated_seconds = min(rested, turn.delegated_seconds)
    below = replace(turn.below, seconds=turn.below.seconds + delegated_seconds)
    return replace(turn, waited=turn.waited + rested - delegated_seconds, resting_since=None, below=below)


def _charged(turn: Turn, event: events.Returned, spent: events.Usage) -> Turn:
    """The turn, charged with what a sub-agent used for it."""
    tokens = spent.total_tokens
    below = replace(turn.below, tokens=turn.below.tokens + tokens, calls=turn.below.calls + event.calls)
    return replace(
        turn,
        tokens=turn.tokens + tokens,
        calls=turn.calls + event.calls,
        usage=_sum(turn.usage, spent),
        delegated_seconds=turn.delegated_seconds + event.seconds,
        below=below,
    )
