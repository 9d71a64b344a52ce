"""A tool's text, as much of it as an agent is shown."""


def bounded(text: str, limit: int) -> str:
    """The first characters, and how many were left out."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[cut: {len(text) - limit} of {len(text)} characters left out]"
