"""The pool of tool processes: warm ones are kept for each package, a few at a time, and ended ones are replaced."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

import structlog

from longhouse import background
from longhouse.agents.entrypoints import EntrypointError
from longhouse.confinement import environment
from longhouse.tools.isolation import messages
from longhouse.tools.isolation.process import Ended, SessionOf, ToolProcess
from longhouse.tools.outcomes import CallError, NotBegun

log = structlog.get_logger()

MEMORY: Final = 1_000_000_000
"""Bytes that a tool process may take unless its descriptor says otherwise."""
MOST: Final = 16
"""Tool processes of one server; one package has half of them at most."""
IDLE: Final = 300.0
"""Seconds after which a process that nobody used is ended."""
LOOK_EVERY: Final = 30.0
IMPORTED_WITHIN: Final = 30.0
"""Seconds for a process to start and to import a class."""
STOPPED_WITHIN: Final = 0.3
"""Seconds that a call has to end after its cancellation, before its process is killed."""
KEPT_VARIABLES: Final = (
    "PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)  # fmt: skip
"""Variables that tools find in their environment, besides those of the locale; secrets of the server stay here."""


class ToolEnded(CallError):  # noqa: N818 - it says what happened
    """The process of a tool ended while it ran; the agent reads the message."""


class ToolRaised(CallError):  # noqa: N818 - it says what happened
    """A tool raised an exception in its process; the message names it."""


class NoTool(EntrypointError):  # noqa: N818 - it says what was found
    """The entrypoint gives no tool."""


class ProcessPool:
    """Runs requests in tool processes; `running()` opens and closes them."""

    def __init__(self, *, most: int = MOST, environment: Iterable[str] = ()) -> None:
        self._most, self._each = most, max(1, most // 2)
        self._variables = tuple(environment)
        self._busy = asyncio.Semaphore(most)
        self._busy_of: dict[str, asyncio.Semaphore] = {}
        self._idle: list[ToolProcess] = []
        self._all: set[ToolProcess] = set()
        self._starting = 0
        self._described: dict[str, messages.Described] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.ended: Counter[str] = Counter()
        """Processes that ended or were killed in the middle of a request, by cause."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["ProcessPool"]:
        try:
            async with background.running("tool_processes", self._retire, every=LOOK_EVERY):
                yield self
        finally:
            self._is_closed = True
            await asyncio.gather(*(one.close() for one in tuple(self._all)), *self._closing, return_exceptions=True)

    @property
    def size(self) -> int:
        return len(self._all)

    def known(self, entrypoint: str) -> messages.Described | None:
        """The description of a class, if it was imported before."""
        return self._described.get(entrypoint)

    async def describe(self, entrypoint: str, tool: str, limits: messages.ProcessLimits) -> messages.Described:
        """Imports a class in a tool process; EntrypointError if that gives no tool."""
        if known := self._described.get(entrypoint):
            return known
        request = messages.Describe(
            entrypoint=entrypoint, limits=messages.ProcessLimits(limits.memory, IMPORTED_WITHIN)
        )
        try:
            async with asyncio.timeout(IMPORTED_WITHIN):
                reply = await self.ask(request, tool)
        except TimeoutError:
            raise NoTool(f"its import took more than {IMPORTED_WITHIN:g} seconds") from None
        except CallError as error:
            raise NoTool(f"its class was not described: {error}") from None
        if not isinstance(reply, messages.Described):
            raise NoTool(_says(reply))
        return self._described.setdefault(entrypoint, reply)

    async def check(self, request: messages.Check, tool: str, within: float) -> str:
        """What is wrong with the arguments, empty if nothing is. While no process is free the call itself tells."""
        if self._is_full(_package_of(request.entrypoint)):
            return ""
        limit = asyncio.timeout(within)
        try:
            async with limit:
                reply = await self.ask(request, tool)
        except TimeoutError:
            raise ToolRaised(f"its arguments were not checked within {within:g} seconds") from None
        except NotBegun as error:
            if not limit.expired():
                raise
            raise ToolRaised(f"it was not begun within {within:g} seconds: {error}; nothing happened") from None
        if isinstance(reply, messages.ArgumentsChecked):
            return reply.problem
        raise ToolRaised(_says(reply))

    async def ask(
        self, request: messages.Work, tool: str, read_session: SessionOf = lambda: None, **about: str
    ) -> messages.Reply:
        """The reply to a request. If it is cancelled, its tool is told so; one that does not listen is killed."""
        async with self._taken(_package_of(request.entrypoint)) as process:
            try:
                reply = await process.ask(request, tool, read_session)
                if isinstance(reply, messages.Raised) and reply.out_of_memory:
                    self._note(tool, reply.says, "memory", **about)
                return reply
            except asyncio.CancelledError:
                last = await self._stopped(process, read_session, request.limits)
                if isinstance(last, messages.ToolReturned):
                    return last  # it has finished after all
                if isinstance(last, messages.Raised) and last.unbegun:
                    raise NotBegun(last.says) from None
                if last is None:
                    self._note(tool, "it did not stop when its time was over", "time", **about)
                raise
            except Ended as ended:
                self._note(tool, str(ended), ended.cause, **about)
                raise ToolEnded(str(ended), in_doubt=True, has_ended=True) from None

    async def _stopped(
        self, process: ToolProcess, read_session: SessionOf, limits: messages.ProcessLimits
    ) -> messages.Reply | None:
        """What the call that was told to stop said in the end; None if it had to be killed."""
        # Until it has said something, what it says would be taken for the reply of the next call.
        process.is_spent = True
        process.stop()
        try:
            async with asyncio.timeout(STOPPED_WITHIN):
                reply = await process.reply(read_session, limits)
        except (TimeoutError, Ended):
            return None
        process.is_spent = isinstance(reply, messages.Raised) and reply.out_of_memory
        return reply

    def _note(self, tool: str, reason: str, cause: str, **about: str) -> None:
        self.ended[cause] += 1
        message = "the process of a tool ended in the middle of a call: the call failed, nothing else did"
        log.warning("tool_process_ended", message=message, tool=tool, reason=reason, **about)

    def _is_full(self, package: str) -> bool:
        of_package = self._busy_of.get(package)
        return self._busy.locked() or (of_package is not None and of_package.locked())

    @asynccontextmanager
    async def _taken(self, package: str) -> AsyncIterator[ToolProcess]:
        """A process for one request; NotBegun if none could be had."""
        of_package = self._busy_of.setdefault(package, asyncio.Semaphore(self._each))
        begun, missing = False, f"all {self._each} processes of {package} were busy"
        try:
            async with of_package, self._busy:
                missing = "its process did not start"
                process = await self._free(package)
                begun = True
                try:
                    yield process
                finally:
                    self._give_back(process)
        except asyncio.CancelledError:
            if begun:
                raise
            raise NotBegun(missing) from None

    async def _free(self, package: str) -> ToolProcess:
        if self._is_closed:
            raise NotBegun("this server is leaving")
        for process in [one for one in self._idle if not one.is_usable]:
            self._idle.remove(process)
            self._end(process)
        for process in reversed(self._idle):
            if process.package == package:
                self._idle.remove(process)
                return process
        while len(self._all) + self._starting >= self._most and self._idle:
            self._end(self._idle.pop(0))
        self._starting += 1
        try:
            process = await ToolProcess.started(package, self._environment())
        except OSError as error:
            raise NotBegun(f"no process could be started for it: {error.strerror}") from error
        finally:
            self._starting -= 1
        self._all.add(process)
        return process

    def _give_back(self, process: ToolProcess) -> None:
        if process.is_spent or self._is_closed:
            self._end(process)
        else:
            process.idle_since = time.monotonic()
            self._idle.append(process)

    def _end(self, process: ToolProcess) -> None:
        process.kill()
        self._all.discard(process)
        closing = asyncio.create_task(process.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _retire(self) -> None:
        before = time.monotonic() - IDLE
        for process in [one for one in self._idle if one.idle_since < before]:
            self._idle.remove(process)
            self._end(process)

    def _environment(self) -> dict[str, str]:
        names = {*KEPT_VARIABLES, *self._variables, *(name for name in os.environ if name.startswith("LC_"))}
        # With one order of sets, a class describes itself the same in every process.
        return environment(names) | {"PYTHONHASHSEED": "0"}


def _package_of(entrypoint: str) -> str:
    """Tools of one package share its processes, as they would share one program."""
    return entrypoint.partition(":")[0].partition(".")[0]


def _says(reply: messages.Reply) -> str:
    match reply:
        case messages.ToolRefused():
            return reply.reason
        case messages.Raised():
            return reply.says
        case _:
            return "its process gave an answer that was not asked for"
