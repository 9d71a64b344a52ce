"""The spans of turns whose journals are written by hand: every end, and what is no step."""

from datetime import timedelta

from longhouse import tracing
from longhouse.integrations.spans import Span, spans_of, title_spans_of
from longhouse.journal import events
from longhouse.journal.events import Fault, Recorded, ReplyTo, Usage
from longhouse.store.projections import ProjectionRow
from server_helpers import BEGAN, returned, started, used

ROW = ProjectionRow("s", "ann", "c", "root", "clerk", "", 100)
PROMPT = events.Prompted(trace="a" * 32, content=("canary",))


def turn(*new: events.Event, prompted: events.Prompted = PROMPT) -> list[Span]:
    """The spans of a turn with these events, one each second, whose prompt is the event 2."""
    told = [
        Recorded(seq=3 + nth, at=BEGAN + timedelta(seconds=nth), event=event, worker="w")
        for nth, event in enumerate([started(2), *new])
    ]
    return spans_of(ROW, prompted, told, "")


def seconds(span: Span) -> tuple[float, float]:
    return (span.began - BEGAN).total_seconds(), (span.ended - BEGAN).total_seconds()


def test_a_turn_that_has_not_ended_has_no_spans() -> None:
    assert turn() == turn(events.Replied(), used("1-action-0")) == []


def test_a_summary_is_a_model_call_of_its_turn_and_no_step() -> None:
    spent = Usage(prompt_tokens=5, completion_tokens=2)
    whole, step, chat, summary = turn(
        events.Condensed(upto=1, summary="canary", usage=spent),
        events.Replied(text="canary", model="m", usage=spent, attempts=2),
        events.Finished(answer="canary"),
    )
    assert (summary.parent, summary.attributes["longhouse.purpose"], seconds(summary)) == (whole.id, "summary", (0, 1))
    assert (step.name, step.parent, chat.parent) == ("step 1", whole.id, step.id)
    assert (chat.name, chat.attributes["longhouse.failed_attempts"], seconds(chat)) == ("chat m", 2, (1, 2))
    assert whole.attributes["gen_ai.usage.input_tokens"] == 10
    assert (whole.error, seconds(whole)) == ("", (0, 3))


def test_a_title_is_a_model_call_after_its_turn_and_is_there_only_if_the_model_was_asked() -> None:
    spent = Usage(prompt_tokens=5, completion_tokens=2, total_tokens=7)
    for one, count in (
        (events.Spent(usage=spent, reason="title", title="canary"), 1),
        (events.Spent(usage=spent, reason="title", title=""), 1),
        (events.Spent(usage=Usage(), reason="title", title=""), 0),
    ):
        happened: list[events.Event] = [started(2), events.Finished(answer="canary"), one]
        told = [
            Recorded(seq=3 + nth, at=BEGAN + timedelta(seconds=nth), event=event, worker="w")
            for nth, event in enumerate(happened)
        ]
        spans = title_spans_of(ROW, 2, told)
        assert len(spans) == count
        for span in spans:
            assert (span.id, span.parent) == (tracing.title_span("s", 2), tracing.turn_span("s", 2))
            assert (span.attributes["longhouse.purpose"], seconds(span)) == ("title", (1, 2))
            assert span.attributes["gen_ai.usage.input_tokens"] == 5
        assert "canary" not in repr(spans)


def test_a_turn_that_is_cancelled_ends_what_it_waited_for() -> None:
    fault = Fault(code="cancelled", message="canary")
    whole, _, _, call, open_call = turn(
        events.Replied(),
        used("1-action-0"),
        used("1-action-1"),
        events.Returned(call="1-action-0", outcome=fault),
        events.Cancelled(trace="t", by="canary"),
    )
    assert (whole.error, whole.attributes["longhouse.state"]) == ("cancelled", "CANCELLED")
    assert (call.error, seconds(call)) == ("cancelled", (2, 4))
    assert (open_call.error, seconds(open_call)) == ("", (3, 5))


def test_the_call_of_which_a_turn_has_failed_is_there() -> None:
    whole, *_, step, chat = turn(
        events.Replied(), used("1-action-0"), returned("1-action-0"),
        events.Failed(reason="canary", code="provider_error"),
    )  # fmt: skip
    assert (whole.error, step.error, chat.error) == ("provider_error",) * 3
    assert chat.id == tracing.chat_span("s", 2, 1), "the one that the model's endpoint was told"
    assert (step.parent, chat.parent, seconds(chat)) == (whole.id, step.id, (3, 4))


def test_a_sub_agent_belongs_to_the_call_that_asked_for_it() -> None:
    asked = events.Prompted(
        trace="a" * 32, content=("canary",), depth=1, root="r", reply_to=ReplyTo(session="r", call="1-action-0")
    )
    whole, *_ = turn(events.Finished(answer="canary"), prompted=asked)
    assert whole.parent == tracing.call_span("r", "1-action-0")
    assert "canary" not in repr(turn(events.Failed(reason="canary", code="x"), prompted=asked))
