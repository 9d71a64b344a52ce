"""Registries of classes by name, for classes that templates refer to."""

import importlib
import warnings
from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from longhouse.agents.naming import key

T = TypeVar("T", bound=type[Any])


class Registry(Generic[T]):
    """A separate registry for each subclass; the name is the class name unless one is given, in any case of letters."""

    _items: ClassVar[dict[str, Any]]
    old_names: ClassVar[dict[str, str]] = {}
    """Those that are still accepted -> the names that replaced them."""
    _modules: ClassVar[tuple[str, ...]] = ()
    """Modules whose classes register themselves; imported when somebody first asks."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._items = {}

    @classmethod
    def register(cls, item: T | None = None, *, name: str | None = None) -> Any:
        """`register(cls)`, `register(cls, name="…")`, or as a decorator with a name."""
        if item is None:
            return partial(cls.register, name=name)
        cls._items[key(name or item.__name__)] = item
        return item

    @classmethod
    def _all(cls) -> dict[str, T]:
        modules = cls._modules
        cls._modules = ()
        for module in modules:
            importlib.import_module(module)
        return cls._items

    @classmethod
    def get(cls, name: str) -> T | None:
        found = cls._all().get(key(name))
        if found is None and (newer := cls.newer(name)):
            warnings.warn(f"{name} is deprecated; use {newer}", DeprecationWarning, stacklevel=2)
            return cls._items.get(key(newer))
        return found

    @classmethod
    def newer(cls, name: str) -> str | None:
        """The name that replaced an old one, or None."""
        return {key(old): newer for old, newer in cls.old_names.items()}.get(key(name))

    @classmethod
    def list_items(cls) -> list[T]:
        return list(dict.fromkeys(cls._all().values()))

    @classmethod
    def resolve(cls, names: Iterable[str]) -> list[T]:
        """The items of these names; raises KeyError for an unknown name."""
        found = {name: cls.get(name) for name in names}
        if missing := [name for name, item in found.items() if item is None]:
            raise KeyError(f"not registered: {', '.join(missing)}")
        return [item for item in found.values() if item is not None]
