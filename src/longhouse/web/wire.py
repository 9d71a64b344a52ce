"""The wire as it is: request bodies checked at the border, answers and errors in OpenAI's shapes."""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
import pydantic
from pydantic import Field, StrictBool, StrictStr
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from longhouse.errors import CallerError
from longhouse.journal.events import Sampling

MAX_BODY: Final = 8 * 1024 * 1024
ID: Final = re.compile(r"[A-Za-z0-9._:@-]{1,128}")
"""What an id that a client chooses looks like."""
_DATA_URL: Final = re.compile(r"data:(image/[a-z0-9.+-]{1,40});base64,", re.IGNORECASE)

T = TypeVar("T", bound=pydantic.BaseModel)


class _Lenient(pydantic.BaseModel):
    """OpenAI's routes ignore what they do not know."""

    model_config = pydantic.ConfigDict(extra="ignore", allow_inf_nan=False, frozen=True)


class Strict(pydantic.BaseModel):
    """Our own routes refuse what they do not know."""

    model_config = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class TextPart(_Lenient):
    type: Literal["text"]
    text: StrictStr


class RefusalPart(_Lenient):
    type: Literal["refusal"]
    refusal: StrictStr


class ImageUrl(_Lenient):
    url: StrictStr
    detail: StrictStr | None = None


class ImagePart(_Lenient):
    type: Literal["image_url"]
    image_url: ImageUrl


Part = Annotated[TextPart | ImagePart | RefusalPart, Field(discriminator="type")]


class FunctionCall(_Lenient):
    name: StrictStr
    arguments: StrictStr = ""


class ToolCall(_Lenient):
    id: StrictStr
    function: FunctionCall


class ChatMessage(_Lenient):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: StrictStr | list[Part] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: StrictStr | None = None

    @property
    def text(self) -> str:
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[StrictStr, Field(max_length=512)]], Field(max_length=16)
]


class ChatRequest(_Lenient):
    """POST /v1/chat/completions"""

    model: StrictStr = Field(min_length=1, max_length=512)
    messages: list[ChatMessage] = Field(min_length=1)
    stream: StrictBool | None = False
    stream_options: dict[str, Any] | None = None
    temperature: float | None = Field(default=None, ge=0, le=2, strict=True)
    top_p: float | None = Field(default=None, ge=0, le=1, strict=True)
    max_tokens: int | None = Field(default=None, ge=1, strict=True)
    max_completion_tokens: int | None = Field(default=None, ge=1, strict=True)
    n: Literal[1] | None = None
    seed: int | None = Field(default=None, strict=True)
    stop: StrictStr | list[StrictStr] | None = None
    response_format: dict[str, Any] | None = None
    user: StrictStr | None = Field(default=None, max_length=512)
    metadata: Metadata | None = None
    chat_id: StrictStr | Annotated[int, Field(strict=True)] | None = None
    custom_system_prompt: StrictStr | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.get("include_usage"))

    @property
    def ignored(self) -> list[str]:
        """What the client sent and we do not act on: its own tools are not run."""
        return [name for name in ("tools", "functions", "tool_choice") if getattr(self, name)]

    @property
    def sampling(self) -> Sampling | None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        sampling = Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_completion_tokens or self.max_tokens,
            seed=self.seed,
            stop=stop,
            response_format=json.dumps(self.response_format) if self.response_format else None,
        )
        return None if sampling == Sampling() else sampling

    @property
    def system(self) -> str | None:
        texts = [message.text for message in self.messages if message.role in ("system", "developer")]
        texts += [self.custom_system_prompt] if self.custom_system_prompt else []
        return "\n\n".join(text for text in texts if text) or None


async def read_body(request: HttpRequest) -> bytes:
    """The body, as far as we read one."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise CallerError("Send JSON with the header 'content-type: application/json'.", status=415)
    too_long = CallerError(f"The body is longer than {MAX_BODY} bytes.", status=413, code="request_too_large")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > MAX_BODY:
        raise too_long
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY:
            raise too_long
        chunks.append(chunk)
    return b"".join(chunks)


def parse(model: type[T], body: bytes) -> T:
    """The body as a checked value, or a 400 that names the field."""
    try:
        parsed = model.model_validate_json(body)
    except pydantic.ValidationError as error:
        raise _refusal(error) from None
    if b"\\u0000" in body and _has_nul(json.loads(body)):
        raise CallerError("The body holds a NUL character (\\u0000), which cannot be stored.")
    return parsed


def _refusal(error: pydantic.ValidationError) -> CallerError:
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return CallerError("The body is not valid JSON in UTF-8.")
    # A union names each of its branches in the path; clients know only the fields.
    branches = ("str", "list", "int", "text", "image_url", "refusal", "constrained-str")
    path = [part for part in first["loc"] if not (isinstance(part, str) and (part in branches or "[" in part))]
    param = _param(path)[:200] or None
    message = first["msg"] if len(first["msg"]) < 300 else "it is not valid"
    return CallerError(f"Invalid value for {param or 'the body'}: {message}.", param=param)


def _param(path: Sequence[int | str]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")


def _has_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\x00" in value
    if isinstance(value, dict):
        return any(_has_nul(key) or _has_nul(item) for key, item in value.items())
    return isinstance(value, list) and any(_has_nul(item) for item in value)


def checked_id(value: str, param: str) -> str:
    if not ID.fullmatch(value):
        raise CallerError(f"{param} must be 1 to 128 of the characters A-Z a-z 0-9 . _ : @ -", param=param)
    return value


def image_bytes(url: str, param: str) -> tuple[str, bytes]:
    """Media type and bytes of an image that came inside the request; nothing is ever fetched."""
    match = _DATA_URL.match(url)
    if not match:
        raise CallerError("Send images as data URLs (data:image/png;base64,…); addresses are not fetched.", param=param)
    try:
        return match[1].lower(), base64.b64decode(url[match.end() :], validate=True)
    except binascii.Error:
        raise CallerError("The image is not valid base64.", param=param) from None


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


class Json(Response):
    """A JSON answer, encoded by msgspec."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def envelope(message: str, *, kind: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def refused(error: CallerError) -> Json:
    headers = {"x-should-retry": "false"} if error.status == 409 else None
    content = envelope(str(error), kind=error.kind, code=error.code, param=error.param)
    return Json(content, status_code=error.status, headers=headers)


def not_found(what: str, *, code: str = "not_found") -> CallerError:
    return CallerError(what, status=404, code=code)
