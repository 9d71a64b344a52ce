"""The README's examples run as written."""

import asyncio
import socket
import sys

from pages import PORT, ROOT, blocks, runnable
from server_helpers import process

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
    python = [block.code.replace(PORT, port) for block in runnable(README, "python")]
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
