"""Truncates the text output of a tool."""


def bounded(text: str, limit: int) -> str:
    """The first `limit` characters, and how many were cut."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[cut: {len(text) - limit} of {len(text)} characters left out]"
