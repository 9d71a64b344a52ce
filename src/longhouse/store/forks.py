"""Forks a session: writes a branch of it, with the agents that it had called by then, in one transaction.

Which events of those agents belong to it follows from what caused them: none is in it without its cause, and no result
that the branch does not know. Between these, a clock decides.
"""

import hashlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import asyncpg
import msgspec
from msgspec.structs import replace

from longhouse import clock
from longhouse.errors import ReadOnlySession
from longhouse.journal import events, forking
from longhouse.journal.events import Event, Origin, Outcome, Recorded
from longhouse.journal.fold import blank, fold
from longhouse.journal.forking import AgentCalls, BranchNames, BranchPoint
from longhouse.journal.session import EPHEMERAL, Session
from longhouse.store import journals, requests
from longhouse.store.database import Database, Transaction
from longhouse.store.delegation import results
from longhouse.store.delegation.cancel import CANCELLED
from longhouse.store.delegation.delegations import LOCK
from longhouse.store.delegation.results import DelegationResult
from longhouse.store.memory import memory_scopes
from longhouse.store.memory.interactions import ALL
from longhouse.store.requests import RequestIdentity

ROUNDS: Final = 100
"""Maximum passes: agents may call each other, so the cut of one session may change that of another."""
FOR_EVER: Final = 2**62

