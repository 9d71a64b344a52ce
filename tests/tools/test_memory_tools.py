"""The ten memory tools: what they say, whose files they see, and that nothing leads out of them."""

import itertools
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from longhouse.agents.template import MemoryPolicy, Template, ToolPolicy
from longhouse.journal import events
from longhouse.journal.events import Output
from longhouse.journal.session import Session
from longhouse.models.scripted import call
from longhouse.store.database import Database
from longhouse.store.memory.memory_files import MAX_FILE, MAX_SCOPE, Memories
from longhouse.tools.builtin.memory_files import MEMORY_TOOLS
from longhouse.tools.builtin.memory_paths import MAX_DEPTH, MAX_PATH, MemoryRefused, normalised
from longhouse.tools.context import Services
from longhouse.tools.toolbox import Toolbox
from server_helpers import Serving, content, folded, prompted, started, turn_of, used

_calls = itertools.count()


@dataclass
class Desk:
    """One conversation of one user with one agent, and its memory tools."""

    db: Database | None
    owner: str = "local"
    user: str | None = "ann"
    agent: str = "clerk"
    conversation: str = "c"
    scope: str = "agent"
    toolbox: Toolbox = field(init=False)

    def __post_init__(self) -> None:
        self.toolbox = Toolbox(MEMORY_TOOLS, services=Services(memory=Memories(self.db) if self.db else None))

    async def __call__(self, tool: str, *, call_id: str | None = None, **arguments: str) -> str:
        call_id = call_id or f"{next(_calls)}-action-0"
        session = self._session(used(call_id, tool=tool, arguments=json.dumps(arguments, ensure_ascii=False)))
        [due] = session.due_calls
        result = await self.toolbox.perform(due, session, turn_of(session), memory_scope=self.scope)
        assert isinstance(result.outcome, Output), result.outcome
        return result.outcome.content

    def _session(self, called: events.Called) -> Session:
        about = events.Opened(
            agent=self.agent, version=1, owner=self.owner, user=self.user, conversation=self.conversation
        )
        return folded(about, prompted("x"), started(2), events.Replied(), called)


@pytest.fixture
def desk(db: Database) -> Desk:
    return Desk(db)


async def test_a_file_is_created_read_changed_and_deleted(desk: Desk) -> None:
    assert await desk("createfiletool", path="people/ann.md", content="Likes tea.") == "True"
    assert await desk("readfiletool", path="people/ann.md") == "Likes tea."
    changed = await desk("updatefiletool", path="people/ann.md", old_content="tea", new_content="coffee")
    assert changed == "True"
    assert await desk("readfiletool", path="memory_dir/people/ann.md") == "Likes coffee."
    assert await desk("deletefiletool", path="people/ann.md") == "True"
    assert await desk("readfiletool", path="people/ann.md") == "Error: there is no people/ann.md"


async def test_checks_say_true_or_false(desk: Desk) -> None:
    assert await desk("createdirtool", path="people/friends") == "True"
    await desk("createfiletool", path="people/ann.md")
    for path, is_file, is_dir in (
        ("people/ann.md", "True", "False"),
        ("people/friends", "False", "True"),
        ("people/", "False", "True"),
        ("nothing", "False", "False"),
        ("", "False", "True"),
    ):
        assert await desk("checkiffileexiststool", path=path) == is_file
        assert await desk("checkifdirexiststool", path=path) == is_dir


async def test_sizes_are_of_everything_below(desk: Desk) -> None:
    assert await desk("getsizetool") == "0"
    await desk("createfiletool", path="a/b/x.md", content="né")
    await desk("createfiletool", path="a/y.md", content="12345")
    assert await desk("getsizetool", path="a/b/x.md") == "3"
    assert await desk("getsizetool", path="a") == "8"
    assert await desk("getsizetool") == "8"
    assert await desk("getsizetool", path="b") == "Error: there is no b"


async def test_a_list_has_paths_that_can_be_used_as_they_are(desk: Desk) -> None:
    assert await desk("getlistfilestool") == "(empty)"
    await desk("createfiletool", path="people/ann.md")
    await desk("createdirtool", path="people/friends")
    await desk("createfiletool", path="user.md")
    assert await desk("getlistfilestool") == "people/\npeople/ann.md\npeople/friends/\nuser.md"
    assert await desk("getlistfilestool", path="people") == "people/ann.md\npeople/friends/"
    assert await desk("getlistfilestool", path="people/friends") == "(empty)"
    assert await desk("getlistfilestool", path="user.md") == "Error: user.md is a file"
    assert await desk("getlistfilestool", path="nobody") == "Error: there is no nobody"


