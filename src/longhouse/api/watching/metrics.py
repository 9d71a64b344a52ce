"""Prometheus metrics: requests, what agents, schedules and webhooks did, sessions, workers, event loop, memory, bus."""

from collections import Counter as Tally
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from itertools import accumulate
from typing import Any, Final, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.utils import floatToGoString

from longhouse.activity import BOUNDS, ActivityCounts, Durations, Who
from longhouse.integrations.otlp import SentSpans
from longhouse.memory.parts import MemoryCounts, MemoryParts
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.workers.instances import Instance, InstanceStatus
from longhouse.store.automation.schedules import RunState
from longhouse.store.database import PASSING, within
from longhouse.store.lists.fleet import FleetCounts

COUNTED_WITHIN: Final = 2.0
"""Seconds; the page comes without these numbers when Postgres is away."""
WHO: Final = ("template", "owner")
_LIMITS: Final = [*map(floatToGoString, BOUNDS), "+Inf"]


@dataclass(eq=False)
class Metrics:
    """The metrics of a process; what it is made of is asked for at each scrape."""

    busy: Callable[[], int]
    instances: Callable[[], Iterable[Instance]]
    refused: Callable[[], Mapping[str, int]] = dict
    blocked: Callable[[], tuple[int, float]] = lambda: (0, 0.0)
    """How often the event loop was blocked, and for how many seconds in total."""
    left_behind: Callable[[], int] = int
    _: KW_ONLY
    processes: Callable[[], tuple[int, Mapping[str, int]]] = lambda: (0, {})
    """The number of tool processes, and of those that ended in a call, by cause."""
    from_memory: Callable[[], Mapping[str, int]] = dict
    memory: MemoryParts | None = None
    bus: Bus | None = None
    fleet: Callable[[], Coroutine[Any, Any, FleetCounts]] | None = None
    takeovers: Callable[[], int] = int
    webhooks: Callable[[], Mapping[str, int]] = dict
    database_retries: Callable[[], int] = int
    connections: Callable[[], tuple[int, int]] = lambda: (0, 0)
    """Those to Postgres, and how many of them are idle."""
    lag: Callable[[], float] = float
    activity: ActivityCounts = field(default_factory=ActivityCounts)
    spans: SentSpans | None = None

    def __post_init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = Counter(
            "longhouse_requests", "HTTP requests answered", ["method", "route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "longhouse_request_first_byte_seconds", "Time to the headers", ["route"], registry=self._registry
        )
        self._scheduled: Tally[RunState] = Tally()
        self._counts: MemoryCounts | None = None
        self._of_all: FleetCounts | None = None
        self._is_database_there = True
        self._registry.register(self)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def scheduled(self, state: RunState, moments: int) -> None:
        self._scheduled[state] += moments

    def collect(self) -> Iterator[Metric]:
        """The current values, computed at each scrape."""
        yield GaugeMetricFamily("longhouse_sessions_busy", "Sessions that this process is advancing", value=self.busy())
        tally = Tally(instance.status for instance in self.instances())
        warm = {status: tally[status] for status in InstanceStatus}
        yield _by(GaugeMetricFamily, "longhouse_instances", "Instances by status", "status", warm)
        yield from self._of_calls()
        yield from self._of_event_loop()
        yield from self._of_processes()
        about = "Sessions that this process has taken over from runs that were lost"
        yield CounterMetricFamily("longhouse_takeovers", about, value=self.takeovers())
        about = "Moments of schedules, by what became of them"
        moments = {state: self._scheduled[state] for state in get_args(RunState)}
        yield _by(CounterMetricFamily, "longhouse_schedule_runs", about, "state", moments)
        yield from self._of_database()
        about = "Attempts of this process to send an event to a webhook"
        yield _by(CounterMetricFamily, "longhouse_webhook_deliveries", about, "outcome", self.webhooks())
        yield from self._of_traces(self.spans or SentSpans())
        yield from _of_activity(self.activity)
        yield from self._of_bus()
        if self._of_all:
            yield from _of_fleet(self._of_all)
        yield from self._of_memory()

    def _of_calls(self) -> Iterator[Metric]:
        about = "Calls of agents that were not made"
        yield _by(CounterMetricFamily, "longhouse_calls_refused", about, "code", self.refused())
        about = "Calls of tools that were answered from memory"
        yield _by(CounterMetricFamily, "longhouse_calls_from_memory", about, "tool", self.from_memory())
        about = "Calls of tools that go on although their time is up"
        yield GaugeMetricFamily("longhouse_calls_left_behind", about, value=self.left_behind())

    def _of_event_loop(self) -> Iterator[Metric]:
        times, seconds = self.blocked()
        yield CounterMetricFamily("longhouse_event_loop_blocked", "Times that the event loop stood still", value=times)
        yield CounterMetricFamily(
            "longhouse_event_loop_blocked_seconds", "Seconds that the event loop stood still", value=seconds
        )
        about = "Seconds by which the event loop came late to a task of every quarter of a second"
        yield GaugeMetricFamily("longhouse_event_loop_lag_seconds", about, value=self.lag())

    def _of_database(self) -> Iterator[Metric]:
        about = "Whether Postgres answered within two seconds just now"
        yield GaugeMetricFamily("longhouse_database_reachable", about, value=self._is_database_there)
        about = "Times that a statement was tried again because Postgres could not be reached"
        yield CounterMetricFamily("longhouse_database_retries", about, value=self.database_retries())
        size, idle = self.connections()
        about, connections = "Connections to Postgres", {"used": size - idle, "idle": idle}
        yield _by(GaugeMetricFamily, "longhouse_database_connections", about, "state", connections)

    def _of_processes(self) -> Iterator[Metric]:
        running, ended = self.processes()
        yield GaugeMetricFamily("longhouse_tool_processes", "Processes in which tools run", value=running)
        about = "Processes of tools that ended in the middle of a call"
        yield _by(CounterMetricFamily, "longhouse_tool_processes_ended", about, "cause", ended)

    def _of_traces(self, spans: SentSpans) -> Iterator[Metric]:
        about, outcomes = "Spans sent to the collector", {"sent": spans.sent, "refused": spans.refused}
        yield _by(CounterMetricFamily, "longhouse_trace_spans", about, "outcome", outcomes)
        about = "Turns that ended too long before the collector was back to be sent"
        yield CounterMetricFamily("longhouse_trace_turns_missed", about, value=spans.missed_turns)

    def _of_bus(self) -> Iterator[Metric]:
        if self.bus and (relay := self.bus.relay):
            yield GaugeMetricFamily(
                "longhouse_bus_connected", "Whether hints go to the other processes", value=relay.is_connected
            )
            about = "Times that the connection of the bus was lost and is there again"
            yield CounterMetricFamily("longhouse_bus_reconnects", about, value=max(0, relay.reconnects))

    def _of_memory(self) -> Iterator[Metric]:
        if self.memory and (behind := self.memory.sessions_behind) is not None:
            about = "Sessions with events that the ledger lacked when it last looked"
            yield GaugeMetricFamily("longhouse_ledger_sessions_behind", about, value=behind)
        if self._counts is None:
            return
        documents = {"false": self._counts.own_documents, "true": self._counts.shared_documents}
        yield _by(GaugeMetricFamily, "longhouse_documents", "Documents that agents can read", "shared", documents)
        about = "Passages that are found by words alone"
        yield GaugeMetricFamily(
            "longhouse_passages_without_vectors", about, value=self._counts.passages_without_vectors
        )

    async def page(self) -> bytes:
        self._counts, self._of_all, self._is_database_there = None, None, False
        with suppress(*PASSING):
            self._counts, self._of_all = await within(COUNTED_WITHIN, self._counted())
            self._is_database_there = True
        return generate_latest(self._registry)

    async def _counted(self) -> tuple[MemoryCounts | None, FleetCounts | None]:
        fleet = await self.fleet() if self.fleet else None
        return await self.memory.counts() if self.memory else None, fleet


def _of_fleet(found: FleetCounts) -> Iterator[Metric]:
    yield GaugeMetricFamily("longhouse_workers", "Workers that are alive", value=found.workers)
    yield GaugeMetricFamily(
        "longhouse_worker_slots", "Sessions that these workers can advance at once", value=found.slots
    )
    about = "Sessions that could go on and that no worker has taken"
    yield GaugeMetricFamily("longhouse_sessions_without_worker", about, value=found.without_worker)
    about = "Seconds that the first of them has waited"
    yield GaugeMetricFamily("longhouse_oldest_runnable_seconds", about, value=found.oldest_runnable)
    about = "Sessions that have not ended, by state"
    yield _by(GaugeMetricFamily, "longhouse_sessions", about, "state", found.states)
    yield GaugeMetricFamily("longhouse_open_questions", "Sessions that ask a person something", value=found.asking)
    about = "Sessions that wait for a person because a worker or a result was lost"
    yield GaugeMetricFamily("longhouse_sessions_in_doubt", about, value=found.in_doubt)
    about = "Seconds that the first schedule has waited whose moment has come"
    yield GaugeMetricFamily("longhouse_schedule_lag_seconds", about, value=found.schedule_lag)
    about = "Sessions that wait for a place under max_running, of a template or a key"
    waiting = GaugeMetricFamily("longhouse_sessions_waiting_for_place", about, labels=["limit", "name"])
    for held, number in found.waiting_for_place.items():
        limit, _, name = held.partition(":")
        waiting.add_metric([limit, name], number)
    yield waiting
    about = "Events that wait to be sent to webhooks"
    yield GaugeMetricFamily("longhouse_webhook_deliveries_pending", about, value=found.webhooks.number)
    about = "Seconds that the first of them has waited"
    yield GaugeMetricFamily("longhouse_webhook_oldest_pending_seconds", about, value=found.webhooks.oldest)


def _of_activity(activity: ActivityCounts) -> Iterator[Metric]:
    yield from _of_models(activity)
    yield from _of_tools(activity)
    yield _histogram("longhouse_turn_seconds", "Turns that have ended, from their start to their end", activity.turns)
    turns = CounterMetricFamily("longhouse_turns", "Turns by the state they left", labels=[*WHO, "state"])
    for who, ended in activity.turns.items():
        for state, number in ended.states.items():
            turns.add_metric([*who, state], number)
    yield turns


def _of_models(activity: ActivityCounts) -> Iterator[Metric]:
    yield _histogram("longhouse_model_call_seconds", "Calls of models, failed ones too", activity.models)
    errors = CounterMetricFamily("longhouse_model_errors", "Calls of models that failed", labels=WHO)
    retries = CounterMetricFamily("longhouse_model_retries", "Those that are tried again", labels=WHO)
    tokens = CounterMetricFamily("longhouse_tokens", "Tokens; those from a cache are also input", labels=[*WHO, "kind"])
    for who, calls in activity.models.items():
        errors.add_metric(who, calls.errors)
        retries.add_metric(who, calls.retries)
        for kind, number in (("input", calls.read), ("cached", calls.cached), ("output", calls.written)):
            tokens.add_metric([*who, kind], number)
    yield from (errors, retries, tokens)


def _of_tools(activity: ActivityCounts) -> Iterator[Metric]:
    yield _histogram("longhouse_tool_call_seconds", "Calls of tools that ran, failed ones too", activity.tool_calls)
    errors = CounterMetricFamily("longhouse_tool_errors", "Calls of tools that failed", labels=WHO)
    for who, calls in activity.tool_calls.items():
        errors.add_metric(who, calls.errors)
    yield errors
    by_tool = CounterMetricFamily("longhouse_tool_runs", "Calls of each tool", labels=["tool", "outcome"])
    seconds = CounterMetricFamily("longhouse_tool_run_seconds", "Seconds that each tool ran", labels=["tool"])
    for tool, calls in activity.tools.items():
        by_tool.add_metric([tool, "ok"], sum(calls.buckets) - calls.errors)
        by_tool.add_metric([tool, "failed"], calls.errors)
        seconds.add_metric([tool], calls.seconds)
    yield from (by_tool, seconds)


def _histogram(name: str, about: str, counted: Mapping[Who, Durations]) -> Metric:
    family = HistogramMetricFamily(name, about, labels=WHO)
    for who, durations in counted.items():
        family.add_metric(who, list(zip(_LIMITS, accumulate(durations.buckets), strict=True)), durations.seconds)
    return family


def _by(
    family: type[CounterMetricFamily | GaugeMetricFamily], name: str, about: str, label: str, values: Mapping[Any, int]
) -> Metric:
    """A metric with a value for each value of one label."""
    found = family(name, about, labels=[label])
    for of, number in values.items():
        found.add_metric([of], number)
    return found