TOP: Final = "SELECT conversation_id, capsule FROM sessions WHERE id = :session AND owner = :owner"
# Nobody appends to a conversation while it is copied.
ROWS: Final = """
    SELECT id, "user", side, agent, label, parent, head, key_id
    FROM sessions WHERE owner = :owner AND conversation_id = :conversation ORDER BY id FOR SHARE
"""
# The tasks of a conversation, each with the event by which the turn of its prompt ended.
TASKS: Final = """
    SELECT d.parent, d.call, d.child, d.prompt, d.trace, d.outcome, d.at, COALESCE(b.ended, (
        SELECT min(k.seq) FROM journal k
        WHERE k.session_id = d.child AND k.seq > d.prompt AND k.kind = 'Cancelled' AND k.trace_id = d.trace
    )) AS ended
    FROM sessions s JOIN delegations d ON d.parent = s.id
    LEFT JOIN LATERAL (
        SELECT (
            SELECT min(e.seq) FROM journal e WHERE e.session_id = d.child AND e.seq > j.seq AND e.trace_id = d.trace
              AND e.kind IN ('Finished', 'Failed', 'Cancelled')
        ) AS ended
        FROM journal j WHERE j.session_id = d.child AND j.seq > d.prompt AND j.kind = 'Started'
          AND j.trace_id = d.trace AND (j.body ->> 'prompt')::bigint = d.prompt LIMIT 1
    ) b ON true
    WHERE s.owner = :owner AND s.conversation_id = :conversation ORDER BY d.parent, d.at, d.call
"""
HEADS_AT: Final = """
    SELECT s.id, last.seq FROM unnest(:ids::text[]) AS s (id) CROSS JOIN LATERAL (
        SELECT j.seq FROM journal j WHERE j.session_id = s.id AND j.at <= :at ORDER BY j.seq DESC LIMIT 1
    ) AS last
"""
# The last event before the append that this one belongs to: what was written together is left out together.
BEFORE: Final = """
    SELECT min(a.seq) - 1 FROM journal e
    JOIN journal a ON a.session_id = e.session_id AND a.seq > e.seq - e.nth AND a.append_id = e.append_id
    WHERE e.session_id = :session AND e.seq = :seq
"""
_COPIED: Final = """
    INSERT INTO journal (session_id, seq, conversation_id, trace_id, kind, call_id, reply_to, worker, fence, append_id,
                         nth, body, body_digest, at)
    SELECT :new, j.seq, :conversation, COALESCE(t.new, j.trace_id), j.kind, j.call_id, {reply}, j.worker, j.fence,
           j.append_id, j.nth, {body}, {digest}, {at}
    FROM {source} LEFT JOIN unnest(:traces::text[], :new_traces::text[]) AS t (old, new) ON t.old = j.trace_id
"""
COPY: Final = (
    _COPIED.format(reply="j.reply_to", body="j.body", digest="j.body_digest", at="j.at", source="journal j")
    + "WHERE j.session_id = :old AND j.seq <= :upto AND j.seq <> ALL(:renamed::bigint[])"
)
COPY_RENAMED: Final = _COPIED.format(
    reply="r.reply", body="r.body", digest="r.digest", at="COALESCE(r.at, j.at)",
    source="""unnest(:seqs::bigint[], :ats::timestamptz[], :new_reply_to::text[], :new_body::json[],
                :new_digest::text[])
         AS r (seq, at, reply, body, digest) JOIN journal j ON j.session_id = :old AND j.seq = r.seq""",
)  # fmt: skip
COPY_OUTSIDE: Final = """
    INSERT INTO journal (session_id, seq, conversation_id, trace_id, kind, append_id, nth, body, body_digest, at)
    SELECT :new, j.seq, :conversation, j.trace_id, j.kind, j.append_id, j.nth, j.body, j.body_digest, j.at
    FROM journal_events e JOIN journal j ON j.session_id = e.session_id AND j.seq = e.seq
    WHERE e.session_id = :old AND e.kind = 'Noted' AND (e.at <= :at OR e.body #>> '{interaction,id}' = ANY(:ids))
    RETURNING seq
"""
# Requests show what was told from outside as the ledger has it: it does not wait for a projection.
TELL_OUTSIDE: Final = f"""
    INSERT INTO ledger ({ALL})
    SELECT {ALL.replace("conversation_id", ":conversation").replace("session_id", ":new")} FROM ledger
    WHERE session_id = :old AND seq = ANY(:seqs)
"""
ADD_EVENTS: Final = f"""
    INSERT INTO journal (session_id, seq, conversation_id, trace_id, kind, call_id, reply_to, body, body_digest, at,
                         append_id, nth)
    SELECT :session, :head + new.nth, :conversation, :trace, new.kind, new.call_id, new.reply_to, new.body, new.digest,
           :at, :append_id, new.nth
    FROM {journals.NEW_EVENTS}
"""
ADD_SESSION: Final = """
    INSERT INTO sessions (id, owner, "user", conversation_id, side, agent, label, parent, head, due, state, version,
                          trace_id, task, created_at, updated_at, queued_at, key_id, family, inherited)
    SELECT :new, s.owner, s."user", :conversation, :side, s.agent, :label, :parent, :head, :due, :state, :version,
           :trace, :task, :at, :at, :at, :key, COALESCE(s.family, s.conversation_id), :inherited
    FROM sessions s WHERE s.id = :old
"""
ADD_OUTSIDE: Final = """
    INSERT INTO sessions (id, owner, "user", conversation_id, side, agent, version, head, due, created_at, updated_at,
                          queued_at, family, inherited)
    SELECT :new, s.owner, s."user", :conversation, s.side, s.agent, s.version, :head, false, :at, :at,
           :at, COALESCE(s.family, s.conversation_id), :head
    FROM sessions s WHERE s.id = :old
"""
ADD_TASK: Final = """
    INSERT INTO delegations (parent, call, child, prompt, trace, outcome, at)
    VALUES (:parent, :call, :child, :prompt, :trace, :outcome, :at)
"""
ADD_AWAIT: Final = "INSERT INTO awaits (parent, call, awaited) VALUES (:parent, :call, :awaited)"
ADD_RESTS: Final = """
    INSERT INTO rests (fingerprint, session_id, seq)
    SELECT fingerprint, :new, seq FROM rests WHERE session_id = :old AND seq <= :upto
"""
# The turns that are over were sent to a collector of traces as turns of the origin.
ADD_CURSOR: Final = """
    INSERT INTO projection_cursors (projection, session_id, epoch, head) VALUES ('otlp', :session, '', :head)
"""
# What was deleted from the ledger of a conversation does not come back in a branch.
ADD_CUTS: Final = """
    INSERT INTO interaction_cuts (owner, conversation_id, agent, trace_id, up_to, up_to_id, heads)
    SELECT c.owner, :new, c.agent, COALESCE(t.new, c.trace_id), c.up_to, c.up_to_id, h.heads
    FROM interaction_cuts c LEFT JOIN unnest(:traces::text[], :new_traces::text[]) AS t (old, new) ON t.old = c.trace_id
    CROSS JOIN LATERAL (
        SELECT jsonb_object_agg(s.new, least((c.heads ->> s.old)::bigint, s.head)) AS heads
        FROM unnest(:ids::text[], :new_ids::text[], :heads::bigint[]) AS s (old, new, head) WHERE c.heads ? s.old
    ) h
    WHERE c.owner = :owner AND c.conversation_id = :conversation AND h.heads IS NOT NULL
"""
# A file of the conversation that a finished call of the branch wrote last; or, where another wrote it, an old one.
_THERE: Final = """
    CASE WHEN w.id IS NULL THEN m.updated_at <= :at ELSE EXISTS (
        SELECT FROM journal j WHERE j.session_id = w.id AND j.kind = 'Returned' AND j.seq <= w.head
          AND j.call_id = split_part(m.written_by, ':', 2)
    ) END
"""
_MEMORIES: Final = """
    FROM memories m LEFT JOIN unnest(:ids::text[], :new_ids::text[], :heads::bigint[]) AS w (id, new, head)
        ON w.id = split_part(m.written_by, ':', 1)
    WHERE m.owner = :owner AND m.scope = :scope
"""
ADD_MEMORIES: Final = f"""
    INSERT INTO memories (owner, scope, path, content, written_by, updated_at)
    SELECT m.owner, :new_scope, m.path, m.content,
           COALESCE(w.new, :top::text) || ':' || split_part(m.written_by, ':', 2), m.updated_at
    {_MEMORIES} AND {_THERE} ON CONFLICT DO NOTHING
"""
LATER_MEMORIES: Final = f"SELECT m.path {_MEMORIES} AND m.content IS NOT NULL AND NOT ({_THERE}) ORDER BY m.path"


