"""The Responses API: /v1/responses and /v1/conversations, in OpenAI's shapes."""
