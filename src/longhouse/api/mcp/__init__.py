"""The MCP server: agents as tools, documents as resources."""
