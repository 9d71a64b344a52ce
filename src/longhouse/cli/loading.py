"""Loads what a command needs, without what it does not need."""

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
    once instead of when they are used. 105 ms and 2 MB of each start."""
    with _absent("email_validator", needed_by="fastapi"), _built_when_used(importlib.import_module("pydantic")):
        importlib.import_module("fastapi")


@contextmanager
def _built_when_used(pydantic: Any) -> Iterator[None]:
    """Models defined in the block are built at first use, even if their module calls `model_rebuild`."""
    model = pydantic.BaseModel
    rebuild = model.__dict__["model_rebuild"]

    def rebuild_if_used(cls: Any, /, **by_pydantic: Any) -> Any:
        return rebuild.__get__(None, cls)(**by_pydantic) if by_pydantic else None

    model.model_config["defer_build"], model.model_rebuild = True, classmethod(rebuild_if_used)
    try:
        yield
    finally:
        del model.model_config["defer_build"]
        model.model_rebuild = rebuild


@contextmanager
def _absent(module: str, *, needed_by: str) -> Iterator[None]:
    """Makes a module seem not installed inside the block, for a module that works without it; no effect if one of
    them is loaded already."""
    if module in sys.modules or needed_by in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # Python's own sign for "cannot be imported"
    try:
        yield
    finally:
        del sys.modules[module]