ACCEPTED: Final = f"{requests.ADD} VALUES (:owner, :digest, :key, :session, :trace, :seq, :at)"
# The agents that came with a fork have events of another session; those that its branch called later have none.
BRANCHES: Final = """
    SELECT s.id FROM sessions top JOIN sessions s ON s.owner = top.owner AND s.conversation_id = top.conversation_id
    WHERE top.id = :session AND top.owner = :owner AND s.inherited IS NOT NULL AND s.side <> 'external'
    ORDER BY s.created_at, s.id
"""


class NoSuchEvent(LookupError):  # noqa: N818 - it says what the session lacks
    """The session has no event of this number; `head` is its last one."""

    def __init__(self, head: int) -> None:
        super().__init__(f"the last event is {head}")
        self.head = head


class Branch(msgspec.Struct, frozen=True):
    """A session of a fork: a copy of another one up to an event of it, and ready to go on."""

    session: Session
    origin: Origin
    due: bool


class Fork(msgspec.Struct, frozen=True):
    top: Branch
    below: Sequence[Branch]
    """The agents that it had called."""
    outside: tuple[str, int] | None = None
    """The session that holds what was added from outside, and its head."""

    @property
    def branches(self) -> list[Branch]:
        return [self.top, *self.below]

    @property
    def left_out(self) -> Sequence[str]:
        """Memory files of the conversation that were changed since, and whose former text is not kept."""
        return self.top.origin.left_out


Allowed = Callable[[Branch], None]
"""Raises if a session of the fork must not be made."""


