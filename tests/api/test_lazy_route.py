"""A route is made once, at its first request, whoever else asks for it at that moment."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.routing import Match

from longhouse.api.http.lazy_route import LazyRoute

ASKING = 8


async def shown(room_id: str) -> dict[str, str]:
    return {"room_id": room_id}


def test_those_who_ask_for_a_route_at_once_get_the_same_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    whole = APIRoute.__init__

    def slowly(route: APIRoute, *args: Any, **given: Any) -> None:
        made.append(route)
        threading.Event().wait(0.05)  # the others come while it is made
        whole(route, *args, **given)

    monkeypatch.setattr(APIRoute, "__init__", slowly)
    route = LazyRoute("/rooms/{room_id}", shown, methods=["GET"])
    assert route.matches({"type": "http", "path": "/rooms/7", "method": "GET"})[0] is Match.FULL
    assert made == []
    together = threading.Barrier(ASKING)

    def asked(_: int) -> Any:
        together.wait(10)
        return route.app

    with ThreadPoolExecutor(ASKING) as threads:
        apps = set(threads.map(asked, range(ASKING)))
    assert (len(apps), made) == (1, [route])


def test_a_route_that_cannot_be_made_says_so_each_time() -> None:
    async def unknown(room: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    route = LazyRoute("/rooms", unknown)
    for _ in range(2):
        with pytest.raises(NameError, match="Nowhere"):
            _ = route.app
