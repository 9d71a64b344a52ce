"""MCP servers: which there are, how they are reached, and the tools that they list."""
