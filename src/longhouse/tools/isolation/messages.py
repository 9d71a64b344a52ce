"""What the server and a tool process say to each other: MessagePack frames, each with its length before it."""

import hashlib
from typing import Any, Final

import msgspec

from longhouse import confinement
from longhouse.journal.roles import Role
from longhouse.tools.config import ToolConfig
from longhouse.tools.context import MadeFile

MOST_BYTES: Final = 64 * 2**20
"""Maximum bytes of a frame: a result with its files, or a context."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Tags stay when a class gets another name: a server whose files were updated starts processes of the new code."""

    number: int = 0
    """The number of the request in its process, also in what is said about it: a late or second reply is noticed."""


class ProcessLimits(msgspec.Struct, frozen=True):
    """What one request may take. The server sees to the wall time."""

    memory: int
    """Bytes of private memory of the whole process."""
    cpu: float
    """Seconds of CPU time of this request alone."""


class ToolRequest(Message, frozen=True, kw_only=True):
    """Something to do with a class, within limits."""

    entrypoint: str
    limits: ProcessLimits


class Describe(ToolRequest, frozen=True, kw_only=True):
    """Import the class and describe it."""


class Check(ToolRequest, frozen=True, kw_only=True):
    """Do these arguments fit the class?"""

    tool: str
    arguments: str


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """The readable part of a ToolContext, as plain values. The session itself is sent when a tool asks for it."""

    session_id: str
    conversation_id: str
    owner: str
    user: str | None
    agent: str
    call: str
    key: str
    memory_scope: str
    iteration: int
    searches_used: int
    clarifications_used: int
    kept: dict[str, Any]


class RunTool(ToolRequest, frozen=True, kw_only=True, tag="Call"):
    """Run the tool, if its class is still the one that was described."""

    digest: str
    tool: str
    arguments: str
    context: CallContext
    config: ToolConfig
    max_output: int


class Revision(ToolRequest, frozen=True, kw_only=True):
    """The state of what a call with these arguments would read."""

    arguments: str
    context: CallContext


class StopTool(Message, frozen=True, kw_only=True, tag="Stop"):
    """The time of the call is over: it is cancelled."""


class SessionSent(Message, frozen=True, kw_only=True):
    session: bytes | None
    problem: str = ""
    """Why it cannot be read."""


Work = Describe | Check | RunTool | Revision
"""Requests that are answered by a reply."""
Request = Work | StopTool | SessionSent


class ProcessReady(Message, frozen=True, kw_only=True, tag="Ready"):
    """The process has started: from now on a request may begin."""


class Described(Message, frozen=True, kw_only=True):
    """The class as the catalog describes it, and what it says beside that."""

    descriptor: dict[str, Any]
    inline: bool
    finishes: bool
    closing: bool
    asks: bool
    role: Role
    isolation: str | None

    @property
    def digest(self) -> str:
        said = msgspec.structs.replace(self, number=0)
        return hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()


class ToolRefused(Message, frozen=True, kw_only=True, tag="Refused"):
    """The entrypoint gives no tool."""

    reason: str


class ArgumentsChecked(Message, frozen=True, kw_only=True, tag="Checked"):
    problem: str
    """Empty: the arguments fit."""


class SessionWanted(Message, frozen=True, kw_only=True):
    """The tool reads `context.session`."""


class ToolReturned(Message, frozen=True, kw_only=True, tag="Returned"):
    """The result, already cut to its length, with the changes of the context."""

    text: str
    writes: dict[str, Any] = {}
    adds: dict[str, Any] = {}
    made: list[MadeFile] = []


class Raised(Message, frozen=True, kw_only=True):
    """The tool raised an exception."""

    says: str
    in_doubt: bool = False
    unbegun: bool = False
    out_of_memory: bool = False
    has_returned: bool = False
    traceback: str = ""


Reply = ProcessReady | Described | ToolRefused | ArgumentsChecked | SessionWanted | ToolReturned | Raised


requests: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)
replies: Final[msgspec.msgpack.Decoder[Reply]] = msgspec.msgpack.Decoder(Reply)


class TooLarge(ValueError):  # noqa: N818 - it says what the message is
    """A message has more bytes than a frame may have."""


def framed(message: Message) -> bytes:
    frame = confinement.framed(message)
    if len(frame) > confinement.HEADER + MOST_BYTES:
        raise TooLarge(f"it has more than {MOST_BYTES // 2**20} MB")
    return frame
