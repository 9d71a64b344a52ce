"""What is left after a run: journals, rows, snapshots, counters, the ledger and the places where a secret was seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from chaos import ledger
from chaos.history import History
from chaos.ledger import Effect
from longhouse.journal.counters import Counters
from longhouse.journal.events import Recorded
from longhouse.journal.fold import FOLD_VERSION
from longhouse.journal.session import Session
from longhouse.store import journals
from longhouse.store.database import Database


@dataclass(frozen=True)
class Row:
    """A session's row."""

    head: int
    state: str
    due: bool = False
    holder: str | None = None
    wake_at: datetime | None = None


@dataclass(frozen=True)
class Evidence:
    journals: Mapping[str, Sequence[Recorded]]
    rows: Mapping[str, Row]
    history: History
    ledger: Sequence[Effect] = ()
    snapshots: Mapping[str, tuple[int, Session]] = field(default_factory=dict)
    counters: Mapping[str, Counters] = field(default_factory=dict)
    leaks: Sequence[str] = ()
    """Logs and tables that hold a secret."""
    lease: float = 6.0


async def gathered(db: Database, history: History, folder: Path, *, secrets: Sequence[str], lease: float) -> Evidence:
    found = await db.rows("SELECT id, head, state, due, holder, wake_at FROM sessions WHERE side <> 'external'")
    told = {row["id"]: [journals.recorded(one) for one in await db.rows(_READ, session=row["id"])] for row in found}
    snapshots = await db.rows("SELECT session_id, seq, state FROM snapshots WHERE fold_version = :v", v=FOLD_VERSION)
    counters = await db.rows("SELECT session_id, counted FROM session_counters")
    decode = msgspec.json.decode
    return Evidence(
        journals=told,
        rows={row["id"]: Row(*row[1:]) for row in found},
        history=history,
        ledger=ledger.read(folder / "ledger.sqlite"),
        snapshots={row["session_id"]: (row["seq"], decode(row["state"], type=Session)) for row in snapshots},
        counters={row["session_id"]: decode(row["counted"], type=Counters) for row in counters},
        leaks=[*await _in_tables(db, secrets), *_in_logs(folder, secrets)],
        lease=lease,
    )


# In the order in which the events were written: seq may be what is wrong, and clocks are set.
_READ = journals.READ.replace(":after ORDER BY j.seq LIMIT :limit", "0 ORDER BY j.global_seq")


async def _in_tables(db: Database, secrets: Sequence[str]) -> list[str]:
    tables: Sequence[Any] = await db.rows(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"
    )
    found = []
    for (table,) in tables:
        for secret in secrets:
            # Bytes are shown in hexadecimal digits.
            found_in = " OR ".join(f"t::text LIKE '%' || :{name} || '%'" for name in ("plain", "hex"))
            sql = f"SELECT count(*) FROM {table} t WHERE {found_in}"
            if await db.value(sql, plain=secret, hex=secret.encode().hex()):
                found.append(f"table {table}")
    return found


def _in_logs(folder: Path, secrets: Sequence[str]) -> list[str]:
    logs = (folder / "logs").glob("*.log")
    return [f"log {log.name}" for log in logs if any(secret in log.read_text(errors="replace") for secret in secrets)]
