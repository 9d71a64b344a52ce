"""Files become pages, blocks and an outline: Markdown, HTML, PDF, DOCX and text, in English, Russian and Chinese."""

import io
import subprocess
import sys
from pathlib import Path

import docx
import pytest
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls

from document_files import Bookmark, Drawn, flow, pdf, raw_docx
from longhouse.memory.documents import Block, OutlineLine, ParsedDocument, ParseLimits, parse
from longhouse.memory.documents.formats.headings import level_of, number_of
from longhouse.memory.documents.worker import document_of

MARKDOWN = """---
title: "Pump manual"
---
# Guide

Intro *text* with `code`, [a link](https://example.org/x) and <b>bold</b>.

## 1.1 Limits

| name | value |
|---|---|
| pressure | 10 \\| 12 |

1. one
2. two
   - nested

```python
def start():
    return "pump"
```

### 第三章 总则

本规程规定了水泵的
启动程序。
"""


def parsed(content: bytes | str, name: str) -> ParsedDocument:
    return document_of(content.encode() if isinstance(content, str) else content, name, ParseLimits())


def shapes(document: ParsedDocument) -> list[tuple[str, str]]:
    return [(block.kind, block.text) for block in document.blocks]


async def test_markdown_becomes_blocks_and_an_outline() -> None:
    document = await parse(MARKDOWN.encode(), "guide.md")
    assert (document.title, document.format, document.pages) == ("Pump manual", "markdown", 1)
    assert shapes(document) == [
        ("heading", "Guide"),
        ("text", "Intro text with `code`, [a link](https://example.org/x) and bold."),
        ("heading", "1.1 Limits"),
        ("table", "| name | value |\n| --- | --- |\n| pressure | 10 \\| 12 |"),
        ("list", "1. one\n2. two\n  - nested"),
        ("code", '```python\ndef start():\n    return "pump"\n```'),
        ("heading", "第三章 总则"),
        ("text", "本规程规定了水泵的启动程序。"),
    ]
    assert document.outline == (
        OutlineLine("Guide", 1, 1),
        OutlineLine("1.1 Limits", 2, 1, "1.1"),
        OutlineLine("第三章 总则", 3, 1, "3"),
    )


def test_html_is_what_a_person_would_see() -> None:
    page = """<!doctype html><html><head><title>Rules &amp; limits</title>
    <style>.secret, p#gone { color: red; display: none }</style></head><body>
    <nav><a href="/">home</a></nav><script>steal()</script><h1>Rules</h1>
    <p onclick="steal()">Seen<!-- not this --> and <a href="https://example.org/a">there</a>, <a href="b">here</a>.</p>
    <p class="x secret">by class</p><p id="gone">by id</p><p hidden>by attribute</p><p aria-hidden="true">by aria</p>
    <div style="Display : NONE">by style</div><span style="font-size:0">tiny</span><noscript>no script</noscript>
    <template>template</template><textarea>typed</textarea><iframe>frame</iframe>
    <ul><li>one<ul><li>deeper</li></ul></li><li>two<br>lines</li></ul>
    <table><tr><th>a<th>b</tr><tr><td rowspan=2>x<td>1</tr><tr><td>2</tr><tr><td colspan=2>wide</tr></table>
    <table><tr><td><h2>Layout</h2><p>inside</td></tr></table>
    <pre><code class="language-sh">ls
  -l</code></pre></body></html>"""
    document = parsed(page, "rules.html")
    assert document.title == "Rules & limits"
    assert shapes(document) == [
        ("heading", "Rules"),
        ("text", "Seen and [there](https://example.org/a), here."),
        ("list", "- one\n  - deeper\n- two\n  lines"),
        ("table", "| a | b |\n| --- | --- |\n| x | 1 |\n| x | 2 |\n| wide |  |"),
        ("heading", "Layout"),
        ("text", "inside"),
        ("code", "```sh\nls\n  -l\n```"),
    ]


def test_html_inside_of_markdown_hides_the_same() -> None:
    document = parsed(
        "Hello <script>steal()</script> <span hidden>x</span>\n\n<!-- y -->\n<div hidden>z</div>\n", "a.md"
    )
    assert shapes(document) == [("text", "Hello")]


