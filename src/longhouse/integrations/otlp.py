"""Sends the traces of turns that have ended to a collector, as JSON over OTLP/HTTP.

The journal is the queue: a turn is sent once it has ended, by the process that ended it, or by another if that one was
killed. A collector that is away costs no memory and no turn: what it has missed is sent when it is back.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Self
from urllib.parse import unquote

import msgspec
import structlog

import longhouse
from longhouse import clock
from longhouse.errors import SetupError
from longhouse.integrations.projector import Projector
from longhouse.integrations.spans import Span, Value, spans_of, title_spans_of
from longhouse.journal.events import Prompted, Recorded, Spent, Started
from longhouse.models.http.client import Endpoint, StatusFailure, can_be_sent, open_endpoint
from longhouse.models.http.failure import HttpFailure
from longhouse.redaction import redaction_of
from longhouse.store import journals, projections
from longhouse.store.database import PASSING, Database
from longhouse.store.erasing.erasure import ErasedSession
from longhouse.store.projections import ProjectionRow
from longhouse.tracing import Tracing

log = structlog.get_logger()

PATH: Final = ("v1", "traces")
SENT_WITHIN: Final = 10.0
"""Seconds that a collector has to answer."""
LAST_WITHIN: Final = 2.0
"""Seconds that a process that ends has for its last turns; others send what is left."""
MOST_SPANS: Final = 500
"""Spans of one request."""
MOST_ANSWER: Final = 64 * 2**10
SWEEP_EVERY: Final = 30.0
"""Seconds; every process has its own hints, so a sweep only finds what a lost process has left."""
AGAIN: Final = (429, 502, 503, 504)
"""The answers after which the specification has a request tried again."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class CollectorAway(Exception):  # noqa: N818 - the sentence in the log says it
    """The collector cannot be reached, or asks for patience."""


class SentSpans(msgspec.Struct):
    """How many spans were sent, and how many the collector has refused."""

    sent: int = 0
    refused: int = 0
    missed_turns: int = 0
    """Turns that ended too long before the collector was back."""


