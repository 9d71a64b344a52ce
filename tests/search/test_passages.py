"""Passages are found by words, meaning and neighbours, within their scope; what is deleted leaves no word behind."""

import asyncio
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from longhouse.errors import ProviderError
from longhouse.journal import events
from longhouse.memory.dates import date_words
from longhouse.models.embedding_table import EmbeddedEmbedder
from longhouse.search import scores
from longhouse.search.passage_ranking import PassageRanking
from longhouse.search.passages import Passage, PassageHit, PassageIndex
from longhouse.store import journals
from longhouse.store.database import Database, Transaction, open_database
from longhouse.store.erasing import erasure
from longhouse.store.search import passages as stored
from longhouse.store.search.passage_cache import Columns, linked, near_of
from longhouse.store.search.passages import RECIPE, Shard
from search_helpers import Buckets

ANSWERS = {
    "When did Mel run the charity race?": "I ran a charity race for mental health last Saturday.",
    "Which safety distance applies to overhead lines?": "Near overhead lines a safety distance of 3 metres applies.",
    "Где Павел нашёл квартиру?": "Нашёл квартиру на Васильевском, окна во двор.",
    "Сколько стоит ремонт машины?": "Ремонт машины обошёлся в сорок тысяч рублей.",
    "会议在哪里举行？": "今天的会议在三楼举行。",
    "猫生了几只小猫？": "我家的猫昨天生了四只小猫！",
}


class Moody(Buckets):
    """An embedding model that may be away."""

    is_away = False

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        if self.is_away:
            raise ProviderError("embeddings.invalid:443 gave no embeddings", retryable=True)
        return await super().embed(texts)


def note(text: str, source: str = "", **fields: Any) -> Passage:
    given = {"scope": "ann", "kind": "note", "group": "g", **fields}
    return Passage(source=source or text, text=text, **given)


async def found(index: PassageIndex, query: str, *scopes: str, **options: Any) -> list[PassageHit]:
    return await index.search(query, scopes or ("ann",), **{"kinds": ["note"], "limit": 10, **options})


async def texts(index: PassageIndex, query: str, *scopes: str, **options: Any) -> list[str]:
    return [hit.text for hit in await found(index, query, *scopes, **options)]


async def delete(index: PassageIndex, kind: str, **which: Any) -> int:
    return await index.db.together(lambda tx: stored.remove(tx, kind, **which))


async def terms(db: Database) -> set[str]:
    return {row["term"] for row in await db.rows("SELECT DISTINCT term FROM passage_postings WHERE term <> ''")}


async def test_relevance_is_absolute_in_three_languages_with_vectors_and_without(db: Database) -> None:
    for index, scope in ((PassageIndex(db, EmbeddedEmbedder()), "vectors"), (PassageIndex(db, None), "words")):
        await index.write([note(text, scope=scope) for text in ANSWERS.values()])
        for question, answer in ANSWERS.items():
            best, *others = await found(index, question, scope)
            assert best.text == answer
            assert best.relevance > 0.5, (question, best)
            assert all(hit.relevance < 0.3 for hit in others), (question, others)
            same = (await found(index, answer, scope))[0]
            assert (same.text, round(same.relevance, 2)) == (answer, 1.0)
            assert (best.semantic is None) == (scope == "words")
    assert await texts(index, "charity race", "nobody") == []
    assert await texts(index, "charity race", "vectors", kinds=["document"]) == []
    assert await texts(index, "", "words") == []


async def test_filters_hold_before_ranking(db: Database) -> None:
    index = PassageIndex(db, Buckets())
    days = [datetime(2026, 5, day, tzinfo=UTC) for day in range(1, 31)]
    await index.write(
        [
            note(
                f"The ferry number {nth} leaves the harbour.",
                group=f"g{nth % 3}",
                at=day,
                facts={
                    "page": nth,
                    "chapters": ["one", "two" if nth % 2 else "three"],
                    "is_last": nth == 29,
                    "long": "x" * 999,
                },
            )
            for nth, day in enumerate(days)
        ]
    )
    await index.write([note("A ferry without a date.")])
    assert len(await found(index, "ferry", limit=99)) == 31
    assert {hit.group for hit in await found(index, "ferry", limit=99, groups=["g1", "g2"])} == {"g1", "g2"}
    assert {hit.group for hit in await found(index, "ferry", limit=99, not_groups=["g1", "g2"])} == {"g0", "g"}
    assert [hit.facts["page"] for hit in await found(index, "ferry", facts={"page": ["7"]})] == [7]
    assert len(await found(index, "ferry", limit=99, facts={"chapters": ["two"], "long": ["x" * 999]})) == 15
    assert [hit.facts["page"] for hit in await found(index, "ferry", facts={"is_last": ["true"]})] == [29]
    assert await found(index, "ferry", facts={"page": []}) == await found(index, "ferry", groups=[]) == []
    week = await found(index, "ferry", limit=99, since=days[3], until=days[10])
    assert sorted(hit.facts["page"] for hit in week) == list(range(3, 10))
    assert [hit.at for hit in week if hit.facts["page"] == 3] == [days[3]]
    first, second = week[:2]
    again = await index.read([second.name, f"passage:{10**9}", "note:nothing", f"passage:{first.id}"], ["ann"])
    assert [(hit.id, hit.text) for hit in again] == [(second.id, second.text), (first.id, first.text)]
    assert await index.read([first.name, f"passage:{first.id}"], ["bob"]) == []


