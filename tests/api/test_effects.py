"""Calls that may have changed the world are listed with what became of each."""

from typing import Any, ClassVar

from longhouse.agents.template import Template, ToolPolicy
from longhouse.journal.events import Effect
from longhouse.models.scripted import call, calls
from longhouse.tools import BaseTool, ToolContext
from server_helpers import House, Serving


class SetTool(BaseTool):
    """Set something; it may be set again."""

    effect: ClassVar[Effect] = "idempotent"
    value: int = 0

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        if self.value < 0:
            raise ValueError("below zero")
        return "set"


CLERK = Template(name="clerk", tool_policy=ToolPolicy(allowlist=("settool", "clocktool", "finalanswertool")))


async def effects(house: House, session_id: str, **query: str) -> Any:
    async with house.http.get(f"/v1/sessions/{session_id}/effects", params=query) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def test_effects_are_told_page_by_page_and_reading_is_none(serving: Serving) -> None:
    script = [
        calls(call("settool", value=1), call("clocktool"), call("settool", value=-1), call("settool", value="x")),
        call("finalanswertool", answer="done"),
    ]
    async with serving(script, templates=[CLERK], tools=[SetTool]) as house:
        session_id = (await house.say("Set.", model="clerk"))["model"]
        whole = await effects(house, session_id)
        assert [(one["tool"], one["effect"], one["state"]) for one in whole["data"]] == [
            ("settool", "idempotent", "done"),
            ("settool", "idempotent", "failed"),
            ("settool", "idempotent", "not_begun"),
        ]
        assert [one["fault"] and one["fault"]["code"] for one in whole["data"]] == [
            None,
            "tool_failed",
            "bad_arguments",
        ]
        assert all(one["intended_at"] <= one["settled_at"] for one in whole["data"])
        newest = await effects(house, session_id, limit="2")
        assert newest["data"] == whole["data"][1:]
        oldest = await effects(house, session_id, limit="2", before=newest["next"])
        assert oldest["data"] == whole["data"][:1]
        assert (newest["has_more"], oldest["has_more"]) == (True, False)
        async with house.http.get("/v1/sessions/nobody/effects") as response:
            assert response.status == 404
