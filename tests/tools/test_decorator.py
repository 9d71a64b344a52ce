"""`@tool` makes a tool of an async function, with all that a tool of its own class has."""

import asyncio
import http.client
import inspect
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import aiohttp
import grpc
import httpx
import pytest
import requests
from pydantic import BaseModel, Field

from longhouse.agents.template import Template, ToolPolicy
from longhouse.errors import SetupError
from longhouse.journal import events
from longhouse.journal.events import Fault, Output
from longhouse.models.scripted import call
from longhouse.tools import BaseTool, ToolContext, tool
from longhouse.tools.base import ToolRegistry
from longhouse.tools.outcomes import is_in_doubt
from longhouse.tools.toolbox import Toolbox
from server_helpers import Serving, content, folded, opened, prompted, started, turn_of, used


class Place(BaseModel):
    city: str
    country: str = "NO"


@tool
async def weather(place: Place, days: Annotated[int, Field(ge=1, description="How many days")] = 1) -> str:
    """Tell the weather.

    In one place at a time.
    """
    return f"{days} of rain in {place.city}, {place.country}"


@tool(name="bank.pay", description="Pay a bill.", effect="once", timeout=5, max_output=10, needs_approval=True)
async def pay(amount: float, *, context: ToolContext, unit: Literal["EUR", "NOK"] = "EUR") -> str:
    """Not what the model reads."""
    context.sources["receipt"] = {"key": context.key}
    return f"paid {amount:g} {unit} and a lot more to say"


@tool
async def awkward(timeout: int, model_config: str, json: bool, description: str = "d", _x: int = 0) -> str:
    """Every argument has the name of something else."""
    return f"{timeout} {model_config} {json} {description} {_x}"


async def performed(cls: type[BaseTool], arguments: str) -> Any:
    session = folded(opened(), prompted("x"), started(2))
    session = folded(events.Replied(), used("1-action-0", tool=cls.tool_name, arguments=arguments), session=session)
    return await Toolbox([cls]).perform(session.open["1-action-0"], session, turn_of(session))


def test_a_function_becomes_a_tool_that_is_registered() -> None:
    assert issubclass(weather, BaseTool)
    assert ToolRegistry.get("weather") is weather
    described = weather.described()
    assert (described.name, described.description) == ("weather", "Tell the weather.\n\nIn one place at a time.")
    assert described.schema["properties"]["days"] == {
        "type": "integer", "minimum": 1, "default": 1, "description": "How many days",
    }  # fmt: skip
    assert list(described.schema["properties"]) == ["place", "days"]
    assert described.schema["required"] == ["place"]
    assert (described.effect, described.timeout) == ("read", 60.0)


def test_the_decorator_says_how_the_tool_behaves() -> None:
    described = pay.described()
    assert (described.name, described.description, described.effect) == ("bank.pay", "Pay a bill.", "once")
    assert (described.timeout, described.max_output, described.needs_approval) == (5, 10, True)
    assert list(described.schema["properties"]) == ["amount", "unit"], "the context is no argument"


async def test_arguments_are_parsed_as_annotated() -> None:
    result = await performed(weather, '{"place": {"city": "Oslo"}, "days": 3}')
    assert result.outcome == Output(content="3 of rain in Oslo, NO")


async def test_arguments_that_do_not_fit_are_told_by_their_own_names() -> None:
    outcome = (await performed(weather, '{"place": {}, "days": 0}')).outcome
    assert isinstance(outcome, Fault)
    assert outcome.message == (
        "the arguments of weather do not fit: place.city: Field required; "
        "days: Input should be greater than or equal to 1"
    )


async def test_what_is_written_to_the_context_is_kept() -> None:
    result = await performed(pay, '{"amount": 2.5, "unit": "NOK"}')
    assert result.outcome.content.startswith("paid 2.5 N\n[cut:")
    assert result.adds["sources"]["receipt"]["key"].endswith(":1-action-0")


async def test_an_argument_may_have_any_name() -> None:
    result = await performed(awkward, '{"timeout": 1, "model_config": "m", "json": true, "_x": 2}')
    assert result.outcome == Output(content="1 m True d 2")
    assert awkward.timeout == 60.0
    assert list(awkward.described().schema["properties"]) == ["timeout", "model_config", "json", "description", "_x"]


