"""MCP client: configuration of servers, connections, and their tools."""
