"""BaseAgent, the base class of all strategies. A subclass is registered under its `name` when it is defined."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal

import msgspec

from longhouse.agents import entrypoints
from longhouse.agents.entrypoints import EntrypointError
from longhouse.agents.naming import key
from longhouse.agents.registry import Registry
from longhouse.agents.requests import answer_format, pieces, window
from longhouse.agents.strategies.protocol import ANY_FORMAT, Body, Intent, Reply, Request, Verdict
from longhouse.agents.template import Template
from longhouse.agents.tool import Tool, wire_names
from longhouse.errors import SetupError
from longhouse.journal.events import ClientTools, Sampling
from longhouse.journal.session import Session, Turn

NO_SAMPLING: Final = Sampling()


class AgentRegistry(Registry[type["BaseAgent"]]):
    """The strategies that templates may name as their `base_agent_class`."""

    old_names: ClassVar[dict[str, str]] = {
        "SGRAutoToolCallingAgent": "SGRToolCallingAgent",
        "SGRSOToolCallingAgent": "SGRAgent",
    }
    _modules = tuple(f"longhouse.agents.strategies.{name}" for name in ("structured", "tool_calling"))

    @classmethod
    def is_ours(cls, name: str) -> bool:
        """Whether the name is that of a class that comes with Longhouse, or was."""
        return cls.newer(name) is not None or _is_ours(cls._all().get(key(name)))

    @classmethod
    def list_items(cls) -> list[type["BaseAgent"]]:
        """Those that a template may name: none that the server uses for itself."""
        return [item for item in super().list_items() if item.asks_model or not _is_ours(item)]

    @classmethod
    def load(cls, name: str, packages: Sequence[str]) -> type["BaseAgent"] | None:
        """The class of this name. `package.module:ClassName` is imported from an allowed package, and is registered
        under this name too; EntrypointError says why it cannot be."""
        if ":" not in name:
            return cls.get(name)
        if problem := entrypoints.check(name, packages):
            raise EntrypointError(problem)
        found = entrypoints.imported(name)
        if not isinstance(found, type) or not issubclass(found, BaseAgent) or found is BaseAgent:
            module, _, missing = name.partition(":")
            raise EntrypointError(f"{module} has no agent class {missing}")
        cls.register(found, name=name)
        return found


class BaseAgent:
    """A strategy: `propose` a request from the session, `interpret` the reply. It is stateless: the journal determines
    what comes next."""

    name: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()
    """Tools that the strategy requires: its agents are offered them in every step."""
    asks_model: ClassVar[bool] = True
    """False: what it proposes is itself the reply, as JSON (`models/echo.py`)."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = cls.__dict__.get("name") or cls.__name__
        if not _is_ours(cls) and AgentRegistry.is_ours(cls.name):
            raise SetupError(f"an agent class {cls.name!r} comes with Longhouse; give yours another name")
        AgentRegistry.register(cls, name=cls.name)

    def propose(self, session: Session, template: Template, offered: Sequence[Tool]) -> Request:
        raise NotImplementedError(f"{type(self).__name__} does not say what it asks: define `propose`")

    def interpret(self, request: Request, reply: Reply) -> Verdict:
        """Calls become intents under the tools' real names; text without a call is the answer."""
        if not reply.calls:
            return Verdict(answer=reply.text)
        intents = [
            Intent(tool=request.names.get(call.name, call.name), arguments=call.arguments, provider_id=call.id)
            for call in reply.calls
        ]
        return Verdict(intents=tuple(intents))

    def request(
        self,
        session: Session,
        template: Template,
        offered: Sequence[Tool],
        *,
        tools: Sequence[Tool] = (),
        force: str | None = None,
        response_format: msgspec.Raw = ANY_FORMAT,
        text_is: Literal["answer", "thought", "structure"] = "answer",
        phase: str = "",
        extra_system: str = "",
    ) -> Request:
        """The session as a request: `offered` are open to the agent, `tools` are sent as functions."""
        turn, offered = session.latest_turn, tuple(offered)
        found = pieces.of(session.transcript)
        wire = _wire(offered, tuple(tools), pieces.tools_used(found))
        policy, asked = template.llm_policy, turn.prompted.sampling or NO_SAMPLING
        # A client's response format applies to answers: structured output of the strategy has its own format.
        if asked.response_format and response_format is ANY_FORMAT and text_is != "structure":
            can_follow = policy.can.json_schema or turn.form < window.SHAPED
            response_format = msgspec.Raw(asked.response_format.encode()) if can_follow else ANY_FORMAT
        if turn.form >= window.SHAPED:
            extra_system = "\n\n".join(filter(None, (extra_system, answer_format.words(turn))))
        client = turn.client_tools
        body = Body(
            model=policy.model or "",
            messages=window.compose(
                session, turn, template, offered, wire.names, extra_system=extra_system, found=found
            ),
            tools=wire.specs,
            tool_choice=_tool_choice(template, turn, tools, wire.names.get(force or "")),
            parallel_tool_calls=bool(tools)
            and policy.can.parallel_tool_calls
            and force is None
            and (client is None or client.parallel),
            response_format=response_format,
            temperature=policy.temperature if asked.temperature is None else asked.temperature,
            top_p=asked.top_p,
            max_tokens=asked.max_tokens or policy.max_tokens,
            seed=asked.seed,
            stop=asked.stop,
            reasoning_effort=policy.effort,
            extra=policy.extra,
        )
        return Request(body, names=wire.real_names, text_is=text_is, phase=phase, offered=offered, only=force)


@dataclass(frozen=True, slots=True)
class _WireNames:
    """The names of tools on the wire, the way back, and the definitions that are sent."""

    names: Mapping[str, str]
    real_names: Mapping[str, str]
    specs: tuple[msgspec.Raw, ...]


@lru_cache(maxsize=256)
def _wire(offered: tuple[Tool, ...], tools: tuple[Tool, ...], used: frozenset[str]) -> _WireNames:
    """Made once for the same tools: a turn is mostly offered the same in every step, and calls those."""
    names = wire_names([*[tool.name for tool in offered], *used])
    real_names = {wire: name for name, wire in names.items()}
    specs = tuple([tool.spec(names[tool.name]) for tool in tools])
    return _WireNames(MappingProxyType(names), MappingProxyType(real_names), specs)


def _is_ours(cls: type[BaseAgent] | None) -> bool:
    return cls is not None and f"{cls.__module__}.".startswith("longhouse.")


def _is_optional(tool: Tool, client: ClientTools) -> bool:
    """Is it a function of the client that the model need not call, and that does not end the turn?"""
    return tool.role == "client" and tool.name not in client.must_call and not tool.finishes


def _tool_choice(template: Template, turn: Turn, tools: Sequence[Tool], force: str | None) -> str | dict[str, Any]:
    if not tools:
        return ""
    if not template.llm_policy.can.forced_tool_choice:
        return "auto"
    if not force and turn.client_tools is not None and all(_is_optional(tool, turn.client_tools) for tool in tools):
        return "auto"  # the answer can only be given in words
    return {"type": "function", "function": {"name": force}} if force else "required"