async def test_a_passage_that_is_written_again_takes_the_place_of_the_old_one(db: Database) -> None:
    index = PassageIndex(db, Buckets())
    first = [note("The parrot sings.", "1"), note("The walrus sleeps.", "2"), note("The parrot flies.", "2")]
    await index.write(first)
    await index.write(first[::2])
    (shard,) = await db.rows("SELECT slots, gone FROM passage_shards")
    assert tuple(shard) == (2, 0)  # the last of two stands, and what is equal stays as it is
    (old,) = await found(index, "sings", limit=1)
    await index.write([note("The elephant paints.", "1", facts={"page": 2})])
    (new,) = await found(index, "elephant", limit=1)
    assert (new.id, new.text, new.facts) == (old.id, "The elephant paints.", {"page": 2})
    assert "sing" not in await terms(db)
    assert "walrus" not in await terms(db)
    assert await texts(PassageIndex(db, None), "parrot") == ["The parrot flies."]


async def test_what_is_deleted_leaves_no_word(db: Database) -> None:
    index = PassageIndex(db, Buckets())
    secret = note(
        "The password is swordfish", "1", title="Gandalf", context="Rivendell", facts={"page": "moria"}, group="a"
    )
    await index.write([secret, note("The parrot sings", "2", group="b"), note("The parrot flies", "3", group="b")])
    await index.write([note("swordfish", scope="bob", group="a"), note("swordfish", kind="file", group="a")])
    assert await delete(index, "note", scope="ann", groups=["a"]) == 1
    assert await delete(index, "note", scope="ann", groups=["a"]) == 0
    assert await texts(index, "swordfish") == []
    assert await texts(index, "swordfish", "bob") == ["swordfish"]
    assert await delete(index, "note", groups=["a"]) == await delete(index, "file", sources=["swordfish"]) == 1
    left = await terms(db)
    assert {"parrot", "sing", "fli"} <= left
    assert not left & {"password", "swordfish", "gandalf", "rivendel", "=page=moria", "==a"}
    assert await db.value("SELECT count(*) FROM passages WHERE passages::text LIKE '%swordfish%'") == 0
    assert await texts(index, "parrot sings", limit=1) == ["The parrot sings"]
    assert await delete(index, "note") == 2
    assert not await terms(db)
    assert await db.value("SELECT count(*) FROM passage_shards") == 0


async def test_an_erased_session_takes_its_passages_along_and_none_come_later(db: Database) -> None:
    index = PassageIndex(db, None)
    opened = events.Opened(agent="keeper", version=1, owner="local", conversation="c")
    prompted = events.Prompted(trace="t", content=("Hi",))
    session = (await journals.open(db, f"keeper_{uuid.uuid4()}", opened, prompted, task="Hi")).session_id
    said = note("The password is swordfish", group=session)
    await index.write([said, replace(said, kind="interaction"), note("The parrot sings")])
    assert await erasure.forget(db, session, "local")
    await index.write([said, note("The parrot flies")])
    assert await texts(index, "password swordfish", kinds=["note", "interaction"]) == []
    assert sorted(await texts(index, "parrot")) == ["The parrot flies", "The parrot sings"]
    assert "swordfish" not in await terms(db)


