"""Validation errors become sentences that name the field and never the value."""

from dataclasses import dataclass, field

import pydantic
import pytest
from pydantic import ConfigDict

from longhouse.validation_messages import explain, path_text


@dataclass(frozen=True)
class Inner:
    __pydantic_config__ = ConfigDict(extra="forbid")

    temperature: float = 0.0
    key: str = ""


@dataclass(frozen=True)
class Outer:
    __pydantic_config__ = ConfigDict(extra="forbid")

    models: dict[str, Inner | None] = field(default_factory=dict)
    listed: tuple[Inner, ...] = ()


WRONG = {"models": {"a": {"temprature": 1, "key": ["canary"]}}, "listed": [{"colour": "canary"}], "x" * 99: 1}


def test_each_problem_has_a_path_and_a_sentence_and_the_value_stays_out() -> None:
    with pytest.raises(pydantic.ValidationError) as refused:
        pydantic.TypeAdapter(Outer).validate_python(WRONG)
    told = {path_text(where): says for where, says in explain(refused.value, model=Outer, words={"string_type": "no"})}
    assert told == {
        "models.a.temprature": "is not known; did you mean temperature?",
        "models.a.key": "no",
        "listed[0].colour": "is not known; known here: key, temperature",
        "x" * 64: "is not known; known here: listed, models",
    }
    plain = dict(explain(refused.value))
    assert plain["models", "a", "temprature"] == "there is no such field"
    assert plain["models", "a", "key"] == "Input should be a valid string"
    assert "canary" not in str(plain.values())


class Body(pydantic.BaseModel):
    inner: Inner | None = None
    named: dict[str, int] = {}


@pytest.mark.parametrize("sent", [{"inner": 5, "named": []}, {"inner": [], "named": "x"}, 5])
def test_what_is_no_object_is_told_without_the_names_of_classes(sent: object) -> None:
    text = pydantic.TypeAdapter(object).dump_json(sent)
    with pytest.raises(pydantic.ValidationError) as as_values:
        Body.model_validate(sent)
    with pytest.raises(pydantic.ValidationError) as as_json:
        Body.model_validate_json(text)
    for refused in (as_values.value, as_json.value):
        assert {says for _, says in explain(refused)} == {"It should be an object"}