async def test_a_function_that_raises_is_a_fault() -> None:
    @tool
    async def broken() -> str:
        """Break."""
        raise LookupError("nothing there")

    outcome = (await performed(broken, "{}")).outcome
    assert outcome == Fault(code="tool_failed", message="LookupError: nothing there")


def test_what_cannot_be_a_tool_is_refused_where_it_is_defined() -> None:
    async def bare(city) -> str:  # type: ignore[no-untyped-def]
        return "x"

    async def loose(*cities: str) -> str:
        return "x"

    def blocking(city: str) -> str:
        return "x"

    assert not inspect.iscoroutinefunction(tool(blocking).__call__), "it runs in a thread"
    for function, why in ((bare, "'city' has no annotation"), (loose, "by name")):
        with pytest.raises(SetupError, match=why):
            tool(function)

    async def send(city: str) -> str:
        return "x"

    assert tool(name="look_again", remembers="page")(send).described().remembers == "page"
    with pytest.raises(SetupError, match="effect 'once': only a tool with the effect read can be remembered"):
        tool(effect="once", remembers="page")(send)


async def test_the_example_of_the_docs_runs_as_written() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tools.md").read_text("utf-8")
    [example] = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def pay" in block]
    made: dict[str, Any] = {"__name__": "docs"}
    exec(example, made)
    outcome = (await performed(made["weather"], '{"city": "Oslo", "days": 2}')).outcome
    assert outcome == Output(content="It rains in Oslo for 2 days.")
    assert made["pay"].described().effect == "once"
    outcome = (await performed(made["pay"], '{"amount": 2}')).outcome
    assert outcome.content.startswith("paid 2.0 under ")


async def test_an_agent_uses_it_like_any_other(serving: Serving) -> None:
    script = [call("weather", place={"city": "Bergen"}), call("finalanswertool", answer="Rain.")]
    chosen = Template(name="forecaster", tool_policy=ToolPolicy(allowlist=("weather", "finalanswertool")))
    async with serving(script, templates=[chosen], tools=[weather]) as house:
        answered = await house.say("Weather?", model="forecaster")
        assert content(answered) == "Rain."
        assert house.model is not None
        assert house.model.requests[1]["messages"][-1]["content"] == "1 of rain in Bergen, NO"


# What clients raise


def refused_by_grpc(status: grpc.StatusCode) -> grpc.RpcError:
    return grpc.aio.AioRpcError(status, grpc.aio.Metadata(), grpc.aio.Metadata())


@pytest.mark.parametrize(
    ("error", "in_doubt"),
    [
        (httpx.RemoteProtocolError("Server disconnected without sending a response."), True),
        (httpx.ReadError("gone"), True),
        (httpx.WriteError("gone"), True),
        (httpx.ConnectError("All connection attempts failed"), False),
        (httpx.LocalProtocolError("Illegal header"), False),
        (aiohttp.ServerDisconnectedError(), True),
        (aiohttp.ClientPayloadError("Response payload is not completed"), True),
        (aiohttp.InvalidURL("x"), False),
        (http.client.IncompleteRead(b"x"), True),
        (requests.exceptions.ChunkedEncodingError("cut"), True),
        (requests.exceptions.HTTPError("400"), False),
        (refused_by_grpc(grpc.StatusCode.UNAVAILABLE), True),
        (refused_by_grpc(grpc.StatusCode.DEADLINE_EXCEEDED), True),
        (refused_by_grpc(grpc.StatusCode.NOT_FOUND), False),
        (ExceptionGroup("two at once", [ValueError("no"), ConnectionResetError("gone")]), True),
        (ExceptionGroup("two at once", [ValueError("no")]), False),
    ],
)
def test_a_client_that_got_no_answer_does_not_know_what_happened(error: Exception, in_doubt: bool) -> None:
    wrapped = RuntimeError("paying failed")
    wrapped.__cause__ = error
    assert is_in_doubt(error) == is_in_doubt(wrapped) == in_doubt


async def test_what_real_servers_leave_open_is_in_doubt_and_a_closed_door_is_not() -> None:
    async def leaves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    async with httpx.AsyncClient(trust_env=False) as client:
        async with await asyncio.start_server(leaves, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(httpx.HTTPError) as lost:
                await client.post(f"http://127.0.0.1:{port}", json={})
        with pytest.raises(httpx.ConnectError) as refused:
            await client.post(f"http://127.0.0.1:{port}", json={})
    assert (is_in_doubt(lost.value), is_in_doubt(refused.value)) == (True, False)
