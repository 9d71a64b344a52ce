"""A session's events as the chunks of a chat: for turns that go on without a message, as after a decision."""

from collections.abc import Iterator, Mapping
from typing import Any

from longhouse.cli.chat.client import Chunk, ServerEvent
from longhouse.journal.session import joined_text


class EventReader:
    """Turns events into chunks."""

    def __init__(self, agent: str, tools: Mapping[str, str]) -> None:
        self._agent = agent
        self._tools = dict(tools)
        """Call -> its tool, of calls that have not returned."""
        self._replies: list[str] = []
        self._draft = ""
        self._sent = ""

    def chunks(self, event: ServerEvent) -> Iterator[Chunk]:
        data = event.data
        match event.name:
            case "delta" | "delta.snapshot":
                yield from self._draft_of(event.name, data)
            case "step.restarted":
                self._draft = ""
            case "retrying" | "paused":
                yield _activity("retrying", self._agent, reason=data["reason"])
            case name if name.startswith("subagent_"):
                yield {"choices": [], "x_agent": data}
            case _ if "seq" in data:
                yield from self._fact(event.name, data["event"])

    def _draft_of(self, name: str, data: dict[str, Any]) -> Iterator[Chunk]:
        if name == "delta.snapshot":
            self._draft = data["content"]
        elif data["kind"] == "content" and data["offset"] <= len(self._draft):
            self._draft = self._draft[: data["offset"]] + data["text"]
        yield from self._say(joined_text([*self._replies, self._draft]))

    def _fact(self, kind: str, fact: dict[str, Any]) -> Iterator[Chunk]:
        match kind:
            case "Started" | "Resumed":
                yield _activity(kind.lower(), self._agent)
            case "Replied":
                self._replies.append(fact.get("text", "")[: fact.get("said", 0)])
                self._draft = ""
                yield from self._say(joined_text(self._replies))
            case "Called" if fact.get("call_kind", "tool") != "ask" and fact.get("role") != "reasons":
                self._tools[fact["call"]] = fact["tool"]
                detail = {"call_id": fact["call"], "tool": fact["tool"], "arguments": fact["arguments"]}
                yield _activity("tool_call", self._agent, **detail)
            case "Returned" if tool := self._tools.get(fact["call"]):
                outcome = fact["outcome"]
                is_ok = outcome["type"] == "Output"
                content = outcome["content"] if is_ok else outcome["message"]
                detail = {"call_id": fact["call"], "tool": tool, "content": content}
                yield _activity("tool_result", self._agent, status="ok" if is_ok else "error", **detail)
            case "Finished":
                yield from self._say(joined_text(self._replies, fact["answer"]))
                yield _activity("completed", self._agent)
            case "Failed":
                yield from self._say(joined_text(self._replies, fact["reason"]))
                yield _activity("failed", self._agent)
            case "Cancelled":
                yield _activity("cancelled", self._agent)

    def _say(self, text: str) -> Iterator[Chunk]:
        """The new part of the text; of a restarted step nothing is shown until its text extends what was said."""
        if text.startswith(self._sent) and (new := text[len(self._sent) :]):
            self._sent = text
            yield {"choices": [{"delta": {"content": new}}]}


def _activity(event: str, agent: str, **detail: Any) -> Chunk:
    return {"choices": [], "x_agent": {"event": event, "agent": agent, **detail}}
