"""Clients that know no ids and resend everything: they continue their session, or branch off it, by what was said."""

import asyncio
import re
from collections import Counter
from typing import Any

from openai.types.chat import ChatCompletionChunk

from longhouse.agents.strategies.protocol import Body
from longhouse.journal import events
from longhouse.journal.messages import User, text_of
from longhouse.models.scripted import Say, call, calls
from server_helpers import AGENT, House, Serving, assistant, chat, content, dictated, user

BRANCH = re.compile(r"branch-[0-9a-f]{8}")


def scene(body: Body) -> Say:
    """Asks about `?`, and answers with the last message of the user; in lines, so that clients can rejoin them."""
    said = [text_of(message.content) for message in body.messages if isinstance(message, User)]
    if said[-1].startswith("?"):
        return call("clarificationtool", questions=[f"What is {said[-1][1:]}?", "And why?"])
    return call("finalanswertool", answer=f"You said:\n\n{said[-1]}\n")


class Client:
    """A client as most are: a list of messages, and the whole list in every request."""

    def __init__(self, house: House, **extra: Any) -> None:
        self.house = house
        self.extra = extra
        self.messages: list[Any] = []
        self.heard: list[Any] = []

    async def say(self, text: str, **extra: Any) -> str:
        self.messages.append(user(text))
        answer = await chat(self.house, self.messages, **{**self.extra, **extra})
        self.messages.append(assistant(content(answer)))
        self.heard.append(answer)
        return str(answer["model"])

    def fork(self, upto: int) -> "Client":
        """Another client with the first messages of this one."""
        other = Client(self.house, **self.extra)
        other.messages = self.messages[:upto]
        return other

    @property
    def last(self) -> str:
        return str(self.messages[-1]["content"])


async def sessions(house: House, conversation: str | None = None) -> list[Any]:
    """Oldest first."""
    query = {"conversation_id": conversation} if conversation else {}
    async with house.http.get("/v1/sessions", params=query) as response:
        return list(reversed((await response.json())["data"]))


async def said_to(house: House, session_id: str) -> list[str]:
    """What people said in this session, in order, after checking that its journal holds everything once."""
    journal = await house.journal(session_id)
    assert [record.seq for record in journal] == list(range(1, len(journal) + 1))
    said, calls_, returns = [], Counter[str](), Counter[str]()
    for record in journal:
        match record.event:
            case events.Prompted(content=contents):
                said += [text_of(one) for one in contents]
            case events.Called(call=made):
                calls_[made] += 1
            case events.Returned(call=made, outcome=outcome, by=by):
                returns[made] += 1
                if by == "user" and isinstance(outcome, events.Output):
                    said.append(outcome.content)
    assert calls_ == returns
    assert set(calls_.values()) <= {1}
    return said


async def test_the_openai_client_continues_its_session_through_a_clarification(serving: Serving) -> None:
    async with serving(scene) as house:
        messages: list[Any] = []
        models, heard = [], []
        for text in ("Hello", "?rain", "Water", "Thanks"):
            messages.append(user(text))
            answer = await house.client.chat.completions.create(model=AGENT, messages=messages)
            models.append(answer.model)
            heard.append(answer.choices[0].message.content)
            messages.append(answer.choices[0].message.model_dump(exclude_unset=True))
        assert heard == [
            "You said:\n\nHello\n",
            "What is rain?\nAnd why?",
            "You said:\n\nWater\n",
            "You said:\n\nThanks\n",
        ]
        assert len(set(models)) == 1
        assert len(await sessions(house)) == 1
        assert await said_to(house, models[0]) == ["Hello", "?rain", "Water", "Thanks"]


async def test_the_openai_client_continues_its_session_when_it_streams(serving: Serving) -> None:
    async with serving(scene) as house:
        messages: list[Any] = []
        models = set()
        for text in ("Hello", "?rain", "Water", "Thanks"):
            messages.append(user(text))
            stream = await house.client.chat.completions.create(model=AGENT, messages=messages, stream=True)
            heard = ""
            async for chunk in stream:
                assert isinstance(chunk, ChatCompletionChunk)
                heard += chunk.choices[0].delta.content or ""
                models.add(chunk.model)
            messages.append(assistant(heard))
        [session_id] = models
        assert messages[3]["content"] == "What is rain?\nAnd why?"
        assert len(await sessions(house)) == 1
        assert await said_to(house, session_id) == ["Hello", "?rain", "Water", "Thanks"]


async def test_a_client_that_strips_and_rejoins_text_blocks_continues_its_session(serving: Serving) -> None:
    """As Open WebUI does: blocks of text are trimmed and joined again, and sent as parts beside images."""
    async with serving(scene) as house:
        messages: list[Any] = []
        models = set()
        for text in ("Hello,\n\nworld", "?rain", "  Water ", "Thanks"):
            messages.append(user(text))
            answer = await chat(house, messages)
            models.add(answer["model"])
            lines = [line.strip() for line in content(answer).splitlines() if line.strip()]
            resent: list[Any] = [{"type": "text", "text": line} for line in lines]
            messages[-1] = {"role": "user", "content": [{"type": "text", "text": part} for part in text.split("\n\n")]}
            messages.append({"role": "assistant", "content": resent if len(models) % 2 else "\n\n\n".join(lines)})
        [session_id] = models
        assert await said_to(house, session_id) == ["Hello,\n\nworld", "?rain", "  Water ", "Thanks"]


