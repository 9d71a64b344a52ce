"""An MCP server to be tried with: over stdio (`stdio`) or streamable HTTP (`http PORT`, or in plain JSON `json PORT`).

It leaves a line in the file `NOTES` for its process id, and for every list and every call that reaches it.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import mcp_types
from fastmcp import Context, FastMCP
from fastmcp.server.middleware import Middleware, MiddlewareContext
from fastmcp.tools import ToolResult
from starlette.middleware import Middleware as ASGIMiddleware

OVER = sys.argv[1]

server = FastMCP("tried")

STUMBLES: list[str] = []
"""Why the next listing fails."""


def note(line: str) -> None:
    with Path(os.environ["NOTES"]).open("a") as file:
        file.write(f"{line}\n")


class Notes(Middleware):
    async def on_list_tools(self, context: MiddlewareContext[Any], call_next: Any) -> Any:
        if OVER == "stdio":  # over HTTP the library lists for itself too; there, Wire counts what clients ask for
            note("list")
        if STUMBLES:
            raise ValueError(STUMBLES.pop())
        return await call_next(context)

    async def on_call_tool(self, context: MiddlewareContext[Any], call_next: Any) -> Any:
        note(f"call {context.message.name}")
        return await call_next(context)


class Wire:
    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if context := dict(scope.get("headers", ())).get(b"traceparent"):
            note(f"traceparent {context.decode()}")

        async def heard() -> Any:
            message = await receive()
            if b'"tools/list"' in message.get("body", b""):
                note("list")
            return message

        await self.app(scope, heard, send)


server.add_middleware(Notes())


@server.tool(annotations={"readOnlyHint": True}, meta={"longhouse/remembers": "page"})
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations={"idempotentHint": True}, meta={"longhouse/remembers": "page"})
def put(name: str) -> dict[str, Any]:
    """Put something somewhere."""
    return {"name": name, "kept": True}


@server.tool(description=os.environ.get("SENDS", "Send something, once."))
def send(to: str) -> str:
    return f"sent to {to}"


@server.tool
def huge(size: int) -> str:
    return "x" * size


@server.tool
def fail() -> str:
    raise ValueError(f"no luck with {os.environ.get('TOKEN', '')}")


@server.tool
async def hang() -> str:
    await asyncio.sleep(600)
    return "never"


@server.tool
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "rested"


@server.tool
def die() -> str:
    os._exit(3)


@server.tool
def tell() -> str:
    """What it was started with."""
    print(f"my token is {os.environ.get('TOKEN')}", file=sys.stderr, flush=True)
    return f"TOKEN={os.environ.get('TOKEN')} LONGHOUSE={os.environ.get('LONGHOUSE_LLM_API_KEY')} pid={os.getpid()}"


@server.tool
def picture() -> ToolResult:
    image = mcp_types.ImageContent(type="image", data="AAAA" * 1000, mime_type="image/png")
    link = mcp_types.ResourceLink(type="resource_link", name="notes", uri="file:///notes.txt")
    return ToolResult(content=[mcp_types.TextContent(type="text", text="Here:"), image, link])


@server.tool
async def grow(name: str, context: Context) -> str:
    """Offers one more tool from now on, and `send` no more."""

    def grown(word: str) -> str:
        """A tool that came later."""
        return word.upper()

    server.tool(grown, name=name)
    server.local_provider.remove_tool("send")
    await context.send_notification(mcp_types.ToolListChangedNotification())
    return "grown"


@server.tool
async def stumble(context: Context) -> str:
    """Says that its tools changed, and cannot list them when asked."""
    STUMBLES.append("not now")
    await context.send_notification(mcp_types.ToolListChangedNotification())
    return "stumbled"


if __name__ == "__main__":
    note(f"pid {os.getpid()}")
    for nth in range(int(os.environ.get("BANNER", "0"))):
        print(f"*** line {nth} of a banner, with {os.environ['TOKEN']} ***", file=sys.stderr, flush=True)
    if OVER != "stdio":
        server.run(
            transport="http",
            host="127.0.0.1",
            port=int(sys.argv[2]),
            middleware=[ASGIMiddleware(Wire)],
            show_banner=False,
            log_level="ERROR",
            json_response=OVER == "json",
        )
    else:
        server.run(show_banner=False, log_level="ERROR")
