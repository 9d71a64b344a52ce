"""Writes the sessions of a capsule into a house, all or none; what they say of themselves is checked first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import asyncpg
import msgspec

from longhouse.agents.schema.flatten import Leaf
from longhouse.errors import SetupError, UnknownShape
from longhouse.journal import events
from longhouse.journal.events import Recorded
from longhouse.store import files
from longhouse.store.backups import archive
from longhouse.store.backups.archive import Archive
from longhouse.store.capsules.format import (
    CapsuleManifest,
    DelegationLine,
    EventLine,
    SessionLine,
    TextLine,
    VersionLine,
)
from longhouse.store.database import Database, Transaction
from longhouse.store.delegation import results
from longhouse.store.rows import columns

LONGEST_ID: Final = 300
PAGE: Final = 500
NOT_YET: Final = b"null"
"""The outcome of an agent that is at work."""
L = TypeVar("L", bound=msgspec.Struct)

THERE: Final = "SELECT id FROM sessions WHERE id = ANY(:ids) ORDER BY id LIMIT 1"
ADD_SESSION: Final = """
    INSERT INTO sessions (id, owner, "user", conversation_id, side, agent, label, parent, head, state, version,
                          trace_id, task, created_at, updated_at, due, capsule, capsule_head)
    VALUES (:id, :owner, :user, :conversation_id, :side, :agent, :label, :parent, :head, :state, :version, :trace_id,
            :task, :created_at, :updated_at, false, :capsule, :head)
"""
ADD_EVENTS: Final = """
    INSERT INTO journal (session_id, seq, conversation_id, trace_id, kind, call_id, reply_to, worker, fence, append_id,
                         nth, body, body_digest, at)
    SELECT :session, e.seq, :conversation, e.trace, e.kind, e.call, e.reply, e.worker, e.fence, gen_random_uuid(), 1,
           e.body, e.digest, e.at
    FROM unnest(:seq::bigint[], :trace_id::text[], :kinds::text[], :calls::text[], :replies::text[], :worker::text[],
                :fence::bigint[], :bodies::json[], :body_digest::text[], :at::timestamptz[])
         AS e (seq, trace, kind, call, reply, worker, fence, body, digest, at)
"""
ADD_DELEGATION: Final = """
    INSERT INTO delegations (parent, call, child, prompt, trace, outcome, at)
    VALUES (:parent, :call, :child, :prompt, :trace, :outcome, :at)
"""
ADD_AWAIT: Final = "INSERT INTO awaits (parent, call, awaited) VALUES (:parent, :call, :awaited)"
ADD_CAPSULE: Final = "INSERT INTO capsules (id, manifest) VALUES (:id, :manifest)"
ADD_VERSION: Final = """
    INSERT INTO capsule_versions (capsule, kind, name, version, descriptor)
    VALUES (:capsule, :kind, :name, :version, :descriptor)