async def fork(
    db: Database,
    session_id: str,
    owner: str,
    after: int,
    *,
    key: str | None,
    allowed: Allowed = lambda branch: None,
    accepted: RequestIdentity | None = None,
) -> Fork | None:
    """Writes a branch of a session that ends with event `after`, all or nothing; None if there is no such session.

    `key`: the API key that the branch works for; None: that of the session. `accepted`: the request, by which `made_by`
    finds the branch. NoSuchEvent: the session has no such event. Repeated: a request with this idempotency key was
    accepted before.
    """
    new_ids: dict[str, str] = {}
    conversation, made = str(uuid.uuid4()), list[Fork]()

    async def write(tx: Transaction) -> Fork | None:
        if made and await tx.value("SELECT true FROM sessions WHERE id = :session", session=made[0].top.session.id):
            return made[0]  # the answer to the first try was lost after its commit
        row = await tx.row(TOP, session=session_id, owner=owner)
        if row is None:
            return None
        if row["capsule"]:
            raise ReadOnlySession
        await tx.run(LOCK, owner=owner, conversation=row["conversation_id"])  # no session can join the tree now
        rows = await tx.rows(ROWS, owner=owner, conversation=row["conversation_id"])
        known = {one["id"]: one for one in rows}
        if session_id not in known:
            return None
        if not 1 <= after <= known[session_id]["head"]:
            raise NoSuchEvent(known[session_id]["head"])
        source = _Source(tx, owner, row["conversation_id"], known, session_id, after)
        await source.read()
        made[:] = [await _Writing(source, conversation, key, allowed, new_ids).write()]
        if accepted:
            top = made[0].top.session
            request = {"owner": owner, "digest": accepted.digest, "key": accepted.key, "at": clock.now()}
            await tx.run(ACCEPTED, **request, session=top.id, trace=top.trace or "", seq=top.head)
        return made[0]

    with requests.repeated():
        return await db.together(write)


async def made_by(db: Database, session_id: str, owner: str) -> Fork | None:
    """The fork whose top session this is, as it is now; None if it was erased."""
    rows = await db.rows(BRANCHES, session=session_id, owner=owner)
    found = [await journals.load(db, row["id"]) for row in rows]
    branches = [Branch(one, one.origins[-1], one.is_running) for one in found if one.origins]
    top = next((one for one in branches if one.session.id == session_id), None)
    return Fork(top, [one for one in branches if one is not top]) if top else None


