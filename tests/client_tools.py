"""A client that runs functions itself, as programs with OpenAI's package do: it resends everything."""

from typing import Any

import msgspec

from server_helpers import AGENT, HouseClient, user

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Погода в городе. 查询天气。",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "城市"},
                "days": {"type": "integer", "minimum": 1},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def function(name: str, **parameters: Any) -> dict[str, Any]:
    """A function that takes these properties."""
    schema = {"type": "object", "properties": parameters}
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": schema}}


class Program:
    """Keeps the whole list of messages, and runs the calls that it gets."""

    def __init__(self, house: HouseClient, *tools: dict[str, Any], model: str = AGENT, **extra: Any) -> None:
        self.house = house
        self.body: dict[str, Any] = {"model": model, "tools": list(tools or (WEATHER,)), **extra}
        self.messages: list[Any] = []
        self.headers: dict[str, str] = {}

    async def send(self, *new: Any, **extra: Any) -> Any:
        """The body of the answer, whatever it is; what was answered is part of what is sent next."""
        status, answer = await self.sent(*new, **extra)
        if status == 200:
            message = answer["choices"][0]["message"]
            kept = {key: message[key] for key in ("role", "content", "tool_calls") if key in message}
            self.messages += [*new, kept]
        return answer

    async def sent(self, *new: Any, **extra: Any) -> tuple[int, Any]:
        """The status and the body of an answer that is not kept."""
        body = {**self.body, "messages": [*self.messages, *new], **extra}
        async with self.house.http.post("/v1/chat/completions", json=body, headers=self.headers) as response:
            return response.status, await response.json()

    async def say(self, text: str, **extra: Any) -> Any:
        return await self.send(user(text), **extra)

    @property
    def calls(self) -> list[Any]:
        """What it was last asked to run."""
        return list(self.messages[-1].get("tool_calls", ()))

    def results(self, *texts: str) -> list[dict[str, Any]]:
        """Tool messages for its calls, in their order."""
        return [result(call["id"], text) for call, text in zip(self.calls, texts, strict=True)]


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def finish(answer: Any) -> str:
    assert "choices" in answer, answer
    return str(answer["choices"][0]["finish_reason"])


def arguments(call: Any) -> Any:
    return msgspec.json.decode(call["function"]["arguments"])
