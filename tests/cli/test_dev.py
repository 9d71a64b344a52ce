"""What `longhouse dev` says when it reads files again, and what becomes of requests meanwhile."""

import asyncio
from pathlib import Path
from typing import Any

from longhouse.agents.builtin import BUILT_IN
from longhouse.app import TOOLS
from longhouse.cli.processes.dev import House, compared
from longhouse.config.loader import LoadedFiles, read_files
from longhouse.settings import Settings
from server_helpers import NO_FILES

LATE = b'{"name": "late"}'


async def test_a_request_that_has_only_begun_is_answered_by_the_house_that_it_came_to(dsn: str) -> None:
    house = await House.opened(Settings(database_url=dsn, **NO_FILES))
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json"), (b"content-length", b"16")]
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": "/admin/templates",
        "raw_path": b"/admin/templates", "query_string": b"", "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8400), "asgi": {"version": "3.0"},
    }  # fmt: skip
    arrived, answered = asyncio.Event(), list[Any]()

    async def receive() -> Any:
        await arrived.wait()
        return {"type": "http.request", "body": LATE, "more_body": False}

    async def send(message: Any) -> None:
        answered.append(message)

    asking = asyncio.create_task(house(scope, receive, send))
    await asyncio.sleep(0)
    leaving = asyncio.create_task(house.leave())
    await asyncio.wait({leaving}, timeout=1)  # long enough for a house that waits for nobody to be gone
    arrived.set()
    await asking
    assert answered[0]["status"] == 201, answered
    await leaving


def test_agents_that_come_with_longhouse_are_changed_by_files_and_never_new_or_gone(tmp_path: Path) -> None:
    def files(config: str) -> LoadedFiles:
        (tmp_path / "config.yaml").write_text(config)
        return read_files(tmp_path / "config.yaml", None, templates=BUILT_IN, tools=[cls.tool_name for cls in TOOLS])

    plain, limited = files(""), files("execution: {max_iterations: 5}\nagents: {own: {}}")
    changed = {f"agent {one.name} is changed" for one in BUILT_IN}
    assert {*compared(plain, limited)} == {*changed, "agent own is new"}
    gone = "agent own is gone from the files, and stays in the catalog until it is retired"
    assert {*compared(limited, plain)} == {*changed, gone}
