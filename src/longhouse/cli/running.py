"""Runs a command: logs are set up, and its coroutine gets the settings and an event loop."""

import asyncio
import importlib
import inspect
import json
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import structlog
import typer
import uvloop

from longhouse.errors import SetupError
from longhouse.settings import Settings
from longhouse.validation_messages import Errors, explain

Main = Callable[..., Coroutine[Any, Any, None]]

Host = Annotated[str | None, typer.Option(help="Address to listen on.")]
Port = Annotated[int | None, typer.Option(help="Port to listen on.", min=0, max=65535)]
ConfigFile = Annotated[Path | None, typer.Option(help="What all agents share; by default config.yaml.")]
AgentsFile = Annotated[Path | None, typer.Option(help="The agents; by default agents.yaml.")]

_UNSAFE: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Characters that JSON does not escape, but that control a terminal or end a line; and lone surrogates, which
cannot be encoded."""


def group(mains: Mapping[str, Main], **bound: Any) -> typer.Typer:
    """Coroutine functions as commands: their parameters are options, except `settings`, `db` and those in `bound`."""
    cli = typer.Typer()
    for name, main in mains.items():
        cli.command(name)(_command(main, bound))
    return cli


def _command(main: Main, bound: Mapping[str, Any]) -> Callable[..., None]:
    signature = inspect.signature(main)
    bound = {name: value for name, value in bound.items() if name in signature.parameters}

    @wraps(main)
    def command(**options: Any) -> None:
        run(Settings(), partial(main, **bound, **options))

    options = [one for one in signature.parameters.values() if one.name not in ("settings", "db", *bound)]
    command.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    return command


def given(**options: Any) -> dict[str, Any]:
    """The options that were given on the command line."""
    return {name: value for name, value in options.items() if value is not None}


def invalid_option(error: Errors, names: Mapping[str, str] | None = None) -> SetupError:
    """The error of a command for an option that does not fit; `names`: field -> option, where they differ."""
    where, problem = explain(error)[0]
    field = str(where[0])
    return SetupError(f"{(names or {}).get(field) or '--' + field.replace('_', '-')}: {problem}.")


def run(settings: Settings, main: Main) -> None:
    """Runs until `main` ends or a signal comes."""
    _set_up_logs(settings.log_level)
    try:
        if path := settings.file_of("logging_config"):
            importlib.import_module("longhouse.config.logging_file").configure_logging(path)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main(settings))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def stdin_lines() -> asyncio.Queue[bytes | None]:
    """The lines of standard input; None at its end. The thread is not joined at exit: it may block for ever."""
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def put(line: bytes | None) -> None:
        loop.call_soon_threadsafe(lines.put_nowait, line)

    def read() -> None:
        pieces: list[bytes] = []
        with suppress(RuntimeError):  # the event loop is closed
            while read := os.read(sys.stdin.fileno(), 65_536):
                *ends, rest = read.split(b"\n")
                for end in ends:
                    put(b"".join([*pieces, end]))
                    pieces.clear()
                pieces.append(rest)
            if any(pieces):
                put(b"".join(pieces))
            put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _set_up_logs(level: str) -> None:
    """One log record per line, whatever it contains: readable on a terminal, JSON elsewhere."""
    pretty = sys.stderr.isatty()
    # Values are quoted: text from clients must not send control sequences to the terminal.
    terminal = structlog.dev.ConsoleRenderer(repr_native_str=True, exception_formatter=_write_traceback)
    renderer = terminal if pretty else structlog.processors.JSONRenderer(serializer=_to_json)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if pretty else [structlog.processors.format_exc_info]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        # A line and its end in one write: several processes may log to the same stream.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Libraries()], level=logging.WARNING, force=True)
    # Parts that programs of others use too log as libraries do, and follow our level.
    logging.getLogger("longhouse").setLevel(level.upper())


def _to_json(record: Any, **options: Any) -> str:
    """One line of JSON in which people find their own words; escaped where the log is not written in UTF-8."""
    is_utf8 = (sys.stderr.encoding or "").lower().replace("-", "") == "utf8"
    line = json.dumps(record, ensure_ascii=not is_utf8, **options)
    return _UNSAFE.sub(lambda char: f"\\u{ord(char[0]):04x}", line)


class _Libraries(logging.Handler):
    """Forwards the log records of libraries to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        fields = {"message": record.getMessage(), "source": record.name, "exc_info": record.exc_info}
        structlog.get_logger().log(record.levelno, "library_log", **fields)


def _write_traceback(out: TextIO, error: Any) -> None:
    """Writes a traceback without the values of variables, which may be secrets, and without terminal control
    sequences."""
    text = "".join(traceback.format_exception(*error))
    out.write("\n" + "".join(char if char.isprintable() or char == "\n" else f"\\x{ord(char):02x}" for char in text))
