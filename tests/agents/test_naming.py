"""What tools and templates may be called."""

import pytest

from longhouse.agents.naming import NamePatterns, intersection, key, letters, meanings, name_problem, spelled


@pytest.mark.parametrize("name", ["a", "weather", "FinalAnswerTool", "bank.pay", "a-b_c.d9", "agents", "x" * 128])
def test_a_plain_name_is_taken(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x" * 129,
        "x" * 300,
        "__proto__",
        "a.__proto__",
        "a.__class__.b",
        "trailing__",
        "9lives",
        "_hidden",
        ".a",
        "a.",
        "a..b",
        "-rf",
        "two words",
        "a/b",
        "a\\b",
        "a\n",
        "a\0",
        "pаy",  # the second letter is Cyrillic
        "ﬁle",
        "café",
        "a\u200bb",
    ],
)
def test_an_odd_name_is_refused_in_words(name: str) -> None:
    problem = name_problem(name)
    assert problem
    assert name not in problem or not name


def test_names_of_agents_are_for_agents_only() -> None:
    assert name_problem("agent.analytic", for_agent=True) is None
    for name in ("agent.analytic", "Agent.analytic", "agent"):
        assert name_problem(name)
    for name in ("analytic", "Agent.analytic", "agent.", "agent.__x__"):
        assert name_problem(name, for_agent=True)


def test_names_that_differ_in_case_only_have_one_key() -> None:
    assert key("FinalAnswerTool") == key("finalanswertool")
    assert key("a.b") != key("a_b")


def test_a_list_of_names_stands_for_what_it_names_and_for_all_beneath() -> None:
    names = NamePatterns(("plain", "shop.*", "a.b.*"))
    assert all(name in names for name in ("plain", "shop.price", "shop.old.price", "shop.*", "shop.old.*", "a.b.c"))
    assert not any(name in names for name in ("plainly", "shop", "shopping.list", "a.c", "a.*", ""))
    assert "anything" not in NamePatterns(())


def test_two_lists_have_in_common_what_both_stand_for() -> None:
    assert intersection(("shop.*", "plain", "other"), ("shop.price", "plain", "more.*")) == ("plain", "shop.price")
    assert intersection(("shop.*",), ("shop.*", "shop.old.*")) == ("shop.*", "shop.old.*")
    assert intersection(("shop.*",), ()) == ()


def test_whoever_asks_postgres_looks_for_what_files_would_find() -> None:
    for known in ("websearchtool", "web_search_tool", "Web-Search", "WebSearch"):
        for given in ("WebSearchTool", "web_search_tool", "web-search", "WebSearch", "websearchtool"):
            is_found = spelled(given, [known]) == known
            assert is_found == (letters(known) in meanings(given)), (given, known)
            assert is_found or letters(known) == "websearch", "only the ending `tool` may be left out, not added"


def test_of_two_names_that_differ_in_spelling_everybody_takes_the_same_one() -> None:
    known = ["rolldice", "roll_dice", "roll-dice", "rolldicetool"]
    assert {spelled("RollDice", order) for order in (known, known[::-1], {*known})} == {"roll-dice"}
    assert [spelled(name, known) for name in known] == known, "its own name is always itself"
