"""Seed 004, conversation memory: ten fields, the story of a trace, each agent's memory rebuilt from it, exact cuts."""

from datetime import datetime
from typing import Any, ClassVar

from delegating_server import agent, answer, ask, playing, results, sessions_of, task_of
from ledger_helpers import ledger_of, listed, sent
from longhouse.agents.strategies.protocol import Body
from longhouse.journal import conversation
from longhouse.journal.roles import Role
from longhouse.models.scripted import Say, call, calls, step_of
from longhouse.store.database import Database
from longhouse.tools import BaseTool, ToolContext
from server_helpers import House, Serving, content

FIELDS = [
    "id", "conversation_id", "trace_id", "source", "source_type", "target", "target_type", "content", "type",
    "timestamp", "pair_id",
]  # fmt: skip
TASK = "巴菲特退出比亚迪的原因是什么？"
"""The question of the seed's own example."""


class HandbookTool(BaseTool):
    """Look something up in the handbook."""

    tool_role: ClassVar[Role] = "knowledge"
    topic: str

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return f"Chapter 3 on {self.topic}: everything was sold in 2025."


TOOLS = ("clarificationtool", "finalanswertool", "collecttool", "clocktool", "handbooktool")
TEAM = tuple(agent(name, calls=("ann", "ben"), tools=TOOLS) for name in ("master", "ann", "ben"))


def master(body: Body) -> Say:
    if task_of(body) == "And now?":
        return call("clocktool") if step_of(body.messages) == 0 else answer("Later than before.")
    match step_of(body.messages):
        case 0:
            return calls(Say(text="Two of us."), ask("ann", "Look at the clock."), ask("ben", "Найди в справочнике."))
        case 1:
            return calls(call("clocktool"), ask("ann", "x", label="a" * 200))
        case _:
            return answer(f"因为：{' '.join(results(body)[:2])}")


def ann(body: Body) -> Say:
    return call("clocktool") if step_of(body.messages) == 0 else answer("It is noon.")


def ben(body: Body) -> Say:
    return call("handbooktool", topic="BYD") if step_of(body.messages) == 0 else answer("Всё продано в 2025 году.")


def team(serving: Serving) -> Any:
    return playing(serving, {"master": master, "ann": ann, "ben": ben}, templates=TEAM, tools=[HandbookTool])


async def test_the_ledger_tells_what_a_team_did_and_is_cut_exactly_where_it_is_told(serving: Serving) -> None:
    async with team(serving) as house:
        first = await house.say(TASK, model="master", chat_id=12345)
        assert content(first).endswith("因为：It is noon. Всё продано в 2025 году.")
        assert content(await house.say("And now?", model="master", chat_id=12345)) == "Later than before."
        everything = await listed(house)
        fields_as_expected(everything)
        await story_as_expected(house, everything)
        await filters_as_expected(house, everything)
        await memories_as_expected(house)
        await found_as_expected(house)
        await deleted_as_expected(house, everything)


def fields_as_expected(records: list[dict[str, Any]]) -> None:
    assert all(list(one) == FIELDS for one in records)
    assert len({one["id"] for one in records}) == len(records)
    assert {one["conversation_id"] for one in records} == {"12345"}
    assert all(datetime.fromisoformat(one["timestamp"]).tzinfo for one in records)
    kinds = {one["source_type"] for one in records} | {one["target_type"] for one in records}
    assert kinds == {"user", "agent", "tool", "llm", "knowledge"}
    assert [one["timestamp"] for one in records] == sorted((one["timestamp"] for one in records), reverse=True)
    # Each question has one answer, under the same pair, the other way round.
    inputs = {one["id"]: one for one in records if one["type"] == "input"}
    outputs = {one["pair_id"]: one for one in records if one["type"] == "output"}
    assert inputs.keys() == outputs.keys()
    for pair, asked in inputs.items():
        said = outputs[pair]
        assert (asked["source"], asked["target"], asked["pair_id"]) == (said["target"], said["source"], pair)
        assert asked["timestamp"] <= said["timestamp"]


