"""Projects the events of a session to interactions: who said what to whom. The same events give the same records."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from longhouse.agents.naming import AGENT_PREFIX
from longhouse.errors import UnknownShape
from longhouse.journal import events
from longhouse.journal.conversation import ONLY_IMAGES
from longhouse.journal.events import Collected, Event, Fault, Output, Recorded
from longhouse.journal.messages import Content, text_of
from longhouse.journal.roles import FORM
from longhouse.journal.session import AGENT_FAILED, LOST_STEP_PREFIX, is_same_user
from longhouse.store.memory.interactions import Interaction, LedgerRow, Type
from longhouse.store.projections import ProjectionRow

LONGEST_NAME: Final = 200
"""Characters of a source or target; a model may call tools that do not exist, by any name."""
LONGEST_NEWS: Final = 2_000
"""Characters of one message in the input of a model call; the whole message is a record of its own."""
KNOWLEDGE: Final = "knowledge"
"""The role of tools that read documents."""
ZERO: Final = "\0"
"""The character that Postgres refuses."""
MODEL: Final = "llm"
"""The name of a model where the journal has none."""

MODEL_FAILED: Final = "provider_error"
"""The code of a turn that failed since its model did."""

Party = tuple[str, Collected]
USER: Final[Party] = ("user", "user")


class _Call(msgspec.Struct, frozen=True):
    id: str
    seq: int
    party: Party
    shown: bool
    role: str
    is_question: bool

    @property
    def is_found(self) -> bool:
        return self.role not in FORM


class _Turn(msgspec.Struct, frozen=True):
    trace: str
    pair: str
    seq: int
    """Where it started."""
    sender: Party
    depth: int
    collect: tuple[Collected, ...] | None
    user: str | None
    """The session's user; None in a turn of somebody else, who wrote in the same conversation."""