class _Source(msgspec.Struct):
    """What is copied: sessions of a conversation, each up to an event."""

    tx: Transaction
    owner: str
    conversation: str
    rows: Mapping[str, asyncpg.Record]
    top: str
    after: int
    tasks: Sequence[asyncpg.Record] = ()
    cuts: dict[str, int] = msgspec.field(default_factory=dict)
    """Session -> its last event in the branch."""
    at: datetime | None = None
    """The moment of the fork; None: now, at the last event of the session."""
    _records: dict[str, list[Recorded]] = msgspec.field(default_factory=dict)
    _calls: dict[str, tuple[int, AgentCalls]] = msgspec.field(default_factory=dict)

    async def read(self) -> None:
        last = await self.records(self.top, self.after)
        self.at = None if self.after == self.rows[self.top]["head"] else last[-1].at
        self.tasks = await self.tx.rows(TASKS, owner=self.owner, conversation=self.conversation)
        heads = {one: row["head"] for one, row in self.rows.items()}
        if self.at is not None:
            heads = dict(await self.tx.rows(HEADS_AT, ids=list(self.rows), at=self.at))
        self.cuts = {self.top: self.after}
        for _ in range(ROUNDS):
            before, self.cuts = self.cuts, await self._cut(heads)
            if before == self.cuts:
                return

    async def _cut(self, heads: Mapping[str, int]) -> dict[str, int]:
        """The sessions that those of the branch have called, each with its last event: at least what a session of the
        branch knows of it, and nothing that follows from what is not in the branch."""
        least, most = dict[str, int](), dict[str, int]()
        for task in self.tasks:
            child, parent = task["child"], task["parent"]
            if parent not in self.cuts or child == self.top or child not in self.rows:
                continue
            calls = await self.calls(parent)
            if task["call"] not in calls.made:
                most[child] = min(most.get(child, FOR_EVER), await self._before(child, task["prompt"]))
                continue
            is_known = task["call"] in calls.returned and task["ended"]
            least[child] = max(least.get(child, 0), task["prompt"], task["ended"] if is_known else 0)
            if task["ended"] and task["call"] in calls.open.values():
                most[child] = min(most.get(child, FOR_EVER), await self._before(child, task["ended"]))
        found = {child: max(low, min(heads.get(child, 0), most.get(child, FOR_EVER))) for child, low in least.items()}
        return {self.top: self.after, **found}

    async def _before(self, session_id: str, seq: int) -> int:
        return int(await self.tx.value(BEFORE, session=session_id, seq=seq) or seq - 1)

    async def calls(self, session_id: str) -> AgentCalls:
        """The calls of agents in what the branch has of a session."""
        upto = self.cuts[session_id]
        known = self._calls.get(session_id)
        if known is None or known[0] != upto:
            self._calls[session_id] = known = upto, forking.agent_calls(await self.records(session_id, upto))
        return known[1]

    async def records(self, session_id: str, upto: int) -> list[Recorded]:
        """The first events of a session."""
        known = self._records.setdefault(session_id, [])
        if not known or known[-1].seq < upto:
            known += await journals.read(self.tx, session_id, known[-1].seq if known else 0, upto - len(known))
        return known[:upto]


