"""The differences between two versions of a descriptor, by path; and patches of a descriptor."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from longhouse.errors import CallerError

_PLAIN: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")


class Difference(msgspec.Struct, frozen=True):
    """One changed path; None where a side has no value."""

    path: str
    before: Any
    after: Any


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """All paths at which two JSON objects differ, in the order of the newer one."""
    return list(_compared("", before, after))


def merge(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Applies a JSON merge patch (RFC 7396): objects are merged, null removes a field, any other value replaces."""
    merged = dict(target)
    try:
        for field, value in patch.items():
            if value is None:
                merged.pop(field, None)
            elif isinstance(value, dict):
                before = merged.get(field)
                merged[field] = merge(before if isinstance(before, dict) else {}, value)
            else:
                merged[field] = value
    except RecursionError:
        raise CallerError("The patch is nested too deep.") from None
    return merged


def _compared(path: str, before: Any, after: Any) -> Iterator[Difference]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys((*after, *before)):
            yield from _compared(_child_path(path, key), before.get(key), after.get(key))
    elif _are_lists_of_objects(before, after) and len(before) == len(after):
        for nth, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _compared(f"{path}[{nth}]", one, other)
    elif msgspec.json.encode(before) != msgspec.json.encode(after):  # as JSON: true is not 1
        yield Difference(path, before, after)


def _are_lists_of_objects(*values: Any) -> bool:
    """Such lists are compared item by item; others are shown whole."""
    return all(isinstance(value, list) and all(isinstance(item, Mapping) for item in value) for value in values)


def _child_path(path: str, key: str) -> str:
    if not _PLAIN.fullmatch(key):
        return f"{path}[{msgspec.json.encode(key).decode()}]"
    return f"{path}.{key}" if path else key
