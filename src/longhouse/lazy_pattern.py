"""Regular expressions that are compiled when they are first used."""

import re
from typing import Any, cast


class _Later:
    def __init__(self, pattern: str, flags: int) -> None:
        self._pattern, self._flags = pattern, flags

    def __getattr__(self, name: str) -> Any:
        """Compiles at the first access; keeps the attribute, so later calls do not come here."""
        value = self.__dict__[name] = getattr(re.compile(self._pattern, self._flags), name)
        return value


def compiled_later(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """For patterns over thousands of characters: each takes milliseconds to compile, and a start does not need it."""
    return cast("re.Pattern[str]", _Later(pattern, flags))