async def story_as_expected(house: House, records: list[dict[str, Any]]) -> None:
    """One trace over all agents in the order in which it happened, also in the terminal."""
    trace = next(one["trace_id"] for one in records if one["content"] == TASK)
    told = await ledger_of(house.db).story(trace)
    assert [one.id for one in reversed(told)] == [one["id"] for one in records if one["trace_id"] == trace]
    plain = [(one.source, one.target, one.content) for one in told if "llm" not in (one.source_type, one.target_type)]
    work = [one for one in plain if "finalanswertool" not in one]
    assert work[0] == ("user", "master", TASK)
    # The two work at the same time: each tells its own part in order.
    parts = {"ann": ["master", "clocktool", "clocktool", "master"], "ben": ["master", *["handbooktool"] * 2, "master"]}
    for name, part in parts.items():
        mine = [source if target == name else target for source, target, _ in work if name in (source, target)]
        assert mine[:4] == part
    assert work[-1] == ("master", "user", "因为：It is noon. Всё продано в 2025 году.")
    # A call that was refused reached nobody: its caller tells it.
    [refused] = [one for one in work if one[:2] == ("ann", "master") and "do not fit" in one[2]]
    assert work.index(refused) > work.index(("ann", "master", "It is noon."))


async def filters_as_expected(house: House, records: list[dict[str, Any]]) -> None:
    """Each filter gives exactly those of the whole list, page by page too."""

    def only(**wanted: Any) -> list[dict[str, Any]]:
        return [one for one in records if all(one[name] == value for name, value in wanted.items())]

    for wanted in (
        {"type": "output"}, {"source_type": "knowledge"}, {"target_type": "user"},
        {"trace_id": records[0]["trace_id"]}, {"type": "input", "source_type": "user"},
    ):  # fmt: skip
        assert await listed(house, **wanted) == only(**wanted), wanted
        assert only(**wanted), wanted
    for name in ("master", "ann", "ben"):
        mine = [one for one in records if name in (one["source"], one["target"])]
        assert await listed(house, agent=name) == mine
        assert await listed(house, agent=name, type="input") == [one for one in mine if one["type"] == "input"]
    middle = records[len(records) // 2]["timestamp"]
    assert await listed(house, since=middle) == [one for one in records if one["timestamp"] >= middle]
    assert await listed(house, until=middle) == [one for one in records if one["timestamp"] < middle]
    assert await listed(house, text="ПРОДАНО", agent="ben") == [
        one for one in records if "продано" in one["content"].lower() and "ben" in (one["source"], one["target"])
    ]
    paged, before = list[dict[str, Any]](), dict[str, str]()
    while True:
        status, page = await sent(house, "GET", limit=7, agent="master", **before)
        assert (status, page["object"]) == (200, "list")
        paged += page["data"]
        if not page["has_more"]:
            break
        before = {"before": page["next"]}
    assert paged == await listed(house, agent="master")
    for wrong in ({"type": "both"}, {"source_type": "robot"}, {"limit": "201"}, {"since": "yesterday"}, {"kind": "x"}):
        status, refused = await sent(house, "GET", **wrong)
        assert (status, refused["error"]["param"]) == (400, next(iter(wrong)))
    assert (await sent(house, "GET", query="x", before=page["next"] or "eA=="))[0] == 400


async def own_memory(house: House, name: str) -> dict[str, Any]:
    ids = [*await sessions_of(house.db, name, "root"), *await sessions_of(house.db, name)]
    return {one: conversation.messages_of(await house.folded(one)) for one in sorted(ids)}


async def rebuilt(house: House, name: str) -> dict[str, Any]:
    status, page = await sent(house, "GET", below="/memory", agent=name)
    assert status == 200, page
    return {one["session_id"]: one["messages"] for one in page["data"]}


async def memories_as_expected(house: House) -> None:
    """Each agent's memory, rebuilt from the ledger alone, is its own."""
    for name in ("master", "ann", "ben"):
        assert await rebuilt(house, name) == await own_memory(house, name)
    assert await rebuilt(house, "nobody") == {}


async def found_as_expected(house: House) -> None:
    """By words and meaning, in three languages, within the filters."""
    assert (await listed(house, query="когда всё продали?", limit=3))[0]["content"] == "Всё продано в 2025 году."
    assert (await listed(house, query="比亚迪", type="input", source_type="user"))[0]["content"] == TASK
    found = await listed(house, query="What does the handbook say on BYD?", source_type="knowledge")
    assert [one["content"] for one in found] == ["Chapter 3 on BYD: everything was sold in 2025."]
    assert all("ann" in (one["source"], one["target"]) for one in await listed(house, query="clock", agent="ann"))
    assert await listed(house, "another", query="BYD") == []


async def deleted_as_expected(house: House, everything: list[dict[str, Any]]) -> None:
    """What is named is gone, and nothing else; a rebuild brings none of it back."""
    master_before, ann_before = await rebuilt(house, "master"), await rebuilt(house, "ann")
    kept = [one for one in everything if "ben" not in (one["source"], one["target"])]
    status, said = await sent(house, "DELETE", agent="ben")
    assert (status, said["deleted"]) == (200, len(everything) - len(kept))
    assert await listed(house) == kept
    assert (await rebuilt(house, "master"), await rebuilt(house, "ann")) == (master_before, ann_before)
    assert await rebuilt(house, "ben") == {}
    assert await words_left(house.db, "справочнике") == 0
    await made_again(house, kept)
    assert await rebuilt(house, "master") == master_before

    trace = kept[0]["trace_id"]
    kept = [one for one in kept if one["trace_id"] != trace]
    status, said = await sent(house, "DELETE", trace_id=trace)
    assert (status, await listed(house)) == (200, kept)
    await made_again(house, kept)

    # The agent that talked to all of them goes: what it asked of others stays in their memories.
    ann_before = await rebuilt(house, "ann")
    await sent(house, "DELETE", agent="master")
    left = await listed(house)
    assert left == [one for one in kept if "master" not in (one["source"], one["target"])]
    assert (await rebuilt(house, "ann"), await rebuilt(house, "master")) == (ann_before, {})
    await made_again(house, left)
    assert await rebuilt(house, "ann") == ann_before

    assert (await sent(house, "DELETE"))[1]["deleted"] == len(left)
    assert (await sent(house, "DELETE"))[1]["deleted"] == 0
    await made_again(house, [])
    assert await house.db.value("SELECT count(*) FROM passages WHERE kind = 'interaction'") == 0
    # What is said after it is told again.
    await house.say("And now?", model="master", chat_id=12345)
    assert (await listed(house, target_type="user"))[0]["content"] == "Later than before."
    assert (await sent(house, "DELETE", agent=""))[0] == 400
    assert len(await listed(house)) > 0


async def made_again(house: House, expected: list[dict[str, Any]]) -> None:
    """Dropped and derived from the journals once more, byte for byte."""
    ledger = ledger_of(house.db)
    await ledger.reset()
    await ledger.catch_up_all()
    assert await listed(house) == expected
    hidden = 'SELECT count(*) FROM passages p JOIN ledger l ON l.session_id = p."group" AND l.id = p.source'
    assert await house.db.value(f"{hidden} WHERE NOT l.shown") == 0


async def words_left(db: Database, word: str) -> int:
    ledger = "SELECT count(*) FROM ledger WHERE shown AND strpos(content, :word) > 0"
    found = "SELECT count(*) FROM passages WHERE strpos(text, :word) > 0"
    return int(await db.value(ledger, word=word)) + int(await db.value(found, word=word))
