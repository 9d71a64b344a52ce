"""The messages of tool.proto in the wire format of Protocol Buffers: a few fields of text, for which no library is
loaded. Fields that are not known are skipped, so that the service can grow."""

from collections.abc import Iterator
from typing import Final

import msgspec

CALL: Final = "/longhouse.tool.v1.Tool/Call"
PROBE: Final = "/longhouse.tool.v1.Tool/Probe"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS: Final = {_FIXED64: 8, _FIXED32: 4}
_MOST_VARINT: Final = 10
"""Bytes of the longest number."""
_MOST_FIELDS: Final = 1_000
"""Fields of a message, known or not: millions of empty ones would hold up the whole process for seconds."""
_OUTCOMES: Final = {1: True, 2: False}


class BadMessage(ValueError):  # noqa: N818 - it says what it is
    """The bytes are not a message of this kind."""


class RemoteFault(msgspec.Struct, frozen=True):
    code: str = ""
    message: str = ""
    retryable: bool = False


class ProbeResponse(msgspec.Struct, frozen=True):
    happened: bool | None
    """None: the server cannot tell."""
    result_json: str


def request(name: str, arguments_json: str, key: str, deadline_unix_ms: int = 0) -> bytes:
    """A CallRequest; a ProbeRequest has the same fields, without the deadline."""
    texts = b"".join(_text(number, text) for number, text in enumerate((name, arguments_json, key), 1))
    return texts + (_varint(4 << 3 | _VARINT) + _varint(deadline_unix_ms) if deadline_unix_ms else b"")


def call_response(message: bytes) -> str | RemoteFault:
    """The result as JSON, or the fault, of a CallResponse: of two, the later."""
    outcome: str | bytes = ""
    for number, value in _fields(message):
        match number:
            case 1:
                outcome = _decoded(value)
            case 2:
                outcome = _of_bytes(value)
    return _fault(outcome) if isinstance(outcome, bytes) else outcome


def probe_response(message: bytes) -> ProbeResponse:
    happened: bool | None = None
    result = ""
    for number, value in _fields(message):
        match number:
            case 1:
                happened = _OUTCOMES.get(_number(value))
            case 2:
                result = _decoded(value)
    return ProbeResponse(happened, result)


def _fault(message: bytes) -> RemoteFault:
    code, words, retryable = "", "", False
    for number, value in _fields(message):
        match number:
            case 1:
                code = _decoded(value)
            case 2:
                words = _decoded(value)
            case 3:
                retryable = bool(_number(value))
    return RemoteFault(code, words, retryable)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field."""
    at = count = 0
    while at < len(message):
        count += 1
        if count > _MOST_FIELDS:
            raise BadMessage("it has too many fields")
        tag, at = _read_varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _read_varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = _read_varint(message, at)
        elif kind in _WIDTHS:
            length = _WIDTHS[kind]
        else:
            raise BadMessage(f"wire type {kind} is not known")
        if not number or at + length > len(message):
            raise BadMessage("it ends in the middle of a field")
        yield number, message[at : at + length]
        at += length


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at this place, and where it ends."""
    value = 0
    for nth, byte in enumerate(message[at : at + _MOST_VARINT]):
        value |= (byte & 0x7F) << 7 * nth
        if byte < 0x80:
            return value, at + nth + 1
    raise BadMessage("it ends in the middle of a number")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _text(number: int, text: str) -> bytes:
    content = text.encode()
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content if content else b""


def _decoded(value: int | bytes) -> str:
    try:
        return _of_bytes(value).decode()
    except UnicodeDecodeError:
        raise BadMessage("a text is not UTF-8") from None


def _of_bytes(value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    raise BadMessage("a field has another type")


def _number(value: int | bytes) -> int:
    if isinstance(value, int):
        return value
    raise BadMessage("a field has another type")
