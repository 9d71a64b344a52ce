"""Makes a response of the journal of its session: which items it has, and how it ends.

The number of an event is its place, and both follow from the journal alone: the text of a message is cut into pieces of
one size, so that it does not matter in which portions a model wrote it, or which process reads it. Text that is shown
while its reply is still being written is the exception. It is written down before it is sent (`ShownText`), and comes
here in its place between the events; if the step is lost, what was shown of it stays, and its message is broken off.
"""

from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import structs

from longhouse.api.openai.responses import objects
from longhouse.api.openai.responses.items import ItemStream, OpenMessage, whole_pieces
from longhouse.api.openai.responses.objects import (
    IncompleteDetails,
    Lifecycle,
    McpApprovalRequest,
    OutputMessage,
    ResponseError,
    ResponseObject,
    ResponseOrigin,
    ResponseUsage,
    Status,
)
from longhouse.api.openai.responses.stored import StoredRequest, WaitingEnd, approval_id, rest_of
from longhouse.api.openai.turn_stream import last_step, last_words, usage_between, use_of
from longhouse.journal import events
from longhouse.journal.events import Recorded
from longhouse.journal.fold import fold
from longhouse.journal.roles import FORM
from longhouse.journal.session import Session, Turn, joined_text
from longhouse.runtime.bus.items import Draft
from longhouse.store.openai.responses import ResponseRow, ShownText


class ResponseBuilder:
    """One response; events are added in the order of the journal, and each adds to the stream and never changes it."""

    def __init__(self, row: ResponseRow, base: Session) -> None:
        self.row = row
        self.request = msgspec.json.decode(row.request, type=StoredRequest)
        self.known_rest = rest_of(row)
        self.base = self.session = base
        self.items = ItemStream(row.id)
        self.events, self.output = self.items.events, self.items.output
        self.status: Status = "queued" if self.request.background else "in_progress"
        self.shown_at = (0, 0)
        """The place of the last `ShownText`."""
        self.last_step = last_step(base)
        """The seq of the last reply or takeover: text of a step that began before it is void."""
        self._origin = ResponseOrigin(
            session_id=row.session_id, conversation_id=base.conversation, trace_id=row.trace_id, agent=base.agent
        )
        self._ended_at: datetime | None = None
        self._error: ResponseError | None = None
        self._incomplete: IncompleteDetails | None = None
        self._message: OpenMessage | None = None
        self._said, self._is_said = "", True
        """The text of the last reply, and whether a message with it has ended."""
        self._step = self._draft = self._reasoned = ""
        """The running attempt at a step, and what was shown of it."""
        self._fence = 0
        """The highest fence with shown text: a deposed worker may go on writing for a moment."""
        self._finish = ""
        """Why the model ended its last reply."""
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
        repeated = structs.asdict(request)
        del repeated["input"], repeated["shows_reasoning"]
        repeated |= {
            "conversation": objects.ResponseConversation(id=request.conversation) if request.conversation else None,
            "text": request.text or {"format": {"type": "text"}},
            "truncation": request.truncation or "disabled",
            "user": msgspec.UNSET if request.user is None else request.user,
        }
        return ResponseObject(
            **repeated,
            id=self.row.id,
            created_at=int(self.row.created_at.timestamp()),
            completed_at=int(self._ended_at.timestamp()) if self._ended_at and self.status == "completed" else None,
            status=self.status,
            error=self._error,
            incomplete_details=self._incomplete,
            output=tuple(self.output),
            store=self.row.is_stored,
            usage=self._usage() if self.is_over else msgspec.UNSET,
            x_agent=self._origin,
        )

    def _usage(self) -> ResponseUsage:
        """What this response used; what its turn used before is in the responses before it."""
        used = usage_between(self.base, self.session, self.row.trace_id)
        return ResponseUsage(
            input_tokens=used.prompt_tokens,
            input_tokens_details=objects.InputTokensDetails(cached_tokens=used.cached_tokens),
            output_tokens=used.completion_tokens,
            output_tokens_details=objects.OutputTokensDetails(reasoning_tokens=used.reasoning_tokens),
            total_tokens=used.total_tokens,
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

    def rest(self, rest: WaitingEnd) -> None:
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
            name = approval_id(self.row, one.id)
            self.items.add_whole(McpApprovalRequest(id=name, name=one.name, arguments=one.arguments))
        for one in rest.calls:
            self.items.call_function(one)
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
                    self.items.begin_call(event.call, event.tool, event.arguments)
            case events.Decided(decision="approve" | "did_not_happen"):
                self._begin_known(event.call)
            case events.Returned():
                self._begin_known(event.call)
                self.items.end_call(event.call, event.outcome)

    def _reply(self, event: events.Replied) -> None:
        if self._message and self._message.is_replied:
            self._settle_message()
        thought = "" if event.streamed_chars else event.thought
        self._reason("\n\n".join(part for part in (event.reasoning, thought) if part).removeprefix(self._reasoned))
        self._said, self._is_said = event.text[: event.streamed_chars], False
        self._finish = event.finish
        self._step = self._draft = self._reasoned = ""
        if self._message is None and self._said.strip():
            self._message = self.items.open_message()
        if self._message:
            self._message.is_replied = True
            if self._said.startswith(self._message.shown):
                self.items.extend(self._message, self._said)

    def _end_turn(self, turn: Turn) -> None:
        words = last_words(self.session)
        if words is not None and turn.refused:
            self._settle_message()
            self.items.refuse(words)
            self._end("completed")
            return
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
        self.items.leave_calls()
        self.status = status
        # No event says that a response was cancelled: it gave no answer.
        kinds: dict[Status, Any] = {"completed": "response.completed", "incomplete": "response.incomplete"}
        self._lifecycle(kinds.get(status, "response.failed"))

    # Text that is shown before it is recorded

    def unshown(self, draft: Draft) -> list[ShownText]:
        """The new text of a running reply that can be shown now: whole pieces only."""
        step, content = f"{draft.after}-{draft.fence}", draft.content
        known = self._draft if step == self._step else ""
        if draft.fence < self._fence or not self.last_step <= draft.after <= self.session.head:
            return []
        end = whole_pieces(content)
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
        self._message = message or self.items.open_message()
        self.items.extend(self._message, self._draft)

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
            self._close(self.items.open_message(), text)
        self._is_said = True

    def _close(self, message: OpenMessage, text: str) -> None:
        self.items.close(message, text)
        self._message, self._is_said = None, True

    def _break_off(self) -> None:
        if self._message:
            self.items.break_off(self._message)
            self._message = None

    # Reasoning and calls

    def _reason(self, text: str) -> None:
        if self.request.shows_reasoning and text.strip():
            self.items.reason(text)

    def _begin_known(self, call: str) -> None:
        """Shows a call of this turn that was made, or waited for a decision, in an earlier response."""
        use = use_of(self.session, call)
        if use and call not in self.items.calls and use.role not in FORM and use.role != "client" and not use.question:
            self.items.begin_call(call, use.tool, use.arguments)

    def _lifecycle(self, kind: Any) -> None:
        self.items.emit(Lifecycle(type=kind, response=self.object()))
