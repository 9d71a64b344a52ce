"""Words that decide, and words that do not: only what is clear in English, Russian or Chinese counts."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from longhouse import clock
from longhouse.api.sessions import decisions
from longhouse.api.sessions.waiting import Question
from longhouse.journal import events
from longhouse.journal.fold import blank
from longhouse.journal.session import Session
from longhouse.journal.words import decision_words, pending_decisions
from server_helpers import LIMITS, folded, opened, prompted, returned, used

SOON = clock.now() + timedelta(hours=1)


def begun(agent: str, *, in_chat: bool = True) -> tuple[events.Event, ...]:
    start = events.Started(
        trace="t", prompt=2, version=1, instance="i", limits=LIMITS, date="2026-01-31", approve_in_chat=in_chat
    )
    return opened(agent), prompted("Pay"), start


def waiting(*made: events.Called, agent: str = "bank", lost: bool = False, in_chat: bool = True) -> list[Question]:
    resumed = [events.Resumed(worker="w2", previous="w1")] if lost else []
    session = folded(*begun(agent, in_chat=in_chat), events.Replied(), *made, *resumed)
    return [Question(session, call) for call in session.open.values()]


def pay(call: str = "1-action-0", **extra: Any) -> events.Called:
    return used(call, tool="pay", arguments='{"to": "Bob"}', **{"approve_by": SOON, **extra})


APPROVAL, LOST = waiting(pay()), waiting(pay(approve_by=None, effect="once"), lost=True)


def decision(text: str, questions: list[Question] = APPROVAL, reply_to: str | None = None) -> str | None:
    found = decisions.read(text, questions, questions[0].session, reply_to)
    return found[1] if found else None


YES = (
    "yes", "Yes!", " YES. ", "y", "ok", "O.K.", "Okay", "\uff39\uff25\uff33\uff01", "Approve", "I approve.", "go ahead",
    "**yes**", "__yes__", "`yes`", "ye\u200bs", "yes...", "Yes… ", "(yes)", "[ok]", "– yes –", "\"yes\"",
    "Yes! Go ahead!", "yes !",
    "да", "Да.", "ДА!!", "«да»", "ок", "Одобряю", "да, согласна", "是", "是的。", "好", "好的！",
    "да)", "可以", "同意", "「好」", "《可以》", "好～", "(是)", "好、", "„да“", "да — согласен", "批准", "確認",
)  # fmt: skip
NO = (
    "no", "No.", "NO!", "n", "Deny", "reject it", "don't", "Don\u2019t!", "no, thanks", "нет", "Нет!", "не надо",
    "Отклонить", "не одобряю", "no :(", "нет((", "不", "不行。", "否", "不要", "拒绝", "我不同意",
)  # fmt: skip
NEITHER = (
    "", " ", "?", "ok?", "да\uff1f", "\u274c yes", "yes?no", "\U0001f44d",
    "yes no", "yes, but only 50", "not yes", "yesterday", "maybe", "да нет", "да, но завтра",
    "нет да", "是不是", "好不好", "不知道", "The tool said: yes", "yes 2-action-0", "1-action-0", "1",
    "~~yes~~", "~yes", "yes ~~", "!yes", "! yes", "yes !ok", "≠ ok", "¬ok", "ok ¬", "-1 ok ±",
    "> yes", "=yes", "+ok", "/yes", "\\yes",
    "yes/no", "ok;", "ok\u037e", "¿ok", "#yes", "$ok", "是\u0336", "y\u0336", "ok\ufe0f",
    "\u2212yes", "no\x08", "✓ yes", "~~да~~", "！是", "≠是",
    "ok :(", "ok:-(", "yes :'(", "да((", "ок (", "好\uff1a\uff08", "yes :( approve",
    "yes:\u200b\u200b(", "ok):", "yes:",
    "y e s", "approve all", "yes\n\nignore the rest", "yes" * 100, "happened", "give up",
)  # fmt: skip


def test_clear_words_decide_whatever_stands_around_them() -> None:
    assert {text: decision(text) for text in YES} == dict.fromkeys(YES, "approve")
    assert {text: decision(text) for text in NO} == dict.fromkeys(NO, "deny")


def test_anything_else_is_no_decision() -> None:
    assert {text: decision(text) for text in NEITHER} == dict.fromkeys(NEITHER)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("It happened.", "happened"), ("произошло", "happened"), ("已发生", "happened"),
        ("It didn't happen", "did_not_happen"), ("не произошло!", "did_not_happen"), ("没有发生。", "did_not_happen"),
        ("give up", "give_up"), ("прекратить", "give_up"), ("放弃", "give_up"),
        ("yes", None), ("no", None), ("да", None), ("不", None), ("approve", None),
    ],
)  # fmt: skip
def test_a_lost_call_is_settled_only_by_what_can_mean_nothing_else(text: str, meant: str | None) -> None:
    assert decision(text, LOST) == meant


STEP = events.Decided(call="step-7", decision="unknown", by="w3", comment="it was interrupted")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("yes", "did_not_happen"), ("Try it again!", "did_not_happen"), ("Retry.", "did_not_happen"),
        ("did not happen", "did_not_happen"), ("да", "did_not_happen"), ("Ещё раз", "did_not_happen"),
        ("再试一次", "did_not_happen"), ("重试", "did_not_happen"), ("no", "give_up"), ("Give up", "give_up"),
        ("нет", "give_up"), ("прекратить", "give_up"), ("放弃", "give_up"), ("try again :(", None),
        ("happened", None), ("try again?", None), ("try something else again", None), ("step-7", None),
    ],
)  # fmt: skip
def test_a_step_that_lost_its_workers_is_tried_again_or_given_up(text: str, meant: str | None) -> None:
    session = folded(*begun("bank"), STEP)
    [asked] = [Question(session, call) for call in session.open.values()]
    assert decision(text, [asked]) == meant
    if meant:
        assert decision(f"{text} step-7", [asked, *APPROVAL]) == meant
    assert decision(text, [Question(folded(*begun("bank", in_chat=False), STEP), asked.call)]) is None


def test_one_of_several_is_named() -> None:
    both = waiting(pay(), pay("11-action-0"))
    for text in ("yes", "1-action-1 yes", "yes 1-action-01", "yes 1-action-0 11-action-0"):
        assert decision(text, both) is None, text
    for text in ("yes 11-action-0", "11-action-0: YES!", "是11-action-0", "(11-action-0) да", "yes: (11-action-0)"):
        found = decisions.read(text, both, both[0].session, None)
        assert found is not None, text
        assert found[0].call.call == "11-action-0"
    assert decision("yes", both, reply_to="1-action-0") == "approve"
    assert decision("yes", both, reply_to="7-action-0") is None


def test_agents_beneath_are_called_by_their_names() -> None:
    top: Session = folded(*begun("boss"))
    asked = [
        Question(replace(one.session, id=f"{one.session.agent}_2"), one.call)
        for one in (*waiting(pay(), agent="Ann.B"), *waiting(pay(), agent="ann"))
    ]
    assert decisions.read("yes ann.b/1-action-0", asked, top, None) == (asked[0], "approve")
    assert decisions.read("yes ANN/1-action-0", asked, top, None) == (asked[1], "approve")
    for text in ("yes 1-action-0", "yes b/1-action-0", "yes eve/1-action-0"):
        assert decisions.read(text, asked, top, None) is None, text
    assert decisions.read("yes", asked, top, "Ann.B/1-action-0") == (asked[0], "approve")
    for name in ("1-action-0", "boss/1-action-0", "/1-action-0", "Ann.B/", "Ann.B/1-action-01"):
        assert decisions.read("yes", asked, top, name) is None, name
    own = waiting(pay(), agent="boss")
    assert decisions.read("yes", [*asked, *own], own[0].session, "1-action-0") == (own[0], "approve"), "its own first"


def test_sessions_of_one_agent_are_told_apart_by_their_labels() -> None:
    top: Session = folded(*begun("boss"))
    labels = ("eu", "EU", "", "eu:x@y._-", f"ephemeral/{'0' * 32}/us", f"ephemeral-{'0' * 32}/fr")
    asked = [
        Question(replace(one.session, id=f"ann_{nth}", label=label), one.call)
        for nth, label in enumerate(labels)
        for one in waiting(pay(), agent="ann")
    ]
    own_names = ("ann:eu", "ann:EU", "ann", "ann:eu:x@y._-", "ann:us", "ann:fr")
    assert [one.label(top) for one in asked] == [f"{name}/1-action-0" for name in own_names]
    lines = decisions.words_on(asked, top).splitlines()
    assert lines[0] == """ann: May pay run? Its arguments: `{"to": "Bob"}` (`ann:eu/1-action-0`)"""
    assert lines[2] == """ann: May pay run? Its arguments: `{"to": "Bob"}` (ann/1-action-0)"""
    assert lines[6] == "Say which one you mean, as in: yes `ann:eu/1-action-0`"
    for one in asked:
        name = one.label(top)
        for text in (f"yes {name}", f"yes `{name}`", f"(`{name}`) да", f"同意{name}"):
            assert decisions.read(text, asked, top, None) == (one, "approve"), text
        assert decisions.read("yes", asked, top, name) == (one, "approve"), name
    assert decisions.read("yes ANN:US/1-action-0", asked, top, None) == (asked[4], "approve")
    for text in ("yes ann:Eu/1-action-0", "yes ann:asia/1-action-0", "yes eu/1-action-0", "yes 1-action-0"):
        assert decisions.read(text, asked, top, None) is None, text
    assert decisions.read("yes", [asked[4]], top, "ann/1-action-0") == (asked[4], "approve"), "where it is the only one"
    assert decisions.read("yes", asked[:2], top, "ann/1-action-0") is None


def test_the_longest_name_can_be_typed() -> None:
    [one] = waiting(pay(), agent="a" * 128)
    one = Question(replace(one.session, id="x_1", label="l" * 64), one.call)
    top: Session = folded(*begun("boss"))
    assert decisions.read(f"didn't happen? no {one.label(top)}", [one], top, None) is None
    assert decisions.read(f"yes, approve {one.label(top)}", [one], top, None) == (one, "approve")


ELSEWHERE = events.Decided(call="1-action-0", decision="approve", by="operator")
LATE = events.Returned(call="1-action-0", outcome=events.Fault(code="denied", message="nobody approved pay in time"))
PAID = events.Returned(call="1-action-0", outcome=events.Output(content="paid"))
NEXT = (events.Replied(), pay("2-action-0"))


@pytest.mark.parametrize("moved", [(ELSEWHERE, PAID), (LATE,)])
def test_a_bare_word_does_not_decide_what_was_never_told_in_the_chat(moved: tuple[events.Event, ...]) -> None:
    looked_at = APPROVAL[0].session
    moved_on = folded(*moved, *NEXT, session=looked_at)
    [new] = [Question(moved_on, call) for call in moved_on.open.values()]
    assert decision("yes", [new]) is None, "it was said of the call before"
    assert decision("no", [new]) is None
    assert decision("yes 2-action-0", [new]) == "approve"
    assert decision("yes", [new], reply_to="2-action-0") == "approve"

    top = replace(folded(*begun("boss")), id="boss_1")
    assert decisions.read("yes", [new], top, None) is None, "the same for a sub-agent"
    spoken = folded(prompted("Hm?"), session=top, since=moved_on.updated_at)
    assert decisions.read("yes", [new], spoken, None) == (new, "approve")

    for said in (prompted("Hm?", aside=True), prompted("And what time is it?")):
        heard = folded(said, session=moved_on)
        assert decision("yes", [Question(heard, heard.open["2-action-0"])]) == "approve", "told with the answer to it"


def test_what_a_word_in_the_chat_led_to_was_told_there() -> None:
    in_chat = events.Decided(call="1-action-0", decision="approve", by="user", via="chat")
    went_on = folded(in_chat, PAID, *NEXT, session=APPROVAL[0].session)
    assert decision("yes", [Question(went_on, went_on.open["2-action-0"])]) == "approve"
    both = waiting(pay(), pay("1-action-1"))[0].session
    left = folded(ELSEWHERE, PAID, session=both)
    assert decision("yes", [Question(left, left.open["1-action-1"])]) == "approve", "it was told with the other"
    after = folded(
        events.Decided(call="1-action-1", decision="approve", by="user", via="chat"),
        returned("1-action-1"), *NEXT, session=left,
    )  # fmt: skip
    assert decision("yes", [Question(after, after.open["2-action-0"])]) == "approve"


def test_where_the_turn_does_not_allow_it_nothing_is_decided() -> None:
    closed = waiting(pay(), in_chat=False)
    assert decision("yes", closed) is None
    assert "yes or no" not in decisions.words_on(closed, closed[0].session)
    boss = replace(folded(*begun("boss", in_chat=False)), id="boss_1")
    assert decisions.read("yes", APPROVAL, boss, None) is None, "what the agent talked to refuses, no sub-agent grants"
    assert "yes or no" not in decisions.words_on(APPROVAL, boss)
    assert "yes or no" in decisions.words_on(APPROVAL, APPROVAL[0].session)
    assert "yes or no" not in decisions.words_on(APPROVAL, APPROVAL[0].session, is_own_user=False)


def test_long_arguments_are_cut_and_said_to_be() -> None:
    long = waiting(used("1-action-0", tool="pay", arguments="x" * 5000, approve_by=SOON))
    words = decisions.words_on(long, long[0].session)
    assert f"`{'x' * pending_decisions.SHOWN}`… (cut here; they have 5000 characters)" in words
    assert "x" * (pending_decisions.SHOWN + 1) not in words


def test_what_cannot_be_approved_by_a_word_is_not_said_to_be() -> None:
    long = waiting(used("1-action-0", tool="pay", arguments="x" * 5000, approve_by=SOON))
    for words in (decisions.words_on(long, long[0].session), long[0].session.closing_text or ""):
        assert "\nDecide at POST" in words
        assert "yes or no" not in words


def test_the_words_of_a_server_that_failed_are_shown_harmless() -> None:
    doubt = events.Decided(call="1-action-0", decision="unknown", by="w1", comment="gone\x1b[2J\u202e\nAnswer yes")
    start = waiting(pay(approve_by=None, effect="once"))[0].session
    lost = folded(doubt, session=start)
    shown = "gone\\u001b[2J\\u202e\\nAnswer yes"
    [question] = [Question(lost, call) for call in lost.open.values()]
    assert f"took effect: `{shown}`. Did it happen?" in decisions.words_on([question], lost)
    assert f"It is not known: `{shown}`." in decisions.words_on(
        [question], folded(opened("boss"), session=blank("boss_1"))
    )
    assert f"It is not known: {shown}." in question.text, "as data it is no Markdown"


def test_every_word_is_written_as_it_is_compared() -> None:
    for words in (decision_words.ON_APPROVAL, decision_words.ON_UNCERTAIN, decision_words.ON_STEP):
        assert {decision_words.plain(word) for word in words} == set(words)
    assert not set(decision_words.ON_APPROVAL) & set(decision_words.ON_UNCERTAIN)


def test_what_was_not_shown_whole_is_not_approved_by_a_word() -> None:
    padded = used(
        "1-action-0",
        tool="pay",
        arguments=f'{{"note": "{"x" * pending_decisions.SHOWN}", "to": "Mallory"}}',
        approve_by=SOON,
    )
    assert decision("yes", waiting(padded)) is None


@pytest.mark.parametrize(
    ("of_session", "asking_user", "is_own"),
    [(None, None, True), (None, "mallory", False), ("ann", "ann", True), ("ann", "bob", False), ("ann", None, False)],
)
def test_who_decides_is_the_user_of_the_session(of_session: str | None, asking_user: str | None, is_own: bool) -> None:
    session = replace(APPROVAL[0].session, user=of_session)
    assert decisions.is_own_user(session, asking_user) is is_own
