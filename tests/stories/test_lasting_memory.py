"""What an agent has written down is there in the next conversation, for the same person and for nobody else."""

import uuid
from asyncio import to_thread
from pathlib import Path
from typing import Any

from forked_server import completed
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import Template, ToolPolicy
from longhouse.journal import events
from longhouse.journal.messages import ToolResult, User, text_of
from longhouse.models.scripted import Say, call
from longhouse.store import journals
from server_helpers import House, Serving, content

KEEPER = Template(
    name="keeper", tool_policy=ToolPolicy(allowlist=("createfiletool", "readfiletool", "finalanswertool"))
)
ADMIN = "k3y-of-the-house-9f27"
NOTHING = "Error: there is no me.md"


def keeps(body: Body) -> Say:
    """Writes down who somebody is, or reads it."""
    last = body.messages[-1]
    if isinstance(last, ToolResult):
        return call("finalanswertool", answer=last.content)
    assert isinstance(last, User)
    told, _, name = text_of(last.content).partition(" ")
    if told == "Remember":
        return call("createfiletool", path="me.md", content=name)
    return call("readfiletool", path="me.md")


def terminal(house: House, folder: Path, typed: str, *options: str, **environment: str) -> str:
    """What `longhouse chat` shows."""
    named = ("--model", "keeper", "--url", house.url)
    done = completed("chat", *named, *options, folder=folder, typed=typed, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_without_keys_a_file_of_one_conversation_is_read_in_the_next(serving: Serving, tmp_path: Path) -> None:
    async with serving(keeps, templates=[KEEPER]) as house:
        assert "True" in await to_thread(terminal, house, tmp_path, "Remember Алия\n")
        assert "Алия" in await to_thread(terminal, house, tmp_path, "Who am I?\n")
        assert content(await house.say("Who am I?", model="keeper")) == "Алия", "whoever names no user is the same"
        assert content(await house.say("Who am I?", model="keeper", user=" ")) == "Алия"
        assert content(await house.say("Who am I?", model="keeper", user="bob")) == NOTHING
        assert NOTHING in await to_thread(terminal, house, tmp_path, "Who am I?\n", "--user", "bob")
        assert await house.db.value("SELECT count(*) FROM sessions") == 6, "each was a conversation of its own"


async def test_behind_a_key_a_file_lasts_for_a_user_and_else_for_its_conversation(
    serving: Serving, tmp_path: Path
) -> None:
    async with serving(keeps, templates=[KEEPER], admin_key=ADMIN) as house:

        async def said(text: str, **extra: Any) -> str:
            body = {"model": "keeper", "messages": [{"role": "user", "content": text}], **extra}
            headers = {"authorization": f"Bearer {ADMIN}"}
            async with house.http.post("/v1/chat/completions", json=body, headers=headers) as response:
                return content(await response.json())

        assert await said("Remember Ann", chat_id="a") == "True"
        assert await said("Who am I?", chat_id="a") == "Ann"
        assert await said("Who am I?", chat_id="b") == NOTHING, "many people may share the key"
        key = {"LONGHOUSE_API_KEY": ADMIN, "LOGNAME": "ada"}
        assert "True" in await to_thread(terminal, house, tmp_path, "Remember Ada\n", **key)
        assert "Ada" in await to_thread(terminal, house, tmp_path, "Who am I?\n", **key)
        assert await said("Who am I?", user="ada") == "Ada"
        assert await said("Who am I?", user="local") == NOTHING


async def test_files_of_a_conversation_from_before_stay_with_it(serving: Serving) -> None:
    """Earlier versions knew no user there, and kept the files of each conversation apart."""
    async with serving(keeps, templates=[KEEPER]) as house:
        session_id = f"keeper_{uuid.uuid4()}"
        opened = events.Opened(agent="keeper", version=1, owner="local", conversation="old")
        prompt = events.Prompted(trace="t", content=("Remember Ann",))
        await journals.open(house.db, session_id, opened, prompt, task="")
        await house.until(session_id, "COMPLETED")
        assert content(await house.say("Who am I?", model=session_id)) == "Ann"
        assert content(await house.say("Who am I?", model="keeper")) == NOTHING
