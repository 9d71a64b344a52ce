"""The body of POST /v1/responses, and its input as the messages of a chat: both go the same way from there."""

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
import pydantic
from pydantic import Discriminator, Field, StrictBool, StrictStr, Tag
from pydantic_core import PydanticCustomError

from longhouse.api import wire
from longhouse.api.openai.request import stored_image
from longhouse.api.openai.responses.stored import StoredRequest
from longhouse.api.wire import ChatMessage, ChatRequest, Lenient, Many, Metadata, UserName
from longhouse.errors import CallerError
from longhouse.journal.conversation import ONLY_IMAGES
from longhouse.memory.documents.library import DocumentLibrary
from longhouse.store.database import Database

MAX_FILE_TEXT: Final = 200_000
"""Characters of a file that comes with a message; longer ones are documents."""
APPROVAL_REQUEST: Final = "mcp_approval_request"
PASSED_OVER: Final = (
    "reasoning", "mcp_call", "mcp_list_tools", APPROVAL_REQUEST, "compaction", "web_search_call", "file_search_call",
    "code_interpreter_call", "image_generation_call",
)  # fmt: skip
"""Items of earlier responses that the agent knows by itself, or that another provider has done."""
PREFIXES: Final = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
"""Of the ids of items that clients have sent."""
RETURNED_IMAGES: Final = "Images of the results above:"
DECIDES: Final = "(a decision)"
"""Stands for a message of the user where he has decided on calls."""
SECRET: Final = frozenset({"authorization", "headers", "domain_secrets"})
"""Fields of tools, at any depth, that hold keys to somebody's servers: they are neither kept nor repeated."""
DEEPEST: Final = 16
"""Levels of a tool that is not a function: what lies deeper is left out."""
_FILE_URL: Final = re.compile(r"data:([\w.+/-]{1,100})?(?:;[\w=.-]{1,60})*;base64,", re.IGNORECASE)


# Parts of messages


class TextInput(Lenient):
    type: Literal["input_text", "output_text", "text"]
    text: StrictStr


class RefusalInput(Lenient):
    type: Literal["refusal"]
    refusal: StrictStr


class ImageInput(Lenient):
    type: Literal["input_image"]
    image_url: Annotated[StrictStr, pydantic.AfterValidator(wire.is_image)] | None = None
    detail: StrictStr | None = None

    @pydantic.model_validator(mode="after")
    def _has_image(self) -> "ImageInput":
        if self.image_url is None:
            raise PydanticCustomError("image", "Send the image itself, as a data URL in image_url")
        return self


class FileInput(Lenient):
    type: Literal["input_file"]
    file_data: StrictStr | None = None
    filename: Annotated[StrictStr, Field(max_length=255)] | None = None

    @pydantic.model_validator(mode="after")
    def _has_file(self) -> "FileInput":
        if self.file_data is None:
            raise PydanticCustomError(
                "file",
                "Send the file itself, as a data URL in file_data; addresses are not fetched, and no file has an id",
            )
        _file_bytes(self.file_data)
        return self


def _file_bytes(url: str) -> bytes:
    match = _FILE_URL.match(url)
    try:
        if match:
            return base64.b64decode(url[match.end() :], validate=True)
    except (ValueError, binascii.Error):
        pass
    raise PydanticCustomError("file", "Send the file as a data URL (data:application/pdf;base64,…)")


