"""The Redis mirror: writes conversation histories from the journals. Only a new conversation reads from Redis."""

import asyncio
import hashlib
import uuid
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from longhouse.agents.tool import sendable
from longhouse.integrations.projector import SWEEP_EVERY, Projector
from longhouse.integrations.redis import keys
from longhouse.integrations.redis.client import TROUBLE, RedisHistory, messages_in
from longhouse.journal import conversation as plain
from longhouse.journal import events, imported
from longhouse.journal.fold import blank, fold
from longhouse.journal.messages import Message
from longhouse.journal.session import Session
from longhouse.journal.transcript import Entry, ImportedMessages
from longhouse.store import journals, projections
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.erasing.erasure import ErasedSession
from longhouse.store.projections import HistoryOf, ProjectionRow

log = structlog.get_logger()

CACHED_SESSIONS: Final = 256
"""Sessions whose folded state is cached."""
CONCURRENCY: Final = 8
PRIOR_WITHIN: Final = 0.5
"""Timeout in seconds of a new conversation's read from Redis."""
POLL_EVERY: Final = 0.05
SCAN_COUNT: Final = 1000
"""COUNT of one HSCAN call."""

# KEYS: the hash of versions, the key; ARGV: marker, version, value, the key under which a foreign value is kept, and
# the SHA-1 of one that need not be kept, because the new value holds all of it.
# One script, so that a flush, an older writer and a foreign value are all detected at the moment of writing.
WRITE: Final = """
if redis.call('HGET', KEYS[1], '') ~= ARGV[1] then return 'flushed' end
local there = redis.call('HGET', KEYS[1], KEYS[2])
if there and tonumber(there) > tonumber(ARGV[2]) then return 'newer' end
if not there then
  local kind = redis.call('TYPE', KEYS[2]).ok
  local known = kind == 'string' and ARGV[5] ~= '' and redis.sha1hex(redis.call('GET', KEYS[2])) == ARGV[5]
  if kind ~= 'none' and not known then redis.call('RENAME', KEYS[2], ARGV[4]) end
end
redis.call('HSET', KEYS[1], KEYS[2], ARGV[2])
redis.call('SET', KEYS[2], ARGV[3])
return 'ok'
"""


class Flushed(ConnectionError):  # noqa: N818
    """Redis has lost its data since the last check: everything is written again."""


class _Copy(msgspec.Struct, frozen=True):
    """The value of one key, and the sessions it was made from, each with the head up to which it is included."""

    key: str
    messages: list[dict[str, Any]]
    heads: dict[str, int]
    whole: list[dict[str, Any]]
    """The messages before they were cut to the newest, and those that a queued turn will begin with."""

    def holds(self, value: bytes) -> bool:
        """Whether a history that Redis has under this key was taken over, or is an earlier copy of this one."""
        found = plain.as_dicts(imported.as_messages(messages_in(value)))
        own = iter([(one["role"], one["content"]) for one in self.whole])
        return all((one["role"], one["content"]) in own for one in found) if found else value.strip() == b"[]"


