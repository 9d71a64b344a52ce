"""What the process that reads a file says to the server: frames, each with its length before it."""

from collections.abc import Iterator
from typing import Final

import msgspec

from longhouse.memory.documents.parsed import Block, Format, OutlineLine, ParsedDocument

HEADER: Final = 4
"""Bytes of the length of a frame."""
BLOCKS_PER_FRAME: Final = 100


class Blocks(msgspec.Struct, frozen=True, tag=True):
    """The next blocks of the document."""

    blocks: tuple[Block, ...]


class End(msgspec.Struct, frozen=True, tag=True):
    """The document is complete."""

    title: str
    format: Format
    pages: int
    outline: tuple[OutlineLine, ...]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The file cannot be read."""

    reason: str


Frame = Blocks | End | Refused

_decoder: Final[msgspec.msgpack.Decoder[Frame]] = msgspec.msgpack.Decoder(Frame)


def decoded(data: bytes) -> Frame:
    """The frame that these bytes are."""
    return _decoder.decode(data)


def encoded(frame: Frame) -> bytes:
    """A frame with its length before it."""
    data = msgspec.msgpack.encode(frame)
    return len(data).to_bytes(HEADER, "big") + data


def of(document: ParsedDocument) -> Iterator[bytes]:
    """All frames of a document."""
    for start in range(0, len(document.blocks), BLOCKS_PER_FRAME):
        yield encoded(Blocks(document.blocks[start : start + BLOCKS_PER_FRAME]))
    yield encoded(End(document.title, document.format, document.pages, document.outline))
