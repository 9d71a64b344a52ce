"""The agent log of SGR-Agent Core, built from the journal: reasoning and tool calls by step, also as JSON files."""

import asyncio
import hashlib
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypedDict

import msgspec
import structlog

from longhouse.agents.template import Template
from longhouse.journal import events
from longhouse.journal.events import Called, Outcome, Output, Recorded
from longhouse.journal.messages import text_of
from longhouse.journal.session import Session
from longhouse.store import journals
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.erasing import erasure

log = structlog.get_logger()

_SAFE: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


class LogFolder(msgspec.Struct, frozen=True):
    db: Database
    catalog: Catalog
    path: Path | None
    others: Mapping[str, Path] = msgspec.field(default_factory=dict)
    """Folders of single agents, by agent name."""

    async def keep(self, session: Session) -> None:
        """Writes the log of a session whose turn ended. A failure is only logged: the session goes on."""
        folder = self.others.get(session.agent, self.path)
        if folder is None or session.turn is None or not session.turn.ended:
            return
        content = msgspec.json.format(msgspec.json.encode(await log_of(self.db, self.catalog, session)), indent=2)
        name = file_name(session.id)
        try:
            await asyncio.to_thread(_write, folder, name, content)
            if await erasure.gone(self.db, [session.id]):
                # Erased while it was written: the eraser may have removed the file before this write.
                (folder / name).unlink(missing_ok=True)
        except OSError as error:
            message = "An agent log cannot be written."
            log.warning("agent_log_write_failed", message=message, session=session.id, error=str(error))


class AgentLog(TypedDict):
    """The log of SGR-Agent Core; the fields of an entry depend on its `step_type`."""

    id: str
    model_config: dict[str, Any]
    task: str | None
    toolkit: list[str]
    log: list[dict[str, Any]]


async def log_of(db: Database, catalog: Catalog, session: Session) -> AgentLog:
    turn = session.turn
    template = await catalog.templates.find(session.agent, turn.version if turn else session.version)
    return agent_log(session.id, [record async for record in journals.every(db, session.id)], template)


def file_name(session_id: str) -> str:
    """The file name of a session; an id with other characters gets a safe and unique name."""
    if _SAFE.fullmatch(session_id):
        return f"{session_id}-log.json"
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", session_id)[:150]
    return f"{plain}-{hashlib.sha256(session_id.encode(errors='surrogatepass')).hexdigest()[:12]}-log.json"


def _write(folder: Path, name: str, content: bytes) -> None:
    """Writes atomically, and readable by the owner only: a log holds what people said."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = folder / f".{uuid.uuid4().hex}"
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        draft.replace(folder / name)
    finally:
        draft.unlink(missing_ok=True)


def agent_log(session_id: str, recorded: Iterable[Recorded], template: Template | None) -> AgentLog:
    """The log of a whole session; `template` is that of its last turn, None if it no longer exists."""
    writer = _Writer()
    entries = [entry for record in recorded for entry in writer.write(record)]
    model_config = {}
    if template:
        # Keys are no part of a template, and the proxy is left out.
        policy = template.llm_policy
        model = writer.model or policy.model
        model_config = {"model": model, "max_tokens": policy.max_tokens, "temperature": policy.temperature}
    toolkit = list(template.tool_policy.named) if template else []
    return {"id": session_id, "model_config": model_config, "task": writer.task, "toolkit": toolkit, "log": entries}


class _Writer:
    """Follows the journal and yields the log entries of each event."""

    def __init__(self) -> None:
        self.task: str | None = None
        """The first task; later ones are entries of the log."""
        self.model = ""
        """The model that gave the last reply, as it named itself."""
        self._step = 0
        self._has_thought = False
        self._prompts: dict[int, events.Prompted] = {}
        self._called: dict[str, tuple[int, Called]] = {}

    def write(self, record: Recorded) -> Iterator[dict[str, Any]]:
        event, at = record.event, record.at
        match event:
            case events.Prompted(aside=True):
                yield _entry(self._step, at, "task", task="\n\n".join(text_of(one) for one in event.content))
            case events.Prompted():
                self._prompts[record.seq] = event
            case events.Started():
                yield from self._begin(self._prompts.pop(event.prompt), at)
            case events.Replied():
                yield from self._reply(event, at)
            case events.Called():
                self._called[event.call] = (self._step, event)
            case events.Returned():
                yield _used(*self._called.pop(event.call), event.outcome, at)
            case events.Condensed():
                yield _entry(self._step, at, "condensed", summary=event.summary)
            case events.Finished():
                yield _entry(self._step, at, "finished", answer=event.answer)
            case events.Failed():
                yield _entry(self._step, at, "failed", error=event.reason, code=event.code)
            case events.Cancelled():
                yield _entry(self._step, at, "cancelled", by=event.by)

    def _begin(self, prompt: events.Prompted, at: datetime) -> Iterator[dict[str, Any]]:
        self._has_thought = False
        task = "\n\n".join(text_of(content) for content in prompt.content)
        if self.task is None:
            self.task = task
        else:
            yield _entry(self._step, at, "task", task=task)

    def _reply(self, event: events.Replied, at: datetime) -> Iterator[dict[str, Any]]:
        # An action belongs to the step of the reasoning before it.
        self.model = event.model or self.model
        self._step += 0 if event.phase == "action" and self._has_thought else 1
        self._has_thought = event.phase == "reasoning"
        if event.thought:
            yield _entry(self._step, at, "reasoning", agent_reasoning=_value(event.thought))
        elif thought := event.reasoning or (event.text if event.calls or self._has_thought else ""):
            yield _entry(self._step, at, "reasoning", agent_reasoning=thought)


def _used(step: int, called: Called, outcome: Outcome, at: datetime) -> dict[str, Any]:
    arguments = _value(called.arguments)
    if called.role == "reasons" and isinstance(outcome, Output):
        return _entry(step, at, "reasoning", agent_reasoning=arguments)
    result = outcome.content if isinstance(outcome, Output) else f"Error: {outcome.message}"
    used = {"tool_name": called.tool, "agent_tool_context": arguments}
    if called.call_kind == "ask" and isinstance(outcome, Output):
        asked = {**used, "agent_tool_execution_result": called.question}
        return _entry(step, at, "clarification", **asked, clarification=result)
    return _entry(step, at, "tool_execution", **used, agent_tool_execution_result=result)


def _entry(step: int, at: datetime, kind: str, **more: Any) -> dict[str, Any]:
    return {"step_number": step, "timestamp": at.isoformat(), "step_type": kind, **more}


def _value(text: str) -> Any:
    """Decodes JSON; text that is not JSON is returned as it is."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
