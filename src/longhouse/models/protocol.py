"""Who thinks: the protocol that every model follows, and the fragments it answers with."""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from longhouse.agents.strategies.protocol import Body
from longhouse.errors import ProviderError
from longhouse.journal.events import Usage


class CallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A fragment of one tool call; `id` and `name` come with the first fragment of that index."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What one network read brought, added up. Fragments are not facts: the engine makes the reply of them."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()
    usage: Usage | None = None
    finish: str | None = None
    model: str | None = None


class Model(Protocol):
    """Streams a reply. Raises ProviderError, and nothing else, for whatever goes wrong on the way."""

    def stream(self, body: Body) -> AsyncGenerator[Delta, None]: ...


class PaidError(ProviderError):
    """A reply that came to nothing, and whose tokens count all the same."""

    def __init__(self, error: ProviderError, usage: Usage) -> None:
        super().__init__(str(error), retryable=error.retryable, retry_after=error.retry_after, told=error.told)
        self.usage = usage


def paid_for(error: ProviderError, usage: Usage | None) -> ProviderError:
    """The error, with what the failed reply has cost, where that is known."""
    return PaidError(error, usage) if usage and not isinstance(error, PaidError) else error


class Embedder(Protocol):
    """Turns texts into vectors of length one. Raises ProviderError, and nothing else, for whatever goes wrong."""

    @property
    def name(self) -> str:
        """Says which vectors can be compared: those of the same name."""
        ...

    @property
    def dimensions(self) -> int: ...

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """A row for each text."""
        ...
