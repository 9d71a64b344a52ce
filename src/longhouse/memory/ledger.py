"""The ledger of interactions: add, retrieve, delete and prune; the story of a trace; an agent's memory rebuilt.

Compressing an agent's memory is the runtime's work (runtime/steps/condense.py), since it calls the agent's model.
"""

import re
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import msgspec

from longhouse import clock
from longhouse.errors import CallerError
from longhouse.journal import events
from longhouse.journal.session import Session
from longhouse.memory.ledger_projection import INTERACTION, LedgerProjector, key_of, recall_scope, source_of
from longhouse.memory.ledger_rebuild import rebuilt
from longhouse.search.bounded_embedder import HURRIED_WITHIN
from longhouse.store import journals
from longhouse.store.database import Database, Transaction
from longhouse.store.lists.pages import Position
from longhouse.store.memory import interaction_cuts, interactions
from longhouse.store.memory.interactions import Interaction
from longhouse.store.search import passages

DERIVED: Final = re.compile(r":\d{10}(:in|:out|:turn)?$", re.ASCII)
"""How the id of a record ends that was made from a journal."""
DEEP: Final = 200
"""Found records that are looked through for a text at first."""
MOST_OF_TRACE: Final = 10_000
"""Interactions of a trace that are shown."""


class AddedInteractions(msgspec.Struct, frozen=True):
    data: list[Interaction]
    noted: list[tuple[str, int]]
    """The sessions in which it was noted, with their new heads."""


