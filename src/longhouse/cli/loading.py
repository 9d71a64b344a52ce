"""Loads what a command needs, without what it does not need."""

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imports() -> Iterator[None]:
    """Without collections, which take a tenth of the start-up time: imports leave no garbage, and what they make lives
    until exit."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def load_structlog() -> None:
    """Without Rich, for tracebacks in colour that our logs do not print: 70 ms and 5 MB of each start."""
    with _absent("rich", needed_by="structlog"):
        importlib.import_module("structlog")


def load_fastapi() -> None:
    """Without what only its own OpenAPI document needs, and ours does not: mail addresses, and models that are built at
    once instead of when they are used. 90 ms and 2 MB of each start."""
    config = importlib.import_module("pydantic").BaseModel.model_config
    with _absent("email_validator", needed_by="fastapi"):
        config["defer_build"] = True
        try:
            importlib.import_module("fastapi")
        finally:
            del config["defer_build"]


@contextmanager
def _absent(module: str, *, needed_by: str) -> Iterator[None]:
    """Inside, a module is as if it were not installed, for one that does without it then; unless it is loaded already,
    or the other one is."""
    if module in sys.modules or needed_by in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # Python's own sign for "cannot be imported"
    try:
        yield
    finally:
        del sys.modules[module]