"""
ADD_TEXT: Final = "INSERT INTO capsule_texts (session_id, seq, text) VALUES (:session, :seq, :text)"
# Its events may name any file: it has those that came with it, not those that are here already.
HOLD_ITS_OWN: Final = "DELETE FROM session_files WHERE session_id = ANY(:ids) AND digest <> ALL(:digests)"
# Nobody can answer in it: it stands in no list of open questions.
ASKS_NOBODY: Final = "DELETE FROM asking_sessions WHERE id = ANY(:ids)"


async def bring(db: Database, capsule: Archive[CapsuleManifest]) -> list[str]:
    """Writes the sessions of a verified capsule into this house, all or none; returns their ids."""
    content = content_of(capsule)
    ids = [session.id for session in content.sessions]

    async def write(tx: Transaction) -> None:
        if there := await tx.value(THERE, ids=ids):
            raise SetupError(f"The session {there} is here already: nothing was imported.")
        await content.write(tx, capsule.manifest)
        await tx.run(ASKS_NOBODY, ids=ids)

    try:
        await db.together(write)
    except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
        raise SetupError(f"{capsule.path} is no capsule that fits together: {error.args[0]}.") from error
    return ids


def content_of(capsule: Archive[CapsuleManifest]) -> "CapsuleContent":
    """The content of a verified capsule; SetupError if it cannot be read here."""
    try:
        return CapsuleContent.of(capsule)
    except (msgspec.DecodeError, UnknownShape, UnicodeDecodeError, RecursionError) as error:
        raise SetupError(
            f"{capsule.path} cannot be read by this Longhouse ({error}): use Longhouse "
            f"{capsule.manifest.longhouse[:40]} or newer."
        ) from error


@dataclass(frozen=True, slots=True)
class CapsuleContent:
    """The parts of a capsule, decoded and checked."""

    sessions: Sequence[SessionLine]
    journals: Mapping[str, Sequence[tuple[EventLine, events.Event]]]
    delegations: Sequence[DelegationLine]
    versions: Sequence[VersionLine]
    texts: Sequence[TextLine]
    files: Mapping[str, bytes]

    @classmethod
    def of(cls, capsule: Archive[CapsuleManifest]) -> "CapsuleContent":
        found, manifest = list(_lines(capsule, "sessions.jsonl", SessionLine)), capsule.manifest
        contents = {digest: capsule.read(f"files/{digest}") for digest in manifest.files}
        journals: dict[str, list[tuple[EventLine, events.Event]]] = {one.id: [] for one in found}
        for one in _lines(capsule, "journal.jsonl", EventLine):
            body = contents[one.body_digest] if one.body_digest in contents else bytes(one.body)
            journals.setdefault(one.session_id, []).append((one, events.decode(body)))
        ids = {one.id for one in found}
        is_whole = (
            manifest.session in journals
            and journals.keys() == ids
            and all(one.id.isprintable() and len(one.id) <= LONGEST_ID for one in found)
            and all(_is_complete(journals[one.id], one.head, contents) for one in found)
            # A file is known by its digest everywhere in a house.
            and all(files.digest_of(content) == digest for digest, content in contents.items())
        )
        if not is_whole:
            raise archive.damaged(capsule.path, "its journals")
        delegations = list(_lines(capsule, "delegations.jsonl", DelegationLine))
        for outcome in (bytes(one.outcome) for one in delegations):
            if outcome != NOT_YET:
                results.decode(outcome.decode())
        texts = list(_lines(capsule, "remembered.jsonl", TextLine))
        # What hangs together is shown together, and erased together: nothing of this house may hang on a capsule.
        if not {text.session_id for text in texts}.union(*((one.parent, one.child) for one in delegations)) <= ids:
            raise archive.damaged(capsule.path, "its delegations")
        versions = list(_lines(capsule, "catalog.jsonl", VersionLine))
        if not all(map(_is_readable, versions)):
            raise archive.damaged(capsule.path, "its catalog")
        return cls(found, journals, delegations, versions, texts, contents)

    def records(self, session_id: str) -> list[Recorded]:
        """The journal of one of its sessions."""
        return [
            Recorded(
                seq=one.seq, at=one.at, event=event, trace=one.trace_id or "", worker=one.worker or "",
                fence=one.fence or 0,
            )
            for one, event in self.journals[session_id]
        ]  # fmt: skip

    def text(self, session_id: str, seq: int) -> str:
        """What the request before this reply showed from memory."""
        return next((one.text for one in self.texts if (one.session_id, one.seq) == (session_id, seq)), "")

    async def write(self, tx: Transaction, manifest: CapsuleManifest) -> None:
        # An owner of its own: nobody's conversations, memory or searches ever meet what came from elsewhere.
        owner, capsule = owner_of(manifest.session), manifest.session
        for digest, content in self.files.items():
            media_type = files.safe_media_type(manifest.files[digest])
            await tx.run(files.PUT, digest=digest, media_type=media_type, content=content)
        for session in self.sessions:
            given = {**msgspec.structs.asdict(session), "owner": owner, "capsule": capsule}
            await tx.run(ADD_SESSION, **given)
            lines = self.journals[session.id]
            for start in range(0, len(lines), PAGE):
                page = _columns(lines[start : start + PAGE])
                await tx.run(ADD_EVENTS, session=session.id, conversation=session.conversation_id, **page)
        await tx.run(HOLD_ITS_OWN, ids=[session.id for session in self.sessions], digests=list(self.files))
        await tx.run(ADD_CAPSULE, id=capsule, manifest=msgspec.json.encode(manifest).decode())
        for one in self.delegations:
            fields = msgspec.structs.asdict(one)
            awaits, outcome = fields.pop("awaits"), fields.pop("outcome")
            await tx.run(
                ADD_DELEGATION, **fields, outcome=None if bytes(outcome) == NOT_YET else bytes(outcome).decode()
            )
            for call in awaits:
                await tx.run(ADD_AWAIT, parent=one.parent, call=call, awaited=one.call)
        for version in self.versions:
            fields = msgspec.structs.asdict(version) | {"descriptor": bytes(version.descriptor).decode()}
            await tx.run(ADD_VERSION, capsule=capsule, **fields)
        for text in self.texts:
            await tx.run(ADD_TEXT, session=text.session_id, seq=text.seq, text=text.text)


def _is_complete(journal: Sequence[tuple[EventLine, events.Event]], head: int, contents: Mapping[str, bytes]) -> bool:
    """Whether it has all events up to its head, with those that are in files."""
    is_whole = len(journal) == head and all(one.seq == nth for nth, (one, _) in enumerate(journal, 1))
    return is_whole and all(one.body_digest is None or one.body_digest in contents for one, _ in journal)


def _is_readable(version: VersionLine) -> bool:
    """Whether its schema can be written out: that was checked where it was published, if it was."""
    descriptor = msgspec.json.decode(version.descriptor)
    if not isinstance(descriptor, dict):
        return False
    schema = descriptor.get("input_schema")
    try:
        if schema is not None:
            Leaf.of_arguments(schema)
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def _lines(capsule: Archive[CapsuleManifest], name: str, kind: type[L]) -> Iterator[L]:
    decoder, text = msgspec.json.Decoder(kind), capsule.read(name)
    text.decode()  # texts that are taken as they are were not looked at by the decoder
    return (decoder.decode(one) for one in text.splitlines() if one)


def _columns(lines: Sequence[tuple[EventLine, events.Event]]) -> dict[str, list[Any]]:
    """Events as the array parameters of a statement; what is found by columns is taken from the events themselves."""
    given, told = zip(*lines, strict=True)
    return {
        **columns(given, "seq", "at", "trace_id", "worker", "fence", "body_digest"),
        "bodies": [bytes(one.body).decode() for one in given],
        "kinds": list(map(events.kind_of, told)),
        "calls": list(map(events.call_of, told)),
        "replies": list(map(events.reply_to_of, told)),
    }


def owner_of(session_id: str) -> str:
    """The owner of sessions that came in the capsule of this session."""
    return f"capsule:{session_id}"
