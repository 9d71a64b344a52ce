"""The tutorial is followed word by word: its files are written, its commands run, and they print what it says."""

import asyncio
import os
import re
import shlex
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from test_takeover import eventually

from pages import PORT, ROOT, Block, runnable
from server_helpers import answering, free_port, launched

PAGE = ROOT / "docs" / "tutorial.md"
PORTS = (PORT, "8401", "8402")
"""Of the server, the script that plays the model, and the carrier."""
END = "-- what it printed ends here --"


class Shell:
    """A terminal in which one command follows another, as the reader's does."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin
        assert process.stdout
        self._process, self._keys, self._screen = process, process.stdin, process.stdout

    async def run(self, code: str) -> str:
        """What it prints."""
        self._keys.write(f"{code}\necho '{END}'\n".encode())
        async with asyncio.timeout(60):
            return (await self._screen.readuntil(f"{END}\n".encode())).decode().removesuffix(f"{END}\n")

    async def close(self) -> None:
        self._keys.close()
        await self._process.wait()


class Reader:
    """Does what the page says, in terminals of its own."""

    def __init__(self, stack: AsyncExitStack, folder: Path, dsn: str) -> None:
        self._stack, self._folder, self._dsn = stack, folder, dsn
        self._ports = {port: str(free_port()) for port in PORTS}
        self._shell: Shell | None = None

    def _here(self, text: str) -> str:
        """The text with ports that are free on this machine."""
        return re.sub("|".join(PORTS), lambda found: self._ports[found[0]], text)

    async def follow(self, block: Block, said: str | None) -> None:
        """Writes the file, starts the program, or runs the commands and compares what they print."""
        code = self._here(block.code)
        if block.file:
            (self._folder / "shop" / block.file).write_text(code, "utf-8")
        elif code.startswith("longhouse dev"):
            for port in PORTS[1:]:
                await answering(f"http://127.0.0.1:{self._ports[port]}/")
            house = launched(
                *shlex.split(code), folder=self._folder / "shop", database_url=self._dsn, port=self._ports[PORT]
            )
            await self._stack.enter_async_context(house)
        elif code.startswith("python "):
            await self._start(*shlex.split(code))
        else:
            await self._compare(block, code, said)

    async def _start(self, *command: str) -> None:
        program = await asyncio.create_subprocess_exec(
            *command, cwd=self._folder / "shop", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        self._stack.push_async_callback(program.wait)
        self._stack.callback(program.kill)

    async def _compare(self, block: Block, code: str, said: str | None) -> None:
        self._shell = self._shell or await self._opened()
        shell = self._shell
        if said is None:
            assert await shell.run(code) == "", block.where
            return
        shown = ".*".join(map(re.escape, self._here(said).split("…")))
        if "/admin/mcp" in code:  # the page says that this one takes a while
            await eventually(lambda: _matches(shell, code, shown), within=30)
            return
        printed = await shell.run(code)
        assert re.fullmatch(shown, printed, re.DOTALL), f"{block.where} prints:\n{printed}"

    async def _opened(self) -> Shell:
        process = await asyncio.create_subprocess_exec(
            "bash", cwd=self._folder,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        shell = Shell(process)
        self._stack.push_async_callback(shell.close)
        return shell


async def _matches(shell: Shell, code: str, shown: str) -> bool:
    return re.fullmatch(shown, await shell.run(code), re.DOTALL) is not None


async def test_the_tutorial_is_followed_word_by_word(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    steps = runnable(PAGE)
    assert {block.file for block in steps if block.file} == {
        *("tools.py", "parcels.py", "handbook.py", "agents.yaml", "script.json", ".env")
    }
    async with AsyncExitStack() as stack:
        reader = Reader(stack, tmp_path, dsn)
        for block, after in zip(steps, [*steps[1:], None], strict=True):
            if block.language != "text":
                await reader.follow(block, after.code if after and after.language == "text" else None)
