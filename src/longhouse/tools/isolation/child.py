"""The program of a tool process: `python -m longhouse.tools.isolation.child <pid of the server>`.

It imports tool classes, describes them and runs their calls, one after another, within limits. It ends with its server.
"""

import asyncio
import inspect
import os
import queue
import resource
import sys
import threading
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn, cast

import msgspec
import pydantic

from longhouse.agents.entrypoints import EntrypointError
from longhouse.confinement import HEADER, confine, length_of
from longhouse.journal.messages import clean
from longhouse.journal.session import Session
from longhouse.tools.base import BaseTool
from longhouse.tools.bindings.base import arguments_fault
from longhouse.tools.bindings.python import load
from longhouse.tools.context import Services, ToolContext, changes, kept_fields, written
from longhouse.tools.isolation import messages
from longhouse.tools.outcomes import NotBegun, bounded, is_in_doubt, text_of, traceback_of

LONGEST: Final = 2_000
"""Characters of an exception that the agent reads."""
NO_SERVICES: Final = (
    "a tool in a process of its own cannot use the services of the server; to use them, publish it with isolation none"
)


class NoServices:
    """Stands where the services would be, and says why they are not there."""

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(NO_SERVICES)


class Channel:
    """The two pipes to the server, out of reach of what tools read and print."""

    def __init__(self) -> None:
        """Takes the standard streams: a tool finds an empty input, and whatever it prints goes to the log."""
        self._incoming, self._outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        self._sending, self._pid = threading.Lock(), os.getpid()
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)

    def send(self, reply: messages.Message) -> None:
        if os.getpid() != self._pid:
            os._exit(1)  # a copy of this process, which a tool has forked, has nothing to say
        with self._sending:
            self._outgoing.write(messages.framed(reply))
            self._outgoing.flush()

    def requests(self) -> Iterator[messages.Request]:
        while header := self._incoming.read(HEADER):
            yield messages.requests.decode(self._incoming.read(length_of(header)))


class RemoteContext(ToolContext):
    """A ToolContext whose session is fetched when a tool reads it: most never do, and it may be long."""

    host: "Host"
    number: int
    """Of the call that it belongs to."""

    @property
    def session(self) -> Session | None:
        return self.host.session(self.number)

    @session.setter
    def session(self, session: Session | None) -> None:
        """The base class sets it; nothing is kept."""


