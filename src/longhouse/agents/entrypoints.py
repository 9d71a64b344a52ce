"""Import strings, `package.module:ClassName`, of packages that the operator allows: tools and agent classes."""

import importlib
import importlib.util
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from longhouse.errors import LonghouseError

LONGEST: Final = 300

_NAME: Final = r"[A-Za-z][A-Za-z0-9_]*"
_ENTRYPOINT: Final = re.compile(rf"(?P<module>{_NAME}(?:\.{_NAME})*):(?P<cls>{_NAME})")


class EntrypointError(LonghouseError):
    """This entrypoint gives no class of the kind that is needed; the message says why."""


def check(entrypoint: str, packages: Iterable[str]) -> str | None:
    """Why this entrypoint is not allowed. Only its text is checked: nothing is imported or searched."""
    if len(entrypoint) > LONGEST:
        return f"an entrypoint has at most {LONGEST} characters"
    found = _ENTRYPOINT.fullmatch(entrypoint)
    if not found or "__" in entrypoint:
        return "an entrypoint looks like package.module:ClassName, in plain public names"
    allowed = (package for package in map(str.strip, packages) if package)
    if not any(f"{found['module']}.".startswith(f"{package}.") for package in allowed):
        return f"{found['module']} is not in a package that tools may come from; `tool_packages` lists those"
    return None


def lacking(entrypoint: str, packages: Iterable[str]) -> str | None:
    """Why this process has not the package of an entrypoint; what is wrong inside of a package that is here is not
    looked for."""
    top = entrypoint.partition(":")[0].partition(".")[0]
    problem = check(entrypoint, packages)
    if problem or top in sys.modules or importlib.util.find_spec(top):
        return problem
    return f"there is no package {top!r} here"


def spelled(given: str, packages: Sequence[str]) -> str | None:
    """The entrypoint that is meant, also by `package.module.ClassName`; None for a name that is none.

    With dots alone it is one only in an allowed package: tools have dots in their names, too.
    """
    if ":" in given:
        return given
    module, _, name = given.rpartition(".")
    entrypoint = f"{module}:{name}"
    return entrypoint if module and check(entrypoint, packages) is None else None


def class_name(entrypoint: str) -> str:
    """The name of its class; empty for what is no entrypoint."""
    return entrypoint.partition(":")[2]


def imported(entrypoint: str) -> Any:
    """What the entrypoint names; imports its module if needed. None if the module has no such name."""
    module, _, name = entrypoint.partition(":")
    try:
        return getattr(importlib.import_module(module), name, None)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        # Any exception of foreign code during import, even SystemExit, ends only this call.
        says = str(error) if isinstance(error, LonghouseError) else f"{type(error).__name__}: {error}"
        raise EntrypointError(f"{module} cannot be imported: {says}") from error


@contextmanager
def imported_anew(packages: Iterable[str], files: Collection[Path] = ()) -> Iterator[None]:
    """Has these packages, and modules of these files, imported again in the block; if it raises, those that were
    imported before stay."""
    tops = {package.strip().partition(".")[0] for package in packages}

    def is_meant(name: str, module: Any) -> bool:
        top = name.partition(".")[0]
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        return top not in ("longhouse", "__main__") and (top in tops or (bool(file) and Path(str(file)) in files))

    former = {name: one for name, one in sys.modules.items() if is_meant(name, one)}
    for name in former:
        del sys.modules[name]
    importlib.invalidate_caches()
    try:
        yield
    except BaseException:
        sys.modules.update(former)
        raise