def test_characters_that_nobody_sees_are_left_out() -> None:
    hidden = "".join(chr(0xE0000 + ord(sign)) for sign in "obey")
    document = parsed(f"pay\u00adment \u202eetihw\u202c {hidden}done\x00\x1b[31m".replace("\x00", ""), "a.txt")
    assert shapes(document) == [("text", "payment etihw done[31m")]


def test_pages_are_cut_at_headings_and_between_paragraphs() -> None:
    sentence = "The pump is checked before it is started. "
    text = "".join(f"# {n} Part\n\n{sentence * 30}\n\n{sentence * 30}\n\n" for n in range(1, 6))
    document = parsed(text, "long.md")
    assert document.pages == 5
    assert [(entry.number, entry.page) for entry in document.outline] == [(str(n), n) for n in range(1, 6)]
    assert all(len(block.text) <= 3_000 for block in document.blocks)
    unbroken = parsed("x" * 10_000 + "\n\n" + sentence * 200, "long.txt")
    assert "".join(block.text for block in unbroken.blocks[:4]).startswith("x" * 10_000)
    assert all(block.text.endswith("started.") for block in unbroken.blocks[4:])
    assert parsed("# Only a heading\n" * 2_000, "heads.md").pages > 5
    rows = "".join(f"| row {n} | {n} |\n" for n in range(500))
    table = parsed(f"| name | n |\n|---|---|\n{rows}", "table.md")
    assert table.pages > 1
    assert all(block.text.startswith("| name | n |\n| --- | --- |\n| row ") for block in table.blocks)


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("utf-8-sig", "Насос запускается после проверки."),
        ("utf-16", "Насос запускается после проверки."),
        ("utf-16-le", "The pump is started after a check."),
        ("cp1251", "Насос запускается после проверки давления воды."),
        ("koi8-r", "Насос запускается после проверки давления воды."),
        ("cp866", "Насос запускается после проверки давления воды."),
        ("gb18030", "本规程规定了水泵的启动和停止程序，操作人员应检查水压。"),
        ("big5", "本規程規定了水泵的啟動和停止程序，操作人員應檢查水壓。"),
        ("shift_jis", "この手順書は、ポンプの起動と停止の手順を定める。"),
        ("cp1252", "Der Wasserdruck muß vorher geprüft werden, schließlich für alle Größen."),
    ],
)
def test_the_encoding_of_a_text_is_told(encoding: str, text: str) -> None:
    assert shapes(parsed(text.encode(encoding), "a.txt")) == [("text", text)]


def test_an_html_page_says_its_encoding() -> None:
    page = '<html><head><meta http-equiv="Content-Type" content="text/html; charset=gb2312"></head><p>水泵</p></html>'
    assert shapes(parsed(page.encode("gb18030"), "a.html")) == [("text", "水泵")]


def test_plain_text_has_the_headings_that_have_numbers() -> None:
    document = parsed("Глава 3. Насосы\n\nТекст.\n\n3.2 Пуск\nПуск по команде.\n\n1. Первое.\n2. Второе.\n", "a.txt")
    assert [(entry.title, entry.level, entry.number) for entry in document.outline] == [
        ("Глава 3. Насосы", 1, "3"),
        ("3.2 Пуск", 2, "3.2"),
    ]


@pytest.mark.parametrize(
    ("title", "number", "level"),
    [
        ("3.2.1 Pumps", "3.2.1", 3),
        ("第三章 总则", "3", 1),
        ("第二十一节 设备", "21", 2),
        ("第一百零五条", "105", 3),
        ("3.2水泵", "3.2", 2),
        ("Chapter IV. Valves", "4", 1),
        ("Глава 12", "12", 1),
        ("Приложение Б", "Б", 1),
        ("附录A 图纸", "A", 1),
        ("二、范围", "2", 0),
        ("Pumps", "", 0),
        ("Chapter one", "", 0),
    ],
)
def test_section_numbers_are_understood(title: str, number: str, level: int) -> None:
    assert (number_of(title), level_of(title)) == (number, level)


