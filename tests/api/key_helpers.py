"""What stories about keys are told with: a house that has an admin key, and clients with keys of their own."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from attack_helpers import refusal
from fastapi import FastAPI
from fastapi.routing import RouteContext, iter_route_contexts

from longhouse.models.scripted import Playable
from server_helpers import House, Serving

ADMIN = "k3y-of-the-house-9f27"


def keyed(serving: Serving, script: Playable | None = None, **settings: Any) -> AbstractAsyncContextManager[House]:
    """A house whose door is shut: `house.http` brings no key."""
    return serving(script, admin_key=ADMIN, **settings)


@dataclass(frozen=True)
class Client:
    """Somebody with a key, or without one."""

    house: House
    key: str = ""
    id: str = ""

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    def ask(self, method: str, path: str, body: Any = None, **extra: str) -> Any:
        """A request as a context manager, as aiohttp has it; `extra` are headers."""
        headers = {**self.headers, **{name.replace("_", "-"): value for name, value in extra.items()}}
        return self.house.http.request(method, path, json=body, headers=headers)

    async def got(self, path: str) -> Any:
        async with self.ask("GET", path) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def say(self, text: str, *, model: str = "tool_calling_agent", **extra: Any) -> Any:
        """The answer to one message, not streamed."""
        body = {"model": model, "messages": [{"role": "user", "content": text}], **extra}
        async with self.ask("POST", "/v1/chat/completions", body) as response:
            return await response.json()

    async def status(self, method: str, path: str, body: Any = None) -> int:
        async with self.ask(method, path, body) as response:
            await response.read()
            return int(response.status)

    async def refused(self, method: str, path: str, body: Any = None, **extra: str) -> Any:
        """The refusal that this must be: its status and its error."""
        async with self.ask(method, path, body, **extra) as response:
            found = await refusal(response)
            return found.status, found.error

    @asynccontextmanager
    async def streaming(self, path: str, body: Any = None) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self.ask("POST" if body else "GET", path, body) as response:
            assert response.status == 200, await response.text()
            yield response


def admin_of(house: House) -> Client:
    return Client(house, ADMIN, "admin")


async def client_of(house: House, owner: str, role: str = "user", **limits: Any) -> Client:
    """A client with a new key, made over the Admin API."""
    body = {"name": f"{owner}'s", "owner": owner, "role": role, **limits}
    async with admin_of(house).ask("POST", "/admin/keys", body) as response:
        made = await response.json()
        assert response.status == 201, made
        return Client(house, made["key"], made["id"])


def routes_of(house: House) -> Iterator[RouteContext]:
    """Every route of the house, also those that its OpenAPI document does not show."""
    app: Any = house.app.asgi
    while not isinstance(app, FastAPI):
        app = app.app
    yield from iter_route_contexts(app.routes)


def methods_of(route: RouteContext) -> list[str]:
    return sorted((route.methods or {"GET"}) - {"HEAD", "OPTIONS"})
