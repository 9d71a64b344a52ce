"""Makes a response of the journal of its session: its items, and the numbered events of its stream.

The number of an event is its place, and both follow from the journal alone: the text of a message is cut into pieces of
one size, so that it does not matter in which portions a model wrote it, or which process reads it. Text that is shown
while its reply is still being written is the exception. It is written down before it is sent (`ShownText`), and comes
here in its place between the events; if the step is lost, what was shown of it stays, and its message is broken off.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from msgspec import structs

from longhouse.api.openai.responses import objects
from longhouse.api.openai.responses.objects import (
    ArgumentsDelta,
    ArgumentsDone,
    CallEvent,
    FunctionCallItem,
    IncompleteDetails,
    ItemEvent,
    Lifecycle,
    McpApprovalRequest,
    McpCall,
    OutputItem,
    OutputMessage,
    OutputText,
    PartEvent,
    ReasoningItem,
    ResponseError,
    ResponseObject,
    ResponseOrigin,
    ResponseUsage,
    Status,
    StreamEvent,
    SummaryDelta,
    SummaryDone,
    SummaryPartEvent,
    SummaryText,
    TextDelta,
    TextDone,
)
from longhouse.api.openai.turn_stream import last_words
from longhouse.journal import events
from longhouse.journal.events import Fault, Recorded
from longhouse.journal.fold import fold
from longhouse.journal.roles import FORM
from longhouse.journal.session import Session, Turn, joined_text
from longhouse.journal.transcript import Step, Use
from longhouse.runtime.bus.items import Draft
from longhouse.store.responses import ResponseRow, ShownText

CHUNK: Final = 16
"""Characters of one piece of text. Numbers depend on it: a client that resumes after an update has those of before."""
SHOWN: Final = 2_000
"""Characters of a tool's result that are shown; the journal has the whole result."""
PREFIX: Final = "resp_"
APPROVAL: Final = "mcpr_"


class StoredRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a response keeps of its request: what its object repeats, and its input."""

    model: str = ""
    input: tuple[dict[str, Any], ...] = ()
    instructions: str | None = None
    metadata: dict[str, str] = {}
    background: bool = False
    max_output_tokens: int | None = None
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    conversation: str | None = None
    reasoning: dict[str, Any] | None = None
    service_tier: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    text: dict[str, Any] = {}
    tool_choice: str | dict[str, Any] = "auto"
    tools: tuple[dict[str, Any], ...] = ()
    truncation: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    shows_reasoning: bool = True


class WaitingCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for a decision, or for the client's result."""

    id: str
    """As /v1/sessions/{id}/questions names it; of a client's call, the id that the client is told."""
    name: str
    arguments: str


