"""What the OpenAI routes keep beside the journals."""