async def test_an_answer_is_found_by_the_words_of_its_neighbours(db: Database) -> None:
    index = PassageIndex(db, None)
    said = (
        "How is the weather?",
        "Did you decide about the car?",
        "Yes, the green one.",
        "Used or new?",
        "Bye, see you.",
    )
    at = datetime(2026, 5, 8, tzinfo=UTC)
    turns = [
        Passage(
            scope="ann", kind="interaction", source=str(nth), group="s", text=text,
            title="Theo" if nth % 2 == 0 else "Nora", context=date_words(at, text), at=at, thread="talk", position=nth,
        )
        for nth, text in enumerate(said)
    ]  # fmt: skip
    await index.write(turns[::-1])
    in_talk = await texts(index, "Which car was decided on?", kinds=["interaction"])
    assert in_talk[0] == said[1]
    assert set(in_talk[1:3]) == {said[0], said[2]}
    assert said[4] not in in_talk  # three turns away
    assert set(await texts(index, "what happened on 8 May", kinds=["interaction"])) == set(said)
    # One that has left is nobody's neighbour, and those at its sides become neighbours.
    await delete(index, "interaction", sources=["1"])
    assert await texts(index, "Which car was decided on?", kinds=["interaction"]) == []
    assert set(await texts(index, "weather", kinds=["interaction"])) == {said[0], said[2], said[3]}
    assert date_words(at, "Привет") == "8 мая 2026"
    assert date_words(at, "你好") == "2026年5月8日"


async def test_vectors_come_when_the_model_does(db: Database) -> None:
    model = Moody()
    model.is_away = True
    index = PassageIndex(db, model)
    await index.write([note("The parrot sings")])
    assert [hit.semantic for hit in await found(index, "parrot")] == [None]
    assert not await index.catch_up()
    model.is_away = False
    searching = PassageIndex(db, Moody())
    assert [hit.semantic for hit in await found(searching, "parrot")] == [None]
    assert await index.catch_up()
    assert (await found(searching, "parrot"))[0].semantic is not None  # another process reads the new vectors

    other = PassageIndex(db, Buckets("other", 8))
    assert [hit.semantic for hit in await found(other, "parrot")] == [None]
    await other.write([note("The walrus sleeps")])
    assert (await texts(other, "parrot"))[0] == "The parrot sings"  # by words
    assert await other.catch_up()
    assert (await found(other, "parrot"))[0].semantic is not None
    # The one that started first does not embed it all again, for ever.
    assert await index.catch_up()
    assert (await found(other, "parrot"))[0].semantic is not None
    # Without any model, what was embedded stays so.
    await PassageIndex(db, None).write([note("The parrot sings"), note("The parrot sings", scope="bob")])
    assert (await found(other, "parrot"))[0].semantic is not None


async def test_a_background_task_brings_passages_up_to_date(db: Database, monkeypatch: Any) -> None:
    monkeypatch.setattr("longhouse.search.passages.FIRST_AFTER", 0.0)
    await PassageIndex(db, None).write([note("The parrot sings")])
    async with PassageIndex(db, Buckets()).working() as index, asyncio.timeout(10):
        while (await found(index, "parrot"))[0].semantic is None:
            await asyncio.sleep(0.01)


async def test_passages_move_out_of_old_and_of_crowded_shards(db: Database) -> None:
    index, count = PassageIndex(db, None), stored.SHARD_SLOTS + 52
    for first in range(0, count, 700):
        await index.write([note(f"bird number{nth}", str(nth)) for nth in range(first, min(first + 700, count))])
    assert await db.value("SELECT count(*) FROM passage_shards") == 2
    (kept,) = await found(index, "number1999", limit=1)
    await delete(index, "note", sources=[str(nth) for nth in range(600)])
    assert await index.catch_up()
    shards = await db.rows("SELECT slots - gone AS live, gone FROM passage_shards ORDER BY id")
    assert [tuple(shard) for shard in shards] == [(count - 600, 0)]
    assert [hit.id for hit in await found(index, "number1999", limit=1)] == [kept.id]
    assert "number5" not in await terms(db)
    await db.run("UPDATE passage_shards SET recipe = 0")
    await index.write([note("The parrot sings"), note("bird number1999", "1999")])
    assert await index.catch_up()
    assert await db.value("SELECT array_agg(DISTINCT recipe) FROM passage_shards") == [RECIPE]
    assert [hit.id for hit in await found(index, "number1999", limit=1)] == [kept.id]


