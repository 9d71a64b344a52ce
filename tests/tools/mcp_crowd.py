"""An MCP server with fifty tools, over stdio: more than an agent is offered at once."""

from fastmcp import FastMCP

server = FastMCP("crowd")


def drawer(number: int) -> None:
    @server.tool(name=f"open_drawer_{number}", annotations={"readOnlyHint": True})
    def opened() -> str:
        """Look into a drawer of the big cupboard."""
        return f"drawer {number}"


for number in range(50):
    drawer(number)

server.run(show_banner=False)
