"""BaseAgent, the base class of all strategies. A subclass is registered under its `name` when it is defined."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import msgspec

from longhouse.agents import entrypoints, window
from longhouse.agents.entrypoints import EntrypointError
from longhouse.agents.registry import Registry
from longhouse.agents.strategies.protocol import ANY_FORMAT, Body, Intent, Reply, Request, Verdict
from longhouse.agents.template import Template
from longhouse.agents.tool import Tool, wire_names
from longhouse.journal.events import Sampling
from longhouse.journal.session import Session
from longhouse.journal.transcript import Step


class AgentRegistry(Registry[type["BaseAgent"]]):
    """The strategies that templates may name as their `base_agent_class`."""

    _old_names: ClassVar[dict[str, str]] = {
        "SGRAutoToolCallingAgent": "SGRToolCallingAgent",
        "SGRSOToolCallingAgent": "SGRAgent",
    }

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
        AgentRegistry.register(cls, name=cls.name)

    def propose(self, session: Session, template: Template, offered: Sequence[Tool]) -> Request:
        raise NotImplementedError(f"{type(self).__name__} does not say what it asks: define `propose`")

    def interpret(self, request: Request, reply: Reply) -> Verdict:
        """Calls become intents under the tools' real names; text without a call is the answer."""
        if not reply.calls:
            return Verdict(answer=reply.text)
        intents = (
            Intent(tool=request.names.get(call.name, call.name), arguments=call.arguments, provider_id=call.id)
            for call in reply.calls
        )
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
        turn = session.turn
        if turn is None:
            raise ValueError("a request is composed for a turn: this session has not started one")
        used = (use.tool for entry in session.transcript if isinstance(entry, Step) for use in entry.uses)
        names = wire_names((*(tool.name for tool in offered), *used))
        policy, asked = template.llm_policy, turn.prompted.sampling or Sampling()
        # A client's response format applies to answers: structured output of the strategy has its own format.
        if asked.response_format and response_format is ANY_FORMAT and text_is != "structure":
            response_format = msgspec.Raw(asked.response_format.encode())
        body = Body(
            model=policy.model or "",
            messages=window.compose(session, turn, template, offered, names, extra_system=extra_system),
            tools=tuple(tool.spec(names[tool.name]) for tool in tools),
            tool_choice=_tool_choice(template, tools, names.get(force or "")),
            parallel_tool_calls=bool(tools) and policy.can.parallel_tool_calls and force is None,
            response_format=response_format,
            temperature=policy.temperature if asked.temperature is None else asked.temperature,
            top_p=asked.top_p,
            max_tokens=asked.max_tokens or policy.max_tokens,
            seed=asked.seed,
            stop=asked.stop,
        )
        back = {wire: name for name, wire in names.items()}
        return Request(body, names=back, text_is=text_is, phase=phase, offered=tuple(offered), only=force)


def _tool_choice(template: Template, tools: Sequence[Tool], force: str | None) -> str | dict[str, Any]:
    if not tools:
        return ""
    if not template.llm_policy.can.forced_tool_choice:
        return "auto"
    return {"type": "function", "function": {"name": force}} if force else "required"
