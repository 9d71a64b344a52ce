"""A2A, the Agent2Agent protocol: each template is an agent with a card, and a turn of a session is a task."""