class Rest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a response ends whose turn waits for somebody."""

    seq: int
    at: datetime
    text: str = ""
    waiting_for: Literal["", "clarification", "approval", "function_call"] = ""
    call_id: str = ""
    approvals: tuple[WaitingCall, ...] = ()
    calls: tuple[WaitingCall, ...] = ()


@dataclass(slots=True)
class _Message:
    """A message whose end is not known yet."""

    index: int
    shown: str = ""
    """A whole number of pieces."""
    is_replied: bool = False
    """Its reply is recorded."""


class ResponseBuilder:
    """One response; events are added in the order of the journal, and each adds to the stream and never changes it."""

    def __init__(self, row: ResponseRow, base: Session) -> None:
        self.row = row
        self.request = msgspec.json.decode(row.request, type=StoredRequest)
        self.known_rest = msgspec.json.decode(row.rest, type=Rest) if row.rest else None
        self.base = self.session = base
        self.events: list[StreamEvent] = []
        self.output: list[OutputItem] = []
        self.status: Status = "queued" if self.request.background else "in_progress"
        self.shown_at = (0, 0)
        """The place of the last `ShownText`."""
        steps = (entry.seq for entry in reversed(base.transcript) if isinstance(entry, Step))
        self.last_step = next(steps, 0)
        """The event of the last reply, or takeover: who writes since before it writes nothing that counts."""
        self._origin = ResponseOrigin(
            session_id=row.session_id, conversation_id=base.conversation, trace_id=row.trace_id, agent=base.agent
        )
        self._ended_at: datetime | None = None
        self._error: ResponseError | None = None
        self._incomplete: IncompleteDetails | None = None
        self._message: _Message | None = None
        self._said, self._is_said = "", True
        """The text of the last reply, and whether a message with it has ended."""
        self._step = self._draft = self._reasoned = ""
        """The running attempt at a step, and what was shown of it."""
        self._fence = 0
        """The highest fence of whom something was shown: a worker that was deposed may write on for a moment."""
        self._finish = ""
        """Why the model ended its last reply."""
        self._calls: dict[str, int] = {}
        """Call that has not returned -> its place in the output."""
        self._lifecycle("response.created")
        self._lifecycle("response.queued" if self.request.background else "response.in_progress")
        self._rest_if_due()

    @property
    def is_over(self) -> bool:
        return self.status not in ("queued", "in_progress")

    @property
    def is_ours(self) -> bool:
        return self.session.turn is not None and self.session.turn.trace == self.row.trace_id

    @property
    def text(self) -> str:
        """The text of all messages, as a client joins them."""
        messages = (item for item in self.output if isinstance(item, OutputMessage))
        return "".join(part.text for message in messages for part in message.content)

    def object(self) -> ResponseObject:
        request = self.request
        return ResponseObject(
            id=self.row.id,
            created_at=int(self.row.created_at.timestamp()),
            completed_at=int(self._ended_at.timestamp()) if self._ended_at and self.status == "completed" else None,
            status=self.status,
            background=request.background,
            error=self._error,
            incomplete_details=self._incomplete,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            model=request.model,
            output=tuple(self.output),
            parallel_tool_calls=request.parallel_tool_calls,
            previous_response_id=request.previous_response_id,
            conversation=objects.ResponseConversation(id=request.conversation) if request.conversation else None,
            reasoning=request.reasoning,
            service_tier=request.service_tier,
            store=self.row.is_stored,
            temperature=request.temperature,
            text=request.text or {"format": {"type": "text"}},
            tool_choice=request.tool_choice,
            tools=request.tools,
            top_p=request.top_p,
            truncation=request.truncation or "disabled",
            metadata=request.metadata,
            prompt_cache_key=request.prompt_cache_key,
            safety_identifier=request.safety_identifier,
            usage=self._usage() if self.is_over else msgspec.UNSET,
            user=request.user if request.user is not None else msgspec.UNSET,
            x_agent=self._origin,
        )

    def _usage(self) -> ResponseUsage:
        """What this response used; what its turn used before is in the responses before it."""
        before, after = (
            one.turn.usage if one.turn and one.turn.trace == self.row.trace_id else events.Usage()
            for one in (self.base, self.session)
        )
        return ResponseUsage(
            input_tokens=after.prompt_tokens - before.prompt_tokens,
            input_tokens_details=objects.InputTokensDetails(cached_tokens=after.cached_tokens - before.cached_tokens),
            output_tokens=after.completion_tokens - before.completion_tokens,
            total_tokens=after.total_tokens - before.total_tokens,
        )

    # What happened

    def add(self, record: Recorded) -> None:
        """The next event of the session's journal."""
        if self.is_over:
            return
        self.session = fold([record], self.session)
        self._ended_at = record.at
        if isinstance(record.event, events.Replied | events.Resumed):
            self.last_step = record.seq
        if self.is_ours:
            if self.status == "queued":
                self.status = "in_progress"
                self._lifecycle("response.in_progress")
            self._convert(record.event)
            turn = self.session.turn
            if turn and turn.ended:
                self._end_turn(turn)
        elif not any(waiting.prompt.trace == self.row.trace_id for waiting in self.session.queue):
            self._end("cancelled")  # while it was still queued
        self._rest_if_due()

    def rest(self, rest: Rest) -> None:
        """The turn waits for somebody: the response ends with what it waits for."""
        self.known_rest = rest
        self._rest_if_due()

    def _rest_if_due(self) -> None:
        if not self.known_rest or self.session.head < self.known_rest.seq or self.is_over:
            return
        rest = self.known_rest
        self._settle_message()
        if rest.text.strip():
            self._say(rest.text)
        for one in rest.approvals:
            name = f"{APPROVAL}{self.row.id.removeprefix(PREFIX)}_{one.id.encode().hex()}"
            self._add_whole(McpApprovalRequest(id=name, name=one.name, arguments=one.arguments))
        for one in rest.calls:
            self._call_function(one)
        self._origin = structs.replace(self._origin, waiting_for=rest.waiting_for, call_id=rest.call_id)
        self._ended_at = rest.at
        self._end("completed")

    def _convert(self, event: events.Event) -> None:
        match event:
            case events.Replied():
                self._reply(event)
            case events.Called(role="finishes"):
                pass  # its answer may go on in the message that is open
            case events.Called():
                self._settle_said()
                if event.role == "reasons":
                    self._reason(event.arguments)
                elif event.is_work and event.call_kind != "client" and not event.approve_by:
                    self._begin_call(event.call, event.tool, event.arguments)
            case events.Decided(decision="approve" | "did_not_happen"):
                self._begin_known(event.call)
            case events.Returned():
                self._begin_known(event.call)
                self._end_call(event)

    def _reply(self, event: events.Replied) -> None:
        if self._message and self._message.is_replied:
            self._settle_message()
        thought = "" if event.streamed_chars else event.thought
        self._reason("\n\n".join(part for part in (event.reasoning, thought) if part).removeprefix(self._reasoned))
        self._said, self._is_said = event.text[: event.streamed_chars], False
        self._finish = event.finish
        self._step = self._draft = self._reasoned = ""
        if self._message is None and self._said.strip():
            self._message = self._open_message()
        if self._message:
            self._message.is_replied = True
            if self._said.startswith(self._message.shown):
                self._extend(self._message, self._said)

    def _end_turn(self, turn: Turn) -> None:
        words = last_words(self.session)
        if words is not None:
            self._answer(words)
            if self._finish in ("length", "content_filter"):
                reason = "max_output_tokens" if self._finish == "length" else "content_filter"
                self._incomplete = IncompleteDetails(reason=reason)  # type: ignore[arg-type]
            self._end("incomplete" if self._incomplete else "completed")
            return
        self._settle_message()
        if turn.ended == "CANCELLED":
            self._end("cancelled")
        else:
            self.fail(turn.error or "the turn failed", turn.code or "failed")

    def fail(self, message: str, code: str) -> None:
        self._error = ResponseError(code="server_error", message=message)
        self._origin = structs.replace(self._origin, code=code)
        self._end("failed")

    def _end(self, status: Status) -> None:
        for call in [*self._calls]:
            index = self._calls.pop(call)
            item = self.output[index]
            assert isinstance(item, McpCall)
            self._finish_item(index, structs.replace(item, status="incomplete"))
        self.status = status
        # No event says that a response was cancelled: it gave no answer.
        kinds: dict[Status, Any] = {"completed": "response.completed", "incomplete": "response.incomplete"}
        self._lifecycle(kinds.get(status, "response.failed"))

    # Text that is shown before it is recorded

    def unshown(self, draft: Draft) -> list[ShownText]:
        """What of a reply that is being written is to be shown now; whole pieces only."""
        step, content = f"{draft.after}-{draft.fence}", draft.content
        known = self._draft if step == self._step else ""
        if draft.fence < self._fence or not self.last_step <= draft.after <= self.session.head:
            return []
        end = len(content) - len(content) % CHUNK
        shown = self._message.shown if self._message and not self._message.is_replied else ""
        if not content.startswith(known) or shown.startswith(content[:end]):
            return []
        parts: list[tuple[Literal["content", "reasoning"], str]] = [("content", content[len(known) : end])]
        if self.request.shows_reasoning and not known and draft.reasoning.strip():
            # A model begins its answer when it has thought.
            parts.insert(0, ("reasoning", draft.reasoning))
        seq, last = self.session.head, self.shown_at[1] if self.shown_at[0] == self.session.head else 0
        return [
            ShownText(seq=seq, nth=last + nth, step=step, part=part, text=text)
            for nth, (part, text) in enumerate(parts, start=1)
        ]

    def show(self, shown: ShownText) -> None:
        """Text that was shown, in its place: after the event `shown.seq`."""
        if self.is_over:
            return
        self.shown_at = (shown.seq, shown.nth)
        self._fence = max(self._fence, int(shown.step.rpartition("-")[2]))
        if shown.step != self._step:
            self._step, self._draft, self._reasoned = shown.step, "", ""
        if shown.part == "reasoning":
            self._reasoned += shown.text
            self._reason(shown.text)
            return
        self._draft += shown.text
        if self._message and self._message.is_replied:
            self._settle_message()
        message = self._message
        if message and not self._draft.startswith(message.shown):
            if message.shown.startswith(self._draft):
                return
            self._break_off()
            message = None
        self._message = message or self._open_message()
        self._extend(self._message, self._draft)

    # Messages

    def _settle_said(self) -> None:
        """Ends the message of a reply that goes on with calls; what it has shown beyond its text is a part of the
        answer, which may follow."""
        message = self._message
        if message is None:
            return
        if self._said.startswith(message.shown):
            self._close(message, self._said)
        elif not message.shown.startswith(self._said):
            self._settle_message()

    def _settle_message(self) -> None:
        """Ends the open message with the text of its reply; if that is another text, or there is no reply, breaks it
        off."""
        message = self._message
        if message is None:
            return
        if not message.is_replied:
            self._break_off()
        elif self._said.strip() and self._said.startswith(message.shown):
            self._close(message, self._said)
        else:
            self._break_off()
            self._say(self._said)

    def _answer(self, words: str) -> None:
        """Ends the turn with these words, which may repeat the text of the last reply."""
        if self._message and not self._message.is_replied:
            self._break_off()
        if self._is_said:
            text = "" if words.strip() == self._said.strip() else words
        else:
            text = joined_text([self._said], words)
        if self._message and text.startswith(self._message.shown):
            self._close(self._message, text)
            return
        self._break_off()
        self._say(text)

    def _say(self, text: str) -> None:
        if text.strip():
            self._close(self._open_message(), text)
        self._is_said = True

    def _open_message(self) -> _Message:
        item = OutputMessage(id=self._id("msg"), status="in_progress")
        index = self._add_item(item)
        self._emit(
            PartEvent(type="response.content_part.added", item_id=item.id, output_index=index, part=OutputText())
        )
        return _Message(index)

    def _extend(self, message: _Message, text: str, *, is_end: bool = False) -> None:
        """Sends the pieces of `text` that are whole, or at its end all of it."""
        end = len(text) if is_end else len(text) - len(text) % CHUNK
        item = self.output[message.index]
        for at in range(len(message.shown), end, CHUNK):
            delta = text[at : min(at + CHUNK, end)]
            self._emit(TextDelta(item_id=item.id, output_index=message.index, delta=delta))
        message.shown = text[: max(end, len(message.shown))]

    def _close(self, message: _Message, text: str) -> None:
        self._extend(message, text, is_end=True)
        item, part = self.output[message.index], OutputText(text=text)
        place: dict[str, Any] = {"item_id": item.id, "output_index": message.index}
        self._emit(TextDone(**place, text=text))
        self._emit(PartEvent(type="response.content_part.done", **place, part=part))
        self._finish_item(message.index, OutputMessage(id=item.id, status="completed", content=(part,)))
        self._message, self._is_said = None, True

    def _break_off(self) -> None:
        """What was shown does not hold: the message ends without content, and the text comes in another one."""
        if self._message:
            item = self.output[self._message.index]
            self._finish_item(self._message.index, OutputMessage(id=item.id, status="incomplete"))
            self._message = None

    # Reasoning and calls

    def _reason(self, text: str) -> None:
        if not self.request.shows_reasoning or not text.strip():
            return
        item = ReasoningItem(id=self._id("rs"), status="in_progress")
        index, part = self._add_item(item), SummaryText(text=text)
        place: dict[str, Any] = {"item_id": item.id, "output_index": index}
        self._emit(SummaryPartEvent(type="response.reasoning_summary_part.added", **place, part=SummaryText()))
        self._emit(SummaryDelta(**place, delta=text))
        self._emit(SummaryDone(**place, text=text))
        self._emit(SummaryPartEvent(type="response.reasoning_summary_part.done", **place, part=part))
        self._finish_item(index, ReasoningItem(id=item.id, status="completed", summary=(part,)))

    def _begin_call(self, call: str, tool: str, arguments: str) -> None:
        item = McpCall(id=self._id("mcp"), name=tool, arguments="", status="in_progress")
        self._calls[call] = index = self._add_item(item)
        place: dict[str, Any] = {"item_id": item.id, "output_index": index}
        self._emit(CallEvent(type="response.mcp_call.in_progress", **place))
        self._emit(ArgumentsDelta(type="response.mcp_call_arguments.delta", **place, delta=arguments))
        self._emit(ArgumentsDone(type="response.mcp_call_arguments.done", **place, arguments=arguments))
        self.output[index] = structs.replace(item, arguments=arguments)

    def _begin_known(self, call: str) -> None:
        """Shows a call of this turn that was made, or waited for a decision, in an earlier response."""
        use = self._use(call)
        if use and call not in self._calls and use.role not in FORM and use.role != "client" and not use.question:
            self._begin_call(call, use.tool, use.arguments)

    def _use(self, call: str) -> Use | None:
        uses = (use for step in self.session.steps for use in step.uses)
        return next((use for use in uses if use.call == call), None)

    def _end_call(self, event: events.Returned) -> None:
        index = self._calls.pop(event.call, None)
        if index is None:
            return
        item, outcome = self.output[index], event.outcome
        assert isinstance(item, McpCall)
        place: dict[str, Any] = {"item_id": item.id, "output_index": index}
        if isinstance(outcome, Fault):
            error = objects.ToolError(content=(objects.ErrorText(text=outcome.message),))
            self._emit(CallEvent(type="response.mcp_call.failed", **place))
            self._finish_item(index, structs.replace(item, error=error, status="failed"))
        else:
            self._emit(CallEvent(type="response.mcp_call.completed", **place))
            self._finish_item(index, structs.replace(item, output=outcome.content[:SHOWN], status="completed"))

    def _call_function(self, call: WaitingCall) -> None:
        item = FunctionCallItem(id=self._id("fc"), call_id=call.id, name=call.name, arguments="", status="in_progress")
        index = self._add_item(item)
        place: dict[str, Any] = {"item_id": item.id, "output_index": index}
        self._emit(ArgumentsDelta(type="response.function_call_arguments.delta", **place, delta=call.arguments))
        self._emit(
            ArgumentsDone(
                type="response.function_call_arguments.done", **place, arguments=call.arguments, name=call.name
            )
        )
        self._finish_item(index, structs.replace(item, arguments=call.arguments, status="completed"))

    # The stream

    def _add_whole(self, item: OutputItem) -> None:
        self._finish_item(self._add_item(item), item)

    def _add_item(self, item: OutputItem) -> int:
        self.output.append(item)
        index = len(self.output) - 1
        self._emit(ItemEvent(type="response.output_item.added", output_index=index, item=item))
        return index

    def _finish_item(self, index: int, item: OutputItem) -> None:
        self.output[index] = item
        self._emit(ItemEvent(type="response.output_item.done", output_index=index, item=item))

    def _id(self, kind: str) -> str:
        """Ids of items name their response, so that a client may refer to them."""
        return f"{kind}_{self.row.id.removeprefix(PREFIX)}_{len(self.output)}"

    def _lifecycle(self, kind: Any) -> None:
        self._emit(Lifecycle(type=kind, response=self.object()))

    def _emit(self, event: StreamEvent) -> None:
        event.sequence_number = len(self.events)
        self.events.append(event)
