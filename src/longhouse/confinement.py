"""Processes that run what others wrote: what they may see and do, how they end, and the frames in which they speak.

A frame is a message in MessagePack with its length before it.
"""

import ctypes
import os
import signal
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import msgspec

HEADER: Final = 4
"""Bytes of the length of a frame."""
_PDEATHSIG, _CAPBSET_DROP, _NO_NEW_PRIVS, _CAP_AMBIENT = 1, 24, 38, 47
_CLEAR_ALL: Final = 4
_VERSION: Final = 0x20080522
_MOST: Final = 64
"""Capabilities that the kernel can count."""
_OF_FILES: Final = 0b1111
"""CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and CAP_FOWNER: root goes on reading and writing files of others,
those of its Python among them."""


def environment(names: Iterable[str]) -> dict[str, str]:
    """These variables, and what Python needs to find the same modules; secrets of the server stay here."""
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUTF8": "1"}


def end_group(leader: int, sign: signal.Signals = signal.SIGKILL) -> None:
    """Ends a process that leads a session of its own, and what it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, sign)


def framed(message: object) -> bytes:
    content = msgspec.msgpack.encode(message)
    return len(content).to_bytes(HEADER, "big") + content


def length_of(header: bytes) -> int:
    return int.from_bytes(header, "big")


def confine() -> None:
    """Gives up all privileges but those over files, as far as the kernel lets; must be called before threads begin.

    What it refuses stays as it was: a container without CAP_SETPCAP keeps its bounding set, which gives nothing to
    processes that gain no privileges.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    for capability in range(_MOST):
        if not _OF_FILES >> capability & 1:
            libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    libc.prctl(_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    header, sets = struct.pack("Ii", _VERSION, 0), ctypes.create_string_buffer(24)
    if libc.capget(header, sets) == 0:
        effective, permitted, *_ = struct.unpack("6I", sets.raw)
        libc.capset(header, struct.pack("6I", effective & _OF_FILES, permitted & _OF_FILES, 0, 0, 0, 0))
    libc.prctl(_PDEATHSIG, signal.SIGKILL)
