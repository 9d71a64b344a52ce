"""numpy, loaded at its first use: a server that has not searched yet starts sooner without it, and takes 11 MB less.

Modules that compute with arrays write `from longhouse.arrays import np`: for type checkers that is numpy itself, else
this module, which has what numpy has.
"""

import asyncio
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = npt = sys.modules[__name__]

__all__ = ["np", "npt"]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    value = globals()[name] = getattr(import_module("numpy"), name)
    return value


async def loaded() -> None:
    """Loads numpy in a thread if it is not loaded: in the event loop, all other tasks would wait.

    Waits also while another thread loads it: `sys.modules` lists a module before it is complete.
    """
    module = sys.modules.get("numpy")
    if module is None or getattr(module.__spec__, "_initializing", False):
        await asyncio.to_thread(import_module, "numpy")
