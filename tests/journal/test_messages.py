"""The transcript vocabulary: its form on the wire, files in it, and text that cannot be carried."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longhouse.journal import fingerprint, messages
from longhouse.journal.messages import (
    Assistant,
    Content,
    Function,
    ImagePart,
    ImageUrl,
    System,
    TextPart,
    ToolCall,
    ToolResult,
    User,
)

PICTURE = ImagePart(image_url=ImageUrl(url=f"{messages.FILE_SCHEME}abc", detail="low"))


def test_messages_encode_straight_to_the_wire() -> None:
    said = [
        System(content="Be kind."),
        User(content="Hi"),
        Assistant(tool_calls=(ToolCall(id="1-action-0", function=Function(name="f", arguments='{"b": 1, "a": 2}')),)),
        ToolResult(tool_call_id="1-action-0", content="3"),
        Assistant(content="Three."),
        User(content=(TextPart(text="and this?"), ImagePart(image_url=ImageUrl(url="data:image/png;base64,AA==")))),
    ]
    assert msgspec.json.decode(msgspec.json.encode(said)) == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "1-action-0", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": 2}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "1-action-0", "content": "3"},
        {"role": "assistant", "content": "Three."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "and this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
            ],
        },
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("words", "words"),
        ((TextPart(text="one"), PICTURE, TextPart(text="two")), "one\ntwo"),
        ((), ""),
    ],
)
def test_the_words_of_a_content_leave_images_out(content: Content | None, text: str) -> None:
    assert messages.text_of(content) == text


def test_a_stored_image_is_shown_as_its_data_url_and_an_unknown_one_stays() -> None:
    outside = ImagePart(image_url=ImageUrl(url="data:image/gif;base64,BB=="))
    lost = ImagePart(image_url=ImageUrl(url=f"{messages.FILE_SCHEME}lost"))
    said: list[messages.Message] = [
        System(content="s"),
        User(content="t"),
        User(content=(TextPart(text="see"), PICTURE, outside, lost)),
    ]
    assert messages.files_in(said) == {"abc", "lost"}
    shown = messages.with_files(said, {"abc": "data:image/png;base64,AA=="})
    assert shown[:2] == said[:2]
    assert shown[2] == User(
        content=(
            TextPart(text="see"),
            ImagePart(image_url=ImageUrl(url="data:image/png;base64,AA==", detail="low")),
            outside,
            lost,
        )
    )


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain ✓ 😀", "plain ✓ 😀"),
        ("a\x00b\x00", "a\ufffdb\ufffd"),
        ("a\ud800b", "a\ufffdb"),
        ("\x00\udfff", "\ufffd\ufffd"),
    ],
)
def test_what_cannot_be_carried_becomes_visible(text: str, cleaned: str) -> None:
    assert messages.clean(text) == cleaned


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_clean_text_can_always_be_stored_and_is_left_alone(text: str) -> None:
    cleaned = messages.clean(text)
    cleaned.encode()
    assert "\x00" not in cleaned
    assert messages.clean(cleaned) == cleaned


def test_a_fingerprint_is_a_chain_that_grows_message_by_message() -> None:
    begin = fingerprint.begin("acme", "key-1", "ann", "agent")
    one = fingerprint.grown(begin, [("user", "Hello")])
    assert fingerprint.grown(one, [("assistant", "Hi")]) == fingerprint.grown(
        begin, [("user", "Hello"), ("assistant", "Hi")]
    )
    assert fingerprint.grown(begin, []) == begin


SAID = st.lists(st.tuples(st.sampled_from(("user", "assistant", "tool")), st.text(max_size=3)), max_size=8)


@given(st.sampled_from(("ann", "ben")), SAID, st.integers(0, 8))
def test_a_conversation_that_is_sent_again_has_the_chain_of_its_messages(who: str, said: Any, cut: int) -> None:
    begun = fingerprint.begin("acme", "key-1", who, "agent")
    for _ in range(2):  # new, and known from the last time
        chains = fingerprint.resent(begun, said[:cut], said[cut:])
        assert chains == (fingerprint.grown(begun, said[:cut]), fingerprint.grown(begun, said))
    more = [("assistant", "Да."), ("user", "好")]
    assert fingerprint.resent(begun, [*said, more[0]], more[1:])[1] == fingerprint.grown(begun, [*said, *more])


def test_only_what_is_new_is_hashed_when_a_conversation_is_sent_again() -> None:
    begun, said = fingerprint.begin("acme", "key-1", "новый", "agent"), [("user", "Один"), ("assistant", "Два")]
    _, before = fingerprint.resent(begun, said, [("user", "Три")])
    known = [*said, ("user", "Три"), ("assistant", "Четыре")]
    for number in range(fingerprint.MOST_SENT - 1):
        fingerprint.resent(fingerprint.begin("acme", "", None, f"{number}"), [], [("user", "Hello")])
    [kept] = [digest for digest, chain in fingerprint._sent.items() if chain == before]
    fingerprint._sent[kept] = "what was kept"
    assert fingerprint.resent(begun, known, [])[0] == fingerprint.grown("what was kept", known[-1:])
    # There was room for so many; with the next it is gone, and found anew.
    assert kept not in fingerprint._sent
    assert fingerprint.resent(begun, known, [])[0] == fingerprint.grown(before, known[-1:])


def test_white_space_does_not_count_in_a_fingerprint() -> None:
    plain = fingerprint.grown("", [("user", "two words")])
    for text in ("twowords", " two\n\nwords ", "two\u00a0words\t"):
        assert fingerprint.grown("", [("user", text)]) == plain


def test_everything_else_counts_in_a_fingerprint() -> None:
    begins = [
        fingerprint.begin(*who)
        for who in [
            ("acme", "k", "ann", "agent"),
            ("umbrella", "k", "ann", "agent"),
            ("acme", "k2", "ann", "agent"),
            ("acme", "k", None, "agent"),
            ("acme", "k", "ann", "agent@2"),
            ("acmek", "", "ann", "agent"),
        ]
    ]
    chains = [
        fingerprint.grown(begins[0], said)
        for said in [
            [("user", "Hello")],
            [("assistant", "Hello")],
            [("user", "hello")],
            [("user", "Hel"), ("user", "lo")],
            [("user", "Hello"), ("user", "")],
        ]
    ]
    assert len({*begins, *chains}) == len(begins) + len(chains)
