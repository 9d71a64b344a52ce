"""A window within its budget: what is left out, what never is, and that it comes out the same every time."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhouse.agents.requests import tokens, window
from longhouse.agents.template import LLMPolicy, PromptPack, Template, ToolPolicy
from longhouse.journal import events
from longhouse.journal.messages import Assistant, ImagePart, ImageUrl, Message, System, TextPart, ToolResult, User
from longhouse.journal.session import Session
from longhouse.journal.transcript import Step
from server_helpers import folded, opened, prompted, returned, started, turn_of, used

BUDGET = 2_000


def template_of(budget: int = BUDGET) -> Template:
    pack = PromptPack(system_prompt="Be kind.")
    return Template(
        name="t", tool_policy=ToolPolicy(allowlist=()), prompt_pack=pack, llm_policy=LLMPolicy(context_tokens=budget)
    )


def begun(text: str = "Go", *, session: Session | None = None, trace: str = "t") -> Session:
    session = session or folded(opened())
    session = folded(prompted(text, trace=trace), session=session)
    return folded(started(session.head, trace=trace), session=session)


def stepped(session: Session, *results: str, tool: str = "clocktool", effect: events.Effect = "read") -> Session:
    """One more reply with so many calls, all of them returned."""
    assert session.turn is not None
    ids = [f"{session.iteration + 1}-action-{n}" for n in range(len(results))]
    session = folded(events.Replied(), *(used(id_, tool=tool, effect=effect) for id_ in ids), session=session)
    return folded(*(returned(id_, text) for id_, text in zip(ids, results, strict=True)), session=session)


def composed(session: Session, budget: int = BUDGET) -> list[Message]:
    return [*window.compose(session, turn_of(session), template_of(budget), [], {})]


def results(messages: Sequence[Message]) -> list[str]:
    return [message.content for message in messages if isinstance(message, ToolResult)]


def is_stub(text: str) -> bool:
    return text.startswith("[result of ")


def test_a_transcript_within_its_budget_is_shown_as_it_is() -> None:
    session = stepped(begun(), "a" * 3_000, "b" * 3_000)
    assert results(composed(session)) == ["a" * 3_000, "b" * 3_000]


def test_the_oldest_results_become_stubs_until_there_is_room_again() -> None:
    session = begun()
    for letter in "abcd":
        session = stepped(session, letter * 2_000)
    shown = composed(session)
    stub = "[result of clocktool left out: 2000 characters; call it again if you need it]"
    assert results(shown) == [stub, stub, "c" * 2_000, "d" * 2_000]
    assert tokens.total(shown) <= window.ROOM * BUDGET


def test_results_that_have_not_led_to_anything_are_never_left_out() -> None:
    session = stepped(begun(), "old" * 1_000)
    session = stepped(session, "x" * 9_000, "y" * 9_000)
    first, *last = results(composed(session))
    assert is_stub(first)
    assert last == ["x" * 9_000, "y" * 9_000]


def test_a_thought_about_results_does_not_make_them_old() -> None:
    session = stepped(stepped(begun(), "old" * 1_000), "x" * 9_000)
    thought = (events.Replied(), used("3-reasoning", tool="reasoningtool"), returned("3-reasoning", "r" * 900))
    session = folded(*thought, session=session)
    assert [is_stub(result) for result in results(composed(session))] == [True, False, False]


def test_a_new_turn_makes_the_results_of_the_last_one_old() -> None:
    session = folded(events.Finished(answer="."), session=stepped(begun(), "x" * 9_000))
    session = begun("Next", session=session, trace="t2")
    assert [is_stub(result) for result in results(composed(session))] == [True]


def test_what_has_an_effect_is_not_to_be_called_again_for_its_result() -> None:
    session = stepped(begun(), "x" * 9_000, tool="pay", effect="once")
    session = stepped(session, "ok")
    shown = window.compose(session, turn_of(session), template_of(), [], {"pay": "pay_1"})
    assert results(shown) == ["[result of pay_1 left out: 9000 characters]", "ok"]


def test_short_results_questions_and_words_stay() -> None:
    question = "Which? " * 200
    ask = used("1-action-0", tool="clarificationtool", call_kind="ask", question=question)
    session = folded(events.Replied(text="w" * 900), ask, returned("1-action-0", "Oslo " * 200), session=begun())
    session = stepped(stepped(session, "short", "x" * 9_000), "ok")
    shown = composed(session)
    assert results(shown)[:2] == [question, "short"]
    assert is_stub(results(shown)[2])
    assert User(content="Oslo " * 200) in shown
    assert any(isinstance(message, Assistant) and message.content == "w" * 900 for message in shown)


def test_history_is_shown_whole_to_people() -> None:
    session = stepped(stepped(begun(), "x" * 9_000), "y" * 9_000)
    assert results(list(window.history(session, template_of()))) == ["x" * 9_000, "y" * 9_000]


@pytest.mark.parametrize(
    ("text", "least", "most"), [("a" * 400, 100, 100), ("ж" * 400, 200, 200), ("語" * 400, 300, 300), ("", 0, 0)]
)
def test_other_scripts_weigh_more_than_english(text: str, least: int, most: int) -> None:
    assert least <= tokens.estimate(text) <= most


def test_calls_and_images_have_their_price() -> None:
    picture = ImagePart(image_url=ImageUrl(url="longhouse-file:ab"))
    assert tokens.of(User(content=(TextPart(text="four"), picture))) == tokens.MESSAGE + 1 + tokens.IMAGE
    step = composed(stepped(begun(), "ok"))
    assert tokens.of(step[2]) > tokens.of(Assistant(content=""))
    assert tokens.total(step) == sum(tokens.of(message) for message in step)


texts = st.one_of(
    st.text(max_size=50),
    st.builds(lambda unit, times: unit * times, st.sampled_from(["a", "ж", "語", "ok "]), st.integers(0, 4_000)),
)
steps = st.lists(texts, min_size=0, max_size=3)
turns = st.lists(st.lists(steps, min_size=1, max_size=6), min_size=1, max_size=3)


def lives(turns: list[list[list[str]]]) -> list[Session]:
    """The session at each moment at which a request is made."""
    session, moments = folded(opened()), []
    for nth, turn in enumerate(turns):
        session = begun(f"Task {nth}", session=session, trace=f"t{nth}")
        moments.append(session)
        for step in turn:
            session = stepped(session, *step)
            moments.append(session)
        session = folded(events.Finished(answer="."), session=session)
    return moments


@settings(max_examples=60, deadline=None)
@given(turns, st.integers(200, 6_000))
def test_a_window_is_within_its_budget_wherever_stubs_can_make_it_so(turns: list[list[list[str]]], budget: int) -> None:
    for session in lives(turns):
        shown = composed(session, budget)
        if tokens.total(shown) > budget:
            old = results(shown)[: -len(last_results(session)) or None]
            assert all(is_stub(result) or len(result) < window.LEAST for result in old)


def last_results(session: Session) -> list[str]:
    """What the last steps of this turn brought: a step without calls is only a thought about it."""
    for entry in reversed(session.transcript):
        if not isinstance(entry, Step):
            return []
        if entry.uses:
            return [use.call for use in entry.uses]
    return []


@settings(max_examples=60, deadline=None)
@given(turns, st.integers(200, 6_000))
def test_calls_and_results_stay_in_pairs_and_nothing_else_changes(turns: list[list[list[str]]], budget: int) -> None:
    for session in lives(turns):
        shown, whole = composed(session, budget), [*window.history(session, template_of())]
        assert isinstance(shown[0], System)
        assert len(shown) == 1 + len(whole)
        for here, there in zip(shown[1:], whole, strict=True):
            if isinstance(there, ToolResult):
                assert isinstance(here, ToolResult)
                assert here.tool_call_id == there.tool_call_id
                assert here == there or is_stub(here.content)
            else:
                assert here == there


@settings(max_examples=60, deadline=None)
@given(turns, st.integers(200, 6_000))
def test_each_request_begins_as_the_one_before_unless_a_cut_was_due(turns: list[list[list[str]]], budget: int) -> None:
    before: list[Message] = []
    for session in lives(turns):
        shown = composed(session, budget)
        grown = [*before, *shown[len(before) :]]
        if tokens.total(grown) <= budget:
            assert shown == grown
        else:
            stubs = sum(map(is_stub, results(before)))
            # A cut only moves on: what was left out stays out, and what is left out now is the next oldest.
            assert sum(map(is_stub, results(shown))) >= stubs
        before = shown


def test_after_a_cut_many_steps_begin_alike() -> None:
    session, before, cuts = begun(), list[Message](), 0
    for _ in range(200):
        session = stepped(session, "x" * 500)
        shown = composed(session, 8_000)
        cuts += shown[: len(before)] != before
        before = shown
    assert 1 <= cuts <= 12


@settings(max_examples=30, deadline=None)
@given(turns, st.integers(200, 6_000))
def test_a_session_read_from_its_snapshot_is_shown_in_the_same_bytes(turns: list[list[list[str]]], budget: int) -> None:
    session = lives(turns)[-1]
    again = msgspec.json.decode(msgspec.json.encode(session), type=Session)
    assert msgspec.json.encode(composed(again, budget)) == msgspec.json.encode(composed(session, budget))


def test_a_prompt_that_waited_is_not_condensed_with_the_turn_before_it() -> None:
    session = folded(prompted("Later", trace="t2"), session=begun("First"))
    waiting = session.queue[0].seq
    session = folded(events.Replied(text="Done."), events.Finished(answer="Done."), session=session)
    last = session.transcript[-1].seq
    session = folded(started(waiting, trace="t2"), events.Condensed(upto=last, summary="s"), session=session)
    assert [message.content for message in composed(session)[1:]] == [
        "Summary of the conversation so far:\ns", "Later",
    ]  # fmt: skip
