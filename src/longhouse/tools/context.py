"""ToolContext: the part of a session that a tool can read and write, and the changes that it made."""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

import msgspec
import pydantic

from longhouse.agents.tool_descriptor import ToolDescriptor
from longhouse.journal.messages import clean
from longhouse.journal.session import Open, Session, Turn
from longhouse.tools.sgr.sources import as_search, as_source
from longhouse.tools.sgr.states import AgentStatesEnum, state_name

if TYPE_CHECKING:
    # A tool process, which has no services, starts in half the time without a client for HTTP and one for Postgres.
    from longhouse.store.memory.memory_files import Memories
    from longhouse.tools.builtin.tavily import WebSearch

DEEPEST: Final = 64
"""Maximum nesting of a context value: far below the recursion limit."""
TOO_DEEP: Final = "[nested too deeply]"
MOST_BITS: Final = 14_280
"""Of a whole number: Python writes and reads no more than 4,300 digits, and a journal that holds more is not read."""
_KEPT: Final = ("searches", "sources", "current_step_reasoning", "custom_context", "found_tools")
"""Fields that last from call to call."""


@dataclass(frozen=True, slots=True)
class MadeFile:
    """A file that a tool created; it is stored as an artifact of the session together with the outcome."""

    path: str
    content: bytes
    media_type: str


FindTools = Callable[[Session, str, int], Awaitable[Sequence[ToolDescriptor]]]
"""Finds tools that a session may use, for a query and a limit, best first."""


class Documents(Protocol):
    """The library as the document tools use it: an owner's own documents and the shared ones, by `reg_id`."""

    async def list(self, owner: str) -> tuple[list[dict[str, Any]], int]:
        """What `list_documents` returns, and how many documents there are."""
        ...

    async def toc(
        self, owner: str, reg_id: str, *, max_depth: int = 3, expand_section: str | None = None
    ) -> dict[str, Any]:
        """What `get_toc` returns."""
        ...

    async def search(
        self,
        owner: str,
        query: str,
        reg_id: str | None = None,
        *,
        chapter_scope: str | None = None,
        limit: int = 10,
        block_types: Sequence[str] | None = None,
        section_number: str | None = None,
    ) -> Sequence[dict[str, Any]]:
        """What `smart_search` returns, the best first."""
        ...

    async def pages(self, owner: str, reg_id: str, start_page: int, end_page: int) -> Mapping[str, Any]:
        """What `read_page_range` returns."""
        ...

    async def revision(self, owner: str, reg_id: str | None = None) -> str:
        """Changes whenever the document does; without `reg_id`, whenever any document of the owner does.

        Raises `UnknownDocument` for one that is not there.
        """
        ...


class Services(msgspec.Struct, frozen=True):
    """Services that the application gives to tools; each is None unless it is configured."""

    search: "WebSearch | None" = None
    memory: "Memories | None" = None
    find_tools: FindTools | None = None
    documents: Documents | None = None


class Fields(dict[str, Any]):
    """A dict whose keys are also attributes: its value may have been a Pydantic model when it was written."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no {name!r} here") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


@dataclass(slots=True)
class ToolContext:
    """The part of a session that a tool sees. Its writes are recorded in the journal with its outcome."""

    session_id: str
    conversation_id: str
    owner: str
    user: str | None
    """The user of the turn, who may be another than the session's; None if its request names none."""
    agent: str
    call: str
    key: str
    """The idempotency key of this call: the same for all attempts, and in all branches that have inherited it."""
    services: Services = field(default_factory=Services)
    session: Session | None = None
    """The session at the time of the call."""
    memory_scope: str = "agent"
    made: list[MadeFile] = field(default_factory=list)
    """Files to store as artifacts; append to it."""
    state: AgentStatesEnum | str = AgentStatesEnum.RESEARCHING
    iteration: int = 0
    searches_used: int = 0
    clarifications_used: int = 0
    searches: list[Any] = field(default_factory=list)
    """SearchResult objects."""
    sources: dict[str, Any] = field(default_factory=dict)
    """SourceData objects, by address."""
    execution_result: str | None = None
    current_step_reasoning: Any = None
    custom_context: Any = None
    """Free state of tools: a dict or a Pydantic model; later calls read it as a dict."""
    found_tools: list[str] = field(default_factory=list)
    """Tools that the agent found; they are offered from the next step on."""

    @property
    def own_key(self) -> str:
        """Identifies the call in this session alone: for what each branch has of its own."""
        return f"{self.session_id}:{self.call}"


class ContextChanges(msgspec.Struct, frozen=True):
    """The fields that a tool may write, with types that the journal can store."""

    state: str
    searches_used: int
    searches: list[Any]
    sources: dict[str, Any]
    execution_result: str | None
    current_step_reasoning: Any
    custom_context: dict[str, Any]
    found_tools: list[str]


def key_of(session: Session, call: Open) -> str:
    """The idempotency key of a call; one that a branch has inherited keeps the key under which it may have been run."""
    return f"{session.maker_of(call.seq)}:{call.call}"


def context_of(call: Open, session: Session, turn: Turn, services: Services, memory_scope: str) -> ToolContext:
    return ToolContext(
        session_id=session.id,
        conversation_id=session.conversation,
        owner=session.owner,
        user=session.user if session.is_own(turn) else (turn.user or "").strip() or None,
        agent=session.agent,
        call=call.call,
        key=key_of(session, call),
        session=session,
        services=services,
        memory_scope=memory_scope,
        iteration=turn.iteration,
        searches_used=turn.searches_used,
        clarifications_used=turn.clarifications_used,
        **(kept_fields(kept_of(session)) if session.context else {}),
    )


