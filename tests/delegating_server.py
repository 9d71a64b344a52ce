"""Agents that call agents: the cast of stories, and a house for them in a process of its own.

Every agent says its name in its system prompt, so that one model can play all of them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import uvloop

from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import PromptPack, Template, ToolPolicy
from longhouse.app import TOOLS
from longhouse.journal.events import Effect
from longhouse.journal.messages import System, ToolResult, User, text_of
from longhouse.models.scripted import Choose, Say, call, step_of
from longhouse.tools import BaseTool, ToolContext

if TYPE_CHECKING:
    from server_helpers import House, Serving

NAMES = ("master", "analytic", "ann", "ben", "cem", "dia", "eva")
PLAIN = ("clarificationtool", "finalanswertool", "collecttool", "clocktool", "signtool")


class SignTool(BaseTool):
    """Sign a paper; not before a person has approved it, and not twice."""

    effect: ClassVar[Effect] = "once"
    needs_approval: ClassVar[bool] = True

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return "signed"


def agent(name: str, *, calls: Sequence[str] = NAMES, tools: Sequence[str] = PLAIN, **parts: Any) -> Template:
    """An agent that may call these others, and use these tools."""
    allowed = (*(f"agent.{one}" for one in calls), *tools)
    policy = ToolPolicy(allowlist=allowed, max_tools_in_prompt=60, selection_strategy="static")
    template = Template(name=name, prompt_pack=PromptPack(system_prompt=f"I am {name}."), tool_policy=policy)
    narrowed = parts.pop("narrowed", {})
    return replace(template, tool_policy=replace(policy, **narrowed), **parts)


CAST = tuple(agent(name) for name in NAMES)

Role = Callable[[Body], Say]


def cast(**roles: Role) -> Choose:
    """One model that plays each agent by its role."""

    def play(body: Body) -> Say:
        return roles[name_of(body)](body)

    return play


def playing(serving: "Serving", /, roles: Mapping[str, Role], **settings: Any) -> AbstractAsyncContextManager["House"]:
    """A Longhouse with the cast, on a model that plays these roles."""
    return serving(cast(**roles), **{"templates": CAST, "tools": [SignTool], **settings})


def name_of(body: Body) -> str:
    system = body.messages[0]
    assert isinstance(system, System)
    return str(system.content).splitlines()[0].removeprefix("I am ").removesuffix(".")


def in_steps(*says: Say) -> Role:
    """The same replies in every turn, one after another; the last one repeats."""
    return lambda body: says[min(step_of(body.messages), len(says) - 1)]


def task_of(body: Body) -> str:
    """What was last said to the agent."""
    return next(text_of(one.content) for one in reversed(body.messages) if isinstance(one, User))


def results(body: Body) -> list[str]:
    """What tools and agents have returned since somebody last spoke, in the order of the calls."""
    found: list[str] = []
    for message in body.messages:
        if isinstance(message, User):
            found = []
        elif isinstance(message, ToolResult):
            found.append(message.content)
    return found


def ask(name: str, task: str, **extra: Any) -> Say:
    return call(f"agent_{name}", task=task, **extra)


def answer(text: str, **extra: Any) -> Say:
    return call("finalanswertool", answer=text, **extra)


def question(text: str) -> Say:
    return call("clarificationtool", questions=[text])


def last_result(body: Body) -> Say:
    return answer(results(body)[-1])


def requests_of(model: Any, name: str) -> list[list[dict[str, Any]]]:
    """The messages of each request that this agent made, without the system prompt."""
    found = (request["messages"] for request in model.requests)
    return [messages[1:] for messages in found if messages[0]["content"].startswith(f"I am {name}.")]


async def sessions_of(db: Any, name: str, side: str = "sub") -> list[str]:
    rows = await db.rows(
        "SELECT id FROM sessions WHERE agent = :agent AND side = :side ORDER BY created_at, id", agent=name, side=side
    )
    return [row["id"] for row in rows]


async def session_of(db: Any, name: str, side: str = "sub") -> str:
    """The one session of this agent."""
    [found] = await sessions_of(db, name, side)
    return found


async def appears(db: Any, sql: str, *, within: float = 30.0, **values: Any) -> Any:
    """The first value of a query that is not nothing."""
    async with asyncio.timeout(within):
        while not (found := await db.value(sql, **values)):
            await asyncio.sleep(0.01)
        return found


def cast_house(**environment: Any) -> Any:
    """This file in a process of its own."""
    from server_helpers import launched  # noqa: PLC0415 - the tests' own helpers are not there when this file is the program

    return launched(str(Path(__file__)), **environment)


if __name__ == "__main__":
    from bare_server import serve  # it lies beside this file, which is the program now

    uvloop.run(serve(templates=CAST, tools=(*TOOLS, SignTool)))
