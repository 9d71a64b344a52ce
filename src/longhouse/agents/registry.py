"""Registries of classes by name, for classes that templates refer to."""

import importlib
import warnings
from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

T = TypeVar("T")


class Registry(Generic[T]):
    """A separate registry for each subclass; the name is the class name unless one is given."""

    _items: ClassVar[dict[str, Any]]
    _old_names: ClassVar[dict[str, str]] = {}
    _modules: ClassVar[tuple[str, ...]] = ()
    """Modules whose classes register themselves; imported when somebody first asks."""
    _is_filled: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._items = {}

    @classmethod
    def register(cls, item: T | None = None, *, name: str | None = None) -> Any:
        """`register(cls)`, `register(cls, name="…")`, or as a decorator with a name."""
        if item is None:
            return partial(cls.register, name=name)
        cls._items[name or str(getattr(item, "__name__", item))] = item
        return item

    @classmethod
    def _all(cls) -> dict[str, T]:
        if not cls._is_filled:
            cls._is_filled = True
            for module in cls._modules:
                importlib.import_module(module)
        return cls._items

    @classmethod
    def get(cls, name: str) -> T | None:
        newer = cls._old_names.get(name)
        if newer:
            warnings.warn(f"{name} is deprecated; use {newer}", DeprecationWarning, stacklevel=2)
        found: T | None = cls._all().get(newer or name)
        return found

    @classmethod
    def newer(cls, name: str) -> str | None:
        """The name that replaced an old one, or None."""
        return cls._old_names.get(name)

    @classmethod
    def old_names(cls) -> list[str]:
        return list(cls._old_names)

    @classmethod
    def list_items(cls) -> list[T]:
        return list(cls._all().values())

    @classmethod
    def resolve(cls, names: Iterable[str]) -> list[T]:
        """The items of these names; raises KeyError for an unknown name."""
        found = {name: cls.get(name) for name in names}
        if missing := [name for name, item in found.items() if item is None]:
            raise KeyError(f"not registered: {', '.join(missing)}")
        return [item for item in found.values() if item is not None]
