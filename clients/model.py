"""The model behind the server: it plays the scenarios, and says what it was given, so that a client can check it."""

import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from longhouse.agents.strategies.protocol import Body
from longhouse.api.openai.responses.request import RETURNED_IMAGES
from longhouse.journal.messages import Assistant, ImagePart, Message, ToolResult, User, text_of
from longhouse.models.scripted import Call, Say, call, say, step_of

SCENARIOS: Final[dict[str, Any]] = json.loads(Path(__file__).with_name("scenarios.json").read_text("utf-8"))
PIECE: Final = 10
"""Characters in which the model writes: a stream has several pieces."""
SLOWLY: Final = 1.0
"""Seconds between the pieces of a story that is about to be interrupted."""


class Model:
    def __init__(self) -> None:
        self.is_slow = False
        """The next story is told slowly, so that the server can be killed in its middle."""

    def __call__(self, body: Body) -> Say:
        asked = text_of(_asking(body.messages).content)
        name = next((name for name, told in SCENARIOS.items() if told["prompt"] in asked), "")
        if name == "background":
            is_slow, self.is_slow = self.is_slow, False
            return say(SCENARIOS[name]["answer"], chunk=PIECE, delay=SLOWLY if is_slow else 0.0)
        if asked == SCENARIOS["images"]["photo"]:
            return _takes_photo(body.messages)
        if not name:
            return _goes_on(body.messages, asked)
        return PLAYS[name](SCENARIOS[name], body.messages, step_of(body.messages))


def _looks_and_answers(told: Any, messages: Sequence[Message], step: int) -> Say:
    return _looks(told["before"]) if step == 0 else say(told["answer"], chunk=PIECE)


def _calls_the_client(told: Any, messages: Sequence[Message], step: int) -> Say:
    """Uses a tool of the agent itself, then two of the client, and says what these have returned."""
    if step == 0:
        return _looks("")
    if step == 1:
        return Say(calls=tuple(Call(name="get_price", arguments={"thing": thing}) for thing in told["prices"]))
    results = [message.content for message in messages if isinstance(message, ToolResult)]
    prices = zip(told["prices"], results[-len(told["prices"]) :], strict=True)
    return say("; ".join(f"{thing}: {price}" for thing, price in prices) + ".", chunk=PIECE)


def _asks(told: Any, messages: Sequence[Message], step: int) -> Say:
    return _looks("") if step == 0 else call("clarificationtool", questions=[told["question"]])


def _writes(told: Any, messages: Sequence[Message], step: int) -> Say:
    """Uses a tool that somebody has to approve."""
    return call("lettertool", **told["letter"]) if step == 0 else say(told["answer"], chunk=PIECE)


def _takes_photo(messages: Sequence[Message]) -> Say:
    """Has the client take a photo, and says what came back."""
    has_photo = any(isinstance(message, ToolResult) for message in messages)
    return _sees({}, messages, 0) if has_photo else call("take_photo", of="cat")


def _sees(told: Any, messages: Sequence[Message], step: int) -> Say:
    content = _users(messages)[-1].content
    urls = [part.image_url.url for part in content if isinstance(part, ImagePart)]
    size = sum(len(base64.b64decode(url.partition("base64,")[2])) for url in urls)
    return say(f"A picture of {size} bytes.")


def _answers_with_data(told: Any, messages: Sequence[Message], step: int) -> Say:
    answer = call("finalanswertool", answer=told["answer"], status="completed")
    return _looks(told["before"]) if step == 0 else answer


PLAYS: Final[dict[str, Callable[[Any, Sequence[Message], int], Say]]] = {
    "plain": _looks_and_answers,
    "streamed": _looks_and_answers,
    "tools": _calls_the_client,
    "question": _asks,
    "approval": _writes,
    "images": _sees,
    "structured": _answers_with_data,
}


def _goes_on(messages: Sequence[Message], asked: str) -> Say:
    """Clients do not send calls of the agent's own tools: who knows of them goes on with the same session."""
    calls = [one.function.name for message in messages if isinstance(message, Assistant) for one in message.tool_calls]
    words = {"clocktool": " I looked at the clock before.", "lettertool": " I wrote a letter before."}
    done = "".join(text for tool, text in words.items() if tool in calls)
    if asked == SCENARIOS["question"]["reply"]:
        return say(f"You said: {asked}{done}")
    return say(f"You asked: {text_of(_users(messages)[0].content)}{done}")


def _looks(text: str) -> Say:
    """Thinks, says something, and uses a tool of the agent itself."""
    return Say(reasoning="The clock will tell.", text=text, calls=call("clocktool").calls)


def _asking(messages: Sequence[Message]) -> User:
    """What the user has written last; images that a function returned follow it."""
    users = _users(messages)
    return users[-2] if text_of(users[-1].content) == RETURNED_IMAGES else users[-1]


def _users(messages: Sequence[Message]) -> list[User]:
    return [message for message in messages if isinstance(message, User)]
