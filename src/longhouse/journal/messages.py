"""OpenAI chat messages as frozen structs that encode directly to the request's JSON."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

FILE_SCHEME: Final = "longhouse-file:"
"""URL scheme of images in the journal: it names the file by digest; the bytes are inlined when a request is sent."""

_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
# Complete surrogate pairs and all other escapes are skipped; group 1 matches NUL or a lone surrogate.
_ESCAPE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u([dD][89a-fA-F][0-9a-fA-F]{2}|0000)|.)", re.DOTALL
)


class _WireStruct(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    pass


class TextPart(_WireStruct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    text: str


class ImageUrl(_WireStruct, frozen=True, kw_only=True):
    url: str
    media_type: str | None = None
    """Of a file, as its sender named it; right behind the URL, where the database looks for it. No model is sent it."""
    detail: str | None = None


class ImagePart(_WireStruct, frozen=True, kw_only=True, tag_field="type", tag="image_url"):
    image_url: ImageUrl


Opaque = msgspec.Raw | msgspec.UnsetType
"""JSON that an endpoint wants back as it wrote it."""
Part = TextPart | ImagePart
Content = str | tuple[Part, ...]


class Function(_WireStruct, frozen=True, kw_only=True):
    name: str
    arguments: str
    """The model's own string, unparsed: it keeps the key order."""


class ToolCall(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    id: str
    function: Function
    type: str = "function"
    extra_content: Opaque = msgspec.UNSET


class System(_WireStruct, frozen=True, kw_only=True, tag_field="role", tag="system"):
    content: str


class User(_WireStruct, frozen=True, kw_only=True, tag_field="role", tag="user"):
    content: Content


class Assistant(_WireStruct, frozen=True, kw_only=True, tag_field="role", tag="assistant"):
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning_content: str | None = None
    extra_content: Opaque = msgspec.UNSET


class ToolResult(_WireStruct, frozen=True, kw_only=True, tag_field="role", tag="tool"):
    tool_call_id: str
    content: str


Message = System | User | Assistant | ToolResult


def text_of(content: Content | None) -> str:
    """The text of a message content, without images."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content if isinstance(part, TextPart))


def opaque(text: str) -> Opaque:
    return msgspec.Raw(text.encode()) if text else msgspec.UNSET


def files_in(messages: Iterable[Message]) -> set[str]:
    """The digests of all files that these messages refer to."""
    return {
        part.image_url.url.removeprefix(FILE_SCHEME)
        for message in messages
        if type(message) is User and type(message.content) is not str
        for part in message.content
        if isinstance(part, ImagePart) and part.image_url.url.startswith(FILE_SCHEME)
    }


def with_files(messages: Sequence[Message], urls: dict[str, str]) -> list[Message]:
    """The same messages with every stored image replaced by its data URL."""

    def with_file(part: Part) -> Part:
        if isinstance(part, TextPart):
            return part
        url = urls.get(part.image_url.url.removeprefix(FILE_SCHEME), part.image_url.url)
        return ImagePart(image_url=ImageUrl(url=url, detail=part.image_url.detail))

    return [
        User(content=tuple(map(with_file, message.content)))
        if isinstance(message, User) and not isinstance(message.content, str)
        else message
        for message in messages
    ]


def clean(text: str) -> str:
    """Text from a model or a tool, with characters that Postgres and JSON cannot store (NUL, lone surrogates) replaced.

    Works character by character, so the cleaned fragments of a text join to the cleaned text.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return _UNSTORABLE.sub("\ufffd", text)
    return text.replace("\x00", "\ufffd") if "\x00" in text else text


def clean_json(text: str) -> str:
    """JSON from a model, where the same characters may also be written as escapes."""
    text = clean(text)
    return _ESCAPE.sub(lambda match: "\\ufffd" if match[1] else match[0], text) if "\\u" in text else text
