"""Trace contexts of requests, and ids that every process derives alike."""

import pytest

from longhouse import tracing
from longhouse.errors import SetupError
from longhouse.integrations.otlp import open_collector
from longhouse.settings import Settings
from longhouse.tracing import Tracing

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        (f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01"),
        (f" 00-{TRACE}-{SPAN}-00 ", f"00-{TRACE}-{SPAN}-00"),
        (f"00-{TRACE}-{SPAN}-ff", f"00-{TRACE}-{SPAN}-01"),
        (f"cc-{TRACE}-{SPAN}-03-what-comes-later", f"00-{TRACE}-{SPAN}-01"),
        (f"00-{TRACE}-{SPAN}-01-more", ""),
        (f"ff-{TRACE}-{SPAN}-01", ""),
        (f"00-{'0' * 32}-{SPAN}-01", ""),
        (f"00-{TRACE}-{'0' * 16}-01", ""),
        (f"00-{TRACE.upper()}-{SPAN}-01", ""),
        (f"00-{TRACE}-{SPAN}-01\r\nX-Evil: 1", ""),
        ("٠٠-" + f"{TRACE}-{SPAN}-01", ""),
        ("x" * 100_000, ""),
        ("", ""),
        (None, ""),
    ],
)
def test_only_a_valid_context_is_taken_over(header: str | None, accepted: str) -> None:
    assert tracing.accepted(header) == accepted


def test_ids_are_derived_and_differ() -> None:
    spans = [
        tracing.turn_span("s", 2),
        tracing.step_span("s", 2, 0),
        tracing.step_span("s", 2, 1),
        tracing.step_span("s", 21, 0),
        tracing.chat_span("s", 2, 0),
        tracing.call_span("s", "1-action-0"),
        tracing.call_span("Город-雨-\ud800", "1-action-0"),
        tracing.summary_span("s", 2),
        tracing.title_span("s", 2),
    ]
    assert len(set(spans)) == len(spans)
    assert all(len(span) == 16 and int(span, 16) for span in spans)
    assert spans[0] == "3b5bcb29735cd49f", "of every release: the spans of one turn come from processes of two"


def test_a_share_of_turns_is_traced_and_the_client_has_the_last_word() -> None:
    all_of_them, none = Tracing(1.0), Tracing(0.0)
    assert all_of_them.context("", "f" * 32).sampled
    assert not none.context("", "1" * 32).sampled
    assert none.context(f"00-{TRACE}-{SPAN}-01", "x").sampled
    context = all_of_them.context(f"00-{TRACE}-{SPAN}-00", "x")
    assert (context.trace_id, context.parent, context.sampled) == (TRACE, SPAN, False)
    assert context.header("1" * 16) == f"00-{TRACE}-{'1' * 16}-00"
    half = Tracing(0.5)
    assert [half.context("", f"{'a' * 16}{one * 16}").sampled for one in "07f"] == [True, True, False]
    assert half.context("", "t1").trace_id == half.context("", "t1").trace_id != half.context("", "t2").trace_id


def test_a_context_is_sent_within_its_block_alone() -> None:
    assert tracing.sent() == {}
    with Tracing().sending("", TRACE, SPAN):
        assert tracing.sent() == {"traceparent": f"00-{TRACE}-{SPAN}-01"}
    assert tracing.sent() == {}


def test_the_variables_of_other_programs_are_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().otlp_endpoint is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=k")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "theirs")
    settings = Settings()
    assert (settings.otlp_endpoint, settings.service_name) == ("http://collector:4318", "theirs")
    assert settings.otlp_headers.get_secret_value() == "x-key=k"
    monkeypatch.setenv("LONGHOUSE_OTLP_ENDPOINT", "")
    monkeypatch.setenv("LONGHOUSE_SERVICE_NAME", "ours")
    assert (Settings().otlp_endpoint, Settings().service_name) == (None, "ours"), "ours wins, and can switch it off"


@pytest.mark.parametrize("headers", ["canary", "ключ=canary", "x key=canary", "k=canary%0d%0aX: 1", "=canary"])
async def test_headers_that_cannot_be_sent_are_refused_at_the_start(headers: str) -> None:
    with pytest.raises(SetupError, match="LONGHOUSE_OTLP_HEADERS should be name=value") as refused:
        async with open_collector("http://127.0.0.1:4318", headers):
            pass
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:4318", "http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"])
async def test_a_collector_is_named_with_or_without_the_path(url: str) -> None:
    async with open_collector(url, "authorization=Bearer%20canary-key") as collector:
        assert str(collector.url) == "http://127.0.0.1:4318/v1/traces"
        assert collector.headers["authorization"] == "Bearer canary-key"
        assert collector.redaction.hide("no such key: canary-key") == "no such key: [secret]"
