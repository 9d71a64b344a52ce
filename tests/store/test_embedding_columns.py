"""Vectors in SQL: compared where the extension works, bytes elsewhere; installations of before come along."""

import asyncpg
import numpy as np
import pytest

from conftest import database, plain_role
from longhouse.search.finder import Finder
from longhouse.search.indexer import Indexer
from longhouse.store import migrate
from longhouse.store.database import Database, open_database
from longhouse.store.search.query import SearchFilters
from old_database import made_formerly
from search_helpers import Buckets, found, indexed, publish, tool

SOME = (
    tool("get_forecast", "The weather of the next days in a city", "city"),
    tool("sendLetter", "Deliver a letter by post", "recipient", "stamp_value"),
    tool("railway.timetable", "Departures of trains from a station", "station"),
)
QUERY = "deliver a letter"
NEAREST = "SELECT name FROM tools ORDER BY embedding <=> '{vector}'::vector LIMIT 5"


async def asked(dsn: str, sql: str) -> list[str]:
    """As somebody asks who comes with a client of their own."""
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "longhouse, public"})
    try:
        return [row["name"] for row in await connection.fetch(sql)]
    finally:
        await connection.close()


async def vector_of(text: str) -> str:
    return str((await Buckets().embed([text]))[0].tolist())


async def kept(db: Database) -> dict[str, object]:
    return {row["name"]: row["embedding"] for row in await db.rows("SELECT name, embedding FROM tools WHERE is_active")}


async def is_numbers(db: Database) -> bool:
    columns = "SELECT data_type FROM information_schema.columns WHERE column_name = 'embedding' ORDER BY table_name"
    types = {row["data_type"] for row in await db.rows(columns)}
    assert len(types) == 1
    return types == {"USER-DEFINED"}


async def test_a_postgres_without_the_extension_keeps_vectors_and_shows_them_once_it_is_there(
    request: pytest.FixtureRequest,
) -> None:
    async with database(request) as admin, plain_role(admin) as dsn:
        async with open_database(dsn) as db:
            await migrate.migrate(db)
            finder = await indexed(db, *SOME, embedder=Buckets())
            best = (await finder.tools(QUERY, SearchFilters(), 1))[0]
            assert (best.name, best.semantic is not None) == ("sendLetter", True)
            shown = await kept(db)
            expected = (await Buckets().embed(["Deliver a letter by post"])).astype("<f2")
            assert {len(value) for value in shown.values() if isinstance(value, bytes)} == {expected.nbytes}
            assert not await is_numbers(db)
        connection = await asyncpg.connect(admin)
        await connection.execute("CREATE EXTENSION vector SCHEMA public")
        await connection.close()
        async with open_database(dsn) as db:
            assert await migrate.migrate(db) == []
            await publish(db, tool("post.parcel", "Deliver a parcel by post"))
            await Indexer(db, Buckets()).catch_up()
            assert await is_numbers(db)
            nearest = await asked(dsn, NEAREST.format(vector=await vector_of(QUERY)))
            assert nearest[:2] == ["sendLetter", "post.parcel"]
            assert (await found(Finder(db, Buckets()), QUERY))[0] == "sendLetter"


async def test_both_columns_say_the_same_and_anybody_may_compare(db: Database) -> None:
    await indexed(db, *SOME, embedder=Buckets())
    connection = await asyncpg.connect(db.dsn)  # as `psql` comes, which knows of no schema
    nearest = await connection.fetch(NEAREST.format(vector=await vector_of(QUERY)))
    assert nearest[0]["name"] == "sendLetter"
    await connection.close()
    rows = await db.rows("SELECT vector, embedding::real[] AS numbers FROM search_documents WHERE kind = 'tool'")
    assert len(rows) == len(SOME)
    for row in rows:
        assert np.frombuffer(row["vector"], "<f2").tolist() == pytest.approx(row["numbers"], abs=1e-5)


