"""Keys that this process was given, by name. Names may be published; what they stand for leaves only on its way out."""

import os
import re
from collections.abc import Mapping
from typing import Final

PREFIX: Final = "LONGHOUSE_SECRET_"


class Secrets:
    """Looks in what files brought, then in `LONGHOUSE_SECRET_<NAME>`: no other variable can be named."""

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self._given = dict(given or {})

    def __repr__(self) -> str:
        return f"Secrets({sorted(self._given)})"

    def find(self, name: str) -> str | None:
        if name in self._given:
            return self._given[name]
        return os.environ.get(PREFIX + re.sub(r"[^A-Z0-9]", "_", name.upper()))