async def test_a_link_leads_to_its_file(desk: Desk) -> None:
    await desk("createfiletool", path="people/ann.md", content="Ann")
    await desk("createfiletool", path="list.txt", content="tea")
    await desk("createfiletool", path="v1.2.md", content="notes of 1.2")
    for link, text in (
        ("[[people/ann]]", "Ann"),
        ("[[people/ann.md]]", "Ann"),
        ("people/ann", "Ann"),
        ("[[people/ann|my sister]]", "Ann"),
        ("[[people/ann#Work]]", "Ann"),
        ("![[ memory_dir/people/ann#Work|her job ]]", "Ann"),
        ("[[list.txt]]", "tea"),
        ("[[v1.2]]", "notes of 1.2"),
        ("[[people]]", "Error: people is a directory"),
        ("[[people/bob]]", "Error: there is no people/bob"),
        ("[[]]", "Error: memory_dir is a directory"),
    ):
        assert (link, await desk("gotolinktool", link=link)) == (link, text)


async def test_every_failure_is_told_in_one_style(desk: Desk) -> None:
    await desk("createfiletool", path="a/x.md", content="text")
    for tool, arguments, message in (
        ("createfiletool", {"path": "a/x.md", "content": "other"}, "a/x.md is there already; change it with"),
        ("createfiletool", {"path": "a"}, "a is a directory"),
        ("createfiletool", {"path": "a/x.md/y.md"}, "a/x.md/y.md would stand inside of a file"),
        ("createfiletool", {"path": ""}, "this needs a path inside memory_dir"),
        ("createfiletool", {"path": "memory_dir"}, "this needs a path inside memory_dir"),
        ("readfiletool", {"path": "a"}, "a is a directory"),
        ("readfiletool", {"path": "."}, "memory_dir is a directory"),
        ("updatefiletool", {"path": "b", "old_content": "x", "new_content": "y"}, "there is no b"),
        ("updatefiletool", {"path": "a/x.md", "old_content": "none", "new_content": ""}, "a/x.md does not contain"),
        ("deletefiletool", {"path": "a"}, "a is a directory that is not empty"),
        ("deletefiletool", {"path": "b{path}"}, "there is no b{path}"),
        ("deletefiletool", {"path": ""}, "this needs a path inside memory_dir"),
        ("createdirtool", {"path": "a/x.md"}, "a/x.md is a file"),
    ):
        said = await desk(tool, **arguments)
        assert said.startswith(f"Error: {message}"), (tool, arguments, said)


async def test_limits_are_told_in_words(db: Database, desk: Desk) -> None:
    big = "é" * (MAX_FILE // 2 + 1)
    assert await desk("createfiletool", path="a.md", content=big) == (
        f"Error: a.md would be larger than {MAX_FILE} bytes; split it"
    )
    await desk("createfiletool", path="first.md")
    await db.run(
        """
        INSERT INTO memories (owner, scope, path, content, written_by)
        SELECT owner, scope, 'fill/' || n, repeat('x', :size), 'test' FROM memories, generate_series(1, :files) AS n
        """,
        size=MAX_FILE, files=MAX_SCOPE // MAX_FILE,
    )  # fmt: skip
    full = await desk("createfiletool", path="a.md", content="x")
    assert full == f"Error: memory_dir would be larger than {MAX_SCOPE} bytes; delete what is no longer needed"


async def test_without_a_memory_the_tools_say_so() -> None:
    assert await Desk(None)("readfiletool", path="a.md") == "Error: no memory is set up here"


async def test_what_postgres_cannot_hold_is_made_visible(desk: Desk) -> None:
    assert await desk("createfiletool", path="a.md", content="a\x00b\n\t") == "True"
    assert await desk("readfiletool", path="a.md") == "a\ufffdb\n\t"
    assert await desk("updatefiletool", path="a.md", old_content="a\x00b", new_content="c") == "True"
    assert await desk("readfiletool", path="a.md") == "c\n\t"


# Repeats: a worker that takes over makes the call again with the same key.


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("createfiletool", {"path": "new/b.md", "content": "b"}),
        ("updatefiletool", {"path": "a.md", "old_content": "one", "new_content": "two"}),
        ("updatefiletool", {"path": "a.md", "old_content": "one", "new_content": "one and one"}),
        ("deletefiletool", {"path": "a.md"}),
        ("createdirtool", {"path": "new"}),
    ],
)
async def test_a_write_made_again_with_its_key_says_the_same_and_changes_nothing(
    db: Database, desk: Desk, tool: str, arguments: dict[str, str]
) -> None:
    await desk("createfiletool", path="a.md", content="one")
    before = "SELECT path, content, updated_at FROM memories ORDER BY path"
    assert await desk(tool, call_id="again", **arguments) == "True"
    after = await db.rows(before)
    assert await desk(tool, call_id="again", **arguments) == "True"
    assert await db.rows(before) == after


