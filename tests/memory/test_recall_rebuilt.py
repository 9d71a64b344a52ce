"""What a turn has recalled it still shows when the ledger is made again, however far that has come."""

from msgspec.structs import replace
from test_recall import ASKS, asked

from ledger_helpers import ledger_of, told
from longhouse.journal import events
from longhouse.memory.ledger_projection import LedgerProjector
from longhouse.memory.recall import Recall
from longhouse.store import journals, leases, projections
from longhouse.store.database import Database
from longhouse.store.memory.memory_files import Memories
from server_helpers import AGENT, prompted, started, turn_of


async def spoken(db: Database, session_id: str, text: str, *, user: str = "ann") -> None:
    about = events.Opened(agent=AGENT, version=1, owner="shop", user=user, conversation=f"then {session_id}")
    seq = (await journals.open(db, session_id, about, prompted(text), task="")).seq
    assert (await leases.claim(db, session_id, "w")).lease
    noted = events.Noted(text=f"Noted: {text}")
    await journals.note(db, session_id, [started(seq), noted, events.Finished(answer="I see.")], trace="t")


async def test_recalled_items_outlive_a_rebuild(db: Database) -> None:
    await spoken(db, "s1", "My dog is called Biscuit.")
    await spoken(db, "s2", "Мою собаку и dog зовут Бублик.")
    await spoken(db, "s3", "The dog of Bob is called Crumb.", user="bob")
    ledger, session = ledger_of(db), asked("What is my dog called?")
    await told(db)
    recall = Recall(ledger.index, Memories(db))
    turn = turn_of(session)
    text, names = await recall.text_for(session, turn, ASKS, ASKS.memory_policy.max_tokens)
    assert all(part in text for part in ("> My dog is called Biscuit.", "> Noted: My dog", "Бублик"))
    assert "Crumb" not in text
    rows = await db.rows("SELECT id, kind, source FROM passages ORDER BY id")
    numbers = {f"{row['kind']}:{row['source']}": f"passage:{row['id']}" for row in rows}

    async def shown(*called: str) -> str:
        later = replace(turn, iteration=1, recalled=called)
        return (await recall.text_for(session, later, ASKS, ASKS.memory_policy.max_tokens))[0]

    assert await shown(*(numbers[name] for name in names)) == text, "what an earlier process has journaled"
    items = await recall.items(session, names)
    assert [item["id"] for item in items] == list(names)
    # The command is killed after it has dropped everything, or after the first events; another process goes on.
    for page in (0, 2):
        await ledger.reset()
        if page:
            await LedgerProjector(db, ledger.index, page=page).project(await projections.rows(db, ["s1", "s2"]))
        await told(db)
        assert await shown(*names) == text
        assert await recall.items(session, names) == items
    assert await recall.items(asked("What?", user="bob"), names) == [], "a name alone opens nothing"
    assert await recall.items(asked("What?", owner="rival"), names) == []
    await ledger.delete("shop", "then s1")
    assert "> My dog is called Biscuit." not in await shown(*names)
    await ledger.reset()
    await told(db)
    assert "> My dog is called Biscuit." not in await shown(*names)
