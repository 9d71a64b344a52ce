"""Weights of words, clauses of queries, and the fusion of two legs."""

import hashlib

import numpy as np
import pytest

from longhouse.search import document, ranking
from longhouse.search.ranking import clauses, fused, rarity, scaled, shortened, weights, with_clauses, with_parts


def test_a_word_in_the_name_weighs_more_than_one_in_a_parameter() -> None:
    found = weights({"name": "send_letter", "short": "Deliver by post", "parameters": "recipient"})
    assert found["letter"] > found["post"] > found["recipi"]


def test_repeating_a_word_stops_paying_at_once() -> None:
    few = weights({"short": "weather " * ranking.MOST_REPEATS})["weather"]
    many = weights({"short": "weather " * 300})["weather"]
    assert many == few < ranking.K1 + 1


def test_a_list_of_keywords_is_worth_less_than_a_description() -> None:
    honest = weights({"name": "forecast", "short": "The weather of the next days in a city"})
    stuffed = weights(
        {"name": "best_tool", "short": " ".join(f"keyword{n}" for n in range(300)) + " weather city days"}
    )
    assert stuffed["weather"] < honest["weather"] / 5


def test_what_comes_after_the_first_pages_is_not_read() -> None:
    assert "late" not in weights({"long": "early " + "filler " * ranking.LONGEST_FIELD + " late"})


def test_who_changes_the_weights_of_words_has_the_indexes_rebuilt() -> None:
    """The weights of these texts in the index: where they change, RECIPE is raised, and this list with it."""
    text: dict[ranking.Field, str] = {
        "name": "getWeather",
        "short": "The weather in a city",
        "details": "электрички до Твери 天气",
    }
    digest = hashlib.sha256(repr(sorted(weights(text).items())).encode()).hexdigest()[:16]
    assert (document.RECIPE, digest) == (4, "53b459a63de3297c")


def test_a_weight_does_not_depend_on_other_texts() -> None:
    assert weights({"short": "weather"}) == weights({"short": "weather"})
    assert rarity(1, 1000) > rarity(500, 1000) > 0


def test_the_parts_of_a_word_weigh_less_than_the_word() -> None:
    found = weights({"short": "электрички до Твери"})
    whole, parts = found["электричк"], [weight for term, weight in found.items() if term.startswith("~элек")]
    assert len(parts) == 1
    assert 0 < parts[0] < whole / 2
    assert with_parts(["билет", "train"]) == ["билет", "train", "~биле", "~илет"]
    assert (
        len(with_parts([f"слово{chr(1072 + n % 32)}{chr(1072 + n // 32)}" for n in range(900)]))
        <= 900 + ranking.MOST_PARTS
    )


def test_one_thought_has_no_clauses() -> None:
    assert clauses("What will the weather in Oslo be tomorrow?") == []


def test_a_long_query_falls_into_its_clauses() -> None:
    found = clauses(
        "Find the cheapest flight to Oslo. Book a quiet hotel, and reserve a good table; then mail it to Ann"
    )
    assert found[0] == "Find the cheapest flight to Oslo."
    assert len(found) == 3
    assert found[-1].endswith("mail it to Ann")


@pytest.mark.parametrize(
    "query", ["Найди самый дешёвый рейс. Забронируй тихую гостиницу.", "查询明天的天气。预订一家酒店。"]
)
def test_sentences_end_in_other_languages_too(query: str) -> None:
    assert len(clauses(query)) == 2


def test_there_are_never_too_many_clauses() -> None:
    assert 1 < len(clauses("Find a cheap flight. " * 100)) <= ranking.MOST_CLAUSES


@pytest.mark.parametrize("piece", ["x;", "1\n", "你。", "the. ", " \n\t"])
def test_a_query_of_a_hundred_thousand_pieces_is_read_in_one_go(piece: str) -> None:
    """Each piece is read once: reading what came before it again would take hours."""
    assert clauses(piece * 100_000) == []


def test_of_a_long_query_the_beginning_and_the_end_are_read() -> None:
    read = shortened("first " + "filler " * ranking.LONGEST_QUERY + " last")
    assert read.startswith("first")
    assert read.endswith("last")
    assert len(read) <= ranking.LONGEST_QUERY + 1
    assert shortened("  two \t words \n\n and more ") == "two words\nand more"


def test_scores_are_scaled_between_nothing_and_the_best() -> None:
    assert scaled(np.array([-1, 0, 2, 4], np.float32)).tolist() == [0, 0, 0.5, 1]
    assert scaled(np.zeros(3, np.float32)).tolist() == [0, 0, 0]


def test_both_legs_count_the_same() -> None:
    words, vectors = np.array([10, 0, 5], np.float32), np.array([-0.1, 0.8, 0.4], np.float32)
    assert fused(words, vectors).tolist() == [0.5, 0.5, 0.5]


def test_without_vectors_the_words_decide() -> None:
    assert fused(np.array([1, 2], np.float32), None).tolist() == [0.5, 1]


def test_a_text_that_has_no_vector_yet_is_judged_by_its_words() -> None:
    lexical, semantic = np.array([4, 2, 1], np.float32), np.array([0, 0.9, 0.3], np.float32)
    assert fused(lexical, semantic).tolist() == pytest.approx([1.0, 0.75, 0.125 + 0.5 / 3])


def test_the_best_clause_lifts_what_the_whole_query_hides() -> None:
    whole = np.array([1.0, 0.2], np.float32)
    assert with_clauses(whole, []).tolist() == pytest.approx([1.0, 0.2])
    first, second = with_clauses(whole, [np.array([0.1, 0.2], np.float32), np.array([0.0, 1.0], np.float32)])
    assert second > first
