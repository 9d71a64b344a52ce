"""An MCP server with six tools, over stdio: a diary that people keep for their house."""

from fastmcp import FastMCP

server = FastMCP("diary")


@server.tool(annotations={"readOnlyHint": True})
def list_entries(limit: int = 10) -> str:
    """List the latest entries of the diary."""
    return f"{limit} entries"


@server.tool(annotations={"readOnlyHint": True})
def search_entries(query: str) -> str:
    """Search the diary for what was written about something."""
    return f"nothing about {query}"


@server.tool
def add_entry(text: str) -> str:
    """Remember something: write a new entry into the diary."""
    return f"written: {text}"


@server.tool
def change_entry(number: int, text: str) -> str:
    """Change an entry of the diary."""
    return f"{number}: {text}"


@server.tool
def remove_entry(number: int) -> str:
    """Remove an entry from the diary."""
    return f"{number} is gone"


@server.tool(annotations={"readOnlyHint": True})
def plan_week(goal: str) -> str:
    """Plan the research of the week from the diary, and ask the web about it."""
    return f"a plan for {goal}"


if __name__ == "__main__":
    server.run(show_banner=False, log_level="ERROR")