class Mirror(Projector):
    """Keeps `chat_history:{chat_id}` and `subagent:{name}:{chat_id}` up to date in the background."""

    name = "redis"
    place = "forgotten"
    away = TROUBLE

    def __init__(
        self,
        db: Database,
        client: Redis,
        *,
        max_history: int = 100,
        prior_within: float = PRIOR_WITHIN,
        sweep_every: float = SWEEP_EVERY,
    ) -> None:
        super().__init__(db, sweep_every=sweep_every)
        self._redis = client
        self._max_history = max_history
        self._catalog = Catalog(db)
        self._prior_within = prior_within
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._hash = ""
        self._marker = ""
        self._run_id = ""
        self._progress = asyncio.Event()

    async def prior(self, chat_id: str, owner: str, asked: Sequence[HistoryOf]) -> list[tuple[Message, ...]]:
        """The messages that Redis holds of a new conversation, for each that is asked for; it is asked once for all.

        Empty where the conversation is not new, or when Redis does not answer in time: no turn waits for the mirror.
        """
        met = await projections.met(self._db, owner, chat_id, asked) if not self.is_troubled else set(asked)
        names = {one: _name_of(chat_id, owner, one) for one in asked if one not in met}
        try:
            async with asyncio.timeout(self._prior_within):
                values = await RedisHistory(self._redis).load_values(list(names.values()))
        except TROUBLE as error:
            message = "Histories in Redis cannot be read; the conversation starts without them."
            error_text = str(error) or type(error).__name__
            log.warning("redis_history_unreadable", message=message, keys=[*names.values()], error=error_text)
            self.is_troubled, values = True, [None] * len(names)
        found = dict(zip(names, map(messages_in, values), strict=True))
        kept = (imported.last(found.get(one, []), self._max_history) for one in asked)
        return [sendable(imported.as_messages(messages)) for messages in kept]

    async def confirmed(self, session_id: str, seq: int, within: float = 2.0) -> bool:
        """Whether Redis holds the session up to `seq`. Waits a little, unless Redis is known to be unreachable."""
        give_up_at = asyncio.get_running_loop().time() + within
        while True:
            progress = self._progress
            if await projections.cursor(self._db, self.name, session_id) >= seq:
                return True
            if self.is_troubled or asyncio.get_running_loop().time() > give_up_at:
                return False
            # Another process may write it, and sends no event to this one: the cursor is polled.
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_EVERY):
                    await progress.wait()

    async def epoch(self) -> str:
        """Changes when Redis was flushed (the marker is gone) or restarted (the last writes may be lost)."""
        self._hash = self._hash or f"longhouse:mirror:{await projections.identity(self._db)}"
        await self._redis.hsetnx(self._hash, "", uuid.uuid4().hex)
        marker = await self._redis.hget(self._hash, "")
        self._marker = _bytes(marker).decode()
        with suppress(ResponseError):  # INFO may be forbidden; a flush is detected by the marker
            self._run_id = str((await self._redis.info("server")).get("run_id", ""))
        return f"{self._run_id}:{self._marker}"

    async def project(self, rows: Sequence[ProjectionRow]) -> None:
        if not self._marker:
            await self.epoch()
        heads: dict[str, int] = {row.id: row.head for row in rows if row.is_ephemeral}
        copies = await self._copies([row for row in rows if not row.is_ephemeral])
        for copy in await self._write(copies):
            heads |= copy.heads
        await projections.save(self._db, self.name, epoch=f"{self._run_id}:{self._marker}", heads=heads)
        self._progress.set()
        self._progress = asyncio.Event()

    async def remove(self, rows: Sequence[ProjectionRow]) -> None:
        await self._delete(_key_of(row) for row in rows)

    async def forget(self, traces: Sequence[ErasedSession]) -> None:
        """Removes the keys of erased sessions; a conversation with other sessions left is written again."""
        if not self._marker:
            await self.epoch()
        for trace in traces:
            self._sessions.pop(trace.session_id, None)
        copied = [trace for trace in traces if not trace.is_ephemeral]
        conversations = sorted({(trace.owner, trace.conversation_id, None) for trace in copied if trace.side == "root"})
        asked = [trace for trace in copied if trace.side == "sub"]
        await self._delete({keys.chat_key(conversation, owner) for owner, conversation, _ in conversations})
        await self._delete([name async for name in self._subagent_keys(asked)])
        agents = sorted({(trace.owner, trace.conversation_id, trace.agent) for trace in asked})
        left = await projections.of_conversations(self._db, [*conversations, *agents])
        await self._write(await self._copies([row for row in left if not row.is_ephemeral]))

    async def _subagent_keys(self, asked: Sequence[ErasedSession]) -> AsyncIterator[str]:
        """The keys of these sub-agents. The full key of one with a label is only in Redis, in the hash of versions."""
        labelled: dict[str, list[ErasedSession]] = defaultdict(list)
        for trace in asked:
            name = keys.subagent_key(trace.agent, trace.conversation_id, trace.owner)
            if trace.mark:
                labelled[name].append(trace)
            else:
                yield name
        if not labelled:
            return
        async for field, _ in self._redis.hscan_iter(self._hash, match="*subagent:*/*", count=SCAN_COUNT):
            name = _bytes(field).decode()
            plain, _, label = name.rpartition("/")
            if any(trace.has_label(label) for trace in labelled.get(plain, ())):
                yield name

    async def _delete(self, names: Iterable[str]) -> None:
        """Deletes keys together with the foreign values kept for them, which belong to the same conversation."""
        pipeline = self._redis.pipeline()
        for name in sorted(names):
            pipeline.delete(name, _backup_key(name))
            pipeline.hdel(self._hash, name)
        await pipeline.execute()

    async def _copies(self, rows: Sequence[ProjectionRow]) -> list[_Copy]:
        """The values of all keys in which these sessions appear."""
        subs = [[row] for row in rows if row.side == "sub"]
        conversations = list(
            dict.fromkeys((row.owner, row.conversation_id, None) for row in rows if row.side == "root")
        )
        together: dict[tuple[str, str], list[ProjectionRow]] = defaultdict(list)
        for row in await projections.of_conversations(self._db, conversations) if conversations else ():
            if not row.is_ephemeral:
                together[row.owner, row.conversation_id].append(row)
        groups, copies = [*subs, *together.values()], []
        for start in range(0, len(groups), CONCURRENCY):
            copies += await asyncio.gather(
                *(self.readable(group, partial(self._copy, group)) for group in groups[start : start + CONCURRENCY])
            )
        return [copy for copy in copies if copy]

    async def _copy(self, rows: Sequence[ProjectionRow]) -> _Copy:
        """The whole history of a sub-agent, or the dialogue of all root sessions of one conversation."""
        first, sessions = rows[0], [await self._fold(row) for row in rows]
        messages = plain.messages_of(sessions[0]) if first.side == "sub" else await self._dialogue(sessions)
        # Earlier messages that a session will have when a queued turn starts.
        queued = [waiting for session in sessions for waiting in session.queue]
        return _Copy(
            key=_key_of(first),
            messages=imported.last(messages, await self._max_messages(rows)),
            heads={session.id: session.head for session in sessions},
            whole=[*messages, *plain.as_dicts([one for waiting in queued for one in waiting.prompt.prior])],
        )

    async def _max_messages(self, rows: Sequence[ProjectionRow]) -> int:
        """How many messages are kept: as the agent's template says, where it is known."""
        found = [await self._catalog.templates.find(agent) for agent in {row.agent for row in rows}]
        return max((one.memory_policy.max_history for one in found if one), default=self._max_history)

    async def _dialogue(self, sessions: Sequence[Session]) -> list[dict[str, Any]]:
        """The dialogue of all sessions in order of time. Later imports repeat it, and are left out."""
        if len(sessions) == 1:
            return plain.dialogue_of(sessions[0])
        at = await projections.times(self._db, [session.id for session in sessions])
        placed: list[tuple[Any, Entry]] = []
        for nth, session in enumerate(sessions):
            entries = (one for one in plain.undeleted(session) if nth == 0 or not isinstance(one, ImportedMessages))
            placed += [(at[session.id, entry.seq], entry) for entry in entries]
        placed.sort(key=lambda pair: pair[0])
        return plain.as_dicts([message for _, entry in placed for message in plain.dialogue_messages(entry)])

    async def _fold(self, row: ProjectionRow) -> Session:
        """The session without condensation: messages that were condensed for the model are still mirrored."""
        session = self._sessions.pop(row.id, None) or blank(row.id)
        while session.head < row.head and (page := await journals.read(self._db, row.id, session.head)):
            kept = (record for record in page if not isinstance(record.event, events.Condensed))
            session = msgspec.structs.replace(fold(kept, session), head=page[-1].seq)
        self._sessions[row.id] = session
        while len(self._sessions) > CACHED_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    async def _taken_over(self, copies: Sequence[_Copy]) -> dict[str, str]:
        """Key -> SHA-1 of the history under it which was not written from here, where its copy holds all of that."""
        versions = await self._redis.hmget(self._hash, [copy.key for copy in copies]) if copies else []
        new = [copy for copy, version in zip(copies, versions, strict=True) if version is None]
        values = await RedisHistory(self._redis).load_values([copy.key for copy in new])
        return {
            copy.key: hashlib.sha1(value, usedforsecurity=False).hexdigest()
            for copy, value in zip(new, values, strict=True)
            if value and copy.holds(value)
        }

    async def _write(self, copies: Sequence[_Copy]) -> Iterable[_Copy]:
        """Writes whole values; on return, Redis holds all of them or newer ones."""
        taken = await self._taken_over(copies)
        pipeline = self._redis.pipeline(transaction=False)
        for copy in copies:
            version, value = sum(copy.heads.values()), msgspec.json.encode(copy.messages)
            arguments = (version, value, _backup_key(copy.key), taken.get(copy.key, ""))
            pipeline.eval(WRITE, 2, self._hash, copy.key, self._marker, *arguments)
        if b"flushed" in [_bytes(answer) for answer in await pipeline.execute()]:
            self._marker = ""
            raise Flushed("Redis was flushed; everything is written again")
        return copies


def _key_of(one: ProjectionRow) -> str:
    return _name_of(one.conversation_id, one.owner, HistoryOf(one.agent if one.side == "sub" else None, one.label))


def _name_of(chat_id: str, owner: str, asked: HistoryOf) -> str:
    """The key of a history."""
    if asked.agent is None:
        return keys.chat_key(chat_id, owner)
    return keys.subagent_key(asked.agent, chat_id, owner, asked.label)


def _backup_key(key: str) -> str:
    """The key under which a foreign value of a key is kept."""
    return f"longhouse:before:{key}"


def _bytes(answer: object) -> bytes:
    return answer if isinstance(answer, bytes) else str(answer).encode()
