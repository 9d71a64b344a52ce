"""`make` on machines where there is no Python that Longhouse runs with, or one that came later."""

import shutil
import subprocess
from pathlib import Path

import pytest

from longhouse import __file__ as package

MAKEFILE = Path(package).parents[2] / "Makefile"
NEEDED = ("make", "rm", "touch", "sh", "mkdir")
OLD = "#!/bin/sh\nexit 1\n"
"""A Python of another time: it runs nothing of what it is asked."""


def folder_with(tmp_path: Path, *pythons: str) -> tuple[Path, dict[str, str]]:
    """A checkout with an environment that an old Python made, and a PATH with these Pythons, all of them old."""
    checkout, programs = tmp_path / "checkout", tmp_path / "programs"
    stale = checkout / ".venv" / "bin" / "python"
    (checkout / "requirements").mkdir(parents=True)
    stale.parent.mkdir(parents=True)
    programs.mkdir()
    shutil.copy(MAKEFILE, checkout)
    for name in ("requirements/run.lock.txt", "requirements/uv.lock.txt", "pyproject.toml"):
        (checkout / name).touch()
    for program in NEEDED:
        (programs / program).symlink_to(shutil.which(program) or "")
    for python in (stale, *(programs / name for name in pythons)):
        python.write_text(OLD)
        python.chmod(0o755)
    return checkout, {"PATH": str(programs)}


def test_without_a_python_that_is_new_enough_one_sentence_says_which_to_install(tmp_path: Path) -> None:
    checkout, environment = folder_with(tmp_path, "python3")
    done = subprocess.run(["make", "setup"], cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    said = done.stderr.splitlines()[0]
    assert said == "Longhouse needs Python 3.11 or later, and there is none: install python3.11 with its venv module"
    assert not (checkout / ".venv").exists(), "what an old Python had made is in nobody's way"


def test_a_newer_python_beside_an_old_one_is_found(tmp_path: Path) -> None:
    checkout, environment = folder_with(tmp_path, "python3")
    newer = Path(environment["PATH"], "python3.12")
    newer.write_text('#!/bin/sh\n[ "$1" = -c ] || { echo "asked for $*"; exit 3; }\n')
    newer.chmod(0o755)
    done = subprocess.run(["make", "setup"], cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "asked for -m venv .venv" in done.stdout) == (2, True), done.stderr


@pytest.mark.parametrize("target", ["setup", "run"])
def test_an_environment_whose_interpreter_is_gone_is_made_anew(tmp_path: Path, target: str) -> None:
    checkout, environment = folder_with(tmp_path)
    python = checkout / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to(tmp_path / "upgraded" / "python3.11")
    (checkout / ".venv" / ".run").touch()
    newer = Path(environment["PATH"], "python3.12")
    newer.write_text('#!/bin/sh\n[ "$1" = -c ] || { echo "asked for $*"; exit 3; }\n')
    newer.chmod(0o755)
    done = subprocess.run(["make", target], cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "asked for -m venv .venv" in done.stdout) == (2, True), done.stderr


def test_with_an_interpreter_and_nothing_to_do_no_python_starts(tmp_path: Path) -> None:
    checkout, environment = folder_with(tmp_path)
    (checkout / ".venv" / "bin" / "python").write_text("#!/bin/sh\necho started >&2\n")
    (checkout / ".venv" / ".run").touch()
    done = subprocess.run(["make", "setup"], cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "setting up" not in done.stdout
