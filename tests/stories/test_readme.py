"""The README's examples run as written."""

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

from longhouse.models.scripted import call
from longhouse.models.scripted_server import serve as serve_model
from pages import PORT, ROOT, blocks, runnable
from server_helpers import launched, process

README = ROOT / "README.md"
TRANSLATED = [ROOT / "docs" / f"quickstart.{language}.md" for language in ("ru", "zh")]
EACH = "import sys\nfor code in sys.argv[1:]: exec(code, {'__name__': '__main__'})"
"""Programs, each with names of its own: to load what they import takes longer than to run them."""


def free_port() -> str:
    """The README's own port where it is free; another where somebody runs a Longhouse beside the tests."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", int(PORT)))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_quick_starts_in_other_languages_have_the_examples_of_the_readme() -> None:
    first, _, _ = README.read_text("utf-8").partition("## What it promises")
    told = [block for block in blocks(README) if block.code in first]
    for page in TRANSLATED:
        assert [(one.language, one.words, one.code) for one in blocks(page)] == [
            (one.language, one.words, one.code) for one in told
        ], page.name


async def run(*command: str) -> str:
    started = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(60):
        output = (await started.communicate())[0].decode()
    assert started.returncode == 0, output
    return output


async def test_the_examples_of_the_readme_run_as_written(dsn: str) -> None:
    port = free_port()
    shell = [block.code.replace(PORT, port) for block in runnable(README, "bash")]
    python = [block.code.replace(PORT, port) for block in runnable(README, "python") if not block.file]
    assert (len(shell), len(python)) == (3, 2)
    async with process("serve", "--port", port, database_url=dsn):
        first = await run("bash", "-ec", shell[0])
        assert "which city are you in?" in first
        assert first.endswith("data: [DONE]\n\n")

        question, answer, *lines = (await run(sys.executable, "-c", EACH, *python)).splitlines()
        assert question.endswith("which city are you in?")
        assert "You answered: 'Oslo'" in answer

        assert len({line.partition(" -> ")[0] for line in lines}) == 1, "the same session throughout"
        assert ["demo model of Longhouse" in line for line in lines] == [False, True, False]

        events = await run("bash", "-ec", shell[1])
        assert "event: Opened" in events
        assert "id: 1\n" in events

        told = await run("bash", "-ec", shell[2])
        assert "It remembers: My name is Aliya.; I live in Oslo.." in told


async def test_the_agent_of_the_readme_asks_before_it_pays(dsn: str, tmp_path: Path) -> None:
    files = {block.file: block.code for block in blocks(README) if block.file}
    assert set(files) == {"agents.yaml", "tools.py"}
    for name, code in files.items():
        (tmp_path / name).write_text(code, "utf-8")
    script = [call("refund", order="A-17", euros=49), call("finalanswertool", answer="Paid.", status="completed")]
    async with serve_model(script) as model:
        settings: dict[str, Any] = {
            "database_url": dsn,
            "llm_base_url": model.url,
            "llm_model": "script",
            "port": str(free_port()),
        }
        async with launched("longhouse", "dev", folder=tmp_path, **settings) as house:
            asked = await house.say("I want my money back.", model="support")
            assert "needs your approval" in asked["choices"][0]["message"]["content"]
            paid = await house.say("yes", model=asked["model"])
            assert paid["choices"][0]["message"]["content"] == "Paid."
            told = str(model.requests[-1]["messages"])
            assert "49 euros of order A-17 are paid back." in told
