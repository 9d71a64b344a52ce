"""What was read in a document leaves the prompts once the document has changed or is gone, and only then."""

from typing import Any

from document_texts import ENGLISH
from longhouse.agents.strategies.protocol import Body
from longhouse.journal import events
from longhouse.journal.messages import System, ToolResult, text_of
from longhouse.models.scripted import Say, call
from longhouse.models.scripted import calls as several
from server_helpers import House, Serving

DONE = call("finalanswertool", answer="Done.", status="completed")
PADLOCK, GOLD = "padlock", "The vault holds forty bars of gold."


def read_two(body: Body) -> Say:
    """Reads two documents when it is told to read."""
    last = body.messages[-1]
    if isinstance(last, ToolResult) or "Read" not in text_of(last.content or ""):
        return DONE
    return several(
        call("get_toc", reg_id="rules"),
        call("smart_search", query="What is the switch locked with?", reg_id="rules"),
        call("read_page_range", reg_id="rules", start_page=1, end_page=1),
        call("get_toc", reg_id="vault"),
        call("read_page_range", reg_id="vault", start_page=1, end_page=1),
    )


class Watched:
    """A model that keeps the last system prompt."""

    system = ""

    def __call__(self, body: Body) -> Say:
        first = body.messages[0]
        assert isinstance(first, System)
        self.system = text_of(first.content)
        return read_two(body)


async def upload(house: House, name: str, text: str) -> None:
    async with house.http.post("/v1/documents", params={"filename": f"{name}.md"}, data=text.encode()) as response:
        assert response.status == 201, await response.text()


async def memory_of(house: House, session: str) -> Any:
    async with house.http.get(f"/v1/sessions/{session}/memory") as response:
        assert response.status == 200
        return await response.json()


async def test_a_changed_or_deleted_document_is_in_no_later_prompt(serving: Serving) -> None:
    model = Watched()
    async with serving(model) as house:
        await upload(house, "rules", ENGLISH)
        await upload(house, "vault", f"# Vault\n\n## 1 Cellar\n\n{GOLD}")
        session = (await house.say("Read it.", model="reader"))["model"]
        assert PADLOCK in model.system
        assert GOLD in model.system
        await house.say("And?", model=session)
        assert all(one in model.system for one in (PADLOCK, GOLD, "rules", "vault")), "nothing has changed"
        assert not [one for one in await noted(house, session) if one.about == "outdated"]

        await upload(house, "rules", ENGLISH.replace(PADLOCK, "seal"))
        shown = str(await memory_of(house, session))
        assert (PADLOCK in shown, "Earthing" in shown, GOLD in shown) == (False, False, True)
        await house.say("And?", model=session)
        assert (PADLOCK in model.system, "known: vault\n" in model.system, GOLD in model.system) == (False, True, True)
        assert len([one for one in await noted(house, session) if one.about == "outdated"]) == 3

        async with house.http.delete("/v1/documents/vault") as response:
            assert response.status in (200, 204)
        assert GOLD not in str(await memory_of(house, session))
        await house.say("And?", model=session)
        assert not any(one in model.system for one in (PADLOCK, GOLD, "# Cached outlines"))
        await house.say("Read it.", model=session)
        assert "seal" in model.system
        assert (await memory_of(house, session))["known_chapters"] != []
        replies = [one for one in await house.journal(session) if isinstance(one.event, events.Replied)]
        for step in range(1, len(replies) + 1):
            async with house.http.get(f"/v1/sessions/{session}/steps/{step}/request") as response:
                assert (await response.json())["matches"], step


async def noted(house: House, session: str) -> list[events.Noted]:
    return [one.event for one in await house.journal(session) if isinstance(one.event, events.Noted)]
