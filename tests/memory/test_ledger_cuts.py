"""What is deleted stays deleted, also what was never told: with the ledger switched off, or dropped meanwhile."""

from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs
from test_ledger_attacks import contents, given, searched, turn

from ledger_helpers import ledger_of, sent, told
from longhouse.agents.strategies.protocol import Body
from longhouse.memory.ledger import Ledger
from longhouse.memory.ledger_projection import LedgerProjector
from longhouse.models.scripted import Say, call
from longhouse.search.passages import PassageIndex
from longhouse.store.database import Database
from server_helpers import Serving


@pytest.mark.parametrize("how", ["delete", "agent", "prune", "trace"])
async def test_a_deletion_holds_while_the_ledger_is_switched_off(db: Database, how: str) -> None:
    """A process ended before it told the first turn, and the next one collects nothing."""
    await turn(db, "s", "c", "Before")
    await turn(db, "other", "d", "Elsewhere")
    off = Ledger(db, LedgerProjector(db, PassageIndex(db, None)), enabled=False)
    assert await off.delete("local", "c", trace="nothing of this") == 0
    assert await off.delete("stranger", "c") == 0
    match how:
        case "delete":
            assert await off.delete("local", "c") == 4
        case "agent":
            assert await off.delete("local", "c", agent="researcher") == 0
            assert (
                await off.delete("local", "c", agent=await db.value("SELECT agent FROM sessions WHERE id = 's'")) == 4
            )
        case "prune":
            assert await off.prune("local", "c", max_count=0) == 4
        case "trace":
            assert await off.delete("local", "c", trace="s Before") == 4
    await turn(db, "s", "c", "After")
    ledger = ledger_of(db)
    for _ in range(2):
        assert await contents(ledger, "c") == ["After", "After"]
        assert await searched(ledger, "c", "before") == []
        assert await contents(ledger, "d") == ["Elsewhere", "Elsewhere"]
        await ledger.reset()
        await told(db)


class DroppedMeanwhile(LedgerProjector):
    """Somebody else begins to make the ledger again, once, right after this one has caught up."""

    is_dropped = False

    async def catch_up(self, ids: Sequence[str]) -> None:
        await super().catch_up(ids)
        if not self.is_dropped:
            self.is_dropped = True
            await ledger_of(self._db).reset()


@pytest.mark.parametrize("how", ["delete", "prune"])
async def test_a_deletion_holds_while_the_ledger_is_made_again(db: Database, how: str) -> None:
    await turn(db, "s", "c", "Before")
    await ledger_of(db).add("local", "c", [given("c", "By letter", id="letter")])
    await db.run("DELETE FROM projection_cursors")  # behind, so that it catches up
    await db.run("DELETE FROM ledger")
    ledger = Ledger(db, DroppedMeanwhile(db, PassageIndex(db, None)))
    if how == "delete":
        assert await ledger.delete("local", "c") == 1, "the others were not there, and are never told"
    else:
        assert await ledger.prune("local", "c", max_count=0) == 5
    assert await contents(ledger_of(db), "c") == []
    await told(db)
    assert await contents(ledger_of(db), "c") == []
    assert await db.value("SELECT count(*) FROM passages") == 0


async def test_the_log_has_who_deleted_how_many_and_no_word_of_it(serving: Serving) -> None:
    def model(body: Body) -> Say:
        is_summary = str(body.messages[0].content).startswith("You keep the memory")
        return Say(text="A secret.") if is_summary else call("finalanswertool", answer="A secret too.")

    async with serving(model) as house:
        await house.say("A secret.", chat_id="12345", user="ann")
        with capture_logs() as logs:
            requests: list[tuple[str, str, Any, dict[str, str]]] = [
                ("POST", "/compress", {}, {}),
                ("POST", "/prune", {"max_count": 3}, {}),
                ("DELETE", "", None, {"trace_id": "none"}),
                ("DELETE", "", None, {}),
            ]
            for method, below, body, query in requests:
                status, answer = await sent(house, method, below=below, body=body, **query)
                assert status == 200, answer
    about = {"conversation": "12345", "owner": "local", "by": "", "log_level": "info"}
    told = [one for one in logs if one["event"].startswith("interactions_")]
    pruned, asked = told[1]["count"], {"older_than_days": None, "max_count": 3, "max_tokens": None}
    assert told == [
        {"event": "interactions_compressed", **about, "agent": None, "keep_last": 0, "count": 1},
        {"event": "interactions_pruned", **about, **asked, "count": pruned},
        {"event": "interactions_deleted", **about, "agent": None, "trace_id": "none", "count": 0},
        {"event": "interactions_deleted", **about, "agent": None, "trace_id": None, "count": 3},
    ]  # fmt: skip
    assert pruned
    assert "secret" not in str(told)
