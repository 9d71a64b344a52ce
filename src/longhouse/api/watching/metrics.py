"""Prometheus metrics: requests, what agents, schedules and webhooks did, sessions, workers, event loop, memory, bus."""

from collections import Counter as Tally
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from longhouse.activity import ActivityCounts
from longhouse.api.watching.activity_metrics import metrics_of
from longhouse.integrations.otlp import SentSpans
from longhouse.memory.parts import MemoryCounts, MemoryParts
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.workers.instances import Instance, InstanceStatus
from longhouse.store.automation.schedules import RunState
from longhouse.store.database import PASSING, within
from longhouse.store.lists.fleet import FleetCounts

COUNTED_WITHIN: Final = 2.0
"""Seconds; the page comes without these numbers when Postgres is away."""


class Metrics:
    def __init__(
        self,
        busy: Callable[[], int],
        instances: Callable[[], Iterable[Instance]],
        refused: Callable[[], Mapping[str, int]] = dict,
        blocked: Callable[[], tuple[int, float]] = lambda: (0, 0.0),
        left_behind: Callable[[], int] = int,
        *,
        processes: Callable[[], tuple[int, Mapping[str, int]]] = lambda: (0, {}),
        from_memory: Callable[[], Mapping[str, int]] = dict,
        memory: MemoryParts | None = None,
        bus: Bus | None = None,
        fleet: Callable[[], Coroutine[Any, Any, FleetCounts]] | None = None,
        takeovers: Callable[[], int] = int,
        webhooks: Callable[[], Mapping[str, int]] = dict,
        database_retries: Callable[[], int] = int,
        connections: Callable[[], tuple[int, int]] = lambda: (0, 0),
        lag: Callable[[], float] = float,
        activity: ActivityCounts | None = None,
        spans: SentSpans | None = None,
    ) -> None:
        """`blocked`: how often the event loop was blocked, and for how many seconds in total. `processes`: the number
        of tool processes, and of those that ended in a call, by cause. `connections`: those to Postgres, and how many
        of them are idle."""
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = Counter(
            "longhouse_requests", "HTTP requests answered", ["method", "route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "longhouse_request_first_byte_seconds", "Time to the headers", ["route"], registry=self._registry
        )
        self._scheduled: Tally[RunState] = Tally()
        self._busy = busy
        self._instances = instances
        self._refused = refused
        self._blocked = blocked
        self._left_behind = left_behind
        self._processes = processes
        self._from_memory = from_memory
        self._memory = memory
        self._counts: MemoryCounts | None = None
        self._bus = bus
        self._fleet = fleet
        self._of_all: FleetCounts | None = None
        self._is_database_there = True
        self._takeovers = takeovers
        self._webhooks = webhooks
        self._database_retries = database_retries
        self._connections = connections
        self._lag = lag
        self._activity = activity or ActivityCounts()
        self._spans = spans or SentSpans()
        self._registry.register(self)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def scheduled(self, state: RunState, moments: int) -> None:
        self._scheduled[state] += moments

    def collect(self) -> Iterator[Metric]:
        """The current values, computed at each scrape."""
        about = "Sessions that this process is advancing"
        yield GaugeMetricFamily("longhouse_sessions_busy", about, value=self._busy())
        warm = GaugeMetricFamily("longhouse_instances", "Instances by status", labels=["status"])
        tally = Tally(instance.status for instance in self._instances())
        for status in InstanceStatus:
            warm.add_metric([status], tally[status])
        yield warm
        yield from self._of_calls()
        yield from self._of_event_loop()
        yield from self._of_processes()
        about = "Sessions that this process has taken over from runs that were lost"
        yield CounterMetricFamily("longhouse_takeovers", about, value=self._takeovers())
        about = "Moments of schedules, by what became of them"
        scheduled = CounterMetricFamily("longhouse_schedule_runs", about, labels=["state"])
        for state in get_args(RunState):
            scheduled.add_metric([state], self._scheduled[state])
        yield scheduled
        yield from self._of_database()
        about = "Attempts of this process to send an event to a webhook"
        attempts = CounterMetricFamily("longhouse_webhook_deliveries", about, labels=["outcome"])
        for outcome, number in self._webhooks().items():
            attempts.add_metric([outcome], number)
        yield attempts
        spans = CounterMetricFamily("longhouse_trace_spans", "Spans sent to the collector", labels=["outcome"])
        spans.add_metric(["sent"], self._spans.sent)
        spans.add_metric(["refused"], self._spans.refused)
        yield spans
        about = "Turns that ended too long before the collector was back to be sent"
        yield CounterMetricFamily("longhouse_trace_turns_missed", about, value=self._spans.missed_turns)
        yield from metrics_of(self._activity)
        yield from self._of_bus()
        if self._of_all:
            yield from self._of_fleet(self._of_all)
        yield from self._of_memory()

    def _of_calls(self) -> Iterator[Metric]:
        refused = CounterMetricFamily("longhouse_calls_refused", "Calls of agents that were not made", labels=["code"])
        for code, times in self._refused().items():
            refused.add_metric([code], times)
        yield refused
        about = "Calls of tools that were answered from memory"
        answered = CounterMetricFamily("longhouse_calls_from_memory", about, labels=["tool"])
        for tool, count in self._from_memory().items():
            answered.add_metric([tool], count)
        yield answered
        about = "Calls of tools that go on although their time is up"
        yield GaugeMetricFamily("longhouse_calls_left_behind", about, value=self._left_behind())

    def _of_event_loop(self) -> Iterator[Metric]:
        times, seconds = self._blocked()
        yield CounterMetricFamily("longhouse_event_loop_blocked", "Times that the event loop stood still", value=times)
        yield CounterMetricFamily(
            "longhouse_event_loop_blocked_seconds", "Seconds that the event loop stood still", value=seconds
        )
        about = "Seconds by which the event loop came late to a task of every quarter of a second"
        yield GaugeMetricFamily("longhouse_event_loop_lag_seconds", about, value=self._lag())

    def _of_database(self) -> Iterator[Metric]:
        about = "Whether Postgres answered within two seconds just now"
        yield GaugeMetricFamily("longhouse_database_reachable", about, value=int(self._is_database_there))
        about = "Times that a statement was tried again because Postgres could not be reached"
        yield CounterMetricFamily("longhouse_database_retries", about, value=self._database_retries())
        size, idle = self._connections()
        connections = GaugeMetricFamily("longhouse_database_connections", "Connections to Postgres", labels=["state"])
        connections.add_metric(["used"], size - idle)
        connections.add_metric(["idle"], idle)
        yield connections

    def _of_processes(self) -> Iterator[Metric]:
        running, ended = self._processes()
        yield GaugeMetricFamily("longhouse_tool_processes", "Processes in which tools run", value=running)
        about = "Processes of tools that ended in the middle of a call"
        causes = CounterMetricFamily("longhouse_tool_processes_ended", about, labels=["cause"])
        for cause, times in ended.items():
            causes.add_metric([cause], times)
        yield causes

    def _of_fleet(self, found: FleetCounts) -> Iterator[Metric]:
        yield GaugeMetricFamily("longhouse_workers", "Workers that are alive", value=found.workers)
        about = "Sessions that these workers can advance at once"
        yield GaugeMetricFamily("longhouse_worker_slots", about, value=found.slots)
        about = "Sessions that could go on and that no worker has taken"
        yield GaugeMetricFamily("longhouse_sessions_without_worker", about, value=found.without_worker)
        about = "Seconds that the first of them has waited"
        yield GaugeMetricFamily("longhouse_oldest_runnable_seconds", about, value=found.oldest_runnable)
        states = GaugeMetricFamily("longhouse_sessions", "Sessions that have not ended, by state", labels=["state"])
        for state, number in found.states.items():
            states.add_metric([state], number)
        yield states
        about = "Sessions that ask a person something"
        yield GaugeMetricFamily("longhouse_open_questions", about, value=found.asking)
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

    def _of_bus(self) -> Iterator[Metric]:
        if self._bus and (relay := self._bus.relay):
            about = "Whether hints go to the other processes"
            yield GaugeMetricFamily("longhouse_bus_connected", about, value=int(relay.is_connected))
            about = "Times that the connection of the bus was lost and is there again"
            yield CounterMetricFamily("longhouse_bus_reconnects", about, value=max(0, relay.reconnects))

    def _of_memory(self) -> Iterator[Metric]:
        if self._memory and (behind := self._memory.sessions_behind) is not None:
            about = "Sessions with events that the ledger lacked when it last looked"
            yield GaugeMetricFamily("longhouse_ledger_sessions_behind", about, value=behind)
        if self._counts is None:
            return
        documents = GaugeMetricFamily("longhouse_documents", "Documents that agents can read", labels=["shared"])
        documents.add_metric(["false"], self._counts.own_documents)
        documents.add_metric(["true"], self._counts.shared_documents)
        yield documents
        about, without = "Passages that are found by words alone", self._counts.passages_without_vectors
        yield GaugeMetricFamily("longhouse_passages_without_vectors", about, value=without)

    async def page(self) -> bytes:
        self._counts, self._of_all, self._is_database_there = None, None, False
        with suppress(*PASSING):
            self._counts, self._of_all = await within(COUNTED_WITHIN, self._counted())
            self._is_database_there = True
        return generate_latest(self._registry)

    async def _counted(self) -> tuple[MemoryCounts | None, FleetCounts | None]:
        fleet = await self._fleet() if self._fleet else None
        return await self._memory.counts() if self._memory else None, fleet