def manual(pages: int = 300) -> tuple[bytes, list[Bookmark]]:
    """A manual with a chapter every ten pages, a section every five, and one sentence that is nowhere else."""
    marks: list[Bookmark] = []
    drawn = []
    for page in range(1, pages + 1):
        lines: list[str | tuple[float, str]] = []
        if page % 10 == 1:
            marks.append(Bookmark(f"Chapter {page // 10 + 1}. System {page}", page))
            lines.append((18.0, marks[-1].title))
        if page % 5 == 1:
            marks.append(Bookmark(f"{page // 10 + 1}.{page % 10 // 5 + 1} Section {page}", page, 2))
            lines.append((14.0, marks[-1].title))
        lines += [f"Line {n} of page {page} tells how the pumps of the plant are run and kept." for n in range(20)]
        if page == 217:
            lines += ["", "The relief valve of loop seven opens at", "seventeen bar and closes at fifteen."]
        drawn.append([*flow(*lines), Drawn("Plant manual", y=40), Drawn(str(page), x=500, y=40)])
    return pdf(drawn, marks, title="Plant manual"), marks


async def test_a_pdf_of_300_pages_has_its_outline_and_its_pages(tmp_path: Path) -> None:
    content, marks = manual()
    path = tmp_path / "manual.pdf"
    path.write_bytes(content)
    document = await parse(path, "manual.pdf")
    assert (document.title, document.format, document.pages) == ("Plant manual", "pdf", 300)
    assert [(one.title, one.level, one.page) for one in document.outline] == [(m.title, m.level, m.page) for m in marks]
    headings = [(block.text, block.level, block.page) for block in document.blocks if block.kind == "heading"]
    assert headings == [(mark.title, mark.level, mark.page) for mark in marks]
    known = [block for block in document.blocks if "relief valve" in block.text]
    sentence = "The relief valve of loop seven opens at seventeen bar and closes at fifteen."
    assert known == [Block("text", sentence, 217)]
    # What stands at the foot of every page is said once, and page numbers never.
    assert [block.page for block in document.blocks if block.text.startswith("Plant manual")] == [1]


def test_a_pdf_without_bookmarks_has_the_headings_that_are_seen() -> None:
    cells = [("Name", "Value", "Unit"), ("Pressure", "10", "bar"), ("Температура", "20", "°C"), ("Расход", "", "m3/h")]
    table = [
        Drawn(text, x=x, y=500 - 15 * n)
        for n, row in enumerate(cells)
        for text, x in zip(row, (60, 220, 320), strict=True)
        if text
    ]
    pages = [
        [
            *flow(
                (20.0, "Руководство"), "Насос запускается после про-", "верки давления. Пуск без", "проверки запрещён."
            ),
            *flow("• первый пункт", "• второй пункт, он", "продолжается", top=600),
            *table,
        ],
        [
            *flow((15.0, "第三章 总则"), "本规程规定了水泵的启动", "和停止程序。", "", "第二段文字。"),
            Drawn("3.1 Body size", y=500),
            Drawn("Text below it.", y=480),
            Drawn("4 Bold title", y=440, bold=True),
        ],
    ]
    document = parsed(pdf(pages), "x.pdf")
    assert document.title == "Руководство"
    assert [(block.kind, block.text, block.page) for block in document.blocks] == [
        ("heading", "Руководство", 1),
        ("text", "Насос запускается после проверки давления. Пуск без проверки запрещён.", 1),
        ("list", "- первый пункт\n- второй пункт, он продолжается", 1),
        (
            "table",
            "| Name | Value | Unit |\n| --- | --- | --- |\n| Pressure | 10 | bar |\n"
            "| Температура | 20 | °C |\n| Расход |  | m3/h |",
            1,
        ),
        ("heading", "第三章 总则", 2),
        ("text", "本规程规定了水泵的启动和停止程序。", 2),
        ("text", "第二段文字。", 2),
        ("heading", "3.1 Body size", 2),
        ("text", "Text below it.", 2),
        ("heading", "4 Bold title", 2),
    ]
    assert [(one.title, one.page, one.number) for one in document.outline][1:] == [
        ("第三章 总则", 2, "3"),
        ("3.1 Body size", 2, "3.1"),
        ("4 Bold title", 2, "4"),
    ]


