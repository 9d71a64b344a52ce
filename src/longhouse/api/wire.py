"""The wire format: request bodies are validated, responses and errors have OpenAI's shapes."""

import base64
import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, Final, Generic, Literal, TypedDict, TypeVar, cast

import msgspec
import pydantic
from pydantic import Field, StrictBool, StrictStr
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from longhouse.errors import CallerError
from longhouse.journal.events import Sampling
from longhouse.tools.arguments import BadSchema, client_schema
from longhouse.validation_messages import Errors, Where, explain, invalid_value

MAX_BODY: Final = 8 * 1024 * 1024
MAX_MESSAGES: Final = 20_000
MAX_OBJECTS: Final = 50_000
"""In a body, as are messages, their parts and calls: to validate ten times as many takes seconds."""
_MOST: Final = {b"{": MAX_OBJECTS, b"[": MAX_OBJECTS, b",": 5 * MAX_OBJECTS}
"""Marks of JSON that a body has outside of texts."""
MAX_STOPS: Final = 64
"""Texts at which an answer stops."""
MAX_FIELDS: Final = 100
"""Fields of one object on our own routes: each unknown one costs a validation error."""
ID: Final = re.compile(r"(?!\.+$)[A-Za-z0-9._:@-]{1,128}")
"""The format of ids that clients choose; an id may become a file name, so it is not only dots."""
_DATA_URL: Final = re.compile(r"data:(image/[a-z0-9.+-]{1,40});base64,", re.IGNORECASE)

_BRANCHES: Final = ("str", "list", "int", "constrained-str", "ConversationName")
_TAGS: Final = (
    "text", "image_url", "refusal", "input_image", "input_file", "message", "function_call", "function_call_output",
    "mcp_approval_response", "item_reference", "passed_over",
)  # fmt: skip
_WORDS: Final = {
    "union_tag_invalid": "Its type should be text, image_url or refusal; files are read by POST /v1/responses, as"
    " input_file, and POST /v1/documents, and audio nowhere",
}

Item = TypeVar("Item")
Body_co = TypeVar("Body_co", covariant=True)


class Lenient(pydantic.BaseModel):
    """OpenAI's routes ignore unknown fields; but no text or truth value of any body counts as a number."""

    model_config = pydantic.ConfigDict(extra="ignore", allow_inf_nan=False, frozen=True, defer_build=True, strict=True)


