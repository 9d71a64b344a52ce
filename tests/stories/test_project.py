"""One folder to start from: it is made, served and edited, and what is broken in between costs nothing."""

import asyncio
from pathlib import Path
from typing import Any

from test_takeover import eventually

from forked_server import completed
from longhouse.store import keys
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
