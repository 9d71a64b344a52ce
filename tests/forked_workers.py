"""Workers of pytest-xdist that are forked from one process, which has collected the tests: each would need ten seconds
of a processor to import them all by itself."""

import atexit
import os
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import execnet.gateway_base
import execnet.gateway_io
import pytest
import xdist.remote
from _pytest.capture import FDCapture
from _pytest.config import _prepareconfig

import forked_worker

_parts: list["Parts"] = []
"""In a worker: what it was forked with."""


def collects(config: pytest.Config) -> bool:
    """Whether this process has collected for workers that it will fork."""
    return config.pluginmanager.has_plugin("forked_workers")


class Collector:
    """The process that collects, as the controller knows it. It ends together with it."""

    def __init__(self, config: pytest.Config) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if not os.fork():
            self._line.close()
            _collect(config, theirs)
        theirs.close()
        self._has_collected = True
        self._create_io: Callable[..., Any] = execnet.gateway_io.create_io
        execnet.gateway_io.create_io = self._worker

    @pytest.hookimpl
    def pytest_xdist_getremotemodule(self) -> ModuleType | None:
        return forked_worker if self._has_collected else None

    def _worker(self, spec: Any, execmodel: Any) -> Any:
        """A line to a new worker. Where nothing could be collected, the worker is started, and says why."""
        (below, down), (up, above) = os.pipe(), os.pipe()
        try:
            socket.send_fds(self._line, [spec.id.encode()], [below, above])
            if pid := self._line.recv(100):
                return _Line(int(pid), os.fdopen(down, "wb"), os.fdopen(up, "rb"), execmodel)
        except OSError:
            pass
        finally:
            os.close(below)
            os.close(above)
        self._has_collected = False
        return self._create_io(spec, execmodel)

    def close(self) -> None:
        execnet.gateway_io.create_io = self._create_io
        self._line.close()


class _Line(execnet.gateway_base.Popen2IO):
    """To a forked worker, as `execnet.gateway_io.Popen2IOMaster` is one to a process that was started."""

    def __init__(self, pid: int, *files: Any) -> None:
        super().__init__(*files)
        self._process = os.pidfd_open(pid)

    def wait(self) -> None:
        select.select([self._process], [], [])

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)


def _collect(config: pytest.Config, line: socket.socket) -> NoReturn:
    """Collects what the controller was asked for, and forks a worker for each pair of pipes that comes in."""
    status = 1
    try:
        _renew_captured(config)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1):  # as execnet does: what workers print on their own goes nowhere
            os.dup2(nothing, number)
        own: Any = _prepareconfig([str(one) for one in config.invocation_params.args], None)
        xdist.remote.setup_config(own, None)
        own.workerinput, own.workeroutput = {}, {}
        own.pluginmanager.register(Parts(own, line), "forked_workers")
        status = own.hook.pytest_cmdline_main(config=own)
    finally:
        os._exit(status)


def _renew_captured(config: pytest.Config) -> None:
    """What is captured goes to files of this process alone, behind the same objects: modules keep `sys.stderr`."""
    manager: Any = config.pluginmanager.getplugin("capturemanager")
    for one in (manager._global_capturing.out, manager._global_capturing.err):
        if isinstance(one, FDCapture):
            with tempfile.TemporaryFile() as own:
                os.dup2(own.fileno(), one.tmpfile.fileno())
            if one._state == "started":
                os.dup2(one.tmpfile.fileno(), one.targetfd)


class Parts:
    """A plugin of the process that collects. When it is about to run the tests, it forks workers instead."""

    def __init__(self, config: Any, line: socket.socket) -> None:
        self.config, self.line = config, line
        self.reports: list[pytest.CollectReport] = []
        self.warnings: list[dict[str, Any]] = []
        self.session: Any = None

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.reports.append(report)

    @pytest.hookimpl
    def pytest_warning_recorded(self, warning_message: Any, when: Any, nodeid: str, location: Any) -> None:
        given = {"warning_message": warning_message, "when": when, "nodeid": nodeid, "location": location}
        self.warnings.append(given)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        self.session = session
        while True:
            name, pipes, _, _ = socket.recv_fds(self.line, 100, 2)
            if not name:
                atexit._run_exitfuncs()
                os._exit(0)
            pid = os.fork()
            if not pid:
                self.line.close()
                _serve(self, name.decode(), *pipes)
            for pipe in pipes:
                os.close(pipe)
            self.line.send(str(pid).encode())
            with suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)  # one that has crashed and is replaced


def _serve(parts: Parts, name: str, reading: int, writing: int) -> NoReturn:
    """Does what the controller sends, until it has no more."""
    status = 1
    try:
        _renew_captured(parts.config)
        _parts.append(parts)
        infile, outfile = os.fdopen(reading, "rb"), os.fdopen(writing, "wb")
        infile.readline()  # how a new interpreter would begin
        io = execnet.gateway_base.Popen2IO(outfile, infile, execnet.gateway_base.get_execmodel("main_thread_only"))
        io.write(b"1")
        execnet.gateway_base.serve(io, id=f"{name}-worker")  # type: ignore[arg-type]
        atexit._run_exitfuncs()
        status = 0
    finally:
        os._exit(status)


def run(channel: Any) -> None:
    """What `xdist.remote` does in a worker that was started, less what is done already."""
    [parts] = _parts
    config, session = parts.config, parts.session
    config.workerinput, _, options, _ = channel.receive()
    os.environ["PYTEST_XDIST_TESTRUNUID"] = config.workerinput["testrunuid"]
    os.environ["PYTEST_XDIST_WORKER"] = config.workerinput["workerid"]
    os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(config.workerinput["workercount"])
    config._tmp_path_factory._given_basetemp = Path(options["basetemp"])
    interactor = xdist.remote.WorkerInteractor(config, channel)
    xdist.remote.interactor = interactor
    config.pluginmanager.unregister(parts)
    interactor.pytest_sessionstart(session)
    interactor.pytest_collection()
    for report in parts.reports:
        interactor.pytest_collectreport(report)
    for warning in parts.warnings:
        interactor.pytest_warning_recorded(**warning)
    interactor.pytest_collection_finish(session)
    try:
        config.hook.pytest_runtestloop(session=session)
        session.exitstatus = int(pytest.ExitCode.TESTS_FAILED if session.testsfailed else pytest.ExitCode.OK)
    except KeyboardInterrupt:
        session.exitstatus = int(pytest.ExitCode.INTERRUPTED)
    except BaseException:  # noqa: BLE001 - it is the controller that tells of it
        config.notify_exception(pytest.ExceptionInfo.from_current(), config.option)
        session.exitstatus = int(pytest.ExitCode.INTERNAL_ERROR)
    config.hook.pytest_sessionfinish(session=session, exitstatus=session.exitstatus)
    config._ensure_unconfigure()
    sys.stderr.flush()
