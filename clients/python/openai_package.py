"""The openai package, with client.responses."""

import asyncio
import json
from typing import Any, Final

from openai import AsyncOpenAI

from clients.python.scenarios import IMAGE, MODEL, SECRETARY, TOLD, WEATHER, PriceList, Weather, play, same, want

client = AsyncOpenAI(max_retries=0)
TOOL: Final = {
    "type": "function",
    "name": "get_price",
    "description": "The price of a thing.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"thing": {"type": "string"}},
        "required": ["thing"],
        "additionalProperties": False,
    },
}


PHOTO: Final = {
    "type": "function",
    "name": "take_photo",
    "strict": False,
    "parameters": {"type": "object", "properties": {"of": {"type": "string"}}},
}


async def ask(text: Any, **more: Any) -> Any:
    return await client.responses.create(model=MODEL, input=text, **more)


async def followed(text: Any, **more: Any) -> tuple[list[Any], Any]:
    """The events of a stream, and its response."""
    async with client.responses.stream(model=MODEL, input=text, **more) as stream:
        seen = [event async for event in stream]
        return seen, await stream.get_final_response()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def deltas(events: list[Any]) -> list[str]:
    return [event.delta for event in events if event.type == "response.output_text.delta"]


async def plain() -> None:
    told = TOLD["plain"]
    first = await ask(told["prompt"])
    same(first.output_text, told["before"] + told["answer"])
    same([item.type for item in first.output], ["reasoning", "message", "mcp_call", "message"])
    second = await ask([user(told["prompt"]), *first.output, user(told["next"])])
    same(second.output_text, told["recalled"])
    same((await ask(told["next"], previous_response_id=second.id)).output_text, told["recalled"])
    same((await client.responses.retrieve(first.id)).output_text, first.output_text)


async def streamed() -> None:
    told = TOLD["streamed"]
    events, final = await followed(told["prompt"])
    same("".join(deltas(events)), told["before"] + told["answer"])
    same(len(deltas(events)) > 2, True)
    same([event.sequence_number for event in events], [*range(len(events))])
    same(final.output_text, told["before"] + told["answer"])


def results(response: Any, prices: PriceList) -> list[Any]:
    """Runs the functions that a response asks for."""
    calls = [item for item in response.output if item.type == "function_call"]
    return [
        {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": prices.get_price(**json.loads(call.arguments)),
        }
        for call in calls
    ]


async def tools() -> None:
    told, prices = TOLD["tools"], PriceList()
    first = await ask(told["prompt"], tools=[TOOL])
    second = await ask(results(first, prices), tools=[TOOL], previous_response_id=first.id)
    same(second.output_text, told["answer"])
    prices.check()
    # The same as a stream, with everything sent again.
    again, sent = PriceList(), [user(told["prompt"])]
    _, asked = await followed(sent, tools=[TOOL])
    sent += [*asked.output, *results(asked, again)]
    _, done = await followed(sent, tools=[TOOL])
    same(done.output_text, told["answer"])
    again.check()
    sent += [*done.output, user(told["next"])]
    same((await ask(sent, tools=[TOOL])).output_text, told["recalled"])


async def question() -> None:
    told = TOLD["question"]
    first = await ask(told["prompt"])
    same(first.output_text, told["question"])
    same((await ask(told["reply"], previous_response_id=first.id)).output_text, told["answer"])
    _, asked = await followed(told["prompt"])
    same(asked.output_text, told["question"])
    _, done = await followed([user(told["prompt"]), *asked.output, user(told["reply"])])
    same(done.output_text, told["answer"])


async def approval() -> None:
    told = TOLD["approval"]
    sent: list[Any] = [user(told["prompt"])]
    asked: Any = await client.responses.create(model=SECRETARY, input=sent)
    [request] = [item for item in asked.output if item.type == "mcp_approval_request"]
    same(json.loads(request.arguments), told["letter"])
    sent += [*asked.output, {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}]
    done = await client.responses.create(model=SECRETARY, input=sent)
    same(done.output_text, told["answer"])
    sent += [*done.output, user(told["next"])]
    same((await client.responses.create(model=SECRETARY, input=sent)).output_text, told["recalled"])


async def background() -> None:
    told, seen = TOLD["background"], list[Any]()
    want("slowness")
    async for event in await ask(told["prompt"], background=True, stream=True):
        seen.append(event)
        if deltas(seen):
            break
    want("kill")
    response_id, after = seen[0].response.id, seen[-1].sequence_number
    seen += [e async for e in await client.responses.retrieve(response_id, stream=True, starting_after=after)]
    same([event.sequence_number for event in seen], [*range(len(seen))])
    same("".join(deltas(seen)), told["answer"])
    same(seen[-1].type, "response.completed")
    # Nobody follows this one: it is asked for until it is done, and the server is killed meanwhile.
    want("slowness")
    response = await ask(told["prompt"], background=True)
    same(response.status in ("queued", "in_progress"), True)
    want("kill")
    while response.status in ("queued", "in_progress"):
        await asyncio.sleep(0.1)
        response = await client.responses.retrieve(response.id)
    same((response.status, response.output_text), ("completed", told["answer"]))


async def images() -> None:
    told = TOLD["images"]
    content = [{"type": "input_text", "text": told["prompt"]}, {"type": "input_image", "image_url": IMAGE}]
    response = await ask([{"role": "user", "content": content}])
    same(response.output_text, told["answer"])
    listed: list[Any] = [item async for item in await client.responses.input_items.list(response.id)]
    same(listed[0].content[1].image_url, IMAGE)
    asked = await ask(told["photo"], tools=[PHOTO])
    [call] = [item for item in asked.output if item.type == "function_call"]
    output = [{"type": "input_image", "image_url": IMAGE}]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": output}
    same((await ask([result], tools=[PHOTO], previous_response_id=asked.id)).output_text, told["answer"])


async def structured() -> None:
    told = TOLD["structured"]
    parsed = await client.responses.parse(model=MODEL, input=told["prompt"], text_format=Weather)
    same(parsed.output_parsed, WEATHER)
    _, final = await followed(told["prompt"], text_format=Weather)
    same(final.output_parsed, WEATHER)


if __name__ == "__main__":
    asyncio.run(
        play(
            "openai",
            plain=plain,
            streamed=streamed,
            tools=tools,
            question=question,
            approval=approval,
            background=background,
            images=images,
            structured=structured,
        )
    )