async def test_an_extension_that_must_not_be_called_is_left_out_again(db: Database) -> None:
    finder = await indexed(db, *SOME, embedder=Buckets())
    await migrate.migrate(db, may_extend=False)
    assert not await is_numbers(db)
    assert await db.value("SELECT count(*) FROM tools WHERE octet_length(embedding) = 32") == len(SOME)
    await publish(db, tool("post.parcel", "Deliver a parcel by post"))
    assert await Indexer(db, Buckets()).catch_up()
    assert (await found(finder, "deliver a parcel"))[0] == "post.parcel"


async def test_views_that_went_with_the_extension_come_back(db: Database) -> None:
    await indexed(db, *SOME, embedder=Buckets())
    await db.run("DROP EXTENSION vector CASCADE")
    await migrate.migrate(db, may_extend=False)
    assert await db.value("SELECT count(*) FROM tools WHERE octet_length(embedding) = 32") == len(SOME)
    assert await db.value("SELECT count(*) FROM agent_templates") == 0


async def test_an_older_version_of_the_extension_is_brought_up_to_date(db: Database) -> None:
    newest = await db.value("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
    await db.run("UPDATE pg_extension SET extversion = '0.8.4' WHERE extname = 'vector'")
    await migrate.migrate(db)
    assert await db.value("SELECT extversion FROM pg_extension WHERE extname = 'vector'") == newest != "0.8.4"
    assert await is_numbers(db)


# An installation of before

OLD_VECTORS = """
    INSERT INTO search_models (name, dimensions) VALUES ('buckets', 16);
    INSERT INTO search_documents (kind, name, version, digest, shard, slot, type, risk, tags, sub_agents, tools, model,
                                  vector)
    SELECT kind, name, version, '', 1, row_number() OVER (), 'atomic', 1, '{}', true, '{}', 1,
           array_fill(0.25::real, ARRAY[16])::halfvec
    FROM catalog_versions WHERE kind = 'tool';
    CREATE INDEX search_graph_1 ON search_documents USING hnsw ((vector::halfvec(16)) halfvec_cosine_ops)
    WHERE kind = 'tool' AND model = 1 AND owner IS NULL;
    UPDATE search_state SET generation = (SELECT generation FROM catalog_generation g WHERE g.kind = search_state.kind),
                            model = 1;
"""


async def test_an_installation_with_a_graph_of_halfvecs_comes_along(request: pytest.FixtureRequest) -> None:
    async with database(request) as dsn:
        await made_formerly(dsn)
        async with open_database(dsn) as db:
            # What publishes here is of today, and reads a column that came later.
            await db.run("ALTER TABLE catalog_generation ADD COLUMN erased_upto integer NOT NULL DEFAULT 0")
            await publish(db, *SOME)
            await db.run("ALTER TABLE catalog_generation DROP COLUMN erased_upto")
            await db.run(OLD_VECTORS)
            await db.run("GRANT SELECT ON tools TO pg_monitor WITH GRANT OPTION")
            await migrate.migrate(db)
            await migrate.check(db)
            assert await db.value("SELECT to_regclass('search_graph_1') IS NULL")
            assert await db.value("SELECT has_table_privilege('pg_monitor', 'tools', 'SELECT WITH GRANT OPTION')")
            finder = Finder(db, Buckets())
            assert await Indexer(db, Buckets()).catch_up()
            assert (await found(finder, QUERY))[0] == "sendLetter"
            nearest = await asked(dsn, NEAREST.format(vector=await vector_of(QUERY)))
            assert nearest[0] == "sendLetter"


async def test_what_people_built_on_the_views_stands_in_nobodys_way(request: pytest.FixtureRequest) -> None:
    async with database(request) as dsn:
        await made_formerly(dsn)
        async with open_database(dsn) as db:
            await db.run("CREATE VIEW mine AS SELECT name, embedding FROM tools WHERE is_active")
            await migrate.migrate(db)
            await migrate.check(db)
            finder = await indexed(db, *SOME, embedder=Buckets())
            assert (await found(finder, QUERY))[0] == "sendLetter"
            assert len(await asked(dsn, NEAREST.replace("tools", "mine").format(vector=await vector_of(QUERY)))) == 3
            await db.run("DROP VIEW mine")
            await migrate.migrate(db)
            assert await is_numbers(db)
            assert (await asked(dsn, NEAREST.format(vector=await vector_of(QUERY))))[0] == "sendLetter"
