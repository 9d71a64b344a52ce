"""An embedding model that never answers holds up nobody: words find what they find, and vectors come when it works."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from longhouse.app import models
from longhouse.journal import events
from longhouse.memory.ledger_projection import LedgerProjector
from longhouse.search.bounded_embedder import EMBED_WITHIN, HURRIED_WITHIN, BoundedEmbedder
from longhouse.search.passages import Passage, PassageIndex
from longhouse.store import journals, leases
from longhouse.store.database import Database
from recalling import Listener, friend
from search_helpers import Buckets
from server_helpers import AGENT, Serving, prompted, started

DOG, WHICH = "My dog is called Biscuit.", "What is the name of my dog?"
HOUR = 3_600.0
LONGEST = 300.0
"""Seconds after which nothing happens any more, however busy the machine is."""


class Hanging(Buckets):
    """An embedding model that takes its time, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.may_go = asyncio.Event(), asyncio.Event()
        self.asked = 0

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.asked += 1
        self.reached.set()
        await self.may_go.wait()
        return await super().embed(texts)


@dataclass
class Silence:
    """An endpoint that accepts every connection and never answers."""

    url: str = ""
    requests: list[bytes] = field(default_factory=list)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await reader.read(65_536):
                self.requests.append(request)
        finally:
            writer.close()


@asynccontextmanager
async def silence() -> AsyncIterator[Silence]:
    endpoint = Silence()
    server = await asyncio.start_server(endpoint.handle, "127.0.0.1", 0)
    endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server:
        yield endpoint


async def test_chats_and_uploads_go_on_by_words(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "WITHIN", HOUR)  # whoever waits for the endpoint itself does not come to an end
    model = Listener()
    async with (
        silence() as endpoint,
        serving(model, templates=[friend()], embeddings_base_url=endpoint.url) as house,
        asyncio.timeout(LONGEST),
    ):
        await house.say("Keep people/ann.md Ann drinks jasmine tea.", model="friend")
        await house.say(DOG, model="friend")
        await house.say(WHICH, model="friend")
        assert f"> {DOG}" in model.quoted
        await house.say("What does Ann drink?", model="friend")
        assert "> Ann drinks jasmine tea." in model.quoted
        assert endpoint.requests, "it was asked"
        rules = b"# Ladders\n\nA ladder stands at a slope of four to one."
        async with house.http.post("/v1/documents", params={"filename": "rules.md"}, data=rules) as response:
            assert response.status in (200, 201), await response.text()
        assert await house.db.value("SELECT count(*) FROM passages WHERE kind = 'document' AND model IS NULL")


async def spoken(db: Database, text: str) -> None:
    about = events.Opened(agent=AGENT, version=1, owner="local", conversation="c")
    seq = (await journals.open(db, "s", about, prompted(text), task="")).seq
    assert (await leases.claim(db, "s", "w")).lease
    await journals.note(db, "s", [started(seq), events.Finished(answer="I see.")], trace="t")


class Prompt(LedgerProjector):
    """Follows a hint at once."""

    linger = 0.0


async def test_who_needs_what_waits_for_its_vectors_in_a_batch_gets_it_by_words(db: Database) -> None:
    await spoken(db, DOG)
    model = Hanging()
    async with PassageIndex(db, model).working() as index, Prompt(db, index, sweep_every=1_000).running() as ledger:
        ledger.nudge("s")
        await model.reached.wait()
        assert await db.value("SELECT count(*) FROM ledger") == 0, "the batch waits"
        await ledger.catch_up_hints()
        assert await db.value("SELECT count(*) FROM ledger") == 2
        scopes = [row["scope"] for row in await db.rows("SELECT DISTINCT scope FROM passages")]
        hits = await index.search("dog", scopes, kinds=["interaction"], limit=5, within=HURRIED_WITHIN)
        assert (hits[0].text, hits[0].semantic) == (DOG, None)
        model.may_go.set()
        async with asyncio.timeout(LONGEST):
            while await db.value("SELECT count(*) FROM passages WHERE model IS NULL"):
                await asyncio.sleep(0.01)
        assert await db.value("SELECT count(*) FROM ledger") == 2, "nothing is told twice"


async def test_a_model_that_gave_no_answer_is_asked_again_by_those_who_wait_longer_only() -> None:
    model = Hanging()
    bounded = BoundedEmbedder(model, consequence="so it is")
    assert await bounded.embed(["one"], 0.01) is None
    assert await bounded.embed(["two"], 0.01) is None
    assert await bounded.embed(["two"], 0.005) is None
    assert model.asked == 1, "the second one does not wait"
    assert await bounded.embed(["three"], 0.02) is None
    assert model.asked == 2, "a slow model is not one that is away"
    model.may_go.set()
    assert await bounded.embed(["four"], 0.02) is None
    assert (await bounded.embed(["five"], EMBED_WITHIN)) is not None
    assert await BoundedEmbedder(None, consequence="").embed(["six"]) is None


async def test_a_long_document_keeps_what_came_and_a_command_waits(db: Database) -> None:
    """What was embedded before the model stopped answering stays; a process without a background embeds all at once."""
    passages = [Passage(scope="a", kind="document", source=str(n), group="g", text=f"word{n}") for n in range(300)]

    class Stops(Hanging):
        async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
            if self.asked < 2:
                self.may_go.set()
            else:
                self.may_go.clear()
            return await super().embed(texts)

    model = Stops()
    async with PassageIndex(db, model).working() as index:
        ready = await index.prepare(passages, within=0.05)
    assert [entry.vector is None for entry in ready.entries] == [False] * 256 + [True] * 44
    assert ready.model is not None
    calm = Hanging()
    waiting = asyncio.create_task(PassageIndex(db, calm).prepare(passages[:1], within=0.01))
    await calm.reached.wait()
    await asyncio.sleep(0.05)
    calm.may_go.set()
    assert (await waiting).entries[0].vector is not None