class TraceProjector(Projector):
    """Sends each turn when it has ended; after a kill perhaps twice, with the same ids."""

    name = "otlp"
    place = "forgotten"
    away = (CollectorAway,)
    recent = timedelta(hours=1)
    linger = 1.0

    def __init__(self, db: Database, collector: Endpoint, tracing: Tracing, *, service: str) -> None:
        super().__init__(db, sweep_every=SWEEP_EVERY)
        self._collector = collector
        self.tracing = tracing
        self._resource = _attributes({"service.name": service, "service.version": longhouse.__version__})
        self.spans = SentSpans()
        self._is_refused = False
        """Whether the last request was: the log says so once."""
        self._is_away = False
        self._answered_at = clock.now()
        """When the collector last answered; before that, when this process started."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        async with super().running():
            yield self
        with suppress(CollectorAway, TimeoutError, *PASSING):
            async with asyncio.timeout(LAST_WITHIN):
                while self._hints:
                    await self._step()

    async def project(self, rows: Sequence[ProjectionRow]) -> None:
        known, batch = {row.id: row for row in rows}, list[dict[str, Any]]()
        for session_id, began, ended in await projections.ended_turns(
            self._db, self.name, rows, clock.now() - self.recent
        ):
            row = known.get(session_id)
            if row is None:
                continue  # another turn of it could not be read
            found = await self.readable([row], partial(self._turn, row, began, ended))
            if found is None:
                del known[session_id]
                continue
            batch += found
            while len(batch) >= MOST_SPANS:
                await self._send(batch[:MOST_SPANS])
                batch = batch[MOST_SPANS:]
        if batch:
            await self._send(batch)
        await projections.save(self._db, self.name, epoch="", heads={one: row.head for one, row in known.items()})

    async def remove(self, rows: Sequence[ProjectionRow]) -> None:
        """Nothing to do: spans hold no text of people, and stay as long as the collector keeps them."""

    async def forget(self, traces: Sequence[ErasedSession]) -> None:
        """The same."""

    async def _turn(self, row: ProjectionRow, began: int, ended: int) -> list[dict[str, Any]]:
        records: list[Recorded] = []
        async for record in journals.every(self._db, row.id, began - 1):
            records.append(record)
            if record.seq >= ended:
                break
        if not records or not isinstance(started := records[0].event, Started):
            return []  # it was erased in between
        [asked] = await journals.read(self._db, row.id, started.prompt - 1, 1) or [records[0]]
        if not isinstance(prompted := asked.event, Prompted):
            return []
        context = self.tracing.context(prompted.traceparent, prompted.trace)
        if not context.sampled:
            return []
        if isinstance(records[-1].event, Spent):
            spans = title_spans_of(row, started.prompt, records)
        else:
            spans = spans_of(row, prompted, records, context.parent)
        return [_encoded(context.trace_id, span) for span in spans]

    async def _send(self, spans: Sequence[Mapping[str, Any]]) -> None:
        scope = {"scope": {"name": "longhouse"}, "spans": spans}
        body = {"resourceSpans": [{"resource": {"attributes": self._resource}, "scopeSpans": [scope]}]}
        try:
            async with self._collector.post(msgspec.json.encode(body), most_bytes=MOST_ANSWER) as answer:
                refused = _refused(await answer.body())
        except HttpFailure as failure:
            reason = failure.sentence(self._collector.name)
            if not isinstance(failure, StatusFailure) or failure.status in AGAIN:
                self._is_away = True
                raise CollectorAway(reason) from None
            message = "the collector refuses traces: is it OTLP over HTTP, and are LONGHOUSE_OTLP_HEADERS right?"
            if not self._is_refused:
                log.warning("traces_refused", message=message, spans=len(spans), reason=reason)
            refused = len(spans)
        await self._answered()
        self._is_refused = refused == len(spans)
        self.spans.refused += refused
        self.spans.sent += len(spans) - refused

    async def _answered(self) -> None:
        """Tells what is not sent any more, if the collector was away for too long."""
        now = clock.now()
        until = now - self.recent
        if self._is_away and until > self._answered_at:
            missed = await projections.missed(self._db, self.name, self._answered_at - self.recent, until)
            if missed:
                message = f"the collector was away for more than {self.recent}: turns that ended before are not sent"
                away = round((now - self._answered_at).total_seconds())
                log.warning("traces_missed", message=message, turns=missed, seconds=away)
                self.spans.missed_turns += missed
        self._is_away, self._answered_at = False, now


@asynccontextmanager
async def open_collector(url: str, headers: str = "") -> AsyncIterator[Endpoint]:
    """The collector at this URL; `headers` as in OTEL_EXPORTER_OTLP_HEADERS: `name=value`, separated by commas."""
    async with open_endpoint(url, whose="the collector's", within=SENT_WITHIN) as endpoint:
        path = () if endpoint.url.path.rstrip("/").endswith("/".join(PATH)) else PATH
        given = dict(_parsed(headers))
        # A collector that repeats a key in its refusal does not bring it into the log.
        hidden = redaction_of([*endpoint.redaction.values, *given.values()], "[secret]")
        yield replace(endpoint.at(*path, headers=given), redaction=hidden)


async def problem_of(collector: Endpoint) -> str:
    """Why the collector would not take traces now, by sending it none; empty if it would."""
    try:
        async with collector.post(msgspec.json.encode({"resourceSpans": []}), most_bytes=MOST_ANSWER) as answer:
            await answer.body()
    except HttpFailure as failure:
        return failure.sentence(collector.name)
    return ""


def _parsed(headers: str) -> Iterator[tuple[str, str]]:
    for one in filter(None, map(str.strip, headers.split(","))):
        name, is_there, value = one.partition("=")
        name, value = name.strip(), unquote(value.strip())
        is_name = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        if not is_there or not is_name or not can_be_sent(value):
            raise SetupError("LONGHOUSE_OTLP_HEADERS should be name=value, several with commas between them.")
        yield name, value


def _refused(answer: bytes) -> int:
    """How many spans the collector says that it did not take."""
    try:
        found = msgspec.json.decode(answer or b"{}", type=dict[str, Any]).get("partialSuccess") or {}
        return int(found.get("rejectedSpans") or 0)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return 0


def _encoded(trace_id: str, span: Span) -> dict[str, Any]:
    about = {**span.attributes, "error.type": span.error} if span.error else span.attributes
    parent = {"parentSpanId": span.parent} if span.parent else {}
    return {
        "traceId": trace_id,
        "spanId": span.id,
        **parent,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": _nanoseconds(span.began),
        "endTimeUnixNano": _nanoseconds(max(span.began, span.ended)),
        "attributes": _attributes(about),
        "events": [
            {"timeUnixNano": _nanoseconds(one.at), "name": one.name, "attributes": _attributes(one.attributes)}
            for one in span.moments
        ],
        "status": {"code": 2, "message": span.error} if span.error else {},
    }


def _attributes(values: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Value) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case tuple():
            return {"arrayValue": {"values": [_value(one) for one in value]}}


def _nanoseconds(at: datetime) -> str:
    return str((at - _EPOCH) // timedelta(microseconds=1) * 1000)
