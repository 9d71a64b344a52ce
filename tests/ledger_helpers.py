"""The ledger in tests: brought up to date at once, and read as its routes show it."""

from typing import Any

from longhouse.memory.ledger import Ledger
from longhouse.memory.ledger_projection import LedgerProjector
from longhouse.search.passages import PassageIndex
from longhouse.store.database import Database
from server_helpers import HouseClient

PATH = "/v1/conversations/{}/interactions"


def ledger_of(db: Database) -> Ledger:
    """A ledger of a process of its own, without vectors."""
    return Ledger(db, LedgerProjector(db, PassageIndex(db, None)))


async def told(db: Database) -> None:
    """Everything that is in the journals is in the ledger."""
    await ledger_of(db).catch_up_all()


async def listed(
    house: HouseClient, conversation: str = "12345", *, key: str = "", **query: Any
) -> list[dict[str, Any]]:
    """The interactions of a conversation, newest first."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    params = {"limit": 200, **query}
    async with house.http.get(PATH.format(conversation), params=params, headers=headers) as response:
        page = await response.json()
        assert response.status == 200, page
        return list(page["data"])


async def sent(
    house: HouseClient, method: str, conversation: str = "12345", below: str = "", *, body: Any = None, **query: Any
) -> tuple[int, Any]:
    """A request to the ledger of a conversation: its status and answer."""
    request = house.http.request(method, PATH.format(conversation) + below, json=body, params=query)
    async with request as response:
        return response.status, await response.json()
