"""What was said in one conversation is remembered in the next: of the same person, with its source, until deleted."""

from typing import Any

import pytest

from delegating_server import agent, answer, ask, cast
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import MemoryPolicy
from longhouse.journal import events
from longhouse.models.scripted import Say, step_of
from longhouse.store import journals
from recalling import Listener, friend, quotes
from server_helpers import House, Serving

NOBODY = "http://127.0.0.1:9/v1"
DOG, WHICH = "My dog is called Biscuit.", "What is the name of my dog?"


class Talk:
    """Talks with the agents of a house that share one model."""

    def __init__(self, house: House, model: Listener) -> None:
        self.house = house
        self.model = model

    async def recalled(self, text: str, *, model: str = "friend", **extra: Any) -> str:
        """What the prompt quotes from memory when an agent is told this."""
        assert "choices" in await self.house.say(text, model=model, **extra)
        return self.model.quoted


async def read(house: House, path: str) -> Any:
    async with house.http.get(path) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def test_a_new_conversation_remembers_the_last_one_and_says_where_from(serving: Serving) -> None:
    model = Listener()
    async with serving(model, templates=[friend(), friend("forgetful", recall=0)]) as house:
        talk = Talk(house, model)
        first = await house.say(DOG, model="friend", chat_id="12345")
        assert await talk.recalled(WHICH, model="forgetful") == ""
        second = await house.say(WHICH, model="friend")
        lines = model.quoted.splitlines()
        source = lines[lines.index(f"> {DOG}") - 1]
        assert source[7:].startswith("conversation 12345, user, 20")
        shown = (await read(house, f"/v1/sessions/{second['model']}/memory"))["recalled"]
        assert ("interaction", DOG, source[7:]) in [(one["kind"], one["text"], one["source"]) for one in shown]
        assert (await read(house, f"/v1/sessions/{second['model']}/steps/1/request"))["matches"] is True

        async with house.http.delete(f"/v1/sessions/{first['model']}") as response:
            assert response.status == 200
        assert DOG not in await talk.recalled(WHICH)
        again = (await read(house, f"/v1/sessions/{second['model']}/memory"))["recalled"]
        assert DOG not in [item["text"] for item in again]
        composed = await read(house, f"/v1/sessions/{second['model']}/steps/1/request")
        assert (composed["matches"], "Biscuit" in str(composed["request"])) == (False, False), "it is in no prompt"


@pytest.mark.parametrize("embeddings_base_url", [None, NOBODY], ids=["with vectors", "words alone"])
async def test_after_a_restart_in_three_languages_and_in_another_process(
    serving: Serving, embeddings_base_url: str | None
) -> None:
    tongues = (
        ("en", DOG, WHICH),
        ("ru", "Мою собаку зовут Бублик.", "Как зовут мою собаку?"),
        ("zh", "我的狗叫饼干。", "我的狗叫什么名字?"),
    )
    model = Listener()
    settings: dict[str, Any] = {"templates": [friend()], "embeddings_base_url": embeddings_base_url}
    async with serving(model, **settings) as house:
        for user, fact, _ in tongues:
            await Talk(house, model).recalled(fact, user=user)
    async with serving(model, **settings) as house, serving(model, **settings) as other:
        for user, fact, question in tongues:
            for one in (house, other):
                assert f"> {fact}" in (await Talk(one, model).recalled(question, user=user)).splitlines()
            assert fact not in await Talk(other, model).recalled(question, user="nobody")


async def test_files_and_notes_are_remembered_beside_what_was_said(serving: Serving) -> None:
    model = Listener()
    async with serving(model, templates=[friend(), friend("clerk", show=["people/ann.md"])]) as house:
        talk = Talk(house, model)
        noted = await house.say("Hello", model="friend", chat_id="tea")
        note = events.Noted(text="The user drinks jasmine tea every morning.")
        placed = await journals.note(house.db, noted["model"], [note])
        assert placed
        house.app.bus.noted(noted["model"], placed.seq)
        await talk.recalled("Keep tea.md Jasmine tea comes from Fujian.")
        said = await talk.recalled("Where does jasmine tea come from, and who drinks it?")
        assert "> Jasmine tea comes from Fujian." in said
        assert "memory file tea.md" in said
        assert "> The user drinks jasmine tea every morning." in said
        assert "] note from conversation tea, friend, " in said

        assert "people/ann.md" not in await talk.recalled("Hm?", model="clerk")
        await talk.recalled("Keep people/ann.md Ann likes rain.", model="clerk")
        assert "> Ann likes rain." in await talk.recalled("Hm?", model="clerk")


async def test_a_turn_of_several_steps_shows_the_same_and_its_sub_agent_its_own(serving: Serving) -> None:
    seen: dict[str, list[str]] = {"master": [], "analytic": []}

    def analytic(body: Body) -> Say:
        seen["analytic"].append(quotes(body))
        return answer("done")

    def master(body: Body) -> Say:
        seen["master"].append(quotes(body))
        return answer("done") if step_of(body.messages) else ask("analytic", WHICH)

    policy = MemoryPolicy(recall=5)
    agents = [agent(name, calls=tuple(seen), tools=("finalanswertool",), memory_policy=policy) for name in seen]
    async with serving(cast(master=master, analytic=analytic), templates=agents) as house:
        await house.say(DOG, model="analytic")
        await house.say("Find out: how is my dog called?", model="master")
    first, second = seen["master"]
    assert first == second
    assert f"> {DOG}" in first
    assert f"> {DOG}" in seen["analytic"][-1]
    assert "Find out" not in seen["analytic"][-1], "nobody is shown what is worked on now"


async def test_files_of_a_conversation_leave_the_index_with_those_who_wrote_them(serving: Serving) -> None:
    model = Listener()
    agents = [friend(scope="conversation"), friend("other", scope="conversation")]
    async with serving(model, templates=agents) as house:
        talk = Talk(house, model)

        async def found() -> set[str]:
            quoted = await talk.recalled("Which tea is it?", model="other", chat_id="c")
            return {tea for tea in ("Jasmine", "Oolong") if tea in quoted}

        async def indexed() -> list[str]:
            return [row["text"] for row in await house.db.rows("SELECT text FROM passages WHERE kind = 'file'")]

        first = await house.say("Keep first.md Jasmine tea.", model="friend", chat_id="c")
        second = await house.say("Keep second.md Oolong tea.", model="other", chat_id="c")
        assert await found() == {"Jasmine", "Oolong"}
        async with house.http.delete(f"/v1/sessions/{first['model']}") as response:
            assert response.status == 200
        assert await indexed() == ["Oolong tea."]
        async with house.http.delete(f"/v1/sessions/{second['model']}") as response:
            assert response.status == 200
        assert await indexed() == []
        assert await house.db.value("SELECT count(*) FROM memories") == 0
