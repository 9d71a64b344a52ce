"""Files that are broken, too large or made to do harm: one clear sentence each, and the server goes on."""

import asyncio
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import psutil
import pytest

from document_files import Drawn, flow, pdf, raw_docx, written
from longhouse.memory.documents import DocumentError, ParseLimits, parse, sandbox

pytestmark = pytest.mark.usefixtures("started_readers")

ENTITIES = (
    '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9))
    + "]>"
)
EMPTY_PAGE = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>"
CATALOG = b"<</Type/Catalog/Pages 2 0 R>>"

TELLS_ITS_ENVIRONMENT = """
import os, sys
from longhouse.confinement import framed
sys.stdout.buffer.write(framed(repr(dict(os.environ))))
"""


def readers(server: psutil.Process | None = None) -> list[psutil.Process]:
    """The processes that read a file for this server, or for us."""
    return [child for child in (server or psutil.Process()).children() if sandbox.WORKER in child.cmdline()]


async def refusal(content: bytes | Path | IO[bytes], name: str, limits: ParseLimits | None = None) -> str:
    with pytest.raises(DocumentError) as caught:
        await parse(content, name, limits=limits or ParseLimits())
    message = str(caught.value)
    assert (caught.value.status, caught.value.code) == (400, "invalid_document")
    assert message.startswith(name)
    assert message.endswith(".")
    assert "\n" not in message
    return message.removeprefix(name).strip()


def pages(count: int, kids: Sequence[int]) -> bytes:
    tree = b"<</Type/Pages/Count %d/Kids[%s]>>" % (count, b" ".join(b"%d 0 R" % kid for kid in kids))
    return written({1: CATALOG, 2: tree, 3: EMPTY_PAGE}, 1)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("empty.md", b"", "is empty."),
        ("blank.md", b" \n\n ", "holds no text: nothing of it could be found later."),
        (
            "notes.xyz",
            b"some text",
            "has a format that cannot be read: Longhouse reads Markdown (.md), HTML, PDF, DOCX and plain text (.txt).",
        ),
        (
            "picture.txt",
            b"\x89PNG\r\n\x1a\n",
            "has a format that cannot be read: Longhouse reads Markdown (.md), HTML, PDF, DOCX and plain text (.txt).",
        ),
        ("broken.pdf", b"%PDF-1.7 and nothing more", "is a damaged PDF: save or print it to PDF again."),
        ("cut.pdf", pdf([flow("text")] * 50)[:3000], "is a damaged PDF: save or print it to PDF again."),
        (
            "named.pdf",
            b"only text",
            "is not a PDF file, whatever its name says: it is damaged, or it has another format.",
        ),
        (
            "old.docx",
            b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"x" * 600,
            "is an old or a protected Office file: save it as .docx without a password.",
        ),
        ("cut.docx", raw_docx("<w:p/>")[:200], "is a damaged DOCX: open it and save it again."),
        ("entities.docx", raw_docx("<w:p><w:r><w:t>&j;</w:t></w:r></w:p>", before=ENTITIES), "is a damaged DOCX: "),
        ("dtd.docx", raw_docx("<w:p/>", before="<!DOCTYPE x [<!ENTITY a 'b'>]>"), "declares XML entities, "),
        ("deep.docx", raw_docx("<w:sdt>" * 5_000 + "</w:sdt>" * 5_000), "is a damaged DOCX: "),
        ("deep.html", b"<div>" * 100_000 + b"text", "cannot be read: it is nested too deeply"),
        ("random.txt", bytes(range(256)) * 20, "is not text: it holds bytes that no text has."),
        (
            "mixed.txt",
            "Насос запускается. ".encode() * 30 + b"\xff" + "Пуск. ".encode() * 30,
            "is text in an encoding that cannot be told for sure: save it as UTF-8.",
        ),
        ("short.txt", b"caf\xe9", "is text in an encoding that cannot be told for sure: save it as UTF-8."),
        (
            "wrong.html",
            b"<meta charset=utf-8><p>\xcf\xf3\xf1\xea</p>",
            "says that it is utf-8, and holds bytes that are not: save it as UTF-8.",
        ),
        (
            "million.pdf",
            pages(1_000_000, [3] * 1_000_000),
            "has 1000000 pages, and a document may have 10000: split it.",
        ),
        ("scanned.pdf", pages(2_000, [3] * 2_000), "holds no text, only pictures or empty pages: run text recognition"),
        ("lying.pdf", pages(9_000, [3]), "is a damaged PDF, its page 2 cannot be read: "),
        ("loop.pdf", pages(1, [2]), "is a damaged PDF, its page 1 cannot be read: "),
    ],
)
async def test_a_bad_file_is_one_clear_sentence(name: str, content: bytes, sentence: str) -> None:
    assert (await refusal(content, name)).startswith(sentence)


async def test_a_pdf_with_a_password_says_so() -> None:
    key = b"<</Filter/Standard/V 1/R 2/O<%s>/U<%s>/P -44>>" % (b"ab" * 32, b"cd" * 32)
    content = written(
        {1: CATALOG, 2: b"<</Type/Pages/Count 0/Kids[]>>", 3: key}, 1, extra=b"/Encrypt 3 0 R/ID[<00><00>]"
    )
    assert await refusal(content, "secret.pdf") == "is protected by a password: save it without one."


