"""Documents as they are cut: chunks of one page and one section, tables that stay tables, outlines as trees."""

from longhouse.memory.documents import outline
from longhouse.memory.documents.chunks import LONGEST, chunks_of, pages_of
from longhouse.memory.documents.outline import OutlineEntry
from longhouse.memory.documents.parsed import Block
from longhouse.store.memory.documents import Section

SECTIONS = [
    Section("General", 1, 1, "1"),
    Section("Scope", 2, 1, "1.1"),
    Section("Isolation", 1, 2, "2"),
    Section("Earthing", 2, 2, "2.1"),
    Section("Cables", 3, 3, "2.1.1"),
    Section("Tools", 2, 3, "2.2"),
    Section("第三章 倒闸操作", 1, 4, "3"),
]


def cut(*blocks: Block, sections: list[Section] | None = None) -> list[tuple[str, int, int, str]]:
    where = outline.located(blocks, SECTIONS if sections is None else sections)
    return [(one.text, one.page, one.section, one.kind) for one in chunks_of(blocks, where)]


def titles(items: list[OutlineEntry]) -> list[object]:
    return [(item["title"], titles(item["children"])) if item["children"] else item["title"] for item in items]


def test_an_outline_is_a_tree_down_to_the_depth_that_is_asked_for() -> None:
    assert titles(outline.tree(SECTIONS, 3)) == [
        ("General", ["Scope"]),
        ("Isolation", [("Earthing", ["Cables"]), "Tools"]),
        "第三章 倒闸操作",
    ]
    assert titles(outline.tree(SECTIONS, 1)) == ["General", "Isolation", "第三章 倒闸操作"]
    assert titles(outline.tree(SECTIONS, 2)) == [
        ("General", ["Scope"]),
        ("Isolation", ["Earthing", "Tools"]),
        "第三章 倒闸操作",
    ]
    assert titles(outline.tree(SECTIONS, 9, outline.named(SECTIONS, "2.1")[0])) == [("Earthing", ["Cables"])]
    odd = [Section("deep", 4, 1), Section("up", 2, 1), Section("below", 5, 1)]
    assert titles(outline.tree(odd, 9)) == ["deep", ("up", ["below"])]
    assert outline.paths(SECTIONS)[4] == (2, 3, 4)


def test_a_section_is_named_by_number_title_or_both() -> None:
    def found(name: str) -> list[list[int]]:
        return [list(part) for part in outline.named(SECTIONS, name)]

    assert found("2.1") == found("2.1.") == found("§ 2.1") == [[3, 4]]
    assert found("isolation") == found("2 Isolation") == found("  2  ISOLATION ") == [[2, 3, 4, 5]]
    assert found("倒闸操作") == found("第三章 倒闸操作") == found("３") == [[6]]
    assert found("nothing of it") == found("") == []
    assert [list(part) for part in outline.numbered(SECTIONS, "2.1.1")] == [[4]]
    only_below = [Section("Deep", 3, 1, "7.1.1"), Section("Deep too", 3, 1, "7.1.2"), Section("Other", 1, 1, "71")]
    assert [list(part) for part in outline.numbered(only_below, "7.1")] == [[0], [1]]


def test_a_chunk_lies_on_one_page_and_in_one_section_with_its_heading() -> None:
    blocks = (
        Block("text", "Preface.", 1),
        Block("heading", "1 General", 1, 1),
        Block("heading", "1.1 Scope", 1, 2),
        Block("text", "These rules are for all.", 1),
        Block("list", "- one\n- two", 1),
        Block("heading", "Isolation", 2, 1),
        Block("text", "Switch it off.", 2),
        Block("text", "And lock it.", 3),
    )
    assert cut(*blocks) == [
        ("Preface.", 1, -1, "text"),
        ("1 General\n\n1.1 Scope\n\nThese rules are for all.\n\n- one\n- two", 1, 1, "text"),
        ("Isolation\n\nSwitch it off.", 2, 2, "text"),
        ("And lock it.", 3, 3, "text"),
    ], "what stands on page 3 without a heading belongs to the last section that began before it"
    assert pages_of(blocks)[1].startswith("Preface.\n\n# 1 General\n\n## 1.1 Scope\n\n")
    assert cut(Block("text", "No outline.", 1), sections=[]) == [("No outline.", 1, -1, "text")]


def test_a_table_stands_alone_and_each_part_of_a_long_one_has_its_head() -> None:
    head = "| kV | m |\n|---|---|"
    rows = [f"| {nth} | {nth * 0.1:.1f} distance of the line in the open |" for nth in range(60)]
    table = "\n".join([head, *rows])
    found = cut(
        Block("heading", "Tools", 3, 2),
        Block("table", "| a | b |\n|---|---|\n| 1 | 2 |", 3),
        Block("text", "Beside it.", 3),
        Block("table", table, 3),
    )
    assert [one[3] for one in found][:3] == ["table", "text", "table"]
    assert found[0][0] == "Tools\n\n| a | b |\n|---|---|\n| 1 | 2 |"
    long = [text for text, *_ in found[2:]]
    assert len(long) > 2
    assert all(text.startswith(f"{head}\n") and len(text) <= LONGEST for text in long)
    assert [line for text in long for line in text.split("\n")[2:]] == rows


def test_long_texts_are_cut_between_sentences_and_nothing_is_lost() -> None:
    english = " ".join(f"Sentence number {nth} tells of the weather in the north." for nth in range(60))
    chinese = "".join(f"第{nth}条规定了在北方作业的要求。" for nth in range(200))
    solid = "x" * 5_000
    for text in (english, chinese, solid):
        found = [one[0] for one in cut(Block("text", text, 1), sections=[])]
        assert len(found) > 2
        assert max(map(len, found)) <= LONGEST
        assert "".join("".join(found).split()) == "".join(text.split())
    assert all(one[0].endswith((".", "。")) for one in cut(Block("text", chinese, 1), sections=[]))
    assert max(len(one[0]) for one in cut(Block("text", chinese, 1), sections=[])) <= LONGEST * 0.6
    code = "\n".join(f"    line_{nth} = {nth}" for nth in range(200))
    assert "\n".join(one[0] for one in cut(Block("code", code.strip(), 1), sections=[])) == code.strip()
    assert cut(Block("text", "a\x00b\ud800", 1), Block("text", "  ", 1), sections=[]) == [("a�b�", 1, -1, "text")]
