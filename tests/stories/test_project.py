"""One folder to start from: it is made, served and edited, and what is broken in between costs nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from test_takeover import eventually

from forked_server import completed
from longhouse.store.access import keys
from longhouse.store.database import Database
from server_helpers import Process, content, data_folder, launched

NEW_AGENT = """
  asker:
    base_class: tool_calling_agent
    tools: [ClarificationTool, FinalAnswerTool]
    prompts: {system_prompt_str: You ask.}
"""


async def told(house: Process, words: str) -> str:
    """The line with these words that it says next."""
    seen = len(house.said)

    def lines() -> list[str]:
        return [line for line in house.said[seen:] if words in line]

    await eventually(lines, within=60)
    return lines()[0]


async def edited(house: Process, file: Path, text: str, words: str) -> str:
    """What it says of a file once that is saved."""
    telling = asyncio.create_task(told(house, words))
    await asyncio.sleep(0)
    file.write_text(text, "utf-8")  # noqa: ASYNC240 - a few bytes
    return await telling


def test_a_project_is_made_and_nothing_is_overwritten(tmp_path: Path) -> None:
    made = completed("init", "dice", folder=tmp_path)
    assert (made.returncode, made.stdout.splitlines()[-1]) == (0, "next: cd dice && longhouse dev")
    files = {path.name for path in (tmp_path / "dice").iterdir()}
    assert files == {"agents.yaml", "tools.py", ".env.example", "README.md", ".gitignore"}
    assert (tmp_path / "dice" / "README.md").read_text().startswith("# dice\n")
    (tmp_path / "dice" / "agents.yaml").write_text("agents: {}")
    again = completed("init", "dice", folder=tmp_path)
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr == (
        "longhouse: dice/agents.yaml is there already, and nothing is overwritten: choose another folder.\n"
    )
    assert (tmp_path / "dice" / "agents.yaml").read_text() == "agents: {}"


async def test_a_new_project_runs_follows_its_files_and_survives_broken_ones(tmp_path: Path) -> None:
    assert completed("init", "dice", folder=tmp_path).returncode == 0
    folder = tmp_path / "dice"
    tools, agents = folder / "tools.py", folder / "agents.yaml"
    with data_folder() as data:
        (folder / ".env").write_text(f"LONGHOUSE_DATA_DIR={data}\nLONGHOUSE_LLM_BASE_URL=\nLONGHOUSE_LLM_MODEL=\n")
        async with launched("longhouse", "dev", "--port", "0", folder=folder) as house:
            assert "The dice show" in content(await house.say("Roll two dice.", model="player"))

            # The code of a tool, which runs in a process of its own.
            code = tools.read_text().replace("The dice show", "Кости показывают, 骰子显示")
            line = await edited(house, tools, code, "reloaded")
            assert line == "reloaded: the code of tools.py"
            assert "Кости показывают, 骰子显示" in content(await house.say("Roll.", model="player"))

            # What agents are shown of it, and another agent.
            tools.write_text(code.replace("Roll dice and tell", "Roll some dice and tell"))
            described = agents.read_text() + NEW_AGENT
            line = await edited(house, agents, described, "agent asker")
            assert line == "reloaded: agent asker is new; tool roll_dice is changed"
            asked = await house.say("Hello", model="asker")
            assert "which city" in content(asked)

            # Broken files are one sentence each, and what was there goes on.
            line = await edited(house, tools, "def broken(", "not reloaded")
            assert "agents.yaml:8: tools.roll_dice.runtime_binding.python_entrypoint: tools cannot be imported" in line
            assert "SyntaxError" in line
            line = await edited(house, agents, "agents: [", "not reloaded")
            assert "agents.yaml:1: is not YAML" in line
            assert "Кости показывают" in content(await house.say("Roll.", model="player"))

            # Mended: one agent has changed, one tool is gone; a session goes on in the version that it began with.
            tools.write_text(code)
            mended = described.replace("You ask.", "You ask twice.").replace("keep_score, ", "")
            head, _, tail = mended.partition("  keep_score:\n")
            mended = head + tail.partition("\n\n")[2]
            line = await edited(house, agents, mended, "agent asker")
            assert "agent asker is changed; agent player is changed; tool keep_score is gone" in line
            assert "You answered: 'Осло'" in content(await house.say("Осло", model=asked["model"]))
            async with house.http.get(f"/v1/sessions/{asked['model']}") as response:
                assert (await response.json())["version"] == 1
            assert (await versions(house, "templates", "asker"), await versions(house, "tools", "keep_score")) == (2, 1)
            house.process.terminate()
            assert await house.ended() == 0


async def test_a_house_that_needs_keys_stays_shut_when_its_files_are_read_again(
    db: Database, dsn: str, tmp_path: Path
) -> None:
    """Revoking the last key does not open the API: not before the next start."""
    assert completed("init", "dice", folder=tmp_path).returncode == 0
    agents = tmp_path / "dice" / "agents.yaml"
    made, secret = await keys.create(db, name="the last", owner="ann", role="admin")

    async def status(**headers: str) -> int:
        async with house.http.get("/admin/keys", headers=headers) as response:
            return response.status

    async with launched("longhouse", "dev", "--port", "0", folder=agents.parent, database_url=dsn) as house:
        assert (await status(), await status(authorization=f"Bearer {secret}")) == (401, 200)
        await keys.revoke(db, made.id)
        line = await edited(house, agents, agents.read_text() + NEW_AGENT, "reloaded")
        assert line == "reloaded: agent asker is new"
        assert await status() == 401
        house.process.terminate()
        assert await house.ended() == 0


async def versions(house: Process, kind: str, name: str) -> Any:
    async with house.http.get(f"/admin/{kind}/{name}/versions") as response:
        return len((await response.json())["data"])


GATE = "import asyncio\nfrom pathlib import Path\n\nHERE = Path(__file__).parent\n"
GATED = """    (HERE / "rolling").touch()
    while not (HERE / "go").exists():
        await asyncio.sleep(0.02)
    shown ="""
"""What makes a tool of the project wait until the test lets it go on."""
POLITE = """
from wishes import WISH

