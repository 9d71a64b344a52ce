"""YAML becomes plain values that know their lines; whatever else is in a file is said, and costs little."""

from pathlib import Path

import pytest

from longhouse.config.mistakes import Mistakes
from longhouse.config.yaml_document import YamlDocument, read_document
from longhouse.config.yaml_reader import LARGEST
from longhouse.errors import SetupError


def read(folder: Path, text: str | bytes) -> tuple[YamlDocument | None, list[str]]:
    """The document and the mistakes in it, each without the folder."""
    path, mistakes = folder / "x.yaml", Mistakes()
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    node = read_document(path, mistakes)
    try:
        mistakes.refuse()
    except SetupError as error:
        return node, [line.replace(f"{folder}/", "") for line in str(error).splitlines()[1:]]
    return node, []


def test_values_are_plain_and_know_their_lines_and_fields(tmp_path: Path) -> None:
    node, wrong = read(tmp_path, "a:\n  b: 1\n  c: [x, 2.5]\n\nd: 2026-01-02\ne:\nf: yes\n")
    assert wrong == []
    assert node is not None
    assert node.values == {"a": {"b": 1, "c": ["x", 2.5]}, "d": "2026-01-02", "e": None, "f": True}
    assert str(node.place(("a", "c", 1))).endswith("x.yaml:3: a.c[1]")
    assert str(node.place(("a", "gone", "deep"))).endswith("x.yaml:1: a.gone.deep"), "the nearest line above it"


def test_an_empty_file_says_nothing_and_a_list_is_no_file_of_settings(tmp_path: Path) -> None:
    node, wrong = read(tmp_path, "# nothing yet\n")
    assert (node and node.values, wrong) == ({}, [])
    assert read(tmp_path, "- a\n")[1] == ["x.yaml:1: should contain fields, such as `llm:`"]


def test_a_field_that_is_there_twice_is_refused_and_both_are_looked_at(tmp_path: Path) -> None:
    _, wrong = read(tmp_path, "a:\n  b: 1\n  b: 2\na: {c: .nan}\n7: x\n")
    assert wrong == [
        "x.yaml:3: a.b: is set twice, first in line 2",
        "x.yaml:4: a.c: is not a finite number of at most 64 bits",
        "x.yaml:4: a: is set twice, first in line 1",
        "x.yaml:5: has a field whose name is not text; put it in quotes",
    ]


def test_fields_may_be_taken_from_elsewhere(tmp_path: Path) -> None:
    node, wrong = read(tmp_path, "base: &base {x: 1, y: 1}\none: {<<: *base, y: 2}\n")
    assert wrong == []
    assert node is not None
    assert node.values["one"] == {"x": 1, "y": 2}
    assert read(tmp_path, "a: {<<: 3}\n")[1] == ["x.yaml:1: a: `<<` needs a mapping to take fields from"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1,\nb: 2\n", "x.yaml:3: is not YAML: while parsing a flow sequence that begins in line 1, expected"),
        ("a:\n\tb: 1\n", "x.yaml:2: is not YAML: found character"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2: is not YAML: expected a single document"),
        ("a: *nobody\n", "x.yaml:1: is not YAML: found undefined alias"),
        (b"a: \xff\n", "x.yaml:1: is not text in UTF-8"),
        ("a: " + "[" * 100_000, "x.yaml:1: is nested deeper than 40 levels"),
        ("a: &a [*a]\n", "x.yaml:1: is nested deeper than 40 levels"),
        ("a: &a {<<: *a}\n", "x.yaml:1: is nested deeper than 40 levels"),
        ('"\\ud800": 1\n', "x.yaml:1: has a field whose name is not text"),
        ("a: " + "x" * LARGEST, "x.yaml:1: is larger than 1000000 bytes"),
        ("a: !!python/object/apply:os.system [true]\n", "x.yaml:1: a: has a tag"),
        ("a: !!python/name:os.system\n", "x.yaml:1: a: has a tag"),
        ('a: "x\\0y"\n', "x.yaml:1: a: contains a character that cannot be stored"),
        ("a: 1\nb: \x00\n", "x.yaml:2: contains a character that cannot be stored"),
        (f"a: {'9' * 5000}\n", "x.yaml:1: a: is not a finite number of at most 64 bits"),
    ],
    ids=lambda given: str(given)[:40].encode("unicode_escape").decode(),
)
def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path, text: str | bytes, said: str) -> None:
    _, wrong = read(tmp_path, text)
    assert len(wrong) == 1
    assert wrong[0].startswith(said)


def test_a_few_lines_that_stand_for_billions_of_values_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    _, wrong = read(tmp_path, "\n".join(lines))
    assert wrong == ["x.yaml:1: contains more than 50000 values; each use of an alias counts"]
    lines = ["a0: &a0 {}", *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 12))]
    assert read(tmp_path, "\n".join(lines))[1] == wrong, "also where each of them brings nothing"


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    mistakes = Mistakes()
    assert read_document(tmp_path / "gone.yaml", mistakes) is None
    with pytest.raises(SetupError, match=r"gone\.yaml:1: cannot be read: No such file"):
        mistakes.refuse()
