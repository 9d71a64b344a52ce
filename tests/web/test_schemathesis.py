"""Whatever our own OpenAPI document allows, and much that it does not, is answered without a fault on our side."""

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import requests
import schemathesis
from hostile import ask
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from keyring import ADMIN, admin_of, keyed
from schemathesis import Case, GenerationMode

from longhouse.web.admin_docs import TEMPLATE, TOOL
from support import House, Serving

EXAMPLES: Final = 12
"""Requests of each kind, fitting and unfitting, for each operation."""
PATIENCE: Final = 20.0
"""Seconds that an answer may take to begin."""


class Caller:
    """Sends cases. Of a stream only its beginning is awaited: one that stays open is an answer, and is hung up on."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._http = requests.Session()
        self.statuses: list[tuple[str, int]] = []

    def send(self, case: Case) -> None:
        asked = case.as_transport_kwargs(base_url=self._url)
        asked["headers"] = {**asked.get("headers", {}), "authorization": f"Bearer {ADMIN}"}
        with self._http.request(**asked, stream=True, timeout=PATIENCE) as answer:
            is_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
            said = "" if is_stream else answer.text
            self.statuses.append((f"{case.method} {case.operation.path}", answer.status_code))
            assert answer.status_code < 500, f"{case.as_curl_command()}\n{answer.status_code} {said[:1000]}"
            assert answer.headers["x-request-id"].startswith("req_")
            if answer.status_code >= 400:
                assert list(answer.json()) == ["error"], said[:1000]

    def close(self) -> None:
        self._http.close()


def play(caller: Caller, document: Any, known: dict[str, str]) -> None:
    """Calls every operation, those that take something away last; half of the time with ids that exist."""
    for operation in in_order(schemathesis.openapi.from_dict(document)):
        for mode in GenerationMode:

            @given(case=operation.as_strategy(generation_mode=mode), is_known=st.booleans())
            @settings(
                max_examples=EXAMPLES,
                derandomize=True,  # the same requests in every run: what fails once fails again
                database=None,
                deadline=None,
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def sent(case: Case, is_known: bool) -> None:
                if is_known:
                    case.path_parameters.update({k: v for k, v in known.items() if k in case.path_parameters})
                caller.send(case)

            sent()


def in_order(schema: Any) -> Iterator[Any]:
    found = [result.ok() for result in schema.get_all_operations()]
    yield from sorted(found, key=lambda one: (one.method == "delete", "deactivate" in one.path, one.path))


async def prepared(house: House) -> dict[str, str]:
    """A session that asks, a template, a tool and a key: what path parameters can name."""
    admin = admin_of(house)
    session = (await admin.say("hi"))["model"]
    for path, body in (("/admin/tools", TOOL), ("/admin/templates", TEMPLATE)):
        assert await admin.status("POST", path, body) == 201
    return {
        "session_id": session,
        "agent_id": session,
        "model": session,
        "name": "finalanswertool",
        "version": "1",
        "step": "1",
    }


async def test_no_request_makes_us_fail(serving: Serving) -> None:
    async with keyed(serving, ask, rate_limit=1_000_000, max_concurrent=1_000, sessions_per_hour=1_000_000) as house:
        known = await prepared(house)
        document = await admin_of(house).got("/openapi.json")
        caller = Caller(house.url)
        try:
            await asyncio.to_thread(play, caller, document, known)
        finally:
            caller.close()
        seen = {operation for operation, _ in caller.statuses}
        described = {f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item}
        assert seen == described, "every operation was called"
        served = {operation for operation, status in caller.statuses if status < 300}
        print(len(caller.statuses), sorted(described - served))
        assert await admin_of(house).status("GET", "/health") == 200
