"""Routes that are made when they are first asked for."""

import threading
from collections.abc import Callable
from typing import Any, Final, get_args, get_type_hints

from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import Match, compile_path, get_name
from starlette.types import Scope

_MAKING: Final = threading.RLock()
"""Held while a route is made: the OpenAPI document makes all of them, in a thread, while requests are served."""


class LazyRoute(APIRoute):
    """A route that is made at its first request. FastAPI works out what a route takes when it is made, in a millisecond
    and 30 kB for each of nearly two hundred; until then only its path and its methods are known."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **given: Any) -> None:
        self.given = given
        """What FastAPI makes it of."""
        self._is_begun = self._is_made = False
        self.path, self.endpoint, self.name = path, endpoint, given.get("name") or get_name(endpoint)
        self.methods = {method.upper() for method in given.get("methods") or ("GET",)}
        self._beginning = path.partition("{")[0]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Compares the text before the first parameter first; compiles the pattern when a path contains it."""
        if self._beginning not in scope["path"]:
            return Match.NONE, {}
        if "path_regex" not in self.__dict__:
            self.path_regex, self.path_format, self.param_convertors = compile_path(self.path)
        return super().matches(scope)

    def __getattr__(self, name: str) -> Any:
        """Called for what is not set yet."""
        if self.__dict__.get("_is_made", True):
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        with _MAKING:
            if not self._is_begun:
                self._make()
            elif not self._is_made:  # asked for by FastAPI, while it makes it
                raise AttributeError(f"{type(self).__name__} has no {name!r} yet")
        return getattr(self, name)

    def _make(self) -> None:
        self._is_begun = True
        try:
            for kind in get_type_hints(self.endpoint).values():
                _complete(kind)
            super().__init__(self.path, self.endpoint, **self.given)
            self._is_made = True
        finally:
            self._is_begun = self._is_made  # what cannot be made says so each time


def _complete(kind: Any) -> None:
    """Builds the models of a parameter, which are built at their first use: FastAPI has to find them complete."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if kind.model_config.pop("defer_build", False):
            kind.model_rebuild(force=True)
        return
    for part in get_args(kind):
        _complete(part)