class Host:
    """Answers requests one after another."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._loop = asyncio.new_event_loop()
        self._requests: queue.SimpleQueue[messages.Request] = queue.SimpleQueue()
        self._sessions: queue.SimpleQueue[messages.SessionSent] = queue.SimpleQueue()
        self._task: asyncio.Task[Any] | None = None
        self._number = 0
        """Of the request that is answered now; 0: none."""
        self._session: messages.SessionSent | None = None
        """The session of this call, once it was read."""
        self._has_returned = False
        """The tool has returned in this call: what fails from then on is only its result."""
        self._reading = threading.Lock()
        self._classes: dict[str, tuple[type[BaseTool], messages.Described]] = {}

    def serve(self) -> NoReturn:
        asyncio.set_event_loop(self._loop)
        threading.Thread(target=self._listen, name="requests", daemon=True).start()
        self._channel.send(messages.ProcessReady())
        while True:
            request = self._requests.get()
            assert not isinstance(request, messages.StopTool | messages.SessionSent)
            self._number, self._session, self._has_returned = request.number, None, False
            reply = msgspec.structs.replace(self._answer(request), number=request.number)
            self._number = 0
            with suppress(OSError, ValueError):  # a tool may have closed them
                sys.stdout.flush()
                sys.stderr.flush()
            try:
                self._channel.send(reply)
            except (TypeError, ValueError, OverflowError) as error:
                says = f"its result cannot be sent to the server: {type(error).__name__}: {error}"
                raised = messages.Raised(number=request.number, says=clean(says)[:LONGEST], in_doubt=True)
                self._channel.send(raised)
            limit(request.limits)  # what a call has left behind keeps to its limits too

    def session(self, number: int) -> Session | None:
        with self._reading:
            if number != self._number:
                raise RuntimeError("the call has ended: its session cannot be read any more")
            if self._session is None:
                self._channel.send(messages.SessionWanted(number=number))
                self._session = self._sessions.get()
            sent = self._session
        if sent.problem:
            raise RuntimeError(sent.problem)
        return msgspec.json.decode(sent.session, type=Session) if sent.session else None

    def _listen(self) -> None:
        """Reads in a thread of its own: a tool that loops for ever does not keep this process from ending."""
        try:
            for request in self._channel.requests():
                match request:
                    case messages.StopTool():
                        self._loop.call_soon_threadsafe(self._cancel, request.number)
                    case messages.SessionSent():
                        self._sessions.put(request)
                    case _:
                        self._requests.put(request)
        finally:
            os._exit(0)

    def _cancel(self, number: int) -> None:
        if self._task and number == self._number:
            self._task.cancel()

    def _answer(self, request: messages.Work) -> messages.Reply:
        try:
            with limited(request.limits):
                return self._done(request)
        except EntrypointError as error:
            return messages.ToolRefused(reason=clean(str(error))[:LONGEST])
        except MemoryError:
            size = f"{request.limits.memory / 1e9:g} GB"
            return messages.Raised(says=f"it took more than its {size} of memory", out_of_memory=True)
        except BaseException as error:  # noqa: BLE001 - a tool may raise anything, an exit included
            return messages.Raised(
                says=clean(f"{type(error).__name__}: {error}")[:LONGEST],
                in_doubt=self._has_returned or is_in_doubt(error),
                unbegun=isinstance(error, NotBegun),
                has_returned=self._has_returned,
                traceback=traceback_of(error),
            )

    def _done(self, request: messages.Work) -> messages.Reply:
        cls, described = self._class(request.entrypoint)
        match request:
            case messages.Describe():
                return described
            case messages.Check():
                tool = _parsed(cls, request.tool, request.arguments)
                return messages.ArgumentsChecked(problem="" if isinstance(tool, BaseTool) else tool)
            case messages.Revision():
                tool = cls.model_validate_json(request.arguments or "{}")
                return messages.ToolReturned(text=clean(str(self._run(tool.revision(self._context(request.context))))))
            case messages.RunTool():
                if request.digest != described.digest:
                    raise NotBegun("its code has changed since this server described it; restart the server")
                return self._called(cls, request)

    def _called(self, cls: type[BaseTool], request: messages.RunTool) -> messages.Reply:
        tool = _parsed(cls, request.tool, request.arguments)
        if isinstance(tool, str):
            return messages.ArgumentsChecked(problem=tool)
        context = self._context(request.context)
        before = written(context)
        # Outside of the loop: a blocking tool may run one of its own.
        output: Any = tool(context, request.config, **request.config.settings_of(request.tool))
        if inspect.isawaitable(output):
            output = self._run(output)
        self._has_returned = True
        writes, adds = changes(before, written(context))
        text = bounded(clean(text_of(output)), request.max_output)
        return messages.ToolReturned(text=text, writes=writes, adds=adds, made=context.made)

    def _run(self, work: Awaitable[Any]) -> Any:
        async def waited() -> Any:
            return await work

        self._task = self._loop.create_task(waited())
        try:
            return self._loop.run_until_complete(self._task)
        finally:
            self._task = None

    def _context(self, given: messages.CallContext) -> ToolContext:
        plain = msgspec.structs.asdict(given)
        kept = kept_fields(plain.pop("kept"))
        context = RemoteContext(**plain, **kept, services=cast("Services", NoServices()))
        context.host, context.number = self, self._number
        return context

    def _class(self, entrypoint: str) -> tuple[type[BaseTool], messages.Described]:
        if entrypoint not in self._classes:
            cls = load(entrypoint, [entrypoint.partition(":")[0]])
            self._classes[entrypoint] = cls, described(cls)
        return self._classes[entrypoint]


def described(cls: type[BaseTool]) -> messages.Described:
    return messages.Described(
        descriptor=msgspec.to_builtins(cls.descriptor()),
        inline=cls.inline,
        finishes=cls.finishes,
        closing=cls.closing,
        asks=cls.asks,
        role=cls.tool_role,
        isolation=cls.isolation,
    )


def _parsed(cls: type[BaseTool], name: str, arguments: str) -> BaseTool | str:
    """The tool with its arguments, or what is wrong with them."""
    try:
        return cls.model_validate_json(arguments or "{}")
    except pydantic.ValidationError as error:
        return clean(arguments_fault(name, error).message)


@contextmanager
def limited(limits: messages.ProcessLimits) -> Iterator[None]:
    """Limits of this process while a request is answered; what it answers with is sent without them."""
    limit(limits)
    try:
        yield
    finally:
        for what in (resource.RLIMIT_CPU, resource.RLIMIT_DATA):
            _set_soft(what, resource.RLIM_INFINITY)


def limit(limits: messages.ProcessLimits) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    # Whole seconds are counted: the limit is never stricter than what was promised.
    _set_soft(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + limits.cpu) + 1)
    if sys.platform == "linux":  # elsewhere it does not count what is mapped
        _set_soft(resource.RLIMIT_DATA, limits.memory)


def _set_soft(what: int, most: int) -> None:
    hard = resource.getrlimit(what)[1]
    if hard != resource.RLIM_INFINITY:
        most = hard if most == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, hard))


def end_with(server: int) -> None:
    """This process ends when its server does, also by SIGKILL; the end of the pipe says the same elsewhere."""
    confine()
    if os.getppid() != server:
        os._exit(0)


def main() -> NoReturn:
    end_with(int(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    Host(Channel()).serve()


if __name__ == "__main__":
    main()
