"""A process that has given up its privileges has none, and what it starts gets none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import longhouse

SOURCE = Path(longhouse.__file__).parents[1]
STATUS = "print(open('/proc/self/status').read())"
CONFINED = f"""
import subprocess, sys
sys.path.insert(0, {str(SOURCE)!r})
from longhouse.confinement import confine
{{before}}
confine()
{STATUS}
subprocess.run(["/bin/cat", "/proc/self/status"], check=True)
"""
WITHOUT_SETPCAP = "import ctypes, struct; ctypes.CDLL(None).capset(struct.pack('Ii', 0x20080522, 0), bytes(24))"
OF_FILES = 0b1111

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="privileges are those of Linux")


def statuses(before: str = "pass") -> list[dict[str, str]]:
    """Of the process and of one that it has started."""
    code = CONFINED.format(before=before)
    told = subprocess.run([sys.executable, "-u", "-c", code], check=True, capture_output=True, text=True).stdout
    found: list[dict[str, str]] = []
    for line in filter(None, told.splitlines()):
        name, _, value = line.partition(":")
        if name == "Name":
            found.append({})
        found[-1][name] = value.strip()
    return found


@pytest.mark.parametrize("before", ["pass", WITHOUT_SETPCAP])
def test_privileges_are_given_up_and_cannot_be_had_again(before: str) -> None:
    process, child = statuses(before)
    for status in (process, child):
        assert status["NoNewPrivs"] == "1"
        assert all(int(status[name], 16) & ~OF_FILES == 0 for name in ("CapPrm", "CapEff", "CapInh", "CapAmb"))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_who_is_not_root_has_nothing_to_give_up() -> None:
    for status in statuses("import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)"):
        assert (status["NoNewPrivs"], int(status["CapPrm"], 16)) == ("1", 0)
