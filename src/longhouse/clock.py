"""The current time, always with a time zone and in UTC."""

from datetime import UTC, datetime


def now() -> datetime:
    return datetime.now(UTC)


def iso(moment: datetime) -> str:
    """ISO 8601 with time zone, the format of all timestamps on the wire."""
    return moment.astimezone(UTC).isoformat()