async def test_questions_asked_at_once_are_met_one_after_the_other(serving: Serving) -> None:
    both = calls(call("clarificationtool", questions=["Where?"]), call("clarificationtool", questions=["When?"]))
    async with serving([both, call("finalanswertool", answer="Rain.")]) as house:
        client = Client(house)
        for text, then in (("Weather?", "Where?"), ("Oslo", "When?"), ("Monday", "Rain.")):
            session_id = await client.say(text)
            assert client.last == then
        assert len(await sessions(house)) == 1
        assert await said_to(house, session_id) == ["Weather?", "Oslo", "Monday"]


async def test_an_edited_message_opens_a_branch_that_goes_its_own_way(serving: Serving) -> None:
    async with serving(scene) as house:
        client = Client(house)
        for text in ("One", "Two"):
            trunk = await client.say(text)
        edited = client.fork(2)
        branch = await edited.say("Two, edited")
        assert branch != trunk
        assert edited.last == "You said:\n\nTwo, edited\n"
        assert await edited.say("?three") == branch
        assert await edited.say("Three") == branch
        assert await client.say("And on") == trunk

        first, second = await sessions(house)
        assert (first["session_id"], first["label"]) == (trunk, "")
        assert second["session_id"] == branch
        assert BRANCH.fullmatch(second["label"])
        assert second["conversation_id"] == first["conversation_id"]
        assert await said_to(house, trunk) == ["One", "Two", "And on"]
        assert await said_to(house, branch) == ["Two, edited", "?three", "Three"]
        prompted = (await house.journal(branch))[1].event
        assert isinstance(prompted, events.Prompted)
        assert [(type(one).__name__, text_of(one.content)) for one in prompted.prior] == [
            ("User", "One"),
            ("Assistant", "You said:\n\nOne\n"),
        ]
        assert house.model is not None
        [seen] = [asked["messages"] for asked in house.model.requests if asked["messages"][-1] == user("Two, edited")]
        assert seen[1:] == [user("One"), assistant("You said:\n\nOne\n"), user("Two, edited")]


async def test_a_regenerated_message_opens_a_branch(serving: Serving) -> None:
    async with serving(scene) as house:
        client = Client(house)
        for text in ("One", "Two"):
            trunk = await client.say(text)
        again = client.fork(2)
        branch = await again.say("Two")
        assert branch != trunk
        # Both heads say the same now: the newest goes on.
        assert client.messages == again.messages
        assert await client.say("Three") == branch
        third = client.fork(2)
        assert await third.say("Two") not in (trunk, branch)
        labels = [session["label"] for session in await sessions(house)]
        assert labels[0] == ""
        assert len({label for label in labels if BRANCH.fullmatch(label)}) == 2
        assert len({session["conversation_id"] for session in await sessions(house)}) == 1
        assert await said_to(house, trunk) == ["One", "Two"]


async def test_an_answer_to_a_question_can_be_edited(serving: Serving) -> None:
    async with serving(scene) as house:
        client = Client(house)
        trunk = await client.say("?rain")
        await client.say("Water")
        edited = client.fork(2)
        branch = await edited.say("Weather")
        assert branch != trunk
        assert edited.last == "You said:\n\nWeather\n"
        assert await said_to(house, trunk) == ["?rain", "Water"]
        assert await said_to(house, branch) == ["Weather"]


async def test_clients_are_told_apart_by_user_and_model_and_not_by_system_text(serving: Serving) -> None:
    async with serving(scene) as house:
        system = [{"role": "system", "content": "Be brief. It is 10:00."}]
        client = Client(house, user="ada")
        client.messages = [*system]
        first = await client.say("Hello")
        client.messages[0] = {"role": "developer", "content": "Be brief. It is 10:05."}
        assert await client.say("Still me") == first
        assert house.model is not None
        assert house.model.requests[-1]["messages"][0]["content"].endswith("\n\nBe brief. It is 10:05.")

        for other in ({"user": "bob"}, {"model": f"{AGENT}@1"}):
            stranger = Client(house, **{"user": "ada", **other})
            stranger.messages = client.messages[:]
            assert await stranger.say("And I?") != first
        conversations = {session["conversation_id"] for session in await sessions(house)}
        assert len(conversations) == 3
        assert await said_to(house, first) == ["Hello", "Still me"]


async def test_of_several_equal_heads_the_newest_goes_on(serving: Serving) -> None:
    async with serving(scene) as house:
        one, two = Client(house), Client(house)
        older = await one.say("Hello")
        newer = await two.say("Hello")
        assert older != newer
        assert await one.say("Is it me?") == newer


