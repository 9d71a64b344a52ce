"""Text as terms: names, three scripts, and what is left out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longhouse.search.tokenizer import LONGEST_WORD, joined, parts, spaced, terms


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("get_weather_forecast", ["get", "weather", "forecast"]),
        ("getWeatherForecast", ["get", "weather", "forecast"]),
        ("GetHTTPStatus", ["get", "http", "status"]),
        ("user-ids.list", ["user", "id", "list"]),
        ("parseURLs", ["pars", "url"]),
        ("encodeBase64", ["encod", "base64"]),
        ("render_3D", ["render", "3d"]),
        ("agent.analytic", ["agent", "analyt"]),
    ],
)
def test_a_name_splits_where_its_words_do(name: str, expected: list[str]) -> None:
    assert terms(name) == expected


@pytest.mark.parametrize("name", ["web_search", "WebSearch", "webSearch", "web-search", "websearch"])
def test_a_name_is_also_one_term_however_it_is_written(name: str) -> None:
    assert "websearch" in joined(name)
    assert terms("websearch") == ["websearch"]


def test_a_name_as_one_term_is_stemmed_like_the_words_of_a_query() -> None:
    assert set(terms("getuserids")) <= joined("srv.getUserIDs")
    assert set(terms("sendmessages")) <= joined("send_message")


def test_a_name_can_be_read_as_words() -> None:
    assert spaced("getHTTPStatus") == "get http status"


def test_english_is_stemmed_and_its_little_words_are_dropped() -> None:
    assert terms("What are the forecasts for my cities?") == ["forecast", "citi"]


def test_russian_words_are_the_same_in_every_case() -> None:
    assert terms("Погода в Москве") == terms("погоды Москва") == ["погод", "москв"]
    assert terms("ещё") == []
    assert terms("счёта") == terms("счета")


def test_chinese_and_japanese_are_pairs_of_characters() -> None:
    assert terms("天气预报") == ["天气", "气预", "预报"]
    assert "予報" in terms("天気予報をください")
    assert terms("药") == ["药"]
    assert parts("天气") == ("~天", "~气")


def test_characters_that_are_grammar_say_nothing() -> None:
    assert terms("这是我们的") == terms("什么") == terms("吗") == []
    assert terms("买药的") == ["买药", "药的"]
    assert parts("药的") == ("~药",)


@pytest.mark.parametrize(
    ("one", "other"), [("электричек", "электрички"), ("авиабилеты", "билет"), ("проверь", "проверяет")]
)
def test_forms_of_a_russian_word_share_parts_where_their_stems_differ(one: str, other: str) -> None:
    (first,), (second,) = terms(one), terms(other)
    assert first != second
    assert len({*parts(first)} & {*parts(second)}) >= 2


def test_only_long_enough_words_of_these_scripts_have_parts() -> None:
    assert parts("кот") == parts("weather") == parts("2024") == ()
    assert parts("поезд") == ("~поез", "~оезд")


def test_scripts_may_follow_each_other_without_a_space() -> None:
    found = terms("查询API状态по заказу2")
    assert {"查询", "api", "状态", "заказ", "2"} <= set(found)


def test_accents_and_full_width_forms_do_not_hide_a_word() -> None:
    assert terms("Café ＡＰＩ ﬁle") == terms("cafe API file")


def test_keys_and_digests_are_no_words() -> None:
    assert terms("x" * (LONGEST_WORD + 1)) == []


@given(st.text(max_size=200))
def test_any_text_has_terms_that_are_lower_case_and_not_empty(text: str) -> None:
    for term in terms(text):
        assert term
        assert not any("A" <= letter <= "Z" for letter in term)
    assert joined(text) == joined(text)