class _Writing(msgspec.Struct):
    """Writes the copies under names of their own."""

    source: _Source
    conversation: str
    key: str | None
    allowed: Allowed
    new_ids: dict[str, str]
    now: datetime = msgspec.field(default_factory=clock.now)

    async def write(self) -> Fork:
        source, tx = self.source, self.source.tx
        for one in source.cuts:
            self.new_ids.setdefault(one, f"{source.rows[one]['agent']}_{uuid.uuid4()}")
        copied = {one: await source.records(one, upto) for one, upto in source.cuts.items()}
        traces = sorted({record.trace for records in copied.values() for record in records if record.trace})
        names = BranchNames(
            self.conversation,
            {one: self.new_ids[one] for one in source.cuts},
            # Made of the new id, so that a second try makes the same.
            {trace: _digest(self.new_ids[source.top], trace)[:32] for trace in traces},
        )
        ids, new_ids = list(names.sessions), list(names.sessions.values())
        mapped = {"ids": ids, "new_ids": new_ids, "heads": [source.cuts[one] for one in ids]}
        left_out = await self._memories(mapped)
        cancelled = {
            names.traces[record.event.trace]
            for records in copied.values()
            for record in records
            if isinstance(record.event, events.Cancelled) and record.event.trace in names.traces
        }
        branches = {}
        for one, records in copied.items():
            lacks = left_out if one == source.top else ()
            branches[one] = await self._session(one, records, names, cancelled, lacks)
        for task in source.tasks:
            await self._task(task, names, branches, cancelled)
        outside = await self._outside(branches)
        await tx.run(
            ADD_CUTS,
            owner=source.owner,
            conversation=source.conversation,
            new=self.conversation,
            **mapped,
            **_traces(names),
        )
        top = branches.pop(source.top)
        return Fork(top, list(branches.values()), outside)

    async def _session(
        self, old: str, records: Sequence[Recorded], names: BranchNames, cancelled: set[str], left_out: Sequence[str]
    ) -> Branch:
        source, tx, new = self.source, self.source.tx, names.sessions[old]
        row, upto = source.rows[old], source.cuts[old]
        before = fold(records, blank(old))
        origins = forking.origins_of(before, upto, left_out)
        late = forking.postponed(before, records, self.now - records[-1].at)
        renamed = {
            record.seq: late.get(record.seq) or self._renamed(record.event, names, row, origins, old)
            for record in records
            if record.seq in late or isinstance(record.event, forking.RENAMED)
        }
        inherited = fold([replace(one, event=renamed.get(one.seq, one.event)) for one in records], blank(new))
        outcomes = await self._outcomes(old)
        deleted = (await journals.load(tx, old)).deleted
        joint = BranchPoint(old, self.now, old == source.top, cancelled, outcomes, deleted)
        session, added = forking.joined(inherited, joint)
        due = session.is_running or bool(session.queue) or session.lacks_title
        branch = Branch(session, origins[-1], due)
        self.allowed(branch)
        await self._copy(old, new, upto, renamed, names)
        trace = session.trace or (session.queue[0].prompt.trace if session.queue else None)
        await self._add(session, upto, added, trace)
        turn = session.turn
        waiting = session.queue[0].prompt.content if session.queue else ()
        task = turn.task if turn else "".join(one for one in waiting if isinstance(one, str))
        await tx.run(
            ADD_SESSION,
            old=old,
            new=new,
            conversation=self.conversation,
            # Nobody calls it in the new conversation; its rights as a sub-agent are in its journal.
            side="root" if old == source.top else row["side"],
            label=session.label,
            parent=names.sessions.get(row["parent"] or ""),
            head=upto + len(added),
            due=due,
            state=session.state,
            version=turn.version if turn else session.version,
            trace=trace,
            task=task[: journals.TASK_SHOWN] or None,
            at=self.now,
            key=self.key or source.rows[source.top]["key_id"],
            inherited=upto,
        )
        await tx.run(ADD_RESTS, new=new, old=old, upto=upto)
        await tx.run(ADD_CURSOR, session=new, head=upto)
        return branch

    def _renamed(
        self, event: Event, names: BranchNames, row: asyncpg.Record, origins: tuple[Origin, ...], old: str
    ) -> Event:
        event = names.renamed(event)
        if not isinstance(event, events.Opened):
            return event
        label = row["label"]
        # Agents below keep their labels, by which they are called; so do sessions whose history the client keeps.
        if old == self.source.top and not label.startswith(EPHEMERAL):
            label = f"branch-{_digest(names.sessions[old])[:8]}"
        return replace(event, label=label, origins=origins)

    async def _outcomes(self, old: str) -> dict[str, Outcome | None]:
        """Open call of an agent -> its outcome, where the agent has ended in the branch; None: it has not."""
        tasks = {one["call"]: one for one in self.source.tasks if one["parent"] == old}
        found = dict[str, Outcome | None]()
        for call, handle in (await self.source.calls(old)).open.items():
            task = tasks.get(handle)
            if task is not None and task["child"] in self.source.cuts:
                found[call] = results.decode(task["outcome"]).outcome if self._is_over(task) else None
        return found

    def _is_over(self, task: asyncpg.Record) -> bool:
        """Whether the branch has the end of what a task asked for."""
        is_ended = task["ended"] is not None and task["ended"] <= self.source.cuts[task["child"]]
        return is_ended and task["outcome"] is not None

    async def _task(
        self, task: asyncpg.Record, names: BranchNames, branches: Mapping[str, Branch], cancelled: set[str]
    ) -> None:
        source, parent, child = self.source, task["parent"], task["child"]
        if parent not in branches or child not in branches:
            return
        calls = await source.calls(parent)
        if task["call"] not in calls.made:
            return
        trace = names.traces.get(task["trace"], task["trace"])
        outcome = task["outcome"] if self._is_over(task) else None
        if outcome is None and trace in cancelled:
            outcome = DelegationResult(outcome=CANCELLED).encoded
        ids = {"parent": names.sessions[parent], "call": task["call"]}
        prompt = {"child": names.sessions[child], "prompt": task["prompt"], "trace": trace}
        await source.tx.run(ADD_TASK, **ids, **prompt, outcome=outcome, at=task["at"])
        if outcome is not None:
            return
        still_open = branches[parent].session.open
        for call, handle in calls.open.items():
            if handle == task["call"] and call in still_open:
                await source.tx.run(ADD_AWAIT, parent=ids["parent"], call=call, awaited=handle)

    async def _copy(self, old: str, new: str, upto: int, renamed: Mapping[int, Event], names: BranchNames) -> None:
        tx, seqs = self.source.tx, list(renamed)
        where = {"old": old, "new": new, "conversation": self.conversation, **_traces(names)}
        columns = await journals.columns_of(tx, list(renamed.values()))
        await tx.run(COPY, **where, upto=upto, renamed=seqs)
        # The branch began now; what it has inherited happened when it did.
        ats = [self.now if isinstance(one, events.Opened) else None for one in renamed.values()]
        given = {name: columns[name] for name in ("new_reply_to", "new_body", "new_digest")}
        await tx.run(COPY_RENAMED, **where, seqs=seqs, ats=ats, **given)

    async def _add(self, session: Session, head: int, new: Sequence[Event], trace: str | None) -> None:
        if new:
            columns = await journals.columns_of(self.source.tx, new)
            await self.source.tx.run(
                ADD_EVENTS,
                session=session.id,
                head=head,
                conversation=self.conversation,
                trace=trace,
                at=self.now,
                append_id=uuid.uuid4(),
                **columns,
            )

    async def _outside(self, branches: Mapping[str, Branch]) -> tuple[str, int] | None:
        """Copies what was added to the conversation from outside by then, and what the sessions know of it; the session
        that holds it, and its head."""
        source = self.source
        outside = next((one for one, row in source.rows.items() if row["side"] == "external"), None)
        if outside is None:
            return None
        ids = sorted({one for branch in branches.values() for one in branch.session.memory.interactions})
        new = self.new_ids.setdefault(outside, f"external_{uuid.uuid4()}")
        at = source.at or self.now
        where = {"new": new, "conversation": self.conversation}
        seqs = await source.tx.column(COPY_OUTSIDE, **where, old=outside, at=at, ids=ids)
        if not seqs:
            return None
        await source.tx.run(TELL_OUTSIDE, **where, old=outside, seqs=seqs)
        [first] = await journals.read(source.tx, outside, 0, 1)
        assert isinstance(first.event, events.Opened)
        opened = replace(first.event, conversation=self.conversation)
        await self._add(blank(new), first.seq - 1, [opened], None)
        await source.tx.run(ADD_OUTSIDE, **where, old=outside, head=max(seqs), at=self.now)
        return new, max(seqs)

    async def _memories(self, mapped: Mapping[str, Any]) -> list[str]:
        """Copies the memory files of the conversation; returns those that were changed since."""
        source, at = self.source, self.source.at or self.now
        top, left_out = self.new_ids[source.top], list[str]()
        scopes = dict[str, str]()
        for one in source.cuts:
            row = source.rows[one]
            who = (source.owner, row["user"], row["agent"])
            for kind in ("agent", "conversation"):
                old = memory_scopes.scope_for(kind, *who, source.conversation)
                if old.passing:
                    scopes[old.key] = memory_scopes.scope_for(kind, *who, self.conversation).key
        for scope, new_scope in scopes.items():
            where = {"owner": source.owner, "scope": scope, "at": at, **mapped}
            left_out += await source.tx.column(LATER_MEMORIES, **where)
            await source.tx.run(ADD_MEMORIES, **where, new_scope=new_scope, top=top)
        return left_out


def _traces(names: BranchNames) -> dict[str, list[str]]:
    return {"traces": list(names.traces), "new_traces": list(names.traces.values())}


def _digest(*parts: str) -> str:
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()
