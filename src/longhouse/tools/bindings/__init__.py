"""Tool bindings: from a descriptor to what runs it, a class, an HTTP or gRPC endpoint, an MCP server or an agent."""
