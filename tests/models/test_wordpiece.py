"""Text as the pieces that a table of embeddings has rows for."""

from longhouse.models.wordpiece import LONGEST_WORD, WordPiece, words

PIECES = WordPiece(["[UNK]", "rain", "##ing", "##s", "a", "##b", "##c", "天", "погод", "##а", ".", "@"])


def test_words_are_lower_case_without_accents_and_signs_stand_alone() -> None:
    assert words("Crème-brûlée, naïve_Øre") == ["creme", "-", "brulee", ",", "naive", "_", "øre"]
    assert words("Ёлка й") == ["елка", "и"]
    assert words("报告v2：ok") == ["报", "告", "v2", "：", "ok"]
    assert words(" \t a\u00a0b\u200b\x00c\ufffd\r\n") == ["a", "bc"]
    assert words("") == []


def test_a_word_falls_into_its_longest_known_pieces() -> None:
    assert PIECES.encode("Raining rains") == [1, 2, 1, 3]
    assert PIECES.encode("Погода. 天") == [8, 9, 10, 7]
    assert PIECES.encode("abc") == [4, 5, 6]


def test_what_cannot_be_spelled_with_the_pieces_is_one_unknown() -> None:
    assert PIECES.encode("rainx 气") == [0, 0]
    assert PIECES.encode("a" + "b" * LONGEST_WORD) == [0]
    assert PIECES.encode("a" + "b" * (LONGEST_WORD - 1)) == [4] + [5] * (LONGEST_WORD - 1)


def test_a_word_has_the_same_pieces_the_second_time() -> None:
    assert PIECES.encode("rain raining rain") == PIECES.encode("rain raining rain") == [1, 1, 2, 1]
