"""The parts of the training that need no GPU: what is read, what is kept apart, and what the product reads of it."""

import json
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
from training import archives, asking, collect, corpus, fetch, pack, rows, teacher, vocabulary
from training.pack import Trained
from training.readers import READERS, catalogs, docstrings, pages
from training.rows import Row

from longhouse.models import embedding_table

PO = """
#: page.html
msgid "Delete the %(name)s file"
msgstr "Удалить файл %(name)s"

#, fuzzy
msgid "Guess"
msgstr "Догадка"
"""
CODE = '''
def plan_route(self, start, end):
    """Plans the shortest route on a map.

    Traffic jams are avoided.
    """
'''


def wheel(folder: Path, licence: str, **files: str) -> Path:
    path = folder / "routes-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr(
            "routes-1.0.dist-info/METADATA", f"Name: routes\nVersion: 1.0\nLicense-Expression: {licence}\n\nText"
        )
        for name, text in files.items():
            made.writestr(name, text)
    return path


FILES = {
    "routes/plan.py": CODE,
    "routes/tests/test_plan.py": CODE,
    "routes/locale/ru/LC_MESSAGES/django.po": PO,
    "routes/translations/en.json": '{"title": {"add": "Add a device"}, "odd": 1}',
    "routes/translations/zh-Hans.json": '{"title": {"add": "添加设备"}, "other": "其他"}',
}


def test_rows_are_read_out_of_a_package_without_running_it(tmp_path: Path) -> None:
    with archives.opened(wheel(tmp_path, "MIT", **FILES)) as archive:
        assert (archive.name, archive.version, archive.is_permissive) == ("routes", "1.0", True)
        (asked,) = docstrings.docstrings(archive)
        assert (asked.query, asked.text) == (
            "Plans the shortest route on a map.",
            "plan route: Traffic jams are avoided. start end",
        )
        (said,) = catalogs.gettext(archive)
        assert (said.language, said.query, said.text) == ("ru", "Удалить файл", "Delete the file")
        (other,) = catalogs.locale_files(archive)
        assert (other.language, other.query, other.text) == ("zh", "添加设备", "Add a device")


@pytest.mark.parametrize(("licence", "is_read"), [("MIT", True), ("GPL-3.0-or-later", False), ("CC-BY-NC-4.0", False)])
def test_a_package_is_read_under_a_permissive_licence_alone(tmp_path: Path, licence: str, is_read: bool) -> None:
    source = fetch.Source("PyPI", "routes", "1.0", "MIT", ("docstrings",))
    folder = tmp_path / source.folder
    folder.mkdir(parents=True)
    wheel(folder, licence, **FILES)
    told = collect.collect(source, tmp_path, tmp_path)
    assert told is not None
    assert told["licence"] == licence
    assert told["rows"] == ({"en": 1} if is_read else {})
    assert collect.collect(fetch.Source("PyPI", "absent", "1", "MIT"), tmp_path, tmp_path) is None


def test_pages_in_two_languages_are_put_side_by_side(tmp_path: Path) -> None:
    checkout = tmp_path / "someone+docs"
    written = {
        "LICENSE": "MIT License",
        "pages/common/cp.md": "# cp\n\n> Copy files.\n\n- Copy a file:\n\n`cp {{path}}`\n",
        "pages.ru/common/cp.md": "# cp\n\n> Копирует файлы.\n\n- Скопировать файл:\n\n`cp {{путь}}`\n",
        "docs/en/a.md": "# One\n\nFirst you install the package.\n",
        "docs/ru/a.md": "# Раз\n\nСначала установите этот пакет.\n",
    }
    for name, text in written.items():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(text, encoding="utf-8")
    with archives.opened(checkout) as archive:
        assert archive.is_permissive
        found = {(row.query, row.text) for row in pages.tldr(archive)}
        assert {("Copy a file", "cp: Copy files."), ("Скопировать файл", "Copy a file")} <= found
        assert {row.query for row in pages.documents(archive)} >= {"Сначала установите этот пакет."}


def test_every_source_has_a_licence_that_may_be_used_and_readers_that_exist() -> None:
    known = fetch.sources()
    assert len(known) > 200
    for one in known:
        assert archives.PERMISSIVE.search(one.licence), one
        assert not archives.REFUSED.search(one.licence), one
        assert {*one.readers} <= READERS.keys(), one
    assert [one.name for one in fetch.sources("botocore")] == ["botocore"]


def test_the_list_of_sources_claims_no_licence_that_nobody_has_read() -> None:
    """A source is under a licence that may be used, or it is said not to be, and then nothing here reads it again."""
    written = (Path(fetch.__file__).parent / "SOURCES.md").read_text("utf-8")
    table = written.split("## Sources", 1)[1].split("\n## ", 1)[0]
    listed = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:2] == "| "]
    sources = {name: (package, licence) for name, package, licence, _ in listed[1:]}
    assert len(sources) > 20
    doubtful = {package for package, licence in sources.values() if licence.startswith("not verified")}
    for name, (package, licence) in sources.items():
        may_be_used = archives.PERMISSIVE.search(licence) and not archives.REFUSED.search(licence)
        assert may_be_used or package in doubtful or licence == "each permissive, see below", name
    assert {name.strip("`") for name in sources if name.startswith("`")} <= READERS.keys()
    assert len(doubtful) == 1
    assert not [one.name for one in fetch.sources() for package in doubtful if one.name.lower() in package.lower()]


