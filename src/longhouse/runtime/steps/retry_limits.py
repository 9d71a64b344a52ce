"""How long trouble of a model is waited out, and how long each wait is."""

import random

import msgspec


class RetryLimits(msgspec.Struct, frozen=True):
    """Retry limits and back-off for provider errors, in seconds."""

    attended: float = 60.0
    """Limit while a client waits for the answer."""
    unattended: float = 900.0
    first: float = 0.5
    longest: float = 15.0

    def delay(self, attempts: int, retry_after: float | None) -> float:
        """Seconds until the next attempt: as the provider says, or else growing with the attempts."""
        if retry_after is not None:
            return retry_after
        jitter = random.uniform(0.8, 1.2)  # noqa: S311 - spreads retries, keeps no secret
        return float(min(self.first * 2**attempts, self.longest) * jitter)
