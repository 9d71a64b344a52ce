"""The protocols of chat models and embedding models, and the streamed deltas that a chat model yields."""

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from longhouse.agents.strategies.protocol import Body
from longhouse.errors import ProviderError
from longhouse.journal.events import Usage

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A fragment of one tool call; `id` and `name` come with the first fragment of that index."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    extra: Any = None
    """What the endpoint wants back with the call."""


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """The merged content of one network read. The engine builds the reply from deltas; deltas are not recorded."""

    text: str = ""
    reasoning: str = ""
    returns_reasoning: bool = False
    """As in `Replied`."""
    refusal: str = ""
    """Words with which the model refuses to answer."""
    extra: Any = None
    """What the endpoint wants back with the message."""
    calls: tuple[ToolCallDelta, ...] = ()
    usage: Usage | None = None
    finish: str | None = None
    model: str | None = None


def joined_extra(old: Any, new: Any) -> Any:
    """What has come so far, and what comes now: objects come in pieces."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **new}
    return new


class Model(Protocol):
    """Streams a reply. Every failure is raised as ProviderError."""

    def stream(self, body: Body) -> AsyncGenerator[Delta, None]: ...


def paid_for(error: ProviderError, usage: Usage | None) -> ProviderError:
    """The error with the usage of the failed reply, where the usage is known."""
    error.usage = error.usage or usage
    return error


class Embedder(Protocol):
    """Turns texts into vectors of length one. Every failure is raised as ProviderError."""

    name: str
    """The name of the vector space: only vectors of the same name can be compared."""
    dimensions: int

    async def embed(self, texts: Sequence[str]) -> "npt.NDArray[np.float32]":
        """One row for each text."""
        ...