async def test_a_font_that_hides_its_letters_is_no_text() -> None:
    page = [Drawn("".join(chr(0xE000 + n) for n in range(60)))]
    assert (await refusal(pdf([page]), "glyphs.pdf")).startswith("has fonts that do not say which letters they show")


async def test_a_file_that_is_too_large_or_no_file_is_not_even_opened_by_a_parser(tmp_path: Path) -> None:
    large = tmp_path / "large.txt"
    large.touch()
    os.truncate(large, 1 << 30)
    assert await refusal(large, "large.txt") == "has 1,073.7 MB, and a document may have 50.0 MB: split it."
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)
    no_file = "is not a regular file: a folder, a pipe or a device cannot be added."
    assert await refusal(pipe, "pipe.txt") == no_file
    assert await refusal(tmp_path, "folder") == no_file
    assert await refusal(Path("/dev/zero"), "zero.txt") == no_file
    assert await refusal(tmp_path / "none.md", "none.md") == "cannot be opened: No such file or directory."
    small = ParseLimits(file_bytes=10)
    assert await refusal(b"x" * 11, "a.md", small) == "has 11 bytes, and a document may have 10 bytes: split it."


async def test_an_open_file_is_read_from_its_beginning_and_stays_open() -> None:
    with tempfile.TemporaryFile() as file:
        file.write("# Правила\n\n安规\n".encode())
        for _ in range(2):
            parsed = await parse(file, "rules.md")
            assert [block.text for block in parsed.blocks] == ["Правила", "安规"]
            file.seek(0)
            assert file.read(2) == b"# ", "what was read ahead here does not matter there"
        small = ParseLimits(file_bytes=10)
        assert await refusal(file, "a.md", small) == "has 25 bytes, and a document may have 10 bytes: split it."
        assert not file.closed
    assert await refusal(file, "closed.md") == "cannot be opened: flush of closed file."


async def test_a_zip_bomb_is_not_unpacked() -> None:
    bomb = raw_docx("<w:p/>", parts={"word/media/big.xml": b"\0" * 201_000_000})
    assert len(bomb) < 1_000_000
    expected = "unpacks to 201.0 MB in 4 parts, and a DOCX may have 200 MB in 10000 parts."
    assert await refusal(bomb, "bomb.docx") == expected


async def test_what_needs_too_much_memory_is_stopped() -> None:
    packed = zlib.compress(b"q " * 30_000_000)
    stream = b"<</Length %d/Filter/FlateDecode>>stream\n%s\nendstream" % (len(packed), packed)
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R>>"
    bomb = written({1: CATALOG, 2: b"<</Type/Pages/Count 1/Kids[3 0 R]>>", 3: page, 4: stream}, 1)
    expected = "cannot be read: it is damaged, or needs more than 300 MB of memory."
    assert await refusal(bomb, "bomb.pdf", ParseLimits(memory_bytes=300_000_000)) == expected
    text = ParseLimits(memory_bytes=150_000_000)
    assert await refusal(b"word " * 8_000_000, "a.txt", text) == "needs more than 150 MB of memory to read: split it."


async def test_what_takes_too_long_is_stopped() -> None:
    slow = b"[a](b" * 200_000
    expected = "takes more than 1 seconds to read: split it, or save it in a simpler form."
    assert await refusal(slow, "slow.md", ParseLimits(cpu_seconds=1)) == expected
    assert await refusal(slow, "slow.md", ParseLimits(wall_seconds=1)) == expected
    assert readers() == []


async def test_too_much_text_or_too_many_pages_are_refused() -> None:
    text = b"word " * 20_000
    assert await refusal(text, "a.txt", ParseLimits(pages=3)) == "has 34 pages, and a document may have 3: split it."
    limits = ParseLimits(output_bytes=2_000_000)
    assert await refusal(text * 30, "a.txt", limits) == "holds more than 2 MB of text: split it."


async def test_a_reading_that_is_cancelled_leaves_no_process() -> None:
    reading = asyncio.create_task(parse(b"[a](b" * 200_000, "slow.md"))
    while not readers():
        await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert readers() == []


def test_a_server_that_is_killed_takes_its_reader_along() -> None:
    work = "asyncio.run(parse(b'[a](b' * 200_000, 'slow.md'))"
    code = f"import asyncio; from longhouse.memory.documents import parse; {work}"
    server = psutil.Popen([sys.executable, "-c", code])
    # It is confined when it works.
    while not (reader := readers(server)) or reader[0].cpu_times().user < 0.3:
        assert server.poll() is None
        time.sleep(0.02)
    server.kill()
    server.wait()
    gone, _ = psutil.wait_procs(reader, timeout=10)
    assert gone == reader


async def test_a_name_is_shown_on_one_line_and_the_environment_stays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGHOUSE_API_KEY", "sk-secret")
    with pytest.raises(DocumentError) as caught:
        await parse(b"", "a\n\x1b[31m\0b.md")
    assert str(caught.value) == "a\ufffd\ufffd[31m\ufffdb.md is empty."
    monkeypatch.setattr(sandbox, "COMMAND", (sys.executable, "-P", "-c", TELLS_ITS_ENVIRONMENT))
    told = await refusal(b"text", "a.md")
    assert "PATH" in told
    assert "LONGHOUSE_API_KEY" not in told
    assert "sk-secret" not in told


async def test_entities_of_a_page_are_not_expanded() -> None:
    document = await parse(f"{ENTITIES}<html><body><p>&j; text</p></body></html>".encode(), "a.xhtml")
    assert [block.text for block in document.blocks] == ["&j; text"]