class Ledger:
    """What was said by whom to whom; derived from the journals by its projector."""

    def __init__(self, db: Database, projector: LedgerProjector, *, enabled: bool = True) -> None:
        self.db = db
        self.projector = projector
        self.index = projector.index
        self.enabled = enabled
        """`conversation_memory_enabled`: without it, nothing new is collected."""

    async def retrieve(
        self, owner: str, conversation: str, *, before: Position | None = None, limit: int, **filters: Any
    ) -> list[Interaction]:
        """A page, newest first; `filters` are `agent` and those of `interactions.FILTERS`."""
        await self._catch_up(owner, conversation)
        return await interactions.page(
            self.db, owner=owner, conversation=conversation, before=before, limit=limit, **filters
        )

    async def search(
        self,
        owner: str,
        conversation: str,
        query: str,
        *,
        limit: int,
        since: datetime | None = None,
        until: datetime | None = None,
        text: str | None = None,
        **filters: str | None,
    ) -> list[Interaction]:
        """Those that the query finds by words and meaning, the best first; `filters`: `agent`, `trace_id` and types."""
        await self._catch_up(owner, conversation)
        await self.projector.find_tools(owner, conversation)
        people = await interactions.users(self.db, owner, conversation)
        deep = limit if text is None else max(limit, DEEP)
        while True:
            hits = await self.index.search(
                query,
                sorted({recall_scope(owner, user, conversation) for user in (None, *people)}),
                kinds=[INTERACTION],
                limit=deep,
                facts={
                    "conversation": [conversation],
                    **{name: [one] for name, one in filters.items() if one is not None},
                },
                since=since,
                until=until,
                within=HURRIED_WITHIN,
            )
            keys = [key_of(hit) for hit in hits]
            there = await interactions.by_keys(self.db, owner, conversation, keys)
            found = [there[key] for key in keys if key in there]
            if text is not None:
                found = [one for one in found if text.lower() in one.content.lower()]
            if text is None or len(found) >= limit or len(hits) < deep:
                return found[:limit]
            deep *= 8  # the text filters what is found: look deeper until there is enough of it

    async def add(self, owner: str, conversation: str, given: Sequence[Interaction]) -> AddedInteractions:
        """Adds interactions from outside, and tells the agents that take part in them; all or nothing.

        One that is there already is not added again.
        """
        if not self.enabled:
            raise CallerError(
                "Interactions are not collected here: set LONGHOUSE_CONVERSATION_MEMORY_ENABLED to add some.",
                status=409,
                code="conversation_memory_disabled",
            )
        for one in given:
            if DERIVED.search(one.id):
                message = f"The id {one.id!r} looks like one that the server gives: choose another."
                raise CallerError(message, code="invalid_id", param="id")
        append_id, notes = uuid.uuid4(), [_noted(one) for one in given]

        async def write(tx: Transaction) -> tuple[str, AddedInteractions, list[Interaction]]:
            # The agents' sessions and the one of what comes from outside, in the order of all who lock several.
            await interaction_cuts.lock(tx, owner, conversation)
            session_id, known = await journals.note_outside(tx, owner, conversation, notes, append_id=append_id)
            there = {
                one: Interaction.from_outside(conversation, noted.interaction, noted.text)
                for one, noted in known.items()
                if noted.interaction
            }
            data = [_matched(one, there.get(one.id)) for one in given]
            new = [one for one in given if one.id not in there]
            return (
                session_id,
                AddedInteractions(data, await self._note_for_agents(tx, owner, conversation, new, append_id)),
                new,
            )

        session_id, added, new = await self.db.together(write)
        # Sessions that were opened while the transaction ran have not seen it, nor has it seen them.
        later = partial(self._note_for_agents, owner=owner, conversation=conversation, new=new, append_id=append_id)
        noted = [*added.noted, *(await self.db.together(later))]
        await self.projector.catch_up([session_id])
        return AddedInteractions(added.data, noted)

    async def delete(self, owner: str, conversation: str, *, agent: str = "", trace: str = "") -> int:
        """Deletes what is named, and no more: one agent's part, one trace, or the whole conversation."""

        async def cut(tx: Transaction) -> int:
            return await self._cut(tx, owner, conversation, None, agent=agent, trace=trace)

        return await self._cut_current(owner, conversation, cut)

    async def prune(
        self,
        owner: str,
        conversation: str,
        *,
        older_than_days: float | None = None,
        max_count: int | None = None,
        max_tokens: int | None = None,
    ) -> int:
        """Deletes the oldest ones: those that are too old, and those beyond a number of records or of tokens."""
        oldest = None if older_than_days is None else clock.now() - timedelta(days=older_than_days)

        async def cut(tx: Transaction) -> int:
            position = await interaction_cuts.pruned(
                tx, owner, conversation, older_than=oldest, max_count=max_count, max_tokens=max_tokens
            )
            return await self._cut(tx, owner, conversation, position) if position else 0

        return await self._cut_current(owner, conversation, cut)

    async def owners(self, trace: str) -> list[str]:
        """The owners who have something of this trace."""
        return await interactions.owners(self.db, trace)

    async def story(self, trace: str, *, owner: str | None = None) -> list[Interaction]:
        """The interactions of a trace in the order in which they happened, over all agents."""
        return await interactions.story(self.db, trace, owner=owner, limit=MOST_OF_TRACE)

    async def rebuild(self, owner: str, conversation: str, agent: str) -> dict[str, list[dict[str, Any]]]:
        """Session of this agent -> its messages, from the ledger alone."""
        await self._catch_up(owner, conversation)
        return rebuilt(await interactions.of_agent(self.db, owner, conversation, agent))

    async def external_for(self, session: Session) -> list[events.Noted]:
        """The notes that a new session begins with: what was added from outside before it was opened."""
        found = await interactions.external(self.db, session.owner, session.conversation, session.agent)
        return [events.Noted(about="interaction", subject=one) for one in found]

    async def external(self, owner: str, conversation: str, ids: Sequence[str]) -> list[Interaction]:
        """The interactions that notes of a session name, oldest first; deleted ones are not there."""
        return await interactions.added(self.db, owner, conversation, ids)

    async def catch_up(self) -> None:
        """Brings in what this process has appended since the last batch: what was just said can be recalled."""
        if self.enabled:
            await self.projector.catch_up_hints()

    async def catch_up_all(self) -> None:
        """Brings in everything that is not in it yet, also what a process that ended has left."""
        if self.enabled:
            await self.projector.catch_up_all()

    async def reset(self) -> int:
        """Drops the ledger, which is then made again from the journals; returns how many sessions there are."""

        async def drop(tx: Transaction) -> int:
            await interactions.reset(tx)
            await passages.remove(tx, INTERACTION)
            return await interactions.count_sessions(tx)

        return await self.db.together(drop)

    async def _catch_up(self, owner: str, conversation: str) -> None:
        if self.enabled:
            await self._project(owner, conversation)

    async def _project(self, owner: str, conversation: str) -> None:
        if behind := await interactions.behind(self.db, owner, conversation):
            await self.projector.catch_up(behind)

    async def _cut_current(self, owner: str, conversation: str, cut: Callable[[Transaction], Awaitable[int]]) -> int:
        """Cuts after everything is projected: events that the ledger does not have yet would come back later."""

        async def write(tx: Transaction) -> tuple[bool, int]:
            await interaction_cuts.lock(tx, owner, conversation)
            return not await interactions.behind(tx, owner, conversation), await cut(tx)

        await self._project(owner, conversation)
        was_current, count = await self.db.together(write)
        if was_current:
            return count
        # Something was said meanwhile; or a rebuild began, and what it has dropped is projected once more.
        await self._project(owner, conversation)
        return count + (await self.db.together(write))[1]

    async def _note_for_agents(
        self, tx: Transaction, owner: str, conversation: str, new: Sequence[Interaction], append_id: uuid.UUID
    ) -> list[tuple[str, int]]:
        """Notes the interactions in the sessions of the agents that take part, except where they are noted already."""
        noted = []
        for session_id, agent in await interactions.agents(tx, owner, conversation, append_id):
            mine = [events.Noted(about="interaction", subject=one.id) for one in new if one.involves(agent)]
            if mine and (placed := await journals.note(tx, session_id, mine, append_id=append_id)):
                noted.append((session_id, placed.seq))
        return noted

    async def _cut(
        self,
        tx: Transaction,
        owner: str,
        conversation: str,
        position: Position | None,
        *,
        agent: str = "",
        trace: str = "",
    ) -> int:
        gone = await interaction_cuts.cut(tx, owner, conversation, position, agent=agent, trace=trace)
        # The sessions are this owner's: nothing of another one goes, whatever the ids.
        groups = sorted({session_id for session_id, _ in gone})
        await passages.remove(tx, INTERACTION, groups=groups, sources=[source_of(key) for key in gone])
        # Sessions note which of their turns were deleted: their agents are shown them no more.
        for session_id in await interaction_cuts.sessions_cut(tx, owner, conversation):
            turns = await interaction_cuts.cut_turns(tx, session_id)
            if turns and (new := turns.difference((await journals.load(tx, session_id)).deleted)):
                await journals.note(tx, session_id, [events.Noted(about="outdated", deleted=tuple(sorted(new)))])
        return len(gone)


def new_interaction(conversation: str, *, at: datetime | None = None, pair_id: str = "", **given: Any) -> Interaction:
    """An interaction from outside, with what was not given filled in."""
    own = given.pop("id", None) or f"ext_{uuid.uuid4().hex}"
    return Interaction(
        id=own, conversation_id=conversation, timestamp=at or clock.now(), pair_id=pair_id or own, **given
    )


def _matched(given: Interaction, there: Interaction | None) -> Interaction:
    """The interaction that is there already, if it is the same; another one under the same id is refused."""
    if there is None:
        return given
    same = ("conversation_id", "source", "source_type", "target", "target_type", "content", "type")
    if any(getattr(given, name) != getattr(there, name) for name in same):
        raise CallerError(
            f"There is another interaction with the id {given.id!r}; leave the id out, or choose another.",
            status=409,
            code="interaction_exists",
            param="id",
        )
    return there


def _noted(one: Interaction) -> events.Noted:
    same = ("id", "source", "source_type", "target", "target_type", "type", "pair_id")
    told = {name: getattr(one, name) for name in same}
    given = events.ExternalInteraction(**told, trace=one.trace_id, at=one.timestamp)
    return events.Noted(about="interaction", text=one.content, subject=one.id, interaction=given)