def test_reads_may_be_run_again_and_writes_with_their_key() -> None:
    writes = {"createfiletool", "updatefiletool", "deletefiletool", "createdirtool"}
    assert len(MEMORY_TOOLS) == 10
    for cls in MEMORY_TOOLS:
        assert cls.described().effect == ("idempotent" if cls.tool_name in writes else "read")


# Attack 35: paths that lead elsewhere.

HOSTILE = [
    "../secret.md", "a/../../secret.md", "..", "a/..", "memory_dir/../x", "MEMORY_DIR/../x", "...", "a/.../b",
    "/etc/passwd", "//etc/passwd", "/proc/self/environ", "/dev/zero", "/", "~/x", "~root/x",
    "..\\secret.md", "\\\\host\\share", "C:\\x", "C:/x", "file:///etc/passwd", "http://example.com/x", "a.md:stream",
    "%2e%2e/x", "%2E%2E%2Fx", "%252e%252e%252fx", "a%00.md", "a%2fb", "％2e％2e/x",
    "a\x00.md", "a\nb", "a\rb", "a\x1b[31m", "a\x7f", "a\u0085b", "a\u2028b",
    "\u202egpj.md", "a\u200bb", "a\ufeffb", "\ue000",
    "．．/x", "․․/x", "‥/x", "a／b", "a＼b", "..／x", "℀",
    "CON", "nul", "aux.md", "Com1.txt", "a/LPT9", "ＮＵＬ",
    " a", "a ", "a./b", "a. /b", "a/ /b", "a\u00a0",
    "x" * (MAX_PATH + 1), "é" * (MAX_PATH // 2 + 1), "/".join("x" * (MAX_DEPTH + 1)), "x" * 900_000,
]  # fmt: skip


@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: ascii(path[:30]))
async def test_a_path_that_leads_elsewhere_is_refused_before_anything_is_read(path: str) -> None:
    """Refused with no database behind it: nothing was asked."""
    blind = Desk(None)
    blind.toolbox = Toolbox(MEMORY_TOOLS, services=Services(memory=Memories(None)))  # type: ignore[arg-type]
    extra = {"updatefiletool": {"old_content": "a", "new_content": "b"}}
    for cls in MEMORY_TOOLS:
        arguments: dict[str, Any] = {"path": path, **extra.get(cls.tool_name, {})}
        if cls.tool_name == "gotolinktool":
            # The brackets' own spaces are not part of a path.
            arguments = {"link": f"[[{path}]]" if path == path.strip() else f"[[x/{path}/x]]"}
        said = await blind(cls.tool_name, **arguments)
        assert said.startswith("Error: "), (cls.tool_name, said)
        assert len(said) < 800


def test_half_a_character_is_no_name() -> None:
    with pytest.raises(MemoryRefused, match="cannot be seen"):
        normalised("a\ud800.md")


async def test_names_that_only_look_strange_are_names(desk: Desk) -> None:
    for path in ("заметки/Анна.md", "会议：记录.md", "100%.md", ".hidden/.x", "a..b.md", "it's (1) & $HOME;.md",
                 "proc/self/environ", "console.md", "-rf", "x" * MAX_PATH, "/".join("x" * MAX_DEPTH)):  # fmt: skip
        assert await desk("createfiletool", path=path, content=path) == "True"
        assert await desk("readfiletool", path=path) == path


async def test_a_path_has_one_spelling(desk: Desk) -> None:
    await desk("createfiletool", path="café/a.md", content="here")
    for path in ("cafe\u0301/a.md", "./café//a.md", "memory_dir/café/./a.md", "./memory_dir/café/a.md/"):
        assert await desk("readfiletool", path=path) == "here"
    assert (await desk("createfiletool", path="cafe\u0301/a.md")).startswith("Error: café/a.md is there already")
    assert await desk("checkiffileexiststool", path="CAFÉ/A.MD") == "False"


# Scopes, and attack 59: one key that many people share.