def test_a_bookmark_that_no_line_shows_still_heads_its_page() -> None:
    marks = [Bookmark("1 Scope", 1), Bookmark("Not shown", 2), Bookmark("2.1 Limits", 2, 2)]
    document = parsed(pdf([flow("Scope", "Text one."), flow("Limits", "Text two.")], marks), "x.pdf")
    assert [(block.kind, block.text) for block in document.blocks] == [
        ("heading", "1 Scope"),
        ("text", "Text one."),
        ("heading", "Not shown"),
        ("heading", "2.1 Limits"),
        ("text", "Text two."),
    ]


def test_a_docx_has_headings_lists_and_tables() -> None:
    word = docx.Document()
    word.add_heading("Отчёт", 0)
    word.add_heading("Насосы", 1)
    shown = word.add_paragraph("Видно")
    shown.add_run(" и это скрыто").font.hidden = True
    for text in ("один", "два"):
        word.add_paragraph(text, style="List Number")
    word.add_paragraph("точка", style="List Bullet")
    table = word.add_table(3, 3)
    for n, cell in enumerate(table._cells):
        cell.text = f"c{n}"
    table.cell(1, 0).merge(table.cell(2, 0)).text = "both"
    table.cell(1, 1).merge(table.cell(1, 2)).text = "wide"
    file = io.BytesIO()
    word.save(file)
    document = parsed(file.getvalue(), "report.docx")
    assert document.title == "Отчёт"
    assert shapes(document) == [
        ("heading", "Отчёт"),
        ("heading", "Насосы"),
        ("text", "Видно"),
        ("list", "1. один\n2. два\n- точка"),
        ("table", "| c0 | c1 | c2 |\n| --- | --- | --- |\n| both | wide |  |\n| both | c7 | c8 |"),
    ]


def test_a_docx_shows_neither_deleted_text_nor_codes_of_fields() -> None:
    body = (
        "<w:p><w:r><w:t>Kept </w:t></w:r><w:del><w:r><w:delText>deleted</w:delText></w:r></w:del>"
        "<w:ins><w:r><w:t>inserted</w:t></w:r></w:ins><w:r><w:instrText>PAGEREF x</w:instrText></w:r></w:p>"
        "<w:sdt><w:sdtContent><w:p><w:r><w:t>in a control</w:t></w:r></w:p></w:sdtContent></w:sdt>"
    )
    assert shapes(parsed(raw_docx(body), "a.docx")) == [("text", "Kept inserted"), ("text", "in a control")]


def test_headings_of_a_docx_have_the_numbers_that_word_shows() -> None:
    word = docx.Document()
    numbering = word.part.numbering_part.element
    levels = "".join(
        f'<w:lvl w:ilvl="{n}"><w:start w:val="1"/><w:numFmt w:val="decimal"/><w:lvlText w:val="{text}"/></w:lvl>'
        for n, text in enumerate(("%1", "%1.%2"))
    )
    numbering.insert(0, parse_xml(f'<w:abstractNum {nsdecls("w")} w:abstractNumId="77">{levels}</w:abstractNum>'))
    numbering.append(parse_xml(f'<w:num {nsdecls("w")} w:numId="77"><w:abstractNumId w:val="77"/></w:num>'))
    for text, depth in (("Scope", 0), ("Limits", 0), ("Pressure", 1), ("Flow", 1)):
        heading = word.add_heading(text, depth + 1)
        properties = heading._p.get_or_add_pPr()
        properties.append(
            parse_xml(f'<w:numPr {nsdecls("w")}><w:ilvl w:val="{depth}"/><w:numId w:val="77"/></w:numPr>')
        )
    file = io.BytesIO()
    word.save(file)
    outline = parsed(file.getvalue(), "a.docx").outline
    assert [(one.title, one.number) for one in outline] == [
        ("1 Scope", "1"),
        ("2 Limits", "2"),
        ("2.1 Pressure", "2.1"),
        ("2.2 Flow", "2.2"),
    ]


def test_the_server_imports_no_parser() -> None:
    parsers = {"lxml", "docx", "pypdfium2", "chardet"}
    code = f"import sys, longhouse.app, longhouse.memory.documents; print(sorted({parsers} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
