"""Keys of the settings that could be guessed."""

from typing import Final

WELL_KNOWN: Final = ("password", "changeme", "change-me", "change_me", "secret", "admin", "longhouse", "your-", "your_")
"""Parts of the keys that examples use."""
LEAST_KEY: Final = 16


def is_easy(admin_key: str) -> bool:
    """Whether a key of the settings could be guessed; such a key is served on loopback addresses only."""
    is_short = len(admin_key) < LEAST_KEY or len(set(admin_key)) < LEAST_KEY / 2
    return is_short or any(word in admin_key.lower() for word in WELL_KNOWN)