from longhouse.agents.strategies.protocol import Verdict
from longhouse.agents.strategies.tool_calling import ToolCallingAgent


class PoliteAgent(ToolCallingAgent):
    def interpret(self, request, reply):
        return Verdict(answer=WISH)
"""


@asynccontextmanager
async def project(folder: Path, data: Path) -> AsyncIterator[Process]:
    """A project that `longhouse dev` serves; it is made if it is not there."""
    if not folder.exists():  # noqa: ASYNC240 - before anything runs
        assert completed("init", folder.name, folder=folder.parent).returncode == 0
        (folder / ".env").write_text(f"LONGHOUSE_DATA_DIR={data}\n")
    async with launched("longhouse", "dev", "--port", "0", folder=folder) as house:
        yield house


@pytest.fixture
def data(folder: Path) -> Path:
    return folder


async def test_files_that_others_name_are_followed_as_soon_as_they_are_named(tmp_path: Path, data: Path) -> None:
    folder = tmp_path / "dice"
    agents = folder / "agents.yaml"
    async with project(folder, data) as house:
        # A prompt that is named before it is written.
        inline, _, rest = agents.read_text().partition("      system_prompt_str: |\n")
        named = f"{inline}      system_prompt_file: player.txt\n    multi_{rest.partition('    multi_')[2]}"
        line = await edited(house, agents, named, "not reloaded")
        assert line.endswith("agents.player.prompts.system_prompt_file: names a file that is not there")
        line = await edited(house, folder / "player.txt", "You play dice with the user.", "reloaded")
        assert line == "reloaded: agent player is changed"

        # A module that an agent class imports, and no tool package names.
        (folder / "wishes.py").write_text('WISH = "A good day."')
        (folder / "manners.py").write_text(POLITE)
        polite = named.replace("[tools]", "[tools, manners]") + "  polite: {base_class: manners.PoliteAgent}\n"
        await edited(house, agents, polite, "agent polite is new")
        assert content(await house.say("Hello", model="polite")) == "A good day."
        line = await edited(house, folder / "wishes.py", 'WISH = "Добрый день. 你好。"', "reloaded")
        assert line == "reloaded: the code of wishes.py"
        assert content(await house.say("Hello", model="polite")) == "Добрый день. 你好。"


async def test_a_save_while_files_are_read_is_not_missed(tmp_path: Path, data: Path) -> None:
    folder = tmp_path / "dice"
    tools, agents = folder / "tools.py", folder / "agents.yaml"
    async with project(folder, data) as house:
        slow = (
            GATE + "import time\n(HERE / 'reading').touch()\nwhile not (HERE / 'go').exists():\n    time.sleep(0.02)\n"
        )
        before = asyncio.create_task(told(house, "reloaded"))
        tools.write_text(slow + tools.read_text())
        await eventually((folder / "reading").exists)
        after = asyncio.create_task(told(house, "agent asker"))
        agents.write_text(agents.read_text() + NEW_AGENT)
        (folder / "go").touch()
        assert await before == "reloaded: the code of tools.py"
        assert await after == "reloaded: agent asker is new"


async def test_dev_that_is_killed_goes_on_with_the_session_and_the_files_as_they_are_then(
    tmp_path: Path, data: Path
) -> None:
    folder = tmp_path / "dice"
    tools = folder / "tools.py"
    async with project(folder, data) as house:
        slow = tools.read_text().replace("    shown =", GATED)
        await edited(house, tools, GATE + slow, "reloaded")
        asking = asyncio.create_task(house.say("Roll two dice.", model="player"))
        await eventually((folder / "rolling").exists)
        async with house.http.get("/v1/sessions?limit=1") as response:
            [session] = (await response.json())["data"]
        house.kill()
        await house.ended()
        with pytest.raises(aiohttp.ClientError):
            await asking
    tools.write_text(GATE + slow.replace("The dice show", "Now the dice show"))
    (folder / "go").touch()
    async with project(folder, data) as house:
        shown = await house.until(session["session_id"], "COMPLETED", "FAILED", within=60)
        assert "Now the dice show" in shown["result"]
        assert [fact["event"]["kind"] for fact in await house.facts(session["session_id"])].count("Resumed") == 1
