"""Real clients of the Responses API against a running server: `make clients`, see docs/clients.md."""
