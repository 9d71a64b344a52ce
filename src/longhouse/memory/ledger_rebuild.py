"""Rebuilds the messages of an agent's sessions from the ledger alone: what was deleted there is not in them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import msgspec
from msgspec.structs import replace

from longhouse.journal import conversation
from longhouse.journal.events import Fault, Output
from longhouse.journal.messages import Message
from longhouse.journal.session import Session
from longhouse.journal.transcript import Entry, ImportedMessages, PromptEntry, Step, Summary, Use
from longhouse.store.memory.interactions import LedgerRow


@dataclass
class _Transcript:
    """Entries by seq: a prompt stands where its turn started, a call in the step that made it."""

    entries: dict[int, list[Entry]] = field(default_factory=dict)

    def prompt(self, row: LedgerRow, detail: dict[str, Any]) -> None:
        seq = int(detail["started"])
        if detail.get("reset"):
            self.entries = {}
        parts = detail.get("parts") or [row.interaction.content]
        brought = msgspec.convert(detail.get("prior", ()), tuple[Message, ...])
        self.entries[seq] = [
            *([ImportedMessages(seq=seq, messages=brought)] if brought else ()),
            *(PromptEntry(seq=seq, content=part, date="") for part in parts),
        ]

    def step(self, seq: int) -> Step:
        found = self.entries.setdefault(seq, [Step(seq=seq)])[0]
        assert isinstance(found, Step)
        return found

    def aside(self, seq: int, said: str) -> None:
        """Adds a message to the step in which it was sent, or to the task of a turn that had no step yet."""
        if prompts := _prompts(self.entries.get(seq, [])):
            self.entries[seq].append(replace(prompts[-1], content=said))
            return
        step = self.step(seq)
        self.put(replace(step, asides=(*step.asides, said)))

    def put(self, step: Step) -> None:
        self.entries[step.seq] = [step]

    def summarise(self, text: str, detail: dict[str, Any]) -> None:
        """As `fold` does: the task of a running turn stays."""
        upto = int(detail["upto"])
        prompts = {seq: _prompts(entries) for seq, entries in self.entries.items() if _prompts(entries)}
        began = max(prompts, default=0)
        kept = {seq: entries for seq, entries in self.entries.items() if seq > upto}
        if detail["running"] and began and began <= upto:
            kept = {began: [*prompts[began]], **kept}
        self.entries = {upto: [Summary(seq=upto, text=text), *kept.pop(upto, [])], **kept}

    @property
    def in_order(self) -> list[Entry]:
        summaries = [entry for entries in self.entries.values() for entry in entries if isinstance(entry, Summary)]
        others = [entry for _, entries in sorted(self.entries.items()) for entry in entries]
        return [*summaries, *(entry for entry in others if not isinstance(entry, Summary))]


def _prompts(entries: Sequence[Entry]) -> list[PromptEntry]:
    return [entry for entry in entries if isinstance(entry, PromptEntry)]


def rebuilt(rows: Iterable[LedgerRow]) -> dict[str, list[dict[str, Any]]]:
    """Session -> its messages, as `conversation.messages_of` gives them; the rows of each session are in order."""
    return {one: _messages(list(own)) for one, own in groupby(rows, key=lambda row: row.session_id)}


def _messages(rows: Sequence[LedgerRow]) -> list[dict[str, Any]]:
    transcript, steps = _Transcript(), dict[str, int]()
    details = [(row, msgspec.json.decode(row.detail, type=dict[str, Any])) for row in rows if row.detail]
    # A prompt that waited behind a turn comes after it.
    for row, detail in sorted(details, key=lambda one: int(one[1].get("started", one[0].seq))):
        _place(transcript, steps, row, detail)
    session = Session(id=rows[0].session_id, agent="", owner="", conversation="", transcript=tuple(transcript.in_order))
    return conversation.messages_of(session)


def _place(transcript: _Transcript, steps: dict[str, int], row: LedgerRow, detail: dict[str, Any]) -> None:
    said = row.interaction.content
    match detail:
        case {"started": _}:
            transcript.prompt(row, detail)
        case {"aside": seq}:
            transcript.aside(seq, said)
        case {"form": "summary"}:
            transcript.summarise(said, detail)
        case {"form": "text" | "thought" | "calls" as form}:
            step = transcript.step(row.seq)
            transcript.put(replace(step, text=said if form == "text" else "", thought=form == "thought"))
        case {"form": "answer", "step": seq} if said and seq:
            transcript.put(replace(transcript.step(seq), answer=said))
        case {"tool": tool, "call": call, "step": seq, "role": role}:
            steps[call] = seq
            question = said if "arguments" in detail else ""
            use = Use(call=call, tool=tool, role=role, arguments=detail.get("arguments", said), question=question)
            step = transcript.step(seq)
            transcript.put(replace(step, uses=(*step.uses, use)))
        case {"call": call} if call in steps:
            outcome = Fault(code="", message=said) if detail.get("fault") else Output(content=said)
            step = transcript.step(steps[call])
            uses = tuple(replace(use, outcome=outcome) if use.call == call else use for use in step.uses)
            transcript.put(replace(step, uses=uses))
