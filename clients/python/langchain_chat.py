"""LangChain: ChatOpenAI with use_responses_api, by itself and in an agent."""

import asyncio
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from clients.python.scenarios import IMAGE, MODEL, SECRETARY, TOLD, WEATHER, PriceList, Weather, play, same


def chat(model: str = MODEL, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(model=model, use_responses_api=True, max_retries=0, **more)


async def followed(model: Any, talk: list[BaseMessage]) -> tuple[list[str], Any]:
    """The pieces of a stream, and the message that they make."""
    whole: Any = None
    pieces: list[str] = []
    async for chunk in model.astream(talk):
        pieces.append(chunk.text)
        whole = chunk if whole is None else whole + chunk
    return [piece for piece in pieces if piece], whole


async def plain() -> None:
    told = TOLD["plain"]
    talk: list[BaseMessage] = [HumanMessage(told["prompt"])]
    first = await chat().ainvoke(talk)
    same(first.text, told["before"] + told["answer"])
    ways: list[dict[str, Any]] = [{}, {"output_version": "v1"}, {"use_previous_response_id": True}]
    for way in ways:
        talk += [first, HumanMessage(told["next"])]
        first = await chat(**way).ainvoke(talk)
        same(first.text, told["recalled"])


async def streamed() -> None:
    told = TOLD["streamed"]
    talk: list[BaseMessage] = [HumanMessage(told["prompt"])]
    pieces, whole = await followed(chat(), talk)
    same("".join(pieces), told["before"] + told["answer"])
    same(len(pieces) > 2, True)
    same(isinstance(whole, AIMessageChunk), True)
    talk += [whole, HumanMessage(told["next"])]
    pieces, _ = await followed(chat(), talk)
    same("".join(pieces), told["recalled"])


async def tools() -> None:
    told, prices = TOLD["tools"], PriceList()
    agent = create_agent(chat(), [tool(prices.get_price)])
    asked: Any = {"messages": [HumanMessage(told["prompt"])]}
    result: Any = await agent.ainvoke(asked)
    same(result["messages"][-1].text, told["answer"])
    prices.check()
    more: Any = {"messages": [*result["messages"], HumanMessage(told["next"])]}
    same((await agent.ainvoke(more))["messages"][-1].text, told["recalled"])
    again, text = PriceList(), ""
    agent = create_agent(chat(streaming=True), [tool(again.get_price)])
    async for message, _ in agent.astream(asked, stream_mode="messages"):
        if isinstance(message, AIMessage):
            text += message.text
    same(text, told["answer"])
    again.check()


async def question() -> None:
    told = TOLD["question"]
    talk: list[BaseMessage] = [HumanMessage(told["prompt"])]
    asked = await chat().ainvoke(talk)
    same(asked.text, told["question"])
    same((await chat().ainvoke([*talk, asked, HumanMessage(told["reply"])])).text, told["answer"])
    _, whole = await followed(chat(use_previous_response_id=True), talk)
    same(whole.text, told["question"])
    pieces, _ = await followed(chat(use_previous_response_id=True), [*talk, whole, HumanMessage(told["reply"])])
    same("".join(pieces), told["answer"])


async def approval() -> None:
    told = TOLD["approval"]
    talk: list[BaseMessage] = [HumanMessage(told["prompt"])]
    asked: Any = await chat(SECRETARY).ainvoke(talk)
    [request] = [block for block in asked.content if block["type"] == "mcp_approval_request"]
    decision = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
    talk += [asked, HumanMessage([decision])]
    done = await chat(SECRETARY).ainvoke(talk)
    same(done.text, told["answer"])
    talk += [done, HumanMessage(told["next"])]
    same((await chat(SECRETARY).ainvoke(talk)).text, told["recalled"])


def take_photo(of: str) -> list[dict[str, str]]:
    """Takes a photo."""
    return [{"type": "image", "base64": TOLD["images"]["image"], "mime_type": "image/png"}]


async def images() -> None:
    told = TOLD["images"]
    text = {"type": "text", "text": told["prompt"]}
    openai_form = {"type": "image_url", "image_url": {"url": IMAGE}}
    own_form = {"type": "image", "base64": told["image"], "mime_type": "image/png"}
    for image in (openai_form, own_form):
        same((await chat().ainvoke([HumanMessage([text, image])])).text, told["answer"])
    asked: Any = {"messages": [HumanMessage(told["photo"])]}
    result = await create_agent(chat(), [tool(take_photo)]).ainvoke(asked)
    same(result["messages"][-1].text, told["answer"])


async def structured() -> None:
    told = TOLD["structured"]
    same(await chat().with_structured_output(Weather).ainvoke(told["prompt"]), WEATHER)
    seen = [part async for part in chat().with_structured_output(Weather).astream(told["prompt"])]
    same(seen[-1], WEATHER)


if __name__ == "__main__":
    asyncio.run(
        play(
            "langchain-openai",
            plain=plain,
            streamed=streamed,
            tools=tools,
            question=question,
            approval=approval,
            background="ChatOpenAI cannot ask for a response again",
            images=images,
            structured=structured,
        )
    )
