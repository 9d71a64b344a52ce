"""Trace contexts of requests, and ids that every process derives alike."""

import pytest

from longhouse import tracing
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