async def meets(db: Database, one: dict[str, Any], **other: Any) -> bool:
    """Does somebody who differs in this see what `one` wrote?"""
    await db.run("TRUNCATE memories, memory_calls")
    assert await Desk(db, **one)("createfiletool", path="note.md", content="private") == "True"
    reader = Desk(db, **{**one, **other})
    said, listed = await reader("readfiletool", path="note.md"), await reader("getlistfilestool")
    assert (said, listed) in (("private", "note.md"), ("Error: there is no note.md", "(empty)"))
    return said == "private"


async def test_an_agent_remembers_a_user_over_all_conversations(db: Database) -> None:
    assert await meets(db, {}, conversation="d")
    assert not await meets(db, {}, user="bob")
    assert not await meets(db, {}, user=None)
    assert not await meets(db, {}, agent="other")
    assert not await meets(db, {}, owner="other")
    assert not await meets(db, {}, scope="conversation")
    assert not await meets(db, {}, scope="owner")
    assert not await meets(db, {"user": "a", "agent": "b"}, user='a","b', agent="")


@pytest.mark.parametrize("nobody", [None, "", " "])
async def test_without_a_user_an_agent_remembers_one_conversation(db: Database, nobody: str | None) -> None:
    assert await meets(db, {"user": nobody})
    assert not await meets(db, {"user": nobody}, conversation="d")
    assert not await meets(db, {"user": nobody}, agent="other")
    assert not await meets(db, {"user": nobody}, owner="other")
    assert not await meets(db, {"user": nobody}, user="ann")


async def test_a_conversation_may_share_its_files_among_agents(db: Database) -> None:
    for user in ("ann", None):
        one = {"scope": "conversation", "user": user}
        assert await meets(db, one, agent="other")
        assert not await meets(db, one, conversation="d")
        assert not await meets(db, one, user="bob")
        assert not await meets(db, one, owner="other")


async def test_the_local_owner_is_nobody_else_in_a_conversation(db: Database) -> None:
    """Conversations from before the owner counted as a user keep their files."""
    old = {"scope": "conversation", "user": None}
    assert await meets(db, old, user="local")
    assert not await meets(db, old, user="ann")
    assert not await meets(db, {**old, "owner": "acme"}, user="acme")
    assert await meets(db, {"user": "local"}, conversation="d")
    assert not await meets(db, {"user": "local"}, user=None)


async def test_an_owner_may_share_files_among_all(db: Database) -> None:
    assert await meets(db, {"scope": "owner"}, agent="other", user="bob", conversation="d")
    assert await meets(db, {"scope": "owner"}, user=None)
    assert not await meets(db, {"scope": "owner"}, owner="other")


async def test_long_names_of_users_are_told_apart(db: Database) -> None:
    long = "é" * 511
    assert not await meets(db, {"user": long + "a"}, user=long + "b")
    assert await Desk(db, user=long + "a", conversation="d")("readfiletool", path="note.md") == "private"


async def test_a_scope_that_nobody_knows_is_refused(db: Database) -> None:
    said = await Desk(db, scope="everyone")("readfiletool", path="a.md")
    assert said == "Error: no memory is set up here: 'everyone' is not a scope"


async def test_a_template_says_whose_files_its_agent_sees(serving: Serving) -> None:
    tools = ("finalanswertool", "createfiletool", "readfiletool")
    policy = ToolPolicy(allowlist=tools)
    keeper = Template(name="keeper", tool_policy=policy, memory_policy=MemoryPolicy(scope="agent"))
    sharer = Template(name="sharer", tool_policy=policy, memory_policy=MemoryPolicy(scope="owner"))
    script: list[Any] = []
    asked = [("keeper", "ann", "a"), ("keeper", "ann", "b"), ("keeper", "bob", "c"), ("sharer", "ann", "d"),
             ("sharer", None, "e")]  # fmt: skip
    for agent, _, conversation in asked:
        first = call("createfiletool", path="a.md", content=agent) if conversation in "ad" else None
        script += [first] if first else []
        script += [call("readfiletool", path="a.md"), call("finalanswertool", answer="ok")]
    async with serving(script, templates=[keeper, sharer]) as house:
        read = []
        for agent, user, conversation in asked:
            extra = {"user": user} if user else {}
            answer = await house.say("x", model=agent, chat_id=conversation, **extra)
            assert content(answer) == "ok"
            assert house.model is not None
            read.append(house.model.requests[-1]["messages"][-1]["content"])
    assert read == ["keeper", "keeper", "Error: there is no a.md", "sharer", "sharer"]