async def test_an_unknown_history_opens_a_new_conversation_that_carries_it(serving: Serving) -> None:
    async with serving(scene) as house:
        known = await Client(house).say("Hello")
        client = Client(house)
        client.messages = [user("Elsewhere"), assistant("We met.")]
        session_id = await client.say("Go on")
        assert session_id != known
        assert [session["label"] for session in await sessions(house)] == ["", ""]
        assert house.model is not None
        assert house.model.requests[-1]["messages"][1:] == [user("Elsewhere"), assistant("We met."), user("Go on")]
        assert await client.say("And on") == session_id


async def test_a_named_history_that_matches_nothing_opens_a_branch_in_its_conversation(serving: Serving) -> None:
    async with serving(scene) as house:
        trunk = await Client(house, chat_id="c").say("Hello")
        stranger = Client(house, headers={"X-Conversation-Id": "c"})
        stranger.messages = [user("Never"), assistant("said.")]
        branch = await stranger.say("Hm")
        assert branch != trunk
        assert await stranger.say("Hm again") == branch
        plain, beside = await sessions(house, "c")
        assert (plain["session_id"], plain["label"]) == (trunk, "")
        assert beside["session_id"] == branch
        assert BRANCH.fullmatch(beside["label"])
        # A client that names the conversation and resends nothing goes on with its plain session.
        assert (await chat(house, [user("I am back")], chat_id="c"))["model"] == trunk


async def test_a_named_client_that_resends_everything_continues_too(serving: Serving) -> None:
    async with serving(scene) as house:
        client = Client(house, chat_id=7)
        models = {await client.say(text) for text in ("Hello", "?rain", "Water", "Thanks")}
        [session_id] = models
        assert await said_to(house, session_id) == ["Hello", "?rain", "Water", "Thanks"]


async def test_a_client_may_resend_everything_at_times_and_only_what_is_new_at_others(serving: Serving) -> None:
    async with serving(scene) as house:
        client = Client(house)
        session_id = await client.say("One")
        answer = await house.say("Two", model=session_id)
        client.messages += [user("Two"), assistant(content(answer))]
        assert await client.say("Three") == session_id
        assert await said_to(house, session_id) == ["One", "Two", "Three"]


async def test_what_was_said_in_a_named_conversation_is_not_met_by_others_who_said_less(serving: Serving) -> None:
    async with serving(scene) as house:
        mine = Client(house)
        my_session = await mine.say("Hello")
        for text in ("A secret", "Hello"):
            other = await chat(house, [user(text)], chat_id="theirs")
        assert content(other) == mine.last
        assert await mine.say("Go on") == my_session


async def test_a_title_job_opens_a_branch_and_does_not_disturb_the_chat(serving: Serving) -> None:
    async with serving(scene) as house:
        client = Client(house, headers={"X-OpenWebUI-Chat-Id": "9f1c"})
        trunk = await client.say("Hello")
        jobs = await asyncio.gather(
            *(chat(house, [user(f"Make a {what} for: Hello")], **client.extra) for what in ("title", "list of tags"))
        )
        assert {content(job) for job in jobs} == {
            "You said:\n\nMake a title for: Hello\n",
            "You said:\n\nMake a list of tags for: Hello\n",
        }
        assert await client.say("?rain") == trunk
        assert await client.say("Water") == trunk
        assert await said_to(house, trunk) == ["Hello", "?rain", "Water"]
        found = await sessions(house, "9f1c")
        assert len(found) == 3
        assert all(BRANCH.fullmatch(session["label"]) for session in found[1:])
        # The first message again, from the same chat: nothing was said before it, so it matches nothing.
        again = client.fork(0)
        assert await again.say("Hello") not in {session["session_id"] for session in found}


async def test_clients_that_speak_at_once_are_both_answered_and_both_go_on(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house:

        async def answer() -> None:
            pen = await model.asked()
            pen.call("finalanswertool", f'{{"answer": "Answer to {pen.body["messages"][-1]["content"]}"}}')
            pen.end()

        async def queued(session_id: str, number: int) -> None:
            async with asyncio.timeout(10):
                while (await house.session(session_id))["queued"] < number:
                    await asyncio.sleep(0.01)

        client = Client(house)
        trunk, _ = await asyncio.gather(client.say("Hello"), answer())
        tabs = [client.fork(2) for _ in range(3)]
        talks = [asyncio.create_task(tabs[0].say("Tab 0"))]
        pen = await model.asked()
        for number, tab in enumerate(tabs[1:], start=1):
            talks.append(asyncio.create_task(tab.say(f"Tab {number}")))
            await queued(trunk, number)
        pen.call("finalanswertool", '{"answer": "Answer to Tab 0"}')
        pen.end()
        *models, _, _ = await asyncio.gather(*talks, answer(), answer())
        assert set(models) == {trunk}
        assert [tab.last for tab in tabs] == ["Answer to Tab 0", "Answer to Tab 1", "Answer to Tab 2"]
        assert await said_to(house, trunk) == ["Hello", "Tab 0", "Tab 1", "Tab 2"]
        # The last one has the newest rest; the others answered an earlier one, and branch off it.
        for tab, goes_on in zip(tabs, (False, False, True), strict=True):
            session_id, _ = await asyncio.gather(tab.say("And on"), answer())
            assert (session_id == trunk) is goes_on
        assert len({session["conversation_id"] for session in await sessions(house)}) == 1
