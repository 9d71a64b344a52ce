"""Statements with named parameters: what counts as a name, and which errors a wrong name gives."""

import importlib
import pkgutil
import re

import asyncpg
import pytest

import longhouse
from longhouse.store.database import Database, Transaction, bound


def test_each_name_is_one_number_however_often_it_is_used() -> None:
    sql = "UPDATE t SET a = :a, b = COALESCE(:b, :a), since = :a_since WHERE id=:id"
    numbered = "UPDATE t SET a = $1, b = COALESCE($2, $1), since = $3 WHERE id=$4"
    assert bound(sql, {"id": 7, "b": None, "a": 1, "a_since": 2}) == (numbered, 1, None, 2, 7)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1::int, now()::text, ARRAY[1]::int[]",
        "SELECT 'at :noon', 'it''s :late', split_part(key, ':', 1)",
        'SELECT ":name" FROM t',
        "SELECT 1 -- of :which\n",
        "SELECT 1 /* of :which,\n :whom */",
        "DO $$ BEGIN PERFORM ':x'; PERFORM a[b:c]; END $$",
        "SELECT steps[1:most], steps[least:most], steps[:most - 1], steps[f(1):most], nested[a[1]:most] FROM t",
        "SELECT make_interval(secs := 1)",
    ],
)
def test_other_colons_name_nothing(sql: str) -> None:
    assert bound(sql, {}) == (sql,)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "missing values: ['id', 'owner'], unknown names: []"),
        ({"id": 1}, "missing values: ['owner'], unknown names: []"),
        ({"id": 1, "owner": "x", "ownr": "x"}, "missing values: [], unknown names: ['ownr']"),
        ({"id": 1, "ownr": "x"}, "missing values: ['owner'], unknown names: ['ownr']"),
    ],
)
async def test_a_wrong_or_missing_name_is_refused_before_anything_is_sent(
    db: Database, values: dict[str, object], said: str
) -> None:
    sql = "  SELECT FROM there_is_none WHERE id = :id AND owner = :owner"
    message = re.escape(f"{said}, in the statement 'SELECT FROM there_is_none WHERE id = :id AND owner = :owner'")

    async def inside(tx: Transaction) -> None:
        for run in (tx.rows, tx.row, tx.value, tx.run):
            with pytest.raises(TypeError, match=message):
                await run(sql, **values)
        assert await tx.value("SELECT 1") == 1

    for run in (db.rows, db.row, db.value, db.run):
        with pytest.raises(TypeError, match=message):
            await run(sql, **values)
    with pytest.raises(TypeError, match=message):
        await db.alone((1, 2), sql, **values)
    with pytest.raises(TypeError, match=message):
        await db.tuned("SET LOCAL enable_sort = off", sql, **values)
    await db.together(inside)


async def test_a_parameter_may_have_any_name(db: Database) -> None:
    assert await db.value("SELECT :self || :sql || :values", self="a", sql="b", values="c") == "abc"


async def test_each_way_of_executing_takes_names(db: Database) -> None:
    sql, values = "SELECT :n::int - :m::int AS left", {"m": 1, "n": 3}
    assert [await db.value(sql, **values), *[row["left"] for row in await db.rows(sql, **values)]] == [2, 2]
    row = await db.row(sql, **values)
    assert (
        row == await db.alone((1, 2), sql, **values) == (await db.tuned("SET LOCAL work_mem = '1MB'", sql, **values))[0]
    )
    assert await db.run("SELECT :n::int", n=1) == "SELECT 1"
    with pytest.raises(asyncpg.DataError):
        await db.value(sql, m="not a number", n=3)


def test_no_statement_of_the_store_has_numbered_parameters() -> None:
    """A number says nothing. Left are single parameters, and pairs of a lock, that go straight to a connection."""
    for module in pkgutil.walk_packages(longhouse.__path__, "longhouse."):
        if module.name.startswith("longhouse.store") and not module.ispkg:
            constants = vars(importlib.import_module(module.name))
            texts = {name: value for name, value in constants.items() if isinstance(value, str) and name.isupper()}
            assert not [name for name, value in texts.items() if re.search(r"\$[2-9]", value)], module.name