class StrictModel(Lenient):
    """Our own routes refuse unknown fields."""

    model_config = pydantic.ConfigDict(extra="forbid")

    @pydantic.model_validator(mode="before")
    @classmethod
    def _is_small(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MAX_FIELDS:
            raise PydanticCustomError("too_many_fields", "It has too many fields")
        return value


# Validation of a list stops at its first bad item: errors for a million items would cost seconds and gigabytes.
Many = Annotated[list[Item], Field(fail_fast=True)]


def _is_id(value: str) -> str:
    if not ID.fullmatch(value):
        raise PydanticCustomError("id", "It should be 1 to 128 of the characters A-Z a-z 0-9 . _ : @ -, not dots alone")
    return value


def _is_printable(text: str) -> str:
    if text and not text.isprintable():
        raise PydanticCustomError("line", "It should be one line of printable characters")
    return text


Line = Annotated[str, Field(max_length=200), pydantic.AfterValidator(_is_printable)]
"""A name or a description."""
UserName = Annotated[StrictStr, Field(max_length=512)] | None
"""The `user` of a request, if it names one."""
Id = Annotated[StrictStr, pydantic.AfterValidator(_is_id), Field(json_schema_extra={"pattern": f"^{ID.pattern}$"})]


class WireTextPart(Lenient):
    type: Literal["text"]
    text: StrictStr


class RefusalPart(Lenient):
    type: Literal["refusal"]
    refusal: StrictStr


def is_image(url: str) -> str:
    image_bytes(url)
    return url


class WireImageUrl(Lenient):
    url: Annotated[StrictStr, pydantic.AfterValidator(is_image)]
    detail: StrictStr | None = None


class WireImagePart(Lenient):
    type: Literal["image_url"]
    image_url: WireImageUrl


Part = Annotated[WireTextPart | WireImagePart | RefusalPart, Field(discriminator="type")]


class FunctionCall(Lenient):
    name: StrictStr
    arguments: StrictStr = ""


class WireToolCall(Lenient):
    id: StrictStr
    function: FunctionCall


SYSTEM: Final = frozenset({"system", "developer"})
"""The roles of messages that are for the model alone."""
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class ChatMessage(Lenient):
    role: Role
    content: StrictStr | Many[Part] | None = None
    refusal: StrictStr | None = None
    tool_calls: Many[WireToolCall] | None = None
    tool_call_id: StrictStr | None = None

    @property
    def text(self) -> str:
        if self.content is None or isinstance(self.content, str):
            return self.content or self.refusal or ""
        return "\n".join(part.text for part in self.content if isinstance(part, WireTextPart))


class TextMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that is nothing but text: a history of a thousand is read in a sixth of the time."""

    role: Role
    text: str = msgspec.field(name="content")
    tool_calls: None = None
    tool_call_id: None = None

    @property
    def content(self) -> str:
        return self.text


class _BareMessage(TextMessage, frozen=True, gc=False, forbid_unknown_fields=True):
    """One that has no other fields, either."""


SentMessage = ChatMessage | TextMessage


class _TextsFirst:
    """Annotates messages: where all of them are text, they are read as such."""

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> CoreSchema:
        any_messages = Annotated[Many[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
        return core_schema.no_info_wrap_validator_function(self._read, handler.generate_schema(any_messages))

    def _read(self, value: Any, otherwise: pydantic.ValidatorFunctionWrapHandler) -> Sequence[SentMessage]:
        if isinstance(value, list) and 0 < len(value) <= MAX_MESSAGES:
            if type(value[0]) is _BareMessage:  # `decode_chat` has read them all
                return value
            with suppress(msgspec.ValidationError):
                return msgspec.convert(value, list[TextMessage])
        read: list[ChatMessage] = otherwise(value)
        return read


def _at_most_16(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > 16:
        raise PydanticCustomError("too_long", "It should have at most 16 pairs")
    return value


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[StrictStr, Field(max_length=512)]],
    pydantic.BeforeValidator(_at_most_16),
]


def _is_format(value: dict[str, Any]) -> dict[str, Any]:
    kind, described = value.get("type"), value.get("json_schema")
    if kind not in ("text", "json_object", "json_schema"):
        raise PydanticCustomError("format", "Its type should be text, json_object or json_schema")
    if kind != "json_schema":
        return {"type": kind}
    if not isinstance(described, dict) or not isinstance(described.get("name"), str):
        raise PydanticCustomError("format", "It should have a json_schema with a name and a schema")
    schema = described.get("schema")
    if schema is not None:
        try:
            described = {**described, "schema": client_schema(schema)}
        except BadSchema as error:
            problem = f"json_schema.schema: {error}"
            raise PydanticCustomError("format", "{problem}", {"problem": problem}) from None
    known = {"name": str, "description": str, "schema": dict, "strict": bool}
    given = {name: described[name] for name, of in known.items() if isinstance(described.get(name), of)}
    return {"type": kind, "json_schema": given}


ResponseFormat = Annotated[dict[str, Any], pydantic.AfterValidator(_is_format)]


class WireStreamOptions(Lenient):
    include_usage: StrictBool | None = None


class ChatRequest(Lenient):
    """POST /v1/chat/completions"""

    model: StrictStr = Field(min_length=1, max_length=512)
    messages: Annotated[Sequence[SentMessage], _TextsFirst()]
    stream: StrictBool | None = None
    """None: as the client accepts the answer."""
    stream_options: WireStreamOptions | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    max_completion_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    n: int | None = Field(default=None, ge=1, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: StrictStr | Annotated[Many[StrictStr], Field(max_length=MAX_STOPS)] | None = None
    response_format: ResponseFormat | None = None
    user: UserName = None
    metadata: Metadata | None = None
    chat_id: StrictStr | int | None = None
    context: Many[ChatMessage] | None = Field(default=None, max_length=MAX_MESSAGES)
    """The history, if the caller keeps it itself."""
    subagent_contexts: Annotated[dict[str, Many[ChatMessage]], Field(max_length=64)] | None = None
    """The histories of sub-agents, by name, if the caller keeps them itself."""
    custom_system_prompt: StrictStr | None = None
    tools: list[Any] | None = None
    """Functions that the client runs itself."""
    tool_choice: Any = None
    parallel_tool_calls: StrictBool | None = None
    functions: list[Any] | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _aliases(cls, body: Any) -> Any:
        """Aliases: `message` is a list of one user message, and is answered with a stream; `agent_version` is the
        model."""
        if not isinstance(body, dict):
            return body
        messages = {}
        if "message" in body and "messages" not in body:
            messages = {"messages": [{"role": "user", "content": body["message"]}], "stream": True}
        named = {"model": body["agent_version"]} if "agent_version" in body else {}
        return {**messages, **named, **body}

    @classmethod
    def decode(cls, body: bytes) -> Any:
        """As `decode`, a body of which all is known and whose messages are nothing but text: those are read at once."""
        if _has_many(body):
            return decode(body)
        try:
            read = _bare_chat().decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return decode(body)
        if not 0 < len(read.messages) <= MAX_MESSAGES or _may_have_nul(body):
            return decode(body)
        return {name: given for name in read.__struct_fields__ if (given := getattr(read, name)) is not msgspec.UNSET}

    @property
    def roles(self) -> set[str]:
        return {message.role for message in self.messages}

    @property
    def brings_memory(self) -> bool:
        """Does the caller keep the history itself?"""
        return self.context is not None or self.subagent_contexts is not None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def ignored(self, *, takes_tools: bool) -> list[str]:
        """Fields of the request that have no effect. `takes_tools`: the agent is offered the client's functions."""
        taken = ("tools", "tool_choice") if takes_tools and self.tools and not self.brings_memory else ()
        given = (name for name in ("tools", "functions", "tool_choice") if getattr(self, name))
        return [name for name in given if name not in taken]

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
        is_told = not SYSTEM.isdisjoint(self.roles)
        texts = [message.text for message in self.messages if message.role in SYSTEM] if is_told else []
        texts += [self.custom_system_prompt] if self.custom_system_prompt else []
        return "\n\n".join(text for text in texts if text) or None


@cache
def _bare_chat() -> msgspec.json.Decoder[Any]:
    """Reads a chat request that has no fields but those of `ChatRequest`: all of it is decoded, nothing passed over."""
    rest = [(name, Any, msgspec.UNSET) for name in ChatRequest.model_fields if name != "messages"]
    kind = msgspec.defstruct("_BareChat", [("messages", list[_BareMessage]), *rest], forbid_unknown_fields=True)
    return msgspec.json.Decoder(kind)


async def read_body(request: HttpRequest, most: int = MAX_BODY) -> bytes:
    """Reads a JSON body of at most so many bytes."""
    _refuse_other_than_json(request)
    return await _bytes(request, most)


async def refuse_body(request: HttpRequest) -> None:
    """Refuses a body on routes that take none; `{}` counts as none."""
    if body := await _bytes(request):
        _refuse_other_than_json(request)
        if (value := decode(body)) != {}:
            first = str(next(iter(value)))[:64] if isinstance(value, dict) else None
            raise CallerError("This route takes no body: send none, or {}.", param=first)


def _refuse_other_than_json(request: HttpRequest) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise CallerError("Send JSON with the header 'content-type: application/json'.", status=415)


async def _bytes(request: HttpRequest, most: int = MAX_BODY) -> bytes:
    too_long = CallerError(f"The body is longer than {most} bytes.", status=413, code="request_too_large")
    return b"".join([block async for block in blocks_of(request, most, too_long)])


async def blocks_of(request: HttpRequest, most: int, too_long: CallerError) -> AsyncGenerator[bytes, None]:
    """The blocks of a body; refuses one that is too long, before it is read if its length is announced."""
    length, size = request.headers.get("content-length", ""), 0
    if length.isdecimal() and int(length) > most:
        raise too_long
    try:
        async for block in request.stream():
            size += len(block)
            if size > most:
                raise too_long
            yield block
    except ClientDisconnect:
        raise CallerError("The body ended before its announced length.") from None


def decode(body: bytes) -> Any:
    """Decodes a JSON body; NUL characters are refused, since Postgres cannot store them."""
    if _has_many(body) and _has_many(_outside_texts(body)):
        raise CallerError(
            f"The body holds more than {MAX_OBJECTS:,} objects, such as messages, parts and calls, or as many lists,"
            f" or {_MOST[b',']:,} values."
        )
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise CallerError("The body is not valid JSON in UTF-8.") from None
    if _may_have_nul(body) and _has_nul(value):
        raise CallerError("The body contains a NUL character (\\u0000), which cannot be stored.")
    return value


def _has_many(body: bytes) -> bool:
    return len(body) > MAX_OBJECTS and any(body.count(mark) > most for mark, most in _MOST.items())


def _outside_texts(body: bytes) -> bytes:
    """The body without what is between quotation marks; all of it if there are too many of those."""
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return body if bare.count(b'"') > 30 * MAX_OBJECTS else b"".join(bare.split(b'"')[::2])


def _may_have_nul(body: bytes) -> bool:
    # Most bodies have no escape, which is seen many times faster.
    return b"\\" in body and b"\\u0000" in body


def validation_error(error: Errors) -> CallerError:
    """The error response for a request that failed validation; it names the field."""
    # The first item of the location is the source: body, query or path.
    problems = [(_path(where[1:]), problem) for where, problem in explain(error, words=_WORDS)]
    # A union yields an error for each of its branches: the deepest one is the most precise.
    first = problems[0][0]
    about = [one for one in problems if one[0][: len(first)] == first]
    where, problem = max(about, key=lambda one: len(one[0]))
    param, sentence = invalid_value(where, problem, whole="the body")
    return CallerError(sentence, param=param)


def _path(loc: Where) -> Where:
    """The location of the error as clients know it, without the names of union branches."""
    path: Where = ()
    for before, part in zip((None, *loc), loc, strict=False):
        is_branch = isinstance(part, str) and (part in _BRANCHES or "[" in part)
        is_tag = isinstance(before, int) and part in _TAGS
        if not (is_branch or is_tag):
            path += (part,)
    return path


def _has_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\x00" in value
    if isinstance(value, dict):
        return any(_has_nul(key) or _has_nul(item) for key, item in value.items())
    return isinstance(value, list) and any(_has_nul(item) for item in value)


def checked_id(value: str, param: str) -> str:
    if not ID.fullmatch(value):
        allowed = "1 to 128 of the characters A-Z a-z 0-9 . _ : @ -, and not dots alone"
        raise CallerError(f"{param} must be {allowed}.", param=param)
    return value


def image_bytes(url: str) -> tuple[str, bytes]:
    """Media type and bytes of an image inside the request; URLs are never fetched."""
    match = _DATA_URL.match(url)
    if not match:
        raise PydanticCustomError(
            "image", "Send images as data URLs (data:image/png;base64,…); other URLs are not fetched"
        )
    try:
        return match[1].lower(), base64.b64decode(url[match.end() :], validate=True)
    except ValueError:
        raise PydanticCustomError("image", "The image is not valid base64") from None


class Documented:
    """Annotates a body that is validated elsewhere: the OpenAPI document shows it with the schema of this type."""

    def __init__(self, kind: Any, implied: str = "") -> None:
        self.kind = kind
        self.implied = implied
        """The field that the path of the route has."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: pydantic.GetJsonSchemaHandler) -> Any:
        shown = handler(pydantic.TypeAdapter(self.kind).core_schema)
        if not self.implied:
            return shown
        whole = handler.resolve_ref_schema(shown)
        return {**whole, "required": [name for name in whole["required"] if name != self.implied]}


def example(**body: Any) -> dict[str, Any]:
    """An example of a route's body, for the OpenAPI document."""
    return {"requestBody": {"content": {"application/json": {"example": body}}}}


def answer(description: str, example: Any = None, kind: Any = None) -> dict[str, Any]:
    """What the OpenAPI document says of a response besides its schema; `kind`: its type, where the route names none."""
    return {"description": description, "example": example, "kind": kind}


def body_of(kind: type[Item], source: object, **own: Any) -> Item:
    """A body of this type: these fields, and the others as the source has them under the same names."""
    names = kind.__annotations__
    return cast("Item", {name: own[name] if name in own else getattr(source, name) for name in names})


class Json(Response, Generic[Body_co]):
    """A JSON response, encoded by msgspec. A route says of what: the OpenAPI document has the schema of that type."""

    media_type = "application/json"

    def __init__(self, content: Body_co, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(content, status_code, headers)

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


class NoContent(Response):
    """A response without a body."""

    def __init__(self) -> None:
        super().__init__(status_code=204)


class ErrorDetail(TypedDict):
    message: str
    """One sentence that says what to do."""
    type: str
    param: str | None
    """The field or the parameter that is meant."""
    code: str | None
    """What programs tell errors apart by."""


class Envelope(TypedDict):
    """What every error looks like, in a response and in a stream."""

    error: ErrorDetail


def envelope(message: str, *, kind: str, code: str | None = None, param: str | None = None) -> Envelope:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def envelope_of(error: CallerError) -> Envelope:
    return envelope(str(error), kind=error.kind, code=error.code, param=error.param)


def error_response(error: CallerError) -> Json[Envelope]:
    # SDKs retry by themselves: they must not resend a request that was committed before an internal error.
    never = {"x-should-retry": "false"}
    headers = {401: {"www-authenticate": "Bearer"}, 409: never, 500: never}.get(error.status, {}).copy()
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    return Json(envelope_of(error), status_code=error.status, headers=headers)


def not_found(what: str, *, code: str = "not_found") -> CallerError:
    return CallerError(what, status=404, code=code)
