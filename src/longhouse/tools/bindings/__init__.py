"""From a tool's description to what runs it: a class, an HTTP endpoint, an MCP server, an agent."""