@dataclass
class SessionProjection:
    """Projects one session. What a later event refers to is kept: prompts in the queue, the turn, its open calls."""

    row: ProjectionRow
    seq: int = 0
    """The last event that was projected."""
    prompts: dict[int, Recorded] = field(default_factory=dict)
    turn: _Turn | None = None
    """The turn that started last."""
    is_running: bool = False
    calls: dict[str, _Call] = field(default_factory=dict)
    is_lost: bool = False
    """A person is asked about the step, which lost its workers."""
    step: int = 0
    """The last reply of the model."""
    news: list[str] = field(default_factory=list)
    """What the model has not been sent yet."""
    latest: datetime | None = None
    """The newest moment of the turn. Clocks of machines differ: a record is not older than what led to it."""
    rows: list[LedgerRow] = field(default_factory=list)
    """The interactions of the events that were projected last."""
    noted: list[tuple[Recorded, str | None]] = field(default_factory=list)
    """Notes of the agent's own, of the same events, with the user whose turn it was."""

    def __post_init__(self) -> None:
        self.agent: Party = (self.row.agent, "agent")

    def project(self, records: Sequence[Recorded]) -> list[LedgerRow]:
        """The interactions of these events, which follow those that were projected."""
        self.rows, self.noted = [], []
        refused = _refused(records)
        for record in records:
            self._project(record, refused)
            self.seq, self.latest = record.seq, self._moment(record)
        return self.rows

    def missing(self, records: Sequence[Recorded]) -> list[int]:
        """Prompts that these events start and that are not known here."""
        known = {*self.prompts, *(record.seq for record in records)}
        started = (record.event for record in records if isinstance(record.event, events.Started))
        return [event.prompt for event in started if event.prompt not in known]

    def _project(self, record: Recorded, refused: set[str]) -> None:
        match record.event:  # the frequent ones first: each that does not match costs a call
            case events.Replied() as event:
                self._reply(record, event)
            case events.Called() as event:
                self._call(record, event, is_refused=event.call in refused)
            case events.Returned() as event:
                self._return(record, event)
            case events.Prompted() as event:
                self._prompt(record, event)
            case events.Started() as event:
                self._start(record, event)
            case events.Condensed() as event:
                self._condense(record, event)
            case events.Decided() as event if event.call.startswith(LOST_STEP_PREFIX):
                self.is_lost = event.decision == "unknown"
            case events.Noted(interaction=events.ExternalInteraction() as given, text=text):
                self._add_external(record, given, text)
            case events.Noted(about="", text=text) if text.strip():
                self.noted.append((record, self.turn.user if self.turn else self.row.user))
            case events.Finished() | events.Failed() | events.Cancelled() as event:
                self._end(record, event)

    def _prompt(self, record: Recorded, event: events.Prompted) -> None:
        if not (event.aside and (self.calls or self.is_lost) and self.turn and self.is_running):
            self.prompts[record.seq] = record  # projected when its turn starts: only then it is known what is collected
            return
        self._join(event.user)
        text = _text(event.content)
        self.news.append(text)
        self._add(record, _party(event.sender), self.agent, text, "input", detail={"aside": self.step or self.turn.seq})

    def _join(self, user: str | None) -> None:
        """A message of another user than the session's makes the rest of the turn nobody's to recall elsewhere."""
        if self.turn and not is_same_user(self.row.owner, self.row.user, user):
            self.turn = replace(self.turn, user=None)

    def _start(self, record: Recorded, event: events.Started) -> None:
        prompted = self.prompts.pop(event.prompt, None)
        if prompted is None or not isinstance(prompted.event, events.Prompted):
            raise UnknownShape(f"the journal of {self.row.id} starts a turn with {event.prompt}, which is no prompt")
        prompt = prompted.event
        sender, pair = _party(prompt.sender), self._id(event.prompt)
        user = self.row.user if is_same_user(self.row.owner, self.row.user, prompt.user) else None
        self.turn = _Turn(event.trace, pair, record.seq, sender, prompt.depth, event.collect, user)
        self.is_running, self.is_lost, self.latest, self.step = True, False, prompted.at, 0
        text = _text(prompt.content)
        self.calls, self.news = {}, [text]
        detail: dict[str, Any] = {"started": record.seq}
        if len(prompt.content) > 1:
            detail["parts"] = [_text([one]) for one in prompt.content]
        if "conversation" in event.cleaned:
            detail["reset"] = True
        if prompt.prior:
            detail["prior"] = _without_zeros(msgspec.to_builtins(prompt.prior))
        self._add(prompted, sender, self.agent, text, "input", at=prompted.at, detail=detail, since=record.seq)

    def _reply(self, record: Recorded, event: events.Replied) -> None:
        form = "thought" if event.thought else "text" if event.text else "calls"
        calls = msgspec.json.encode(event.calls).decode() if event.calls else ""
        said = event.text or event.thought or calls
        self.step = record.seq
        asked = "\n\n".join(map(_cut, self.news))
        self._model_call(record, event.model or MODEL, asked, said, {"form": form})
        self.news = [event.problem] if event.problem else []

    def _condense(self, record: Recorded, event: events.Condensed) -> None:
        detail = {"form": "summary", "upto": event.upto, "running": self.is_running}
        asked = f"Summarise the conversation up to event {event.upto}."
        self._model_call(record, MODEL, asked, event.summary, detail)

    def _model_call(self, record: Recorded, model: str, asked: str, said: str, detail: dict[str, Any] | None) -> None:
        party: Party = (model, "llm")
        # The journal has no moment of a request: it followed the event before the reply.
        own = self._id(record.seq)
        pair, out = f"{own}:in", f"{own}:out"
        self._add(record, self.agent, party, asked, "input", name=pair, at=self.latest)
        self._add(record, party, self.agent, said, "output", name=out, pair=pair, detail=detail)

    def _call(self, record: Recorded, event: events.Called, *, is_refused: bool) -> None:
        detail = {"call": event.call, "tool": event.tool, "step": self.step, "role": event.role}
        is_delegated = event.call_kind == "agent" and event.role != "collects"
        is_question = event.call_kind == "ask" or bool(event.question)
        if is_question:
            party, said = USER, event.question
            detail["arguments"] = event.arguments
        elif is_delegated:
            party, said = (event.tool.removeprefix(AGENT_PREFIX), "agent"), event.arguments
        else:
            party, said = (event.tool, "knowledge" if event.role == KNOWLEDGE else "tool"), event.arguments
        # The agent that is called tells the task and the answer itself.
        shown = is_refused or not is_delegated
        call = _Call(self._id(record.seq), record.seq, party, shown, event.role, is_question)
        self.calls[event.call] = call
        self._add(record, self.agent, party, said, "input", shown=shown, detail=detail, is_found=call.is_found)

    def _return(self, record: Recorded, event: events.Returned) -> None:
        self._join(event.user)
        call, outcome = self.calls.pop(event.call, None), event.outcome
        text = outcome.content if isinstance(outcome, Output) else outcome.message
        self.news.append(text)
        if call is None:
            return
        detail: dict[str, Any] = {"call": event.call}
        if isinstance(outcome, Fault):
            detail["fault"] = True
        if not call.is_found:
            detail["role"] = call.role
        # Nobody answered: these are not the words of the user.
        unanswered = call.is_question and isinstance(outcome, Fault)
        source: Party = ("longhouse", "tool") if unanswered else call.party
        self._add(
            record,
            source,
            self.agent,
            text,
            "output",
            pair=call.id,
            shown=call.shown,
            detail=detail,
            of=call.party,
            is_found=call.is_found,
            since=call.seq,
        )

    def _end(self, record: Recorded, event: events.Finished | events.Failed | events.Cancelled) -> None:
        if isinstance(event, events.Cancelled):
            self.prompts = {seq: one for seq, one in self.prompts.items() if _trace(one.event) != event.trace}
            if self.turn and self.turn.trace != event.trace:
                return
        if self.turn is None or not self.is_running:
            return
        said, form = _ending(event)
        name = ""
        if isinstance(event, events.Failed) and event.code == MODEL_FAILED:
            self._model_call(record, MODEL, "\n\n".join(map(_cut, self.news)), said, None)
            name = f"{self._id(record.seq)}:turn"  # one event tells both, the model's failure first
        detail, turn = {"form": form, "step": self.step}, self.turn
        self._add(
            record,
            self.agent,
            turn.sender,
            said,
            "output",
            name=name,
            pair=turn.pair,
            detail=detail,
            since=turn.seq,
        )
        self.is_running, self.calls = False, {}

    def _add_external(self, record: Recorded, given: events.ExternalInteraction, text: str) -> None:
        self.rows.append(
            LedgerRow(
                Interaction.from_outside(self.row.conversation_id, given, text),
                self.row.owner,
                self.row.user,
                self.row.id,
                record.seq,
                "",
                0,
            )
        )

    def _add(
        self,
        record: Recorded,
        source: Party,
        target: Party,
        content: str,
        type: Type,
        *,
        name: str = "",
        pair: str = "",
        at: datetime | None = None,
        shown: bool = True,
        detail: dict[str, Any] | None = None,
        of: Party | None = None,
        is_found: bool = True,
        since: int = 0,
    ) -> None:
        """Adds a record, if the turn collects what the agent talks with; `of`: that, if it is not source or target."""
        turn, other = self.turn, of or (source if target == self.agent else target)
        if turn is not None and turn.collect is not None and other[1] not in turn.collect:
            return
        own = name or self._id(record.seq)
        self.rows.append(
            LedgerRow(
                Interaction(
                    id=own,
                    conversation_id=self.row.conversation_id,
                    trace_id=turn.trace if turn else record.trace,
                    source=source[0].replace(ZERO, "")[:LONGEST_NAME],
                    source_type=source[1],
                    target=target[0].replace(ZERO, "")[:LONGEST_NAME],
                    target_type=target[1],
                    content=content.replace(ZERO, ""),
                    type=type,
                    timestamp=at or self._moment(record),
                    pair_id=pair or own,
                ),
                self.row.owner,
                turn.user if turn else self.row.user,
                self.row.id,
                record.seq,
                self.row.agent,
                turn.depth if turn else 0,
                shown,
                msgspec.json.encode(detail).decode() if detail else None,
                is_found and other[1] != "llm",
                since,
            )
        )

    def _moment(self, record: Recorded) -> datetime:
        return max(record.at, self.latest or record.at)

    def _id(self, seq: int) -> str:
        return f"{self.row.id}:{seq:010}"


