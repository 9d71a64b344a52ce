"""Titles of sessions: the first words, or what the model says after the first answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from delegating_server import answer
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import Template, ToolPolicy
from longhouse.journal.events import Resumed, Spent
from longhouse.journal.words import titles
from longhouse.models.scripted import Say, ScriptedStatus, say
from server_helpers import Dictated, House, Pen, Serving, content, dictated, process

TITLED = Template(name="titled", title="model", tool_policy=ToolPolicy(allowlist=("finalanswertool",)))


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("  How much\n does it\train?  ", "How much does it rain?"),
        ("a\x00b\x1b[31m\u202ec\u2066d\u200b\ufeffe\x85f", "ab[31mcde f"),
        ("Сколько дождя выпадает в Бергене и почему там его больше, чем в любом другом городе Норвегии?",
         "Сколько дождя выпадает в Бергене и почему там его больше, чем в любом другом…"),
        ("北京" * 60, "北京" * 39 + "北…"),
        ("x" * 80, "x" * 80),
        ("", ""),
        ("👨\u200d👩\u200d👧 family", "👨\u200d👩\u200d👧 family"),
    ],
)  # fmt: skip
def test_first_words_are_one_short_line(text: str, title: str) -> None:
    assert titles.first_words(text) == title
    assert len(title) <= titles.LONGEST


def finish(pen: Pen, text: str) -> None:
    """The model says the final answer."""
    pen.call("finalanswertool", f'{{"answer": "{text}"}}')
    pen.end()


def entitle(pen: Pen, text: str) -> None:
    pen.write(content=text)
    pen.write(finish="stop")
    pen.frames.put_nowait(b"data: [DONE]\n\n")
    pen.frames.put_nowait(b"")


def is_title(pen: Pen) -> bool:
    return "tools" not in pen.body and "give conversations their titles" in str(pen.body["messages"][0])


async def shown(house: House, session_id: str) -> str:
    async with house.http.get("/v1/sessions") as response:
        rows = {row["session_id"]: row for row in (await response.json())["data"]}
    return str(rows[session_id]["title"])


async def given(house: House, session_id: str) -> list[str | None]:
    """The titles in the journal of a session, once it has one."""
    async with asyncio.timeout(10):
        while True:
            told = [record.event for record in await house.journal(session_id)]
            found = [one.title for one in told if isinstance(one, Spent)]
            if found:
                return found
            await asyncio.sleep(0.02)


@asynccontextmanager
async def told(house: House, scripted: Dictated, text: str, *, model: str) -> AsyncIterator[Any]:
    """A talk whose answer has come, while the model is asked for its title."""
    saying = asyncio.create_task(house.say(text, model=model))
    finish(await scripted.asked(), "Much.")
    async with asyncio.timeout(10):
        yield await saying


async def test_the_model_gives_a_title_after_the_answer_and_once(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url, templates=[TITLED]) as house:
        async with told(house, model, "How much does it rain?", model="titled") as answered:
            session_id = answered["model"]
            assert content(answered) == "Much.", "it did not wait for the title"
            pen = await model.asked()
            assert is_title(pen)
            assert "[user] How much does it rain?" in pen.body["messages"][1]["content"]
            assert await shown(house, session_id) == "How much does it rain?", "until the model has said it"
            assert (await house.session(session_id))["state"] == "COMPLETED"
            entitle(pen, '"Rain \u202ein Bergen".\nBecause it was asked.')
        assert await given(house, session_id) == ["Rain in Bergen"]
        assert await shown(house, session_id) == "Rain in Bergen"
        assert (await house.session(session_id))["title"] == "Rain in Bergen"
        again = asyncio.create_task(house.say("And snow?", model=session_id))
        finish(await model.asked(), "None.")
        assert content(await again) == "None."
        async with asyncio.timeout(10):
            while await house.db.value("SELECT holder FROM sessions WHERE id = :id", id=session_id):
                await asyncio.sleep(0.02)
        assert await given(house, session_id) == ["Rain in Bergen"]
        async with house.http.get("/v1/sessions", params={"q": "bergen"}) as response:
            assert [row["session_id"] for row in (await response.json())["data"]] == [session_id]


async def test_a_prompt_does_not_wait_for_the_title(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url, templates=[TITLED]) as house:
        async with told(house, model, "One.", model="titled") as answered:
            assert is_title(await model.asked())  # and it is never answered
            async with told(house, model, "Two.", model=answered["model"]) as second:
                assert content(second) == "Much."
                entitle(await model.asked(), "Numbers")
        assert await given(house, answered["model"]) == ["Numbers"]


async def test_a_title_that_fails_leaves_the_first_words(serving: Serving) -> None:
    asked = []

    def play(body: Body) -> Say:
        if body.tools:
            return answer("Much.")
        asked.append(body)
        return say("", fault=ScriptedStatus(status=503))

    plain = Template(name="plain", tool_policy=TITLED.tool_policy)
    async with serving(play, templates=[TITLED, plain]) as house:
        session_id = (await house.say("How much?", model="titled"))["model"]
        assert await given(house, session_id) == [""]
        await house.say("And now?", model=session_id)
        other = (await house.say("Plain words", model="plain"))["model"]
        assert (await shown(house, session_id), await shown(house, other)) == ("How much?", "Plain words")
        async with asyncio.timeout(10):
            while await house.db.value("SELECT count(*) FROM sessions WHERE holder IS NOT NULL"):
                await asyncio.sleep(0.02)
        assert len(asked) == 1, "it is asked for once, and only where the template says so"


async def test_a_title_that_a_killed_process_asked_for_is_asked_for_again(serving: Serving, dsn: str) -> None:
    async with dictated() as model:
        async with process("serve", "--port", "0", database_url=dsn, llm_base_url=model.url) as killed:
            descriptor = {"name": "titled", "title": "model", "tool_policy": {"allowlist": ["finalanswertool"]}}
            async with killed.http.post("/admin/templates", json=descriptor) as response:
                assert response.status == 201, await response.text()
            saying = asyncio.create_task(killed.say("How much?", model="titled"))
            finish(await model.asked(), "Much.")
            session_id = (await saying)["model"]
            assert is_title(await model.asked())
            killed.kill()
            await killed.ended()
        async with serving(llm_base_url=model.url) as heir:
            pen = await model.asked()
            assert is_title(pen)
            entitle(pen, "Amounts")
            assert await given(heir, session_id) == ["Amounts"]
            kinds = [type(record.event) for record in await heir.journal(session_id)]
            assert kinds[-2:] == [Resumed, Spent]
            assert (await heir.session(session_id))["state"] == "COMPLETED"
