"""What tools and templates may be called."""

import pytest

from longhouse.agents.names import key, name_problem


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