def _part_kind(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "text" if kind in ("input_text", "output_text", "text") else kind


InputPart = Annotated[
    Annotated[TextInput, Tag("text")]
    | Annotated[RefusalInput, Tag("refusal")]
    | Annotated[ImageInput, Tag("input_image")]
    | Annotated[FileInput, Tag("input_file")],
    Discriminator(
        _part_kind,
        custom_error_type="part",
        custom_error_message="Its type should be input_text, output_text, input_image or input_file",
    ),
]


# Items


class MessageInput(Lenient):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: StrictStr | Many[InputPart]


class CallInput(Lenient):
    type: Literal["function_call"]
    call_id: StrictStr
    name: StrictStr
    arguments: StrictStr


class OutputInput(Lenient):
    type: Literal["function_call_output"]
    call_id: StrictStr
    output: StrictStr | Many[InputPart]


class ApprovalInput(Lenient):
    type: Literal["mcp_approval_response"]
    approval_request_id: StrictStr
    approve: StrictBool
    reason: Annotated[StrictStr, Field(max_length=2_000)] | None = None


class ReferenceInput(Lenient):
    type: Literal["item_reference"] | None = None
    id: Annotated[StrictStr, Field(max_length=128)]


class PassedOverInput(Lenient):
    model_config = pydantic.ConfigDict(extra="allow")  # conversations keep the whole item

    type: StrictStr


def _item_kind(value: Any) -> str | None:
    if not isinstance(value, dict):
        return getattr(value, "type", None) or "item_reference"
    kind = value.get("type")
    if kind is None:
        return "message" if "role" in value else "item_reference" if "id" in value else None
    return "passed_over" if kind in PASSED_OVER else kind


InputItem = Annotated[
    Annotated[MessageInput, Tag("message")]
    | Annotated[CallInput, Tag("function_call")]
    | Annotated[OutputInput, Tag("function_call_output")]
    | Annotated[ApprovalInput, Tag("mcp_approval_response")]
    | Annotated[ReferenceInput, Tag("item_reference")]
    | Annotated[PassedOverInput, Tag("passed_over")],
    Discriminator(
        _item_kind,
        custom_error_type="item",
        custom_error_message="Its type should be message, function_call, function_call_output, item_reference or"
        " mcp_approval_response",
    ),
]


class ConversationName(Lenient):
    id: wire.Id


class TextConfig(Lenient):
    format: dict[str, Any] | None = None
    verbosity: StrictStr | None = None

    @property
    def response_format(self) -> dict[str, Any] | None:
        """The format as Chat Completions have it."""
        asked = self.format or {}
        if asked.get("type") != "json_schema":
            return asked if asked.get("type") not in (None, "text") else None
        described = {name: value for name, value in asked.items() if name != "type"}
        return {"type": "json_schema", "json_schema": described}


class ResponseRequest(Lenient):
    """POST /v1/responses"""

    model: Annotated[StrictStr, Field(min_length=1, max_length=512)] | None = None
    input: StrictStr | Annotated[Many[InputItem], Field(min_length=1, max_length=wire.MAX_MESSAGES)]
    instructions: StrictStr | None = None
    previous_response_id: Annotated[StrictStr, Field(max_length=128)] | None = None
    conversation: wire.Id | ConversationName | None = None
    stream: StrictBool | None = False
    background: StrictBool | None = False
    store: StrictBool | None = True
    metadata: Metadata | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    max_output_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    text: TextConfig | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: StrictBool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    reasoning: dict[str, Any] | None = None
    include: list[Any] | None = None
    service_tier: StrictStr | None = None
    user: UserName = None
    safety_identifier: UserName = None
    prompt_cache_key: UserName = None

    @property
    def items(self) -> Sequence[Any]:
        if isinstance(self.input, str):
            return [MessageInput(role="user", content=self.input)]
        return self.input

    @property
    def conversation_id(self) -> str | None:
        named = self.conversation
        return named.id if isinstance(named, ConversationName) else named

    @property
    def functions(self) -> list[dict[str, Any]]:
        """The functions that the client runs; other tools are the agent's own business."""
        return [one for one in self.tools or () if not isinstance(one, dict) or one.get("type") == "function"]

    def checked(self) -> "ResponseRequest":
        """Refuses what excludes each other."""
        if self.previous_response_id is not None and self.conversation is not None:
            raise _together("previous_response_id", "conversation", "the first names the second's session already")
        if self.store is False and self.conversation is not None:
            raise in_a_conversation()
        if self.store is False and self.background:
            raise _together("store: false", "background", "nobody could ask for the response", "store")
        return self

    def as_chat(self, sent: Sequence[ChatMessage], model: str) -> ChatRequest:
        """The same request as Chat Completions know it."""
        system = [ChatMessage(role="system", content=self.instructions)] if self.instructions else []
        values = {
            "model": model,
            "messages": [*system, *sent],
            "stream": self.stream,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_output_tokens,
            "response_format": self.text.response_format if self.text else None,
            "user": self.user or self.safety_identifier,
            "metadata": self.metadata,
            "chat_id": self.conversation_id,
            "tools": [_nested(one) for one in self.functions] or None,
            "tool_choice": self._choice,
            "parallel_tool_calls": self.parallel_tool_calls,
        }
        try:
            return ChatRequest.model_validate(values)
        except pydantic.ValidationError as error:
            raise renamed(wire.validation_error(_Located(error))) from None

    @property
    def _choice(self) -> Any:
        """The choice among functions, if it is one."""
        choice = self.tool_choice
        if isinstance(choice, dict) and choice.get("type") == "function":
            return {"type": "function", "function": {"name": choice.get("name")}}
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            listed = choice.get("tools")
            named = [_nested(one) for one in listed if _is_function(one)] if isinstance(listed, list) else listed
            return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": named}}
        return choice if self.functions and not isinstance(choice, dict) else None

    def stored(self, model: str, given: Sequence[dict[str, Any]], *, shows_reasoning: bool) -> StoredRequest:
        """What the response keeps of it."""
        text = self.text.model_dump(exclude_none=True) if self.text else {}
        return StoredRequest(
            model=model,
            input=tuple(given),
            instructions=self.instructions,
            metadata=self.metadata or {},
            background=bool(self.background),
            max_output_tokens=self.max_output_tokens,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            previous_response_id=self.previous_response_id,
            conversation=self.conversation_id,
            reasoning=self.reasoning,
            service_tier=self.service_tier,
            temperature=self.temperature,
            top_p=self.top_p,
            text={"format": {"type": "text"}, **text},
            tool_choice=self.tool_choice if isinstance(self.tool_choice, str | dict) else "auto",
            tools=tuple(_listed(one) for one in self.tools or () if isinstance(one, dict)),
            truncation=self.truncation,
            prompt_cache_key=self.prompt_cache_key,
            safety_identifier=self.safety_identifier,
            user=self.user,
            shows_reasoning=shows_reasoning,
        )


class _Located(msgspec.Struct, frozen=True):
    """Errors as those of a body: with the body as the first part of their path."""

    error: pydantic.ValidationError

    def errors(self) -> Sequence[Any]:
        return [{**one, "loc": ("body", *one["loc"])} for one in self.error.errors()]


def _together(first: str, second: str, why: str, param: str = "previous_response_id") -> CallerError:
    return CallerError(f"{first} and {second} exclude each other: {why}.", param=param)


def in_a_conversation() -> CallerError:
    return _together("store: false", "a conversation", "a conversation keeps what is said in it", "store")


def renamed(error: CallerError) -> CallerError:
    """An error about the chat that a request became, with the names of this route."""
    names = {"messages": "input", "response_format": "text.format", "max_tokens": "max_output_tokens"}
    first = re.match(r"\w+", error.param or "")
    if first and first[0] in names:
        # Items and messages are counted differently.
        error.param = names[first[0]]
        error.args = (str(error).replace(f"Invalid value for {first[0]}", f"Invalid value for {error.param}"),)
    elif error.param:
        error.param = error.param.replace(".function", "")
    return error


def _is_function(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "function"


def _nested(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _listed(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as a response repeats it; clients expect these fields of a function."""
    if _is_function(tool):
        return {"parameters": None, "strict": None, **tool}
    shown: dict[str, Any] = _without_secrets(tool)
    # Some servers have keys in their addresses: only the host is repeated, as OpenAI does.
    return {**shown, "server_url": _host(tool["server_url"])} if "server_url" in tool else shown


def _without_secrets(value: Any, depth: int = 0) -> Any:
    if isinstance(value, dict):
        kept = {name: one for name, one in value.items() if name not in SECRET} if depth < DEEPEST else {}
        return {name: _without_secrets(one, depth + 1) for name, one in kept.items()}
    if isinstance(value, list):
        return [_without_secrets(one, depth + 1) for one in value] if depth < DEEPEST else []
    return value


def _host(url: Any) -> str:
    try:
        split = urlsplit(url if isinstance(url, str) else "")
        return f"{split.scheme}://{split.netloc.rpartition('@')[2]}" if split.netloc else ""
    except ValueError:
        return ""


# Decisions


def decisions_in(items: Sequence[Any]) -> list[tuple[int, ApprovalInput]]:
    """The decisions that a request takes, with their places: those after all that the agent has said. Earlier ones are
    history, which clients send again."""
    start = _after(items, lambda item: _is_of_agent(item) and not _asks_approval(item))
    found = [(index, item) for index, item in enumerate(items) if index >= start and isinstance(item, ApprovalInput)]
    if found and any(isinstance(item, OutputInput) for item in items[start:]):
        raise CallerError("Send decisions and results of functions in requests of their own.", param="input")
    return found


def has_message_beside(items: Sequence[Any]) -> bool:
    """Has the user written something since the agent asked for a decision?"""
    new = items[_after(items, _is_of_agent) :]
    return any(isinstance(item, MessageInput) and item.role == "user" for item in new)


def _after(items: Sequence[Any], fits: Callable[[Any], bool]) -> int:
    """The place after the last item that fits."""
    return next((index + 1 for index in reversed(range(len(items))) if fits(items[index])), 0)


def _is_of_agent(item: Any) -> bool:
    is_answer = isinstance(item, MessageInput) and item.role == "assistant"
    return is_answer or isinstance(item, CallInput | PassedOverInput)


def _asks_approval(item: Any) -> bool:
    return isinstance(item, PassedOverInput) and item.type == APPROVAL_REQUEST


# The input as messages


class InputReader(msgspec.Struct, frozen=True):
    """Reads the items of a request: images and files become what agents can read."""

    db: Database
    library: DocumentLibrary | None
    owner: str

    async def messages(self, items: Sequence[Any]) -> list[ChatMessage]:
        """The items as messages; several of ours in a row are one message, as they were one response."""
        sent: list[ChatMessage] = []
        images: list[Any] = []
        for index, item in enumerate(items):
            if images and not isinstance(item, OutputInput):
                sent.append(_of_results(images))
                images = []
            match item:
                case MessageInput(role="assistant"):
                    _join(sent, ChatMessage(role="assistant", content=_text(item.content)))
                case MessageInput():
                    content = await self._content(item.content, f"input[{index}].content")
                    sent.append(ChatMessage(role=item.role, content=content))
                case CallInput():
                    function = wire.FunctionCall(name=item.name, arguments=item.arguments)
                    call = wire.WireToolCall(id=item.call_id, function=function)
                    _join(sent, ChatMessage(role="assistant", tool_calls=[call]))
                case OutputInput():
                    parts = await self._content(item.output, f"input[{index}].output")
                    shown = [one for one in parts if one["type"] == "image_url"] if isinstance(parts, list) else []
                    text = parts if isinstance(parts, str) else _joined(parts) or (ONLY_IMAGES if shown else "")
                    sent.append(ChatMessage(role="tool", content=text, tool_call_id=item.call_id))
                    images += shown
                case ApprovalInput() if not sent or sent[-1].text != DECIDES:
                    sent.append(ChatMessage(role="user", content=DECIDES))
        return [*sent, _of_results(images)] if images else sent

    async def stored(self, items: Sequence[Any], response: str) -> list[dict[str, Any]]:
        """The items as GET …/input_items lists them; images are named by their files."""
        listed = [
            (index, item) for index, item in enumerate(items) if not isinstance(item, ReferenceInput | PassedOverInput)
        ]
        stored = [_kept_item(item, f"{response}_in{index}") for index, item in listed]
        for part in parts_in(stored):
            if part["type"] == "input_image":
                image = await stored_image(self.db, part["image_url"])
                part |= {"image_url": image.url, "media_type": image.media_type}
            part.pop("file_data", None)
        return stored

    async def _content(self, content: str | Sequence[Any], where: str) -> str | list[Any]:
        if isinstance(content, str):
            return content
        parts: list[Any] = []
        for index, part in enumerate(content):
            match part:
                case TextInput():
                    parts.append({"type": "text", "text": part.text})
                case ImageInput():
                    parts.append({"type": "image_url", "image_url": {"url": part.image_url, "detail": part.detail}})
                case FileInput():
                    parts.append({"type": "text", "text": await self._file_text(part, f"{where}[{index}].file_data")})
        return parts

    async def _file_text(self, part: FileInput, where: str) -> str:
        """The text of a file, under its name."""
        name = part.filename or "file"
        if self.library is None:
            raise CallerError("This server reads no files.", param=where)
        try:
            text = await self.library.text_of(_file_bytes(part.file_data or ""), name, owner=self.owner)
        except CallerError as error:
            error.param = where
            raise
        if len(text) > MAX_FILE_TEXT:
            raise CallerError(
                f"{name[:64]} has {len(text):,} characters of text, and a message takes {MAX_FILE_TEXT:,}: add it as a"
                " document (POST /v1/documents), for an agent that reads those.",
                param=where,
            )
        return f"File {name}:\n\n{text}"


def kept(items: Sequence[Any], name: str) -> list[dict[str, Any]]:
    """The items as a conversation keeps them: whole, with the images and files in them."""
    return [_kept_item(item, f"{name}_in{index}") for index, item in enumerate(items)]


def _kept_item(item: Any, name: str) -> dict[str, Any]:
    fields: dict[str, Any] = item.model_dump(exclude_none=True)
    if isinstance(item, MessageInput):
        kind = "output_text" if item.role == "assistant" else "input_text"
        parts = [TextInput(type="input_text", text=item.content)] if isinstance(item.content, str) else item.content
        content = [_kept_part(part, kind) for part in parts]
        fields = {"type": "message", "role": item.role, "content": content, "status": "completed"}
    elif isinstance(item, OutputInput):
        if not isinstance(item.output, str):
            fields["output"] = [_kept_part(part, "input_text") for part in item.output]
        fields["status"] = "completed"
    elif isinstance(item, CallInput):
        fields["status"] = "completed"
    return {**fields, "id": f"{PREFIXES.get(item.type, 'item')}_{name}"}


def parts_in(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts of messages, and of results of functions."""
    listed = [item[name] for item in items for name in ("content", "output") if isinstance(item.get(name), list)]
    return [part for parts in listed for part in parts]


def _kept_part(part: Any, kind: str) -> dict[str, Any]:
    match part:
        case ImageInput():
            return {"type": "input_image", "detail": part.detail or "auto", "image_url": part.image_url}
        case FileInput():
            return {"type": "input_file", "filename": part.filename or "file", "file_data": part.file_data}
        case RefusalInput():
            return {"type": "refusal", "refusal": part.refusal}
    return text_part(part.text, kind)


def text_part(text: str, kind: str) -> dict[str, Any]:
    return {"type": kind, "text": text, **({"annotations": [], "logprobs": []} if kind == "output_text" else {})}


def _text(content: str | Sequence[Any]) -> str:
    if isinstance(content, str):
        return content
    texts = (part.refusal if isinstance(part, RefusalInput) else getattr(part, "text", "") for part in content)
    return "\n\n".join(filter(None, texts))


def _joined(parts: Sequence[Any]) -> str:
    return "\n\n".join(part["text"] for part in parts if part["type"] == "text")


def _of_results(images: Sequence[Any]) -> ChatMessage:
    """Images that functions of the client have returned. Models take text alone as a result, so these follow it."""
    content: list[Any] = [{"type": "text", "text": RETURNED_IMAGES}, *images]
    return ChatMessage(role="user", content=content)


def _join(sent: list[ChatMessage], message: ChatMessage) -> None:
    last = sent[-1] if sent else None
    if last is None or last.role != "assistant":
        sent.append(message)
        return
    text = "\n\n".join(part for part in (last.text, message.text) if part)
    calls = [*(last.tool_calls or ()), *(message.tool_calls or ())]
    sent[-1] = ChatMessage(role="assistant", content=text, tool_calls=calls or None)
