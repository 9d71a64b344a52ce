"""A text that grows."""

from longhouse.runtime.bus.growing_text import JOINED, GrowingText


def test_it_is_what_was_added_whenever_somebody_asks() -> None:
    text, whole = GrowingText("начало "), "начало "
    for number in range(3 * JOINED + 7):
        text.add(f"{number} 词 ")
        whole += f"{number} 词 "
        assert len(text) == len(whole)
        if number in (0, 1, JOINED - 1, JOINED, 2 * JOINED + 3):
            assert str(text) == whole
    assert str(text) == whole
    assert not GrowingText()
    assert str(GrowingText()) == ""
