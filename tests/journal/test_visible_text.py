"""What a person judges by: nothing in it is unseen, nothing turns other text around, and letters stay letters."""

import unicodedata
from html import escape

import msgspec
import pytest
from markdown_it import MarkdownIt

from longhouse.journal.json_text import value_of
from longhouse.journal.words.visible_text import in_code, name_in_code, readable, readable_json

PLAIN = (
    "", "a b", "Заплати Бобу 5\u00a0000 ₽, ёлка й", "付款给\u3000鲍勃，谢谢。", "ادفع لبوب مِئة", "שלום",
    "한글 ひらがな", "ไทย हिन्दी", "👍🏽 ❤\ufe0f ✅", "1\ufe0f\u20e3 #\ufe0f\u20e3 ‼\ufe0f ©\ufe0f 🏳\ufe0f",
    "Ångström é e\u0301", "~!@#$%^&*()_+[]{}|;:',.<>/?", r"\u202e \\n",
)  # fmt: skip
UNSEEN = (
    *range(0x20), *range(0x7F, 0xA0), 0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x180B, 0x180E,
    *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0x200A, 0x2800, 0x3164, 0xFE00, 0xFEFF,
    0xFFA0, 0xFFF9, 0xFFFC, 0xFE0F, 0x2D7F, 0x1107F, 0x16FE4, 0x1D159, 0xE0001, 0xE0041, 0xE0100, 0xE01EF,
)  # fmt: skip


@pytest.mark.parametrize("text", PLAIN)
def test_letters_of_all_languages_stay_as_they_are(text: str) -> None:
    assert readable(text) == text


def test_what_is_unseen_is_written_out() -> None:
    for code in UNSEEN:
        shown = readable(f"a{chr(code)}b")
        assert shown.isprintable(), hex(code)
        assert shown.startswith("a\\"), hex(code)
        assert msgspec.json.decode(f'"{shown}"') == f"a{chr(code)}b", "as JSON reads it back"
    formats = (chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in ("Cc", "Cf", "Zl", "Zp"))
    assert all(readable(char).isascii() for char in formats)


@pytest.mark.parametrize("text", ["Bob\ufe0f", "是\ufe0f", "5\ufe0f", "❤\ufe0f\ufe0f", "°\ufe0f", "5\u20e3\ufe0f"])
def test_the_sign_of_colourful_emoji_stands_beside_nothing_else(text: str) -> None:
    shown = readable(text)
    assert shown.endswith("\\ufe0f")
    assert msgspec.json.decode(f'"{shown}"') == text


@pytest.mark.parametrize(
    "text", ["👩\u200d👩\u200d👧", "👩🏽\u200d🚀", "👩\u200d❤\ufe0f\u200d👨", "🏳\ufe0f\u200d🌈 и 🧑\u200d💻"]
)
def test_emoji_that_are_joined_are_one(text: str) -> None:
    assert readable(text) == text
    for hidden in ("a\u200db", "👩\u200dx", "x\u200d👩", "👩\u200d\u200d👧", "👩\n\u200d👧", "\u200d👧", "👩\u200d"):
        assert "\\u200d" in readable(hidden)


def test_arguments_keep_their_value() -> None:
    value = {"to\u200b": ["\u202eBob", "a\nb\t\r", "\x7f\x85", {"鲍勃": "\U000e0041👍"}], "n": 1.5}
    compact = msgspec.json.encode(value)
    for text in (compact.decode(), msgspec.json.format(compact, indent=2).decode().replace("\n", "\r\n\t")):
        shown = readable_json(text)
        assert shown.isprintable()
        assert value_of(shown) == value


@pytest.mark.parametrize("control", ["\t", "\n", "\r"])
def test_what_stands_as_a_space_between_arguments_never_stands_within_them(control: str) -> None:
    assert value_of(f'{{"command":"echo{control}rm"}}') is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"to":"Bob\\",\\"amount\\":\\"1"}', '`{"to":"Bob\\",\\"amount\\":\\"1"}`'),
        ("<!-- [Bob](http://m) *1* -->", "`<!-- [Bob](http://m) *1* -->`"),
        ("a`b", "``a`b``"), ("a``b`c", "```a``b`c```"), ("`", "`` ` ``"), ("`a", "`` `a ``"), ("a`", "`` a` ``"),
        (" a ", "`  a  `"), (" a", "` a`"), (" ", "` `"), ("", ""),
    ],
)  # fmt: skip
def test_markdown_shows_code_letter_by_letter(text: str, shown: str) -> None:
    assert in_code(text) == shown
    rendered = MarkdownIt().renderInline(f"Its arguments: {in_code(text)} (1-action-0)")
    seen = f"<code>{escape(text)}</code>" if text else ""
    assert rendered == f"Its arguments: {seen} (1-action-0)"


def test_a_name_is_shown_as_it_is_typed() -> None:
    for plain in ("pay", "tried.die", "get_weather", "a/b-c.d", "1-action-0", "ann.b/1-action-0"):
        assert name_in_code(plain) == plain
    for odd in ("_pay_", "tried.__die__", "pay_", "ann:eu/1-action-0", "ann:smile:/1-action-0", "a@b.c", "a--b"):
        assert name_in_code(odd) == f"`{odd}`"
