"""Time, as the rest of the code reads it: always with a zone, always UTC."""

from datetime import UTC, datetime


def now() -> datetime:
    return datetime.now(UTC)


def iso(moment: datetime) -> str:
    """ISO 8601 with zone, the form of every timestamp on the wire."""
    return moment.astimezone(UTC).isoformat()