def test_what_is_tested_on_is_not_trained_on(tmp_path: Path) -> None:
    (tmp_path / "queries.jsonl").write_text(
        json.dumps({"query": "Book a table for two people near the old town hall tonight"})
        + "\n"
        + json.dumps({"query": "今天晚上在老城区附近预订两个人的桌子"}, ensure_ascii=False)
    )
    apart = corpus.Apart(corpus.texts_of(tmp_path))
    found = [
        Row("a", "pair", "en", "Please book a table for two people near the old town", "book table"),
        Row("a", "pair", "en", "Book a table", "book table: for two people"),
        Row("a", "parallel", "zh", "请今天晚上在老城区附近预订两个人的桌子吧", "Book a table"),
        Row("a", "pair", "en", "Book a table", "book table: for two people"),
    ]
    assert [row.query for row in corpus.kept(found, apart)] == ["Book a table"]


def test_rows_set_aside_are_not_among_those_trained_on() -> None:
    found = [Row("a", "pair", "en", f"Find the {n}th thing", f"find thing {n}") for n in range(200)]
    found += [
        Row("b", "text", "en", "Find the 7th thing", ""),
        Row("b", "parallel", "ru", "Найди вещь номер семь", "find thing 7"),
    ]
    trained, aside = corpus.split(found, random.Random(1))
    assert len(aside) == 10
    queries = {row.query for row in aside}
    assert not queries & {row.query for row in trained}
    assert not {row.text for row in aside} & {row.text for row in trained}


def test_a_description_becomes_a_request() -> None:
    chance = random.Random(3)
    said = {asking.asked("Returns the weather of a city.", chance) for _ in range(50)}
    assert "Can you return the weather of a city?" in said
    assert not [one for one in said if "Returns" in one or "city.." in one]
    assert asking.asked("A list of cities", chance)[:1].isalpha()


def test_pairs_of_characters_that_belong_together_get_a_row() -> None:
    texts = [
        Row("a", "parallel", "zh", text, "x") for text in ("天气好吗", "天气不好", "好天气", "气天") for _ in range(30)
    ]
    words = ["[UNK]", "天", "气", "好", "吗", "不"]
    found = vocabulary.pairs(texts, words, most=1)
    assert found.tolist() == [1 * embedding_table.PAIR + 2]
    assert vocabulary.PAIR == embedding_table.PAIR


def test_the_teacher_survives_being_made_small() -> None:
    weights = {"wide": np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32), "bias": np.ones(4, np.float32)}
    again = teacher.unpacked(teacher.packed(weights))
    assert again["wide"] == pytest.approx(weights["wide"], abs=0.03)
    assert again["bias"].tolist() == [1] * 4


def test_what_is_packed_is_what_the_program_reads() -> None:
    made = np.random.default_rng(2).normal(size=(50, 16)).astype(np.float32)
    made[7] = 0
    packed = pack.pack(made)
    read = embedding_table.unpacked(packed.numbers) * packed.scales.astype(np.float32)[:, None]
    assert np.array_equal(read, packed.rows)
    assert np.array_equal(pack.pack(packed.rows).numbers, packed.numbers), "packing again changes nothing"
    assert np.abs(read - made).max() < np.abs(made).max() / 10
    assert not read[7].any()


async def test_a_packed_run_is_a_table_that_longhouse_reads(tmp_path: Path) -> None:
    words = ["[UNK]", "rain", "the", "天", "气", "的", "吗", "?"]
    pairs = np.array([3 * embedding_table.PAIR + 4, 5 * embedding_table.PAIR + 6])
    made = np.random.default_rng(3).normal(size=(10, 8)).astype(np.float32)
    name = pack.write(Trained(words, pairs, made), tmp_path / "table", "toy")
    assert pack.write(Trained(words, pairs, made), tmp_path / "again", "toy") == name, "the name is what is in it"
    assert pack.write(Trained(words, pairs, -made), tmp_path / "other", "toy") != name
    embedder = embedding_table.EmbeddedEmbedder(tmp_path / "table")
    assert (embedder.name, embedder.dimensions) == (f"longhouse/{name}", 8)
    rain, same, weather, nothing = await embedder.embed(["rain", "The rain?", "天气的", "the 的吗?"])
    assert np.array_equal(rain, same), "grammar and signs have no row"
    assert not nothing.any()
    expected = pack.pack(made).rows[[3, 4, 8]].sum(axis=0)
    assert weather == pytest.approx(expected / np.linalg.norm(expected), abs=1e-5)


def test_the_best_run_is_chosen_by_what_was_set_aside(tmp_path: Path) -> None:
    (tmp_path / "scores.json").write_text(json.dumps({"seed-1": {"en": 80, "ru": 50}, "seed-2": {"en": 79, "ru": 55}}))
    assert pack.best(tmp_path) == tmp_path / "seed-2.npz"


def test_rows_are_written_and_read_again(tmp_path: Path) -> None:
    row = Row("a", "parallel", "ru", "Привет", "Hello")
    assert rows.write(tmp_path / "rows.jsonl", [row]) == {"ru": 1}
    assert list(rows.read((tmp_path / "rows.jsonl").read_text("utf-8").splitlines())) == [row]
