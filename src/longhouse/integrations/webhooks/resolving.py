"""Resolves the names of receivers in threads of their own: anybody with a key may name a host that is never resolved.

The threads are shared with nothing else, so that only webhooks wait for them. A name is asked for once at a time,
however many deliveries wait for it. Threads are not waited for when the process ends.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

MOST_THREADS: Final = 32

Ask = Callable[[str, int], Sequence[tuple[Any, ...]]]


def _ask(host: str, port: int) -> Sequence[tuple[Any, ...]]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


class Resolver:
    """A `Lookup`."""

    def __init__(self, ask: Ask = _ask, most: int = MOST_THREADS) -> None:
        self._ask = ask
        self._free = asyncio.Semaphore(most)
        self._asked: dict[tuple[str, int], asyncio.Task[list[str]]] = {}

    async def __call__(self, host: str, port: int) -> list[str]:
        asked = self._asked.get((host, port))
        if asked is None:
            asked = self._asked[host, port] = asyncio.create_task(self._found(host, port))
            asked.add_done_callback(lambda _: self._asked.pop((host, port), None))
        # Who gives up waiting leaves the answer to others.
        return await asyncio.shield(asked)

    async def _found(self, host: str, port: int) -> list[str]:
        async with self._free:  # until the thread has ended, whether somebody still waits or not
            found = await self._in_thread(host, port)
        return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))

    async def _in_thread(self, host: str, port: int) -> Sequence[tuple[Any, ...]]:
        answer: Future[Sequence[tuple[Any, ...]]] = Future()
        answer.set_running_or_notify_cancel()  # whoever waits may be cancelled; the thread is not

        def run() -> None:
            try:
                answer.set_result(self._ask(host, port))
            except Exception as error:  # noqa: BLE001 - it is raised where the answer is awaited
                answer.set_exception(error)

        threading.Thread(target=run, name="webhook-resolver", daemon=True).start()
        return await asyncio.wrap_future(answer)
