"""Tests on throw-away data whether Postgres programs run on this CPU: an illegal instruction would crash the server."""

import hashlib
import json
import os
import platform
import re
import signal
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from longhouse.store.postgres import account as accounts
from longhouse.store.postgres.account import Account

WITHIN: Final = 120.0
USER: Final = "trial"
# The extension's numeric code in the cases that were seen to fail; each line is one statement.
QUESTIONS: Final = """\
CREATE EXTENSION vector
SELECT '[1,2,3]'::vector <=> '[2,3,4]'::vector, '[1,2,3]'::vector <-> '[2,3,4]'::vector
SELECT '[1,2,3]'::halfvec <=> '[2,3,4]'::halfvec, '[1,2,3]'::halfvec <-> '[2,3,4]'::halfvec
CREATE TABLE trial AS SELECT array_fill((1 + n % 7)::real, ARRAY[64])::vector(64) AS v FROM generate_series(1, 200) n
CREATE INDEX ON trial USING hnsw ((v::halfvec(64)) halfvec_cosine_ops)
SELECT 'found ' || count(*) FROM (SELECT FROM trial ORDER BY v <=> array_fill(1::real, ARRAY[64])::vector LIMIT 5) few
"""
ANSWER: Final = '"found 5"'
ILLEGAL: Final = "it uses instructions that this CPU does not have"
SIGNAL: Final = re.compile(r"terminated by signal (\d+)")
CPU: Final = re.compile(r"^(model name|flags|Features|CPU implementer|CPU variant|CPU part)\s*:\s*(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The result of a trial."""

    runs: bool
    """A data directory can be created and queried."""
    vectors: bool
    """The extension `vector` works."""
    why: str = ""
    """Why the programs failed, if they did."""


def verdict(programs: Path, env: dict[str, str], account: Account | None, state: Path) -> TrialResult:
    """The stored verdict on these programs and this CPU; without one, runs a trial and stores its verdict."""
    note = state / f"trial-{_key(programs)}.json"
    with suppress(OSError, ValueError, TypeError):
        return TrialResult(**json.loads(note.read_text("utf-8")))
    found = _tried(programs, env, account)
    if not found.why or ILLEGAL in found.why:  # other failures, such as a full disk, may be temporary
        # If this fails, the next start only needs another trial of about a second.
        with suppress(OSError), tempfile.NamedTemporaryFile("w", dir=note.parent, delete=False) as draft:
            json.dump(asdict(found), draft)
            draft.close()
            os.replace(draft.name, note)
    return found


def _tried(programs: Path, env: dict[str, str], account: Account | None) -> TrialResult:
    with tempfile.TemporaryDirectory(prefix="longhouse-trial-") as folder:
        if account:
            os.chown(folder, account.uid, account.gid)
        data = f"{folder}/data"
        options = ("--no-sync", "--wal-segsize=1", "--auth=reject", "--encoding=UTF8", "--locale=C")
        why, _ = _ran([str(programs / "initdb"), "-D", data, "-U", USER, *options], env, account)
        if why:
            return TrialResult(runs=False, vectors=False, why=why)
        command = [str(programs / "postgres"), "--single", "-D", data, "-c", "fsync=off", "template1"]
        why, answered = _ran(command, env, account, stdin=QUESTIONS)
        return TrialResult(runs=True, vectors=ANSWER in answered, why=why)


def _ran(command: list[str], env: dict[str, str], account: Account | None, stdin: str = "") -> tuple[str, str]:
    """Why a program failed (empty if it did not), and its output."""
    try:
        ended = accounts.run(command, account, env, stdin=stdin, timeout=WITHIN)
    except subprocess.TimeoutExpired:
        return f"it was not ready after {WITHIN:.0f} seconds", ""
    except OSError as error:
        return error.strerror or str(error), ""
    return reason(ended.stderr, ended.returncode) if ended.returncode else "", ended.stdout


def reason(stderr: str, code: int) -> str:
    """Why a program ended, from its own error output where there is some."""
    if code < 0 or SIGNAL.search(stderr):
        number = -code if code < 0 else int(next(SIGNAL.finditer(stderr))[1])
        return ILLEGAL if number == signal.SIGILL else f"it was ended by signal {number}"
    lines = [line for line in stderr.splitlines() if "error" in line] or stderr.splitlines()
    return lines[0].strip() if lines else f"it ended with {code}"


def _key(programs: Path) -> str:
    """A key of the programs and the CPU: if either changes, a new trial is needed."""
    facts = [str(programs), platform.machine()]
    for file in (programs / "postgres", *sorted(programs.parent.glob("lib/**/vector.*"))):
        with suppress(OSError):
            facts.append(f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}")
    with suppress(OSError):
        facts += sorted({line[0] for line in CPU.finditer(Path("/proc/cpuinfo").read_text("utf-8", errors="replace"))})
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
