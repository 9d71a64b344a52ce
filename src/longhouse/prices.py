"""What models cost, where the operator says so: prices of a million tokens."""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

import msgspec

MILLION = 1_000_000
HOW = "should be like gpt-4o-mini=0.15/0.60, with the prices of a million tokens read and written, and of cached ones"


class Price(msgspec.Struct, frozen=True):
    """Of a million tokens, in the currency of the settings."""

    prompt: Decimal
    completion: Decimal
    cached: Decimal | None = None
    """Of tokens that the model's cache knew; None: as of others that it reads."""

    def of(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> Decimal:
        cached = self.prompt if self.cached is None else self.cached
        read = (prompt_tokens - cached_tokens) * self.prompt + cached_tokens * cached
        return (read + completion_tokens * self.completion) / MILLION


def parse(given: tuple[str, ...]) -> Mapping[str, Price]:
    """Model -> its price, of items like `gpt-4o-mini=0.15/0.60` or `gpt-4o-mini=0.15/0.60/0.075`."""
    found: dict[str, Price] = {}
    for item in given:
        model, _, numbers = item.rpartition("=")
        try:
            prices = [Decimal(number) for number in numbers.split("/")]
        except InvalidOperation:
            raise ValueError(HOW) from None
        is_right = all(price.is_finite() and price >= 0 for price in prices)
        if not model.strip() or len(prices) not in (2, 3) or not is_right or model.strip() in found:
            raise ValueError(HOW)
        found[model.strip()] = Price(*prices)
    return found
