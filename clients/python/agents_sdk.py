"""The OpenAI Agents SDK, with its default transport and its default client."""

import asyncio
import os
from typing import Any

from agents import Agent, HostedMCPTool, OpenAIConversationsSession, Runner, ToolOutputImage, function_tool
from clients.python.scenarios import IMAGE, MODEL, SECRETARY, TOLD, WEATHER, PriceList, Weather, play, same


def clerk(**more: Any) -> Agent[Any]:
    return Agent(name="Clerk", instructions="Be brief.", model=MODEL, **more)


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


async def followed(agent: Agent[Any], text: Any, **more: Any) -> tuple[str, Any]:
    """The text of a run that is streamed, and its result."""
    result, text_seen = Runner.run_streamed(agent, text, **more), ""
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text_seen += event.data.delta
    return text_seen, result


async def plain() -> None:
    told = TOLD["plain"]
    first = await Runner.run(clerk(), told["prompt"])
    same(first.final_output, told["answer"])
    second = await Runner.run(clerk(), [*first.to_input_list(), user(told["next"])])
    same(second.final_output, told["recalled"])
    third = await Runner.run(clerk(), told["next"], previous_response_id=second.last_response_id)
    same(third.final_output, told["recalled"])
    session = OpenAIConversationsSession()
    same((await Runner.run(clerk(), told["prompt"], session=session)).final_output, told["answer"])
    same((await Runner.run(clerk(), told["next"], session=session)).final_output, told["recalled"])


async def streamed() -> None:
    told = TOLD["streamed"]
    text, result = await followed(clerk(), told["prompt"])
    same(text, told["before"] + told["answer"])
    same(result.final_output, told["answer"])
    text, _ = await followed(clerk(), [*result.to_input_list(), user(told["next"])])
    same(text, told["recalled"])


async def tools() -> None:
    told, prices = TOLD["tools"], PriceList()
    agent = clerk(tools=[function_tool(prices.get_price)])
    result = await Runner.run(agent, told["prompt"])
    same(result.final_output, told["answer"])
    prices.check()
    second = await Runner.run(agent, [*result.to_input_list(), user(told["next"])])
    same(second.final_output, told["recalled"])
    again = PriceList()
    text, _ = await followed(clerk(tools=[function_tool(again.get_price)]), told["prompt"])
    same(text, told["answer"])
    again.check()


async def question() -> None:
    told = TOLD["question"]
    first = await Runner.run(clerk(), told["prompt"])
    same(first.final_output, told["question"])
    second = await Runner.run(clerk(), told["reply"], previous_response_id=first.last_response_id)
    same(second.final_output, told["answer"])
    text, asked = await followed(clerk(), told["prompt"])
    same(text, told["question"])
    text, _ = await followed(clerk(), [*asked.to_input_list(), user(told["reply"])])
    same(text, told["answer"])


async def approval() -> None:
    told, decided = TOLD["approval"], list[str]()

    def approve(request: Any) -> Any:
        decided.append(request.data.name)
        return {"approve": True}

    config: Any = {"type": "mcp", "server_label": "longhouse", "server_url": os.environ["OPENAI_BASE_URL"]}
    config["require_approval"] = "always"
    letters = HostedMCPTool(tool_config=config, on_approval_request=approve)
    secretary = Agent(name="Secretary", model=SECRETARY, tools=[letters])
    result = await Runner.run(secretary, told["prompt"])
    same((decided, result.final_output), (["lettertool"], told["answer"]))
    more = await Runner.run(secretary, [*result.to_input_list(), user(told["next"])])
    same(more.final_output, told["recalled"])


def take_photo(of: str) -> ToolOutputImage:
    """Takes a photo."""
    return ToolOutputImage(image_url=IMAGE)


async def images() -> None:
    told = TOLD["images"]
    content = [{"type": "input_text", "text": told["prompt"]}, {"type": "input_image", "image_url": IMAGE}]
    same((await Runner.run(clerk(), [user(content)])).final_output, told["answer"])
    agent = clerk(tools=[function_tool(take_photo)])
    same((await Runner.run(agent, told["photo"])).final_output, told["answer"])


async def structured() -> None:
    told = TOLD["structured"]
    result = await Runner.run(clerk(output_type=Weather), told["prompt"])
    same(result.final_output, WEATHER)
    _, followed_result = await followed(clerk(output_type=Weather), told["prompt"])
    same(followed_result.final_output, WEATHER)


if __name__ == "__main__":
    asyncio.run(
        play(
            "openai-agents",
            plain=plain,
            streamed=streamed,
            tools=tools,
            question=question,
            approval=approval,
            background="the SDK has no background",
            images=images,
            structured=structured,
        )
    )
