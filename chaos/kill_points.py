"""The points at which a process kills itself, as if the power went out exactly there.

The product has no code for this: the process that is started with a point wraps the functions that are named here.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from chaos.patching import Function, replaced

Role = Literal["gateway", "worker"]
KILLED_AT: Final = "chaos: killed at "
"""Begins the last line of the log of a process that killed itself."""


@dataclass(frozen=True)
class Point:
    """Where a process dies: before or after one of these functions, or in the middle of what it sends."""

    name: str
    role: Role
    moment: Literal["before", "after", "after_first_item", "half_sent"]
    targets: tuple[str, ...]


POINTS: Final = (
    Point(
        "after_accept_before_commit",
        "gateway",
        "before",
        ("longhouse.runtime.inbox:Inbox.open", "longhouse.runtime.inbox:Inbox.prompt"),
    ),
    Point("after_commit_before_reply", "gateway", "before", ("longhouse.runtime.inbox:Inbox._delivered",)),
    Point("at_first_chunk", "gateway", "after_first_item", ("longhouse.api.openai.completions:Completion.chunks",)),
    Point("mid_sse_write", "gateway", "half_sent", ("longhouse.api.http.streaming:EventStream._write",)),
    Point("at_waiting_to_resumed", "gateway", "after", ("longhouse.runtime.inbox:Inbox.answer",)),
    Point("after_claim", "worker", "before", ("longhouse.runtime.workers.worker:Worker._run",)),
    Point("after_reply_before_journal", "worker", "after", ("longhouse.runtime.engine:listen",)),
    Point("after_effect_before_journal", "worker", "after", ("longhouse.tools.bindings.http:RemoteBinding._call",)),
    Point("after_journal_before_ack", "worker", "after", ("longhouse.runtime.recorder:Recorder._write",)),
    Point("between_claim_and_resumed", "worker", "before", ("longhouse.runtime.engine:Engine._take_over",)),
    Point(
        "after_delegation_commit",
        "worker",
        "after",
        ("longhouse.store.delegation.delegations:begin", "longhouse.store.delegation.delegations:end"),
    ),
)
BY_NAME: Final = {point.name: point for point in POINTS}


class Trigger:
    """Kills this process when the point is passed for the n-th time."""

    def __init__(self, name: str, nth: int) -> None:
        self._name = name
        self._left = nth

    def is_due(self) -> bool:
        self._left -= 1
        return self._left == 0

    def kill(self) -> None:
        sys.stderr.write(f"{KILLED_AT}{self._name}\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    def passed(self) -> None:
        if self.is_due():
            self.kill()


def arm(name: str, nth: int) -> None:
    """This process dies when it passes the point for the n-th time."""
    point, trigger = BY_NAME[name], Trigger(name, nth)
    for target in point.targets:
        replaced(target, lambda function: _WRAPS[point.moment](function, trigger))


def _before(function: Function, trigger: Trigger) -> Function:
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        trigger.passed()
        return await function(*args, **kwargs)

    return wrapped


def _after(function: Function, trigger: Trigger) -> Function:
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = await function(*args, **kwargs)
        if result is not None:
            trigger.passed()
        return result

    return wrapped


def _after_first_item(function: Function, trigger: Trigger) -> Function:
    async def wrapped(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        is_first = True
        async for item in function(*args, **kwargs):
            yield item
            if is_first:
                is_first = False
                trigger.passed()

    return wrapped


def _half_sent(function: Function, trigger: Trigger) -> Function:
    def cutting(send: Function) -> Function:
        async def cut(message: dict[str, Any]) -> None:
            body = message.get("body", b"")
            if len(body) > 1 and trigger.is_due():
                await send({**message, "body": body[: len(body) // 2]})
                await asyncio.sleep(0.05)  # until the half is on its way
                trigger.kill()
            await send(message)

        return cut

    async def wrapped(response: Any, send: Function, inflight: Any) -> None:
        inflight.send = cutting(inflight.send)
        await function(response, cutting(send), inflight)

    return wrapped


_WRAPS: Final[dict[str, Callable[[Function, Trigger], Function]]] = {
    "before": _before,
    "after": _after,
    "after_first_item": _after_first_item,
    "half_sent": _half_sent,
}
