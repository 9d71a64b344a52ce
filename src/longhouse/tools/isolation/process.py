"""One tool process, as the server sees it: requests, replies, and why it ended."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Literal

import msgspec
import structlog

from longhouse.confinement import HEADER, end_group, length_of
from longhouse.journal.messages import clean
from longhouse.tools.isolation import messages
from longhouse.tools.outcomes import NotBegun

log = structlog.get_logger()

CHILD: Final = "longhouse.tools.isolation.child"
MAX_LINE: Final = 2_000
"""Characters of a line of output that is logged."""
MOST_LINES: Final = 100
"""Lines of output that are logged of one request."""
REAPED_WITHIN: Final = 2.0
"""Seconds; a process that was killed is gone at once, unless the machine is."""

Cause = Literal["exit", "signal", "memory", "cpu", "time"]
SessionOf = Callable[[], bytes | None]
"""Encodes the session, if a tool asks for it."""


class Ended(Exception):  # noqa: N818 - it says what happened
    """The process ended before it answered; the message is a sentence about its tool."""

    def __init__(self, says: str, cause: Cause) -> None:
        super().__init__(says)
        self.cause: Cause = cause


class ToolProcess:
    """A process that answers one request at a time."""

    def __init__(self, process: asyncio.subprocess.Process, package: str) -> None:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        self._process, self.package = process, package
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._tool, self._lines, self._number = package, 0, 0
        self._awaited: int | None = None
        """Bytes of a reply whose length was read, and the rest of it not yet."""
        self.idle_since = 0.0
        self.is_spent = False
        """It is not used again."""
        self._log = asyncio.create_task(self._log_output())

    @classmethod
    async def started(cls, package: str, environment: Mapping[str, str]) -> "ToolProcess":
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", CHILD, str(os.getpid())),
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        started = cls(process, package)
        try:
            await started._received()
        except BaseException as error:
            await started.close()
            if isinstance(error, asyncio.IncompleteReadError | ConnectionError | ValueError):
                raise OSError(None, "it ended before it was ready") from error
            raise
        return started

    @property
    def is_usable(self) -> bool:
        """Whether it lives, and has said nothing since its last reply."""
        unread: bytearray = self._stdout._buffer  # type: ignore[attr-defined]
        return self._process.returncode is None and not unread and not self._stdout.at_eof()

    async def ask(
        self,
        request: messages.Describe | messages.Check | messages.RunTool | messages.Revision,
        tool: str,
        read_session: SessionOf,
    ) -> messages.Reply:
        """The reply; Ended if the process did not live to give it."""
        self._tool, self._lines = tool, 0
        self._number += 1
        try:
            self._send(msgspec.structs.replace(request, number=self._number))
        except messages.TooLarge as error:
            raise NotBegun(f"its input is too large: {error}") from None
        return await self.reply(read_session, request.limits)

    async def reply(self, read_session: SessionOf, limits: messages.ProcessLimits) -> messages.Reply:
        try:
            reply = await self._received()
            if isinstance(reply, messages.SessionWanted):
                # Once in a call: it may be long, and is kept there.
                self._send_session(read_session())
                reply = await self._received()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.is_spent = True
            raise await self._death(limits) from None
        except (ValueError, RecursionError):
            self.kill()
            raise Ended("its process said something that is no reply to this call", "exit") from None
        # What could not be imported may be mended, and what took all memory may hold on to it.
        if isinstance(reply, messages.ToolRefused) or (isinstance(reply, messages.Raised) and reply.out_of_memory):
            self.is_spent = True
        return reply

    def stop(self) -> None:
        """Cancels the call that runs."""
        with suppress(ConnectionError, RuntimeError):
            self._send(messages.StopTool(number=self._number))

    def _send(self, message: messages.Message) -> None:
        # Not awaited: one request is under way at a time, and the process reads all the time.
        self._stdin.write(messages.framed(message))

    def _send_session(self, session: bytes | None) -> None:
        try:
            self._send(messages.SessionSent(session=session))
        except messages.TooLarge as error:
            problem = f"the session cannot be read in the process of a tool: {error}"
            self._send(messages.SessionSent(session=None, problem=problem))

    async def _received(self) -> messages.Reply:
        """The next reply. Who stopped waiting for it in its middle has it when asking again."""
        if self._awaited is None:
            self._awaited = length_of(await self._stdout.readexactly(HEADER))
        if self._awaited > messages.MOST_BYTES:
            raise messages.TooLarge
        content = await self._stdout.readexactly(self._awaited)
        self._awaited = None
        reply = messages.replies.decode(content)
        if reply.number != self._number:
            raise ValueError("this is the reply to another request")
        return reply

    async def _death(self, limits: messages.ProcessLimits) -> Ended:
        status = await self._status()
        if status == -signal.SIGXCPU:
            return Ended(f"it used more than its {limits.cpu:g} seconds of CPU time", "cpu")
        if status == -signal.SIGKILL:
            return Ended("its process was killed by the system, which may have had no memory left", "memory")
        if status is not None and status < 0:
            return Ended(f"its process was ended by {_signal_name(-status)}", "signal")
        return Ended(f"it ended its process with the exit code {status}", "exit")

    async def _status(self) -> int | None:
        """How it ended. What closed its pipes without ending is ended here."""
        for patience in (0.2, REAPED_WITHIN):
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    return await self._process.wait()
            self.kill()
        return self._process.returncode

    def kill(self) -> None:
        """Ends it and what it has started, now."""
        self.is_spent = True
        end_group(self._process.pid)

    async def close(self) -> None:
        self.kill()
        await self._status()
        self._process._transport.close()  # type: ignore[attr-defined]
        self._log.cancel()
        await asyncio.gather(self._log, return_exceptions=True)

    async def _log_output(self) -> None:
        """What it prints goes to the log, line by line; too much of it is read and left out."""
        rest = b""
        while chunk := await self._stderr.read(2**16):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[: 4 * MAX_LINE]
            for line in lines:
                self._log_line(line)
        if rest:
            self._log_line(rest)

    def _log_line(self, line: bytes) -> None:
        self._lines += 1
        if self._lines <= MOST_LINES:
            text = clean(line.decode(errors="replace"))[:MAX_LINE]
            log.info("tool_output", message="a line from the process of a tool", tool=self._tool, line=text)
        elif self._lines == MOST_LINES + 1:
            message = "the process of a tool writes too much: the rest of this call is left out"
            log.info("tool_output_cut", message=message, tool=self._tool)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