def kept_of(session: Session) -> dict[str, Any]:
    """What tools have kept in the session, as plain values; copies, since a session is immutable for tools too."""
    kept = {name: session.context[name] for name in _KEPT if name in session.context}
    copied: dict[str, Any] = _copied(kept, lambda value: value, lambda: TOO_DEEP)
    return copied


def kept_fields(kept: dict[str, Any]) -> dict[str, Any]:
    """The same as the fields of a ToolContext, which are objects."""
    return {
        "searches": [as_search(search) for search in kept.get("searches", ())],
        "sources": {url: as_source(source) for url, source in kept.get("sources", {}).items()},
        "current_step_reasoning": _by_attribute(kept.get("current_step_reasoning")),
        "custom_context": _by_attribute(kept.get("custom_context") or None),
        "found_tools": kept.get("found_tools", []),
    }


def _copied(value: Any, leaf: Callable[[Any], Any], too_deep: Callable[[], Any]) -> Any:
    """A copy as the journal stores it, by `leaf` and `too_deep`. Where these have nothing to do, as nearly always, the
    copy is read from its JSON, in a fifth of the time."""
    with suppress(ValueError, RecursionError):  # half of a character, or a number that is too long
        text = msgspec.json.encode(value)
        if b"\\u0000" not in text and text.count(b"{") + text.count(b"[") <= DEEPEST:
            return msgspec.json.decode(text)
    return _mapped(value, leaf, too_deep, DEEPEST + 1)


def _mapped(value: Any, leaf: Callable[[Any], Any], too_deep: Callable[[], Any], levels: int) -> Any:
    """A copy with `leaf` applied to keys and plain values, and `too_deep` called below the maximum nesting."""
    kind = type(value)
    if kind is not dict and kind is not list and kind is not tuple:
        return leaf(value)
    if levels == 0:
        return too_deep()
    if kind is dict:
        return {leaf(key): _mapped(item, leaf, too_deep, levels - 1) for key, item in value.items()}
    return [_mapped(item, leaf, too_deep, levels - 1) for item in value]


def _by_attribute(value: Any) -> Any:
    return Fields(value) if isinstance(value, dict) else value


def is_blank(context: ToolContext, turn: Turn) -> bool:
    """Whether the context is as a call finds it in a session in which no tool has kept anything."""
    return (
        context.state is AgentStatesEnum.RESEARCHING
        and context.searches == []
        and context.sources == {}
        and context.found_tools == []
        and context.execution_result is context.current_step_reasoning is context.custom_context is None
        and context.searches_used is turn.searches_used  # equal is not enough: a tool may have made it True
    )


def written(context: ToolContext) -> dict[str, Any]:
    """The context as it is stored in the journal."""
    values = {name: getattr(context, name) for name in ContextChanges.__struct_fields__}
    # Parallel calls each start with an empty one: their additions are merged.
    values["custom_context"] = {} if context.custom_context is None else context.custom_context
    try:
        plain = msgspec.to_builtins(values, str_keys=True, enc_hook=_plain)
    except RecursionError:
        _refuse_deep()
    kept = msgspec.convert(_copied(plain, _cleaned, _refuse_deep), ContextChanges)
    return {**msgspec.structs.asdict(kept), "state": state_name(kept.state)}


def _plain(value: Any) -> Any:
    if isinstance(value, pydantic.BaseModel):
        # A tool may have put anything into the fields; what cannot be stored is refused later, without a warning here.
        return value.model_dump(mode="json", warnings=False)
    raise TypeError(f"a tool cannot keep a {type(value).__name__} in its context")


def _cleaned(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if type(value) is int and value.bit_length() > MOST_BITS:
        raise ValueError("a tool cannot keep a whole number of more than 4298 digits in its context")
    return clean(value) if isinstance(value, str) else value


def _refuse_deep() -> NoReturn:
    raise ValueError(f"a tool cannot keep values in its context that are nested deeper than {DEEPEST} levels")


def changes_of(
    context: ToolContext, turn: Turn, before: dict[str, Any] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The changes of a tool to its context since `before`; None: the context was blank, as in most calls."""
    if before is not None:
        return changes(before, written(context))
    if is_blank(context, turn):
        return {}, {}
    blank: dict[str, Any] = {
        "state": AgentStatesEnum.RESEARCHING.name,
        "searches_used": turn.searches_used,
        "searches": [],
        "sources": {},
        "execution_result": None,
        "current_step_reasoning": None,
        "custom_context": {},
        "found_tools": [],
    }
    return changes(blank, written(context))


def changes(before: dict[str, Any], after: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields that were set, and the additions to fields; parallel calls can add without overwriting each other."""
    writes, adds = {}, {}
    for name, value in after.items():
        was = before[name]
        if value == was:
            continue
        added = _added(was, value)
        if added is None:
            writes[name] = value
        else:
            adds[name] = added
    return writes, adds


def _added(was: Any, value: Any) -> Any:
    """The difference if `value` contains all of `was`; otherwise None."""
    if isinstance(was, list) and isinstance(value, list) and value[: len(was)] == was:
        return value[len(was) :]
    if isinstance(was, dict) and isinstance(value, dict) and was.keys() <= value.keys():
        return {key: item for key, item in value.items() if key not in was or was[key] != item}
    if isinstance(was, int) and isinstance(value, int) and not isinstance(value, bool):
        return value - was
    return None
