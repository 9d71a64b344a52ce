"""Interactions from outside in prompts: the newest first, long ones cut, and those of this conversation only."""

from typing import Any

from ledger_helpers import ledger_of
from longhouse.agents.requests import tokens
from longhouse.agents.template import MemoryPolicy, Template
from longhouse.journal import events
from longhouse.journal.session import Session
from longhouse.memory.ledger import new_interaction
from longhouse.memory.outside import OutsideInteractions
from longhouse.memory.session_memory import SessionMemory
from longhouse.store.database import Database
from server_helpers import folded, prompted, started, turn_of

PARTIES: dict[str, Any] = {
    "source": "crm",
    "source_type": "tool",
    "target": "researcher",
    "target_type": "agent",
    "type": "input",
}


def told(conversation: str, ids: tuple[str, ...], owner: str = "shop") -> Session:
    """A session whose agent was told of these."""
    about = events.Opened(agent="researcher", version=1, owner=owner, conversation=conversation)
    notes = (events.Noted(about="interaction", subject=one) for one in ids)
    return folded(about, prompted("x"), started(2), *notes)


async def test_a_long_one_is_cut_and_hides_none(db: Database) -> None:
    ledger = ledger_of(db)
    outside = OutsideInteractions(ledger)
    memory = SessionMemory(sources=(outside,), interactions=outside.items)
    texts = ("The contract was signed.", "Вот отчёт: " + "много строк и цифр " * 2_000, "The invoice was paid.")
    given = [new_interaction("now", trace_id="t", content=text, **PARTIES) for text in texts]
    ids = tuple(one.id for one in given)
    await ledger.add("shop", "now", given)

    async def shown(session: Session, room: int) -> str:
        template = Template(name="researcher", memory_policy=MemoryPolicy(max_tokens=room))
        text, _ = await memory.text_for(session, turn_of(session), template)
        assert tokens.estimate(text) <= room
        return text

    for order in (ids, (ids[0], ids[1]), (ids[1],)):
        text = await shown(told("now", order), 500)
        assert "> Вот отчёт: много строк" in text
        assert text.count("\n## crm → researcher, ") == len(order)
    whole = [await shown(told("now", ids), room) for room in range(200)]
    newest = ["The invoice was paid." in text for text in whole]
    assert newest == sorted(newest), "the newest is the last to go"
    assert all(newest[at] for at, text in enumerate(whole) if "signed" in text or "отчёт" in text)
    assert "The contract was signed." in whole[-1]

    for stranger in (told("other", ids), told("now", ids, owner="rival")):
        assert await shown(stranger, 2_000) == "", "an id alone opens nothing"
        assert await memory.interactions(stranger, ids) == []
    assert [one["id"] for one in await memory.interactions(told("now", ids), ids)] == [*ids]


async def test_room_that_other_memories_take_does_not_take_the_newest(db: Database) -> None:
    ledger = ledger_of(db)
    given = [new_interaction("now", trace_id="t", content=f"Event {nth}. {'x' * 150}", **PARTIES) for nth in range(40)]
    await ledger.add("shop", "now", given)
    outside, outline = SessionMemory(sources=(OutsideInteractions(ledger),)), '[{"title": "One"}]'
    template = Template(name="researcher", memory_policy=MemoryPolicy(max_tokens=1_000))
    note = outside.noted("1-action-0", "outline", '{"reg_id": "doc"}', outline, template)
    assert note
    session = folded(note, session=told("now", tuple(one.id for one in given)))
    text, _ = await outside.text_for(session, turn_of(session), template)
    assert ("Event 39." in text, "Event 0." in text) == (True, False)
    assert tokens.estimate(text) <= 1_000
