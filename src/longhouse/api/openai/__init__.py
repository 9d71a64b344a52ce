"""The OpenAI protocol: chat completions and models."""
