"""Tool bindings: from a descriptor to what runs it, a class, an HTTP endpoint, an MCP server or an agent."""
