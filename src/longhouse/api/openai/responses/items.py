"""The items of a response, and the numbered events of its stream that tell of them; what was told is never changed."""

from typing import Any, Final

import msgspec
from msgspec import structs

from longhouse.api.openai.responses.objects import (
    ArgumentsDelta,
    ArgumentsDone,
    CallEvent,
    ErrorText,
    FunctionCallItem,
    ItemEvent,
    McpCall,
    OutputItem,
    OutputMessage,
    OutputRefusal,
    OutputText,
    PartEvent,
    ReasoningItem,
    RefusalDelta,
    RefusalDone,
    StreamEvent,
    SummaryDelta,
    SummaryDone,
    SummaryPartEvent,
    SummaryText,
    TextDelta,
    TextDone,
    ToolError,
)
from longhouse.api.openai.responses.stored import PREFIX
from longhouse.api.openai.turn_stream import SHOWN, WaitingCall
from longhouse.journal.events import Fault, Outcome

EMPTY: Final = OutputText()
CHUNK: Final = 16
"""Characters of one piece of text. Numbers depend on it: a client that resumes after an update has those of before."""


class OpenMessage(msgspec.Struct):
    """A message whose end is not known yet."""

    index: int
    shown: str = ""
    """A whole number of pieces."""
    is_replied: bool = False
    """Its reply is recorded."""


class ItemStream:
    def __init__(self, response_id: str) -> None:
        self._name = response_id.removeprefix(PREFIX)
        self.events: list[StreamEvent] = []
        self.output: list[OutputItem] = []
        self.calls: dict[str, int] = {}
        """Call that has not returned -> its place in the output."""

    def emit(self, event: StreamEvent) -> None:
        event.sequence_number = len(self.events)
        self.events.append(event)

    def add_whole(self, item: OutputItem) -> None:
        self._finish(self._add(item), item)

    # Messages

    def open_message(self, part: OutputText | OutputRefusal = EMPTY) -> OpenMessage:
        index = self._add(OutputMessage(id=self._id("msg"), status="in_progress"))
        self.emit(PartEvent(type="response.content_part.added", **self._place(index), part=part))
        return OpenMessage(index)

    def extend(self, message: OpenMessage, text: str, *, is_end: bool = False) -> None:
        """Sends the pieces of `text` that are whole, or at its end all of it."""
        end, place = len(text) if is_end else whole_pieces(text), self._place(message.index)
        for at in range(len(message.shown), end, CHUNK):
            self.emit(TextDelta(**place, delta=text[at : min(at + CHUNK, end)]))
        message.shown = text[: max(end, len(message.shown))]

    def close(self, message: OpenMessage, text: str) -> None:
        self.extend(message, text, is_end=True)
        self.emit(TextDone(**self._place(message.index), text=text))
        self._finish_message(message.index, OutputText(text=text))

    def refuse(self, words: str) -> None:
        """A message that is a refusal."""
        index = self.open_message(OutputRefusal()).index
        self.emit(RefusalDelta(**self._place(index), delta=words))
        self.emit(RefusalDone(**self._place(index), refusal=words))
        self._finish_message(index, OutputRefusal(refusal=words))

    def _finish_message(self, index: int, part: OutputText | OutputRefusal) -> None:
        place = self._place(index)
        self.emit(PartEvent(type="response.content_part.done", **place, part=part))
        self._finish(index, OutputMessage(id=place["item_id"], status="completed", content=(part,)))

    def break_off(self, message: OpenMessage) -> None:
        """What was shown does not hold: the message ends without content, and the text comes in another one."""
        self._finish(message.index, OutputMessage(id=self.output[message.index].id, status="incomplete"))

    # Reasoning and calls

    def reason(self, text: str) -> None:
        item = ReasoningItem(id=self._id("rs"), status="in_progress")
        index, part = self._add(item), SummaryText(text=text)
        place = self._place(index)
        self.emit(SummaryPartEvent(type="response.reasoning_summary_part.added", **place, part=SummaryText()))
        self.emit(SummaryDelta(**place, delta=text))
        self.emit(SummaryDone(**place, text=text))
        self.emit(SummaryPartEvent(type="response.reasoning_summary_part.done", **place, part=part))
        self._finish(index, ReasoningItem(id=item.id, status="completed", summary=(part,)))

    def begin_call(self, call: str, tool: str, arguments: str) -> None:
        item = McpCall(id=self._id("mcp"), name=tool, arguments="", status="in_progress")
        self.calls[call] = index = self._add(item)
        place = self._place(index)
        self.emit(CallEvent(type="response.mcp_call.in_progress", **place))
        self.emit(ArgumentsDelta(type="response.mcp_call_arguments.delta", **place, delta=arguments))
        self.emit(ArgumentsDone(type="response.mcp_call_arguments.done", **place, arguments=arguments))
        self.output[index] = structs.replace(item, arguments=arguments)

    def end_call(self, call: str, outcome: Outcome) -> None:
        if call not in self.calls:
            return
        index = self.calls.pop(call)
        item, place = self._call(index), self._place(index)
        if isinstance(outcome, Fault):
            error = ToolError(content=(ErrorText(text=outcome.message),))
            self.emit(CallEvent(type="response.mcp_call.failed", **place))
            self._finish(index, structs.replace(item, error=error, status="failed"))
        else:
            self.emit(CallEvent(type="response.mcp_call.completed", **place))
            self._finish(index, structs.replace(item, output=outcome.content[:SHOWN], status="completed"))

    def leave_calls(self) -> None:
        """The response ends before these have returned."""
        for index in self.calls.values():
            self._finish(index, structs.replace(self._call(index), status="incomplete"))
        self.calls.clear()

    def call_function(self, call: WaitingCall) -> None:
        item = FunctionCallItem(id=self._id("fc"), call_id=call.id, name=call.name, arguments="", status="in_progress")
        index = self._add(item)
        place, arguments = self._place(index), call.arguments
        self.emit(ArgumentsDelta(type="response.function_call_arguments.delta", **place, delta=arguments))
        self.emit(
            ArgumentsDone(type="response.function_call_arguments.done", **place, arguments=arguments, name=call.name)
        )
        self._finish(index, structs.replace(item, arguments=arguments, status="completed"))

    # All of them

    def _add(self, item: OutputItem) -> int:
        self.output.append(item)
        index = len(self.output) - 1
        self.emit(ItemEvent(type="response.output_item.added", output_index=index, item=item))
        return index

    def _finish(self, index: int, item: OutputItem) -> None:
        self.output[index] = item
        self.emit(ItemEvent(type="response.output_item.done", output_index=index, item=item))

    def _call(self, index: int) -> McpCall:
        item = self.output[index]
        assert isinstance(item, McpCall)
        return item

    def _place(self, index: int) -> dict[str, Any]:
        return {"item_id": self.output[index].id, "output_index": index}

    def _id(self, kind: str) -> str:
        """Ids of items name their response, so that a client may refer to them."""
        return f"{kind}_{self._name}_{len(self.output)}"


def whole_pieces(text: str) -> int:
    """How many characters of a text are whole pieces."""
    return len(text) - len(text) % CHUNK
