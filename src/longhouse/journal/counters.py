"""What lists tell of a session: its title, and how much it did; counted event by event from its journal."""

import unicodedata
from datetime import datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from longhouse.journal import events, open_calls
from longhouse.journal.events import Event, Fault, Recorded
from longhouse.journal.messages import text_of
from longhouse.journal.refusals import ENDED, REFUSED
from longhouse.journal.session import Open, are_waiting
from longhouse.journal.words import titles

COUNTERS_VERSION: Final = 1
"""Stored with all counters; raise it when something else is counted, and sessions are counted anew."""
NOT_COUNTED: Final = ("Opened", "Noted", "Stored")
"""Kinds of events that change no counter."""
LONGEST_TASK: Final = 1_000
LONGEST_ERROR: Final = 500
MOST_TOOLS: Final = 100
"""Names of failing tools that are kept."""
NO_FAILURE: Final = REFUSED | ENDED


class Counters(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The counters of one session up to `head`."""

    head: int = 0
    first_words: str | None = None
    title: str = ""
    """The title that the model gave."""
    task: str = ""
    """The task of the last turn."""
    trace: str = ""
    """The trace of the last turn."""
    prompts: dict[int, str] = {}
    """Tasks of prompts in the queue, by seq."""
    turns: int = 0
    steps: int = 0
    tokens: int = 0
    """Those of its sub-agents included, as in the session's `usage`."""
    work_seconds: float = 0.0
    waiting_seconds: float = 0.0
    error: str | None = None
    """Why the last turn failed."""
    failed_tools: tuple[str, ...] = ()
    open: dict[str, Open] = {}
    """Calls without an outcome, without their arguments."""
    since: datetime | None = None
    """While a turn runs: since when it works, or waits."""
    worked_at: datetime | None = None
    """While a turn runs: the last moment of work, as `fold` tells it."""
    delegated_seconds: float = 0.0
    """Seconds that sub-agents have worked for it since `since`."""

    def add(self, record: Recorded) -> None:
        """Counts one event; those of one session are counted in their order."""
        was_waiting, was_running = are_waiting(self.open), self.since is not None
        is_work = self._is_work(record.event)
        if isinstance(record.event, events.Resumed) and self.worked_at and not was_waiting:
            self._wait((record.at - self.worked_at).total_seconds())
        is_running = self._count(record.event, record.seq, was_running)
        self._apply(record)
        if was_running and (not is_running or are_waiting(self.open) != was_waiting):
            self._settle(record.at, was_waiting)
            is_work = True
        if is_work:
            self.worked_at = record.at
        if not is_running:
            self.since = self.worked_at = None
        elif self.since is None:
            self.since = record.at
        self.head = record.seq

    @property
    def questions(self) -> int:
        """Calls that a person has to answer or decide."""
        return sum(call.awaits_person for call in self.open.values())

    @property
    def shown_title(self) -> str:
        return self.title or self.first_words or ""

    @property
    def found_by(self) -> str:
        """The text by which it is found."""
        return folded("\n".join(filter(None, (self.title, self.first_words, self.task))))

    def seconds(self, now: datetime, *, asks_person: bool) -> tuple[float, float]:
        """Seconds of work and of waiting for people until now."""
        work, waiting = self.work_seconds, self.waiting_seconds
        if self.since:
            present = max(0.0, (now - self.since).total_seconds())
            is_waiting = asks_person and are_waiting(self.open)
            work, waiting = (work, waiting + present) if is_waiting else (work + present, waiting)
        return round(max(0.0, work), 3), round(max(0.0, waiting), 3)

    def _is_work(self, event: Event) -> bool:
        """Whether a worker has recorded it, and not somebody outside."""
        if isinstance(event, events.Returned):
            call = self.open.get(event.call)
            return call is not None and call.is_due
        return type(event) not in events.OUTSIDE

    def _wait(self, seconds: float) -> None:
        """So much of what counts as work was none."""
        self.work_seconds -= seconds
        self.waiting_seconds += seconds

    def _settle(self, at: datetime, was_waiting: bool) -> None:
        """Adds the time that ends now, as `fold` divides it between people and sub-agents."""
        assert self.since is not None
        present = (at - self.since).total_seconds()
        work = min(max(0.0, present), self.delegated_seconds) if was_waiting else present
        self.work_seconds += work
        self.waiting_seconds += present - work
        self.since, self.delegated_seconds = at, 0.0

    def _count(self, event: Event, seq: int, is_running: bool) -> bool:
        """Counts an event; returns whether a turn runs after it."""
        match event:
            case events.Prompted():
                self._prompt(event, seq)
            case events.Started():
                self.turns, self.error, self.trace = self.turns + 1, None, event.trace
                self.task = self.prompts.get(event.prompt, "")
                self.prompts = {queued: task for queued, task in self.prompts.items() if queued > event.prompt}
                return True
            case events.Replied():
                self.steps += 1
                self._charge(event.usage)
            case events.Condensed():
                self._charge(event.usage)
            case events.Spent():
                self._charge(event.usage)
                self._wait(event.waited)
                self.title = titles.first_words(event.title) if event.title else self.title
            case events.Returned():
                self._return(event)
            case events.Finished():
                return False
            case events.Cancelled():
                return is_running and event.trace != self.trace  # perhaps a prompt in the queue was cancelled
            case events.Failed():
                self.error = event.reason[:LONGEST_ERROR]
                return False
        return is_running

    def _apply(self, record: Recorded) -> None:
        event = record.event
        if isinstance(event, events.Called):
            event = replace(event, arguments="", question="")
        open_calls.apply(self.open, event, record.seq, record.at)

    def _prompt(self, event: events.Prompted, seq: int) -> None:
        if self.first_words is None:
            self.first_words = titles.of_prompt(event.content)
        if not event.aside:
            task = "\n\n".join(text_of(part)[:LONGEST_TASK] for part in event.content)
            self.prompts = {**self.prompts, seq: task[:LONGEST_TASK]}

    def _return(self, event: events.Returned) -> None:
        call = self.open.get(event.call)
        self._charge(event.spent)
        self.delegated_seconds += event.seconds
        has_failed = isinstance(event.outcome, Fault) and event.outcome.code not in NO_FAILURE
        if call and has_failed and call.tool not in self.failed_tools and len(self.failed_tools) < MOST_TOOLS:
            self.failed_tools += (call.tool,)

    def _charge(self, usage: events.Usage | None) -> None:
        self.tokens += usage.total_tokens if usage else 0


def folded(text: str) -> str:
    """Text as it is compared: upper and lower case of all languages are the same."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold()).replace("\x00", "")