def _refused(records: Sequence[Recorded]) -> set[str]:
    """Calls that failed in the append that made them: nobody was called."""
    made = {record.event.call: record.at for record in records if isinstance(record.event, events.Called)}
    return {
        record.event.call
        for record in records
        if isinstance(record.event, events.Returned)
        and isinstance(record.event.outcome, Fault)
        and made.get(record.event.call) == record.at
    }


def _party(sender: str) -> Party:
    return USER if sender == USER[0] else (sender, "agent")


def _text(content: Sequence[Content]) -> str:
    return "\n\n".join(text_of(one) or (ONLY_IMAGES if one else "") for one in content)


def _without_zeros(value: Any) -> Any:
    match value:
        case str():
            return value.replace(ZERO, "")
        case dict():
            return {name: _without_zeros(one) for name, one in value.items()}
        case list() | tuple():
            return [_without_zeros(one) for one in value]
        case _:
            return value


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_NEWS else f"{text[:LONGEST_NEWS]}… [{len(text) - LONGEST_NEWS} characters more]"


def _trace(event: Event) -> str:
    return event.trace if isinstance(event, events.Prompted) else ""


def _ending(event: events.Finished | events.Failed | events.Cancelled) -> tuple[str, str]:
    """What the sender of the task gets, and whether it is an answer in the agent's own words."""
    match event:
        case events.Finished(answer=answer):
            return answer, "answer"
        case events.Failed(reason=reason, code=code):
            return reason, "answer" if code == AGENT_FAILED else "failed"
        case events.Cancelled(by=by):
            return f"cancelled by {by}", "cancelled"
