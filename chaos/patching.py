"""Named functions of the product, which kill points and mutants replace in the process that is started with them."""

import importlib
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


def located(target: str) -> tuple[Any, str]:
    """`module:name` or `module:Class.name` -> the module or class, and the name in it; LookupError if it is gone."""
    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part, None)
    if not hasattr(owner, name):
        raise LookupError(f"there is no {target} any more: name what does its work now")
    return owner, name


def replaced(target: str, wrap: Callable[[Any], Any]) -> None:
    """Puts `wrap(what was there)` in the place of the target."""
    owner, name = located(target)
    setattr(owner, name, wrap(getattr(owner, name)))
