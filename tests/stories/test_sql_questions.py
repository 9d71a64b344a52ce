"""What operators ask Postgres: the ten questions of docs/sql.md are asked as they stand there, and answered truly."""

import re
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import msgspec

from delegating_server import PLAIN, agent, answer, ask, playing, question, results, task_of
from fake_tavily import KEY, hit, tavily
from ledger_helpers import told
from longhouse.agents.strategies.protocol import Body
from longhouse.models.scripted import Say, call
from pages import ROOT, blocks
from server_helpers import House, Serving

RAIN = "https://rain.example.org/bergen"
TASK, LATER, CITY, BROKEN = "Идёт ли дождь в Бергене?", "А завтра будет дождь?", "哪个城市最潮湿？", "Сломай что-нибудь"
ANSWER, SORRY = "Дождь, 三毫米.", "Не вышло: 失败了"
TEMPLATES = (agent("master", calls=("ann",), tools=(*PLAIN, "websearchtool")), agent("ann", calls=()))


def master(body: Body) -> Say:
    found = results(body)
    match task_of(body):
        case task if task == CITY:
            return question("Где вы? 你在哪里？")
        case task if task == LATER:
            return answer("Завтра тоже.")
        case task if task == BROKEN:
            return answer(SORRY, status="failed") if found else call("clocktool", timezone="Атлантида")
        case _:
            steps = (call("websearchtool", query="дождь Берген"), ask("ann", "数一数毫米"), answer(ANSWER))
            return steps[len(found)]


ROLES = {"master": master, "ann": lambda body: answer("三毫米")}


def asked(**named: str) -> dict[str, str]:
    """The questions of the page by their first words, with these names in the place of those in quotes."""
    found = {}
    for block in blocks(ROOT / "docs" / "sql.md", "sql"):
        for part in block.code.split(";\n"):
            if heading := re.match(r"\s*-- (?:(\d+)\. )?(.*)\n", part):
                sql = part[heading.end() :]
                for placeholder, name in named.items():
                    sql = sql.replace(
                        {"session": "sgr_agent_…", "conversation": "rainy", "word": "rain%"}[placeholder], name
                    )
                found[heading[1] or heading[2]] = sql
    return found


async def as_the_api_says(house: House) -> int:
    """Every session is in the view as the API shows it; returns how many there are."""
    rows = await house.db.rows("SELECT * FROM session_details")
    async with house.http.get("/v1/sessions?limit=200") as response:
        listed = {one["session_id"]: one for one in (await response.json())["data"]}
    for row in rows:
        shown, counted = await house.session(row["session_id"]), listed[row["session_id"]]
        same = (
            "template_id",
            "version",
            "instance_id",
            "conversation_id",
            "label",
            "trace_id",
            "task",
            "result",
            "error",
        )
        assert {name: row[name] for name in same} == {name: shown[name] for name in same}
        assert {name: row[name] for name in shown["counters"]} == shown["counters"]
        assert {name: row[name] for name in ("turns", "steps", "tokens")} == {
            name: counted[name] for name in ("turns", "steps", "tokens")
        }
        assert msgspec.json.decode(row["context_snapshot"]) == shown["context_snapshot"]
    assert len(rows) == len(listed)
    return len(rows)


async def test_the_ten_questions_are_answered_truly(serving: Serving) -> None:
    async with AsyncExitStack() as stack:
        stand_in = await stack.enter_async_context(tavily({"дождь Берген": [hit(RAIN, "Осадки 降水", "Много.")]}))
        settings = {"templates": TEMPLATES, "tavily_base_url": stand_in.url, "tavily_api_key": KEY}
        house = await stack.enter_async_context(playing(serving, ROLES, **settings))
        rainy = (await house.say(TASK, model="master", chat_id="rain-1", user="Аня"))["model"]
        assert (await house.say(LATER, model=rainy))["model"] == rainy
        asking = (await house.say(CITY, model="master", user="小明"))["model"]
        broken = (await house.say(BROKEN, model="master"))["model"]
        await told(house.db)
        assert await as_the_api_says(house) == 4
        questions = asked(session=rainy, conversation="rain-1", word="дождь%")

        async def told_of(number: int) -> list[dict[str, Any]]:
            return [dict(row) for row in await house.db.rows(questions[str(number)])]

        assert [one for one in questions if one.isdecimal()] == [str(n) for n in range(1, 11)]
        [failed] = await told_of(1)
        assert (failed["session_id"], failed["task"], failed["error"]) == (broken, BROKEN, SORRY)
        [waiting] = await told_of(2)
        assert (waiting["session_id"], waiting["tool_name"]) == (asking, "clarificationtool")
        assert "你在哪里" in str(waiting["args"])
        done = await told_of(3)
        assert [(one["tool_name"], one["status"]) for one in done] == [
            ("websearchtool", "ok"), ("agent.ann", "ok"), ("finalanswertool", "ok"), ("finalanswertool", "ok"),
        ]  # fmt: skip
        assert all(one["took"].total_seconds() >= 0 for one in done)
        said = await told_of(4)
        assert [one["content"] for one in said if one["role"] == "user"] == [TASK, LATER]
        assert [(one["url"], one["title"]) for one in await told_of(5)] == [(RAIN, "Осадки 降水")]
        [failing] = await told_of(6)
        assert (failing["tool_name"], failing["failures"]) == ("clocktool", 1)
        assert "Атлантида" in failing["for_example"]
        used = {one["template_id"]: one for one in await told_of(7)}
        assert used.keys() == {"master", "ann"}
        assert (float(used["ann"]["steps"]), used["ann"]["tokens"] > 0) == (1.0, True)
        worked = await told_of(8)
        columns = ("template_id", "parent", "turns", "steps", "tool_calls")
        assert [tuple(one[name] for name in columns) for one in worked] == [
            ("master", None, 2, 4, 4),
            ("ann", rainy, 1, 1, 1),
        ]
        spoken = [(one["source"], one["target"]) for one in await told_of(9)]
        assert {("user", "master"), ("master", "ann"), ("ann", "master")} <= {*spoken}
        [about] = await told_of(10)
        assert (about["session_id"], about["user"], about["first_task"]) == (rainy, "Аня", TASK)
        assert about["result"] == "Завтра тоже."
        for words, statement in questions.items():
            try:
                await house.db.rows(statement)
            except asyncpg.UndefinedFunctionError:
                assert "<=>" in statement, words  # it says itself that it needs pgvector