async def test_two_processes_write_delete_and_search_at_once(dsn: str) -> None:
    async with open_database(dsn) as one, open_database(dsn) as two:
        indexes = [PassageIndex(one, Buckets()), PassageIndex(two, Buckets())]

        async def work(index: PassageIndex, own: str) -> None:
            for nth in range(6):
                await index.write([note(f"shared{nth} parrot"), note(f"own{nth} {own} walrus", group=own)])
                await index.write([note(f"again {own}{nth} heron", "again"), note("x", f"{own}{nth}", scope=own)])
                await delete(index, "note", scope=own)
                await found(index, "parrot walrus heron")

        await asyncio.gather(*(work(index, f"p{nth}") for nth, index in enumerate(indexes * 2)))
        for index in (PassageIndex(one, None), PassageIndex(two, None)):
            assert len(await found(index, "parrot", limit=99)) == 6
            assert len(await found(index, "walrus", limit=99)) == 24
            assert len(await texts(index, "heron", limit=99)) == 1
            assert await found(index, "x", "p0", "p1", "p2", "p3") == []
        posted = await one.rows("SELECT postings FROM passage_postings WHERE term = 'heron'")
        assert [len(row["postings"]) for row in posted] == [4]


async def test_a_transaction_of_others_writes_or_does_not(db: Database) -> None:
    index = PassageIndex(db, Buckets())
    await index.write([note("version one", "1", group="old")])
    ready = await index.prepare([note("version two", "2", group="new")])

    async def change(tx: Transaction, *, fails: bool) -> None:
        await stored.remove(tx, "note", groups=["old"])
        await index.store(tx, ready)
        if fails:
            raise ValueError

    for fails, expected in ((True, ["version one"]), (False, ["version two"])):
        try:
            await db.together(lambda tx, fails=fails: change(tx, fails=fails))  # type: ignore[misc]
        except ValueError:
            assert fails
        assert await texts(index, "version", limit=9) == expected


async def test_hostile_text_is_stored_as_text(db: Database) -> None:
    index = PassageIndex(db, EmbeddedEmbedder())
    hostile = "a\0b \ud800 '; DROP TABLE passages; -- $1 :name {0} =group=g ~ 🜁 \u202e"
    await index.write(
        [
            note(
                hostile,
                title=hostile,
                context=hostile,
                group=hostile,
                thread=hostile,
                facts={hostile: [hostile, None, 1.5]},
            ),
            note("", "empty"),
            note("…!?", "signs"),
            note("w" * 100_000, "long"),
        ]
    )
    (hit,) = await found(index, hostile, limit=1)
    assert hit.text == hostile.replace("\0", "\ufffd").replace("\ud800", "?")
    assert await found(index, "passages", groups=[hostile], facts={hostile: [hostile]})
    assert await delete(index, "note", groups=[hit.group]) == 1


async def test_similarities_at_a_few_places_are_those_at_all() -> None:
    chance = np.random.default_rng(7)
    vectors = chance.standard_normal((1100, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[[3, 700]] = 0
    thread = np.repeat(np.arange(1, 111), 10)
    mean = (vectors.sum(axis=0) / 1150).astype(np.float32)
    columns = Columns(
        (Shard(1, 0, 600, 0), Shard(2, 0, 500, 0)),
        [near_of(part, mean, None) for part in (vectors[:600], vectors[600:])],
        mean,
        np.zeros(1100),
        linked(thread, np.arange(1100), np.ones(1100, np.bool_)),
    )
    everywhere = await columns.coarse(vectors[5])  # of so few dimensions, all are compared
    assert np.argmax(everywhere) == 5
    assert everywhere[5] > 0.999
    assert list(everywhere[[3, 700]]) == [0, 0], "without a vector"
    some = np.array([1099, 3, 5, 599, 600])
    assert np.allclose(columns.between(vectors[[5]], some)[0], everywhere[some], atol=1e-5)


async def test_of_a_few_permitted_passages_none_is_left_out_by_the_first_comparison() -> None:
    chance = np.random.default_rng(3)
    vectors = chance.standard_normal((1200, 256)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    asked = vectors[7].copy()
    asked[:96] *= -1  # what is compared first says the opposite
    columns = Columns(
        (Shard(1, 0, 1200, 0),),
        [near_of(vectors, np.zeros(256, np.float32), None)],
        np.zeros(256, np.float32),
        np.zeros(1200),
        np.full((4, 1200), -1, np.intp),
    )
    permitted = np.zeros(1200, np.bool_)
    permitted[[7, 8, 9]] = True
    coarse = await columns.coarse(asked)
    assert coarse[7] < 0
    found = scores.weighted([{"id": 1, "slots": 1200, "gone": 0, "term": None, "postings": None}])
    ranked = PassageRanking(found, columns, permitted, asked[None], coarse).best([[]], 3)
    assert 7 in ranked.places
    assert set(ranked.places) <= {7, 8, 9}
