"""What agents have done, as Prometheus metrics by template and owner."""

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from longhouse.activity import BOUNDS, ActivityCounts, Durations, Who

WHO = ("template", "owner")
_LIMITS = [*map(floatToGoString, BOUNDS), "+Inf"]


def metrics_of(activity: ActivityCounts) -> Iterator[Metric]:
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
