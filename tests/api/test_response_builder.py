"""The stream of a response follows from its journal: whoever reads it, and however its text was written."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from longhouse.api.openai.responses.builder import ResponseBuilder
from longhouse.api.openai.responses.items import CHUNK
from longhouse.api.openai.responses.objects import ItemEvent, OutputMessage, TextDelta
from longhouse.api.openai.responses.stored import StoredRequest
from longhouse.journal import events
from longhouse.journal.events import Event, Finished, Limits, Opened, Output, Prompted, Recorded, Replied, Started
from longhouse.journal.fold import blank, fold
from longhouse.runtime.bus.items import Draft
from longhouse.store.openai.responses import ResponseRow, ShownText
from server_helpers import AGENT

AT = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = Limits(max_iterations=9, max_clarifications=9, time_budget=60)
TEXTS = st.text(st.sampled_from("ab \nж好👩\u200d\u0301"), min_size=0, max_size=3 * CHUNK)


class Journal:
    """A journal in memory, and what was shown of its response."""

    def __init__(self) -> None:
        opened = Opened(agent=AGENT, version=1, owner="local", conversation="c")
        self.base = fold(
            [self._record(1, opened), self._record(2, Prompted(trace="t", content=("Hello",)))], blank("s")
        )
        self.facts: list[Recorded] = []
        self.shown: list[ShownText] = []
        self.add(Started(trace="t", prompt=2, version=1, instance="", limits=LIMITS, date="2026-01-01"))

    def _record(self, seq: int, event: Event) -> Recorded:
        return Recorded(seq=seq, at=AT, event=event, trace="t")

    @property
    def head(self) -> int:
        return 2 + len(self.facts)

    def add(self, *new: Event) -> None:
        for event in new:
            self.facts.append(self._record(self.head + 1, event))

    def builder(self) -> ResponseBuilder:
        request = msgspec.json.encode(StoredRequest(model=AGENT)).decode()
        return ResponseBuilder(ResponseRow("resp_1", "local", "s", "t", 2, request, None, True, AT), self.base)

    def read(self, *, with_shown: bool = True) -> ResponseBuilder:
        """The response as a process reads it that has just begun."""
        builder, shown = self.builder(), [*self.shown] if with_shown else []
        for fact in self.facts:
            while shown and shown[0].seq < fact.seq:
                builder.show(shown.pop(0))
            builder.add(fact)
        for one in shown:
            builder.show(one)
        return builder

    def write(self, text: str, fence: int, *, to: int) -> None:
        """A worker writes the beginning of a text; a gateway shows what it can of it."""
        builder = self.read()
        for one in builder.unshown(Draft(after=self.head, fence=fence, content=text[:to])):
            builder.show(one)
            self.shown.append(one)


def told(builder: ResponseBuilder) -> list[Any]:
    return [msgspec.to_builtins(event) for event in builder.events]


def texts(builder: ResponseBuilder) -> Iterator[tuple[OutputMessage, str]]:
    """Each message, with the text that a client has put together."""
    for event in builder.events:
        if isinstance(event, ItemEvent) and event.type.endswith("done") and isinstance(event.item, OutputMessage):
            pieces = (one for one in builder.events if isinstance(one, TextDelta) and one.item_id == event.item.id)
            yield event.item, "".join(piece.delta for piece in pieces)


@given(st.lists(st.tuples(TEXTS, st.lists(st.integers(0, 3 * CHUNK), max_size=3)), min_size=1, max_size=4), TEXTS)
def test_every_reader_sees_the_same_whatever_was_lost(attempts: list[tuple[str, list[int]]], said: str) -> None:
    """Each attempt at a step but the last is lost, after some of its text was shown."""
    journal, seen = Journal(), list[Any]()
    for fence, (text, ends) in enumerate(attempts, start=1):
        for end in sorted(ends):
            journal.write(text, fence, to=end)
            now = told(journal.read())
            assert now[: len(seen)] == seen, "what a client was sent has changed"
            seen = now
    answer = attempts[-1][0]
    calls = () if said.strip() else (events.Called(call="1-action-0", tool="clocktool", arguments="{}"),)
    journal.add(Replied(text=said, streamed_chars=len(said)), *calls)
    journal.add(*(events.Returned(call=one.call, outcome=Output(content="x")) for one in calls))
    journal.add(Finished(answer=answer))
    whole = journal.read()
    now = told(whole)
    assert now[: len(seen)] == seen
    assert [event["sequence_number"] for event in now] == list(range(len(now)))
    for message, pieces in texts(whole):
        if message.status == "completed":
            assert pieces == message.content[0].text
        else:
            assert (message.status, message.content) == ("incomplete", ())
    alone = journal.read(with_shown=False)
    assert "".join(whole.text.split()) == "".join(alone.text.split())


@given(TEXTS.filter(str.strip), st.lists(st.integers(0, 3 * CHUNK), max_size=5))
def test_numbers_do_not_depend_on_how_a_text_was_written(text: str, ends: list[int]) -> None:
    journal = Journal()
    for end in sorted(ends):
        journal.write(text, 1, to=end)
    journal.add(Replied(text=text, streamed_chars=len(text)), Finished(answer=text))
    assert told(journal.read()) == told(journal.read(with_shown=False))


def test_a_deposed_worker_that_writes_on_is_not_heard() -> None:
    journal = Journal()
    journal.write("a" * 2 * CHUNK, 2, to=2 * CHUNK)
    shown = [*journal.shown]
    journal.write("b" * 2 * CHUNK, 1, to=2 * CHUNK)
    assert journal.shown == shown
    late = Draft(after=journal.head, fence=3, content="c" * 2 * CHUNK)
    journal.add(events.Resumed(worker="w-2", previous="w-1"))
    assert journal.read().unshown(late) == [], "it began before another worker took over"
