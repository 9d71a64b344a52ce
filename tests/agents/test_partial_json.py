"""An answer is read out of arguments that are still arriving, and is what a whole parse would give."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhouse.agents.strategies.partial_json import AnswerReader

TEXT = st.text()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["answer", "a", '"', "\\"]), inner),
    max_leaves=6,
)
OBJECTS = st.lists(
    st.tuples(st.sampled_from(["reasoning", "answer", "status", 'ans"wer', "a\nswer", ""]) | TEXT, VALUES), max_size=5
).map(dict)


def read(*fragments: str) -> str:
    reader = AnswerReader()
    return "".join(reader.feed(fragment) for fragment in fragments)


def cut(text: str, data: st.DataObject) -> list[str]:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@given(OBJECTS, st.booleans(), st.sampled_from([None, 1]), st.data())
@settings(max_examples=120, deadline=None)
def test_any_object_in_any_fragments_gives_the_answer_of_a_whole_parse(
    value: dict[str, object], ascii_only: bool, indent: int | None, data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    answer = value.get("answer")
    assert read(*cut(text, data)) == (answer if isinstance(answer, str) else "")


@given(TEXT, st.booleans())
@settings(max_examples=100, deadline=None)
def test_one_character_at_a_time_is_as_good(answer: str, ascii_only: bool) -> None:
    assert read(*json.dumps({"reasoning": "because", "answer": answer}, ensure_ascii=ascii_only)) == answer


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (r'{"answer": "tab\t quote\" back\\slash sl\/ash é \b\f\n\r"}', 'tab\t quote" back\\slash sl/ash é \b\f\n\r'),
        (r'{"answer": "\ud83d\ude00 \uD83D\uDE00 😀"}', "😀 😀 😀"),
        ('{"nested": {"answer": "decoy"}, "list": ["answer", {"answer": "decoy"}], "answer": "real"}', "real"),
        ('{"text": "\\"answer\\": \\"decoy\\"", "answer": "real"}', "real"),
        ('{"reasoning": "answer", "answer": "real"}', "real"),
        ('{"answer": {"answer": "decoy"}, "status": "completed"}', ""),
        ('{"answer": ["decoy"]}', ""),
        ('{"answer": null, "x": "answer", "y": "decoy"}', ""),
        (r'{"a\nswer": "decoy", "answer": "real"}', "real"),
        (r'{"\u0061nswer": "real"}', "real"),
        ('{"answer": ""}', ""),
        ('\n { \t"answer"\n:\n"spaced" , "status" : "completed" }', "spaced"),
        ('{"answer": "one", "status": "two"}', "one"),
        ('{"status": "completed"}', ""),
        ('[{"answer": "decoy"}]', ""),
        ('"answer"', ""),
        ("nonsense", ""),
        ("", ""),
    ],
)
def test_what_is_read(arguments: str, answer: str) -> None:
    assert read(arguments) == answer
    assert read(*arguments) == answer


def test_text_comes_as_soon_as_it_can_be_decoded() -> None:
    reader = AnswerReader()
    fragments = [
        '{"ans',
        'wer": "',
        "Hel",
        "lo \\",
        "n",
        "w\\u00",
        "e9",
        "\\ud83d",
        "\\ude",
        "00",
        '!", "st',
        'atus": 1}',
    ]
    assert [reader.feed(fragment) for fragment in fragments] == [
        "", "", "Hel", "lo ", "\n", "w", "é", "", "", "😀", "!", "",
    ]  # fmt: skip


def test_an_escape_that_json_does_not_have_ends_the_reading_quietly() -> None:
    assert read('{"answer": "good \\x41 bad"}') == "good "
    assert read('{"answer": "good \\ud800 bad"}') == "good "


def test_another_field_can_be_read() -> None:
    assert AnswerReader(("question",)).feed('{"answer": "a", "question": "b"}') == "b"


def test_an_answer_inside_a_structure_is_read_only_for_the_tool_that_gives_it() -> None:
    given = (("function", "tool"), "final")
    said = '{"answer": "no", "steps": ["answer", {"answer": "no"}], "function": {"tool": "%s", "answer": "yes"}}'
    for size in (1, 3, 1000):
        for tool, answer in (("final", "yes"), ("other", "")):
            text, reader = said % tool, AnswerReader(("function", "answer"), given=given)
            assert "".join(reader.feed(text[at : at + size]) for at in range(0, len(text), size)) == answer
