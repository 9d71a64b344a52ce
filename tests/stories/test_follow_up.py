"""A session goes on: named by its id or by its conversation, prompted while it works, answered when it asks."""

import asyncio
import base64
from typing import Any, ClassVar

import pytest
from msgspec import structs

from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import Template, ToolPolicy
from longhouse.errors import CallerError
from longhouse.journal import events
from longhouse.journal.messages import User, text_of
from longhouse.models.scripted import Say, call, calls
from longhouse.store import journals
from longhouse.store.database import Database
from longhouse.store.requests import Repeated, RequestIdentity
from longhouse.tools import BaseTool, ToolContext
from server_helpers import AGENT, House, Serving, assistant, chat, content, user

TOOLS = ("clarificationtool", "finalanswertool", "clocktool", "gatetool")


def echo(body: Body) -> Say:
    """Answers with everything the user has said so far."""
    said = [text_of(message.content) for message in body.messages if isinstance(message, User)]
    return call("finalanswertool", answer=" | ".join(said))


def asks(*questions: str) -> Say:
    return calls(*(call("clarificationtool", questions=[question]) for question in questions))


def answers(text: str) -> Say:
    return call("finalanswertool", answer=text)


class GateTool(BaseTool):
    """Waits until the test opens the gate."""

    opened: ClassVar[asyncio.Event]
    entered: ClassVar[asyncio.Event]

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        self.entered.set()
        await self.opened.wait()
        return "open"


@pytest.fixture
async def gate() -> type[GateTool]:
    GateTool.opened, GateTool.entered = asyncio.Event(), asyncio.Event()
    return GateTool


async def prompted(house: House, session_id: str) -> list[str]:
    """What the journal says people asked, in order."""
    found = [record.event for record in await house.journal(session_id)]
    return [str(event.content[0]) for event in found if isinstance(event, events.Prompted)]


async def clarify(house: House, session_id: str, **body: Any) -> tuple[int, dict[str, str], Any]:
    async with house.http.post(f"/v1/sessions/{session_id}/clarification", json=body) as response:
        return response.status, dict(response.headers), await response.json()


async def sessions(house: House) -> list[Any]:
    async with house.http.get("/v1/sessions") as response:
        return list((await response.json())["data"])


# A finished turn is followed by a new one


async def test_a_follow_up_by_session_id_continues_and_remembers(serving: Serving) -> None:
    async with serving(echo) as house:
        first = await house.say("My name is Ada.")
        second = await house.say("What is my name?", model=first["model"])
        assert second["model"] == first["model"]
        assert content(second) == "My name is Ada. | What is my name?"
        one_turn = ["Prompted", "Started", "Replied", "Called", "Returned", "Finished"]
        assert await house.kinds(first["model"]) == ["Opened", *one_turn, *one_turn]
        assert (await house.session(first["model"]))["state"] == "COMPLETED"
        assert house.model is not None
        roles = [message["role"] for message in house.model.requests[-1]["messages"]]
        assert roles == ["system", "user", "assistant", "tool", "user"]


async def test_only_the_trailing_messages_of_the_user_count_with_a_session_id(serving: Serving) -> None:
    async with serving(echo) as house:
        first = await house.say("One.")
        resent = [
            user("Something else."),
            {"role": "assistant", "content": "Never said."},
            user("Two."),
            user("Three."),
        ]
        second = await chat(house, resent, model=first["model"])
        assert content(second) == "One. | Two. | Three."
        assert len(await sessions(house)) == 1


async def test_a_conversation_named_in_any_way_continues_its_session(serving: Serving) -> None:
    names: list[dict[str, Any]] = [
        {"headers": {"X-Conversation-Id": "by-header"}},
        {"metadata": {"conversation_id": "by-metadata"}},
        {"chat_id": 42},
        {"chat_id": "by-chat-id"},
        {"headers": {"X-Conversation-Id": "winner"}, "metadata": {"conversation_id": "loser"}, "chat_id": "loser"},
    ]
    async with serving(echo) as house:
        for name in names:
            first = await chat(house, [user("One.")], **name)
            second = await chat(house, [user("Two.")], **name)
            assert second["model"] == first["model"]
            assert content(second) == "One. | Two."
        conversations = {session["conversation_id"] for session in await sessions(house)}
        assert conversations == {"by-header", "by-metadata", "42", "by-chat-id", "winner"}
        as_text = await chat(house, [user("Three.")], chat_id="42")
        assert content(as_text) == "One. | Two. | Three."


async def test_a_name_that_is_no_id_is_refused_and_leaves_no_trace(serving: Serving) -> None:
    async with serving(echo) as house:
        for name in ({"headers": {"X-Conversation-Id": "a b"}}, {"chat_id": "x" * 129}, {"chat_id": ""}):
            refused = await chat(house, [user("Hello")], **name)
            assert refused["error"]["type"] == "invalid_request_error"
        assert await sessions(house) == []


# Prompts that arrive together, or while a turn runs


async def test_two_prompts_at_once_are_both_answered_in_order_and_each_client_gets_its_own(serving: Serving) -> None:
    async with serving(echo) as house:
        session_id = (await house.say("Zero."))["model"]
        said = [f"Number {index}." for index in range(6)]
        got = await asyncio.gather(*(house.say(text, model=session_id) for text in said))
        order = await prompted(house, session_id)
        assert sorted(order) == sorted(["Zero.", *said])
        for text, answer in zip(said, got, strict=True):
            upto = order[: order.index(text) + 1]
            assert content(answer) == " | ".join(upto)
        assert (await house.session(session_id))["queued"] == 0


async def test_first_prompts_at_once_under_one_name_share_one_session(serving: Serving) -> None:
    async with serving(echo) as house:
        said = [f"Number {index}." for index in range(6)]
        got = await asyncio.gather(*(chat(house, [user(text)], chat_id="new") for text in said))
        assert len({answer["model"] for answer in got}) == 1
        order = await prompted(house, got[0]["model"])
        assert sorted(order) == said
        for text, answer in zip(said, got, strict=True):
            assert content(answer) == " | ".join(order[: order.index(text) + 1])


async def test_prompts_during_a_running_turn_wait_in_the_queue(serving: Serving, gate: type[GateTool]) -> None:
    script = [call("gatetool"), answers("First."), answers("Second."), answers("Third.")]
    async with serving(
        script, templates=[Template(name=AGENT, tool_policy=ToolPolicy(allowlist=TOOLS))], tools=[gate]
    ) as house:
        first = asyncio.create_task(chat(house, [user("One")], chat_id="c"))
        await asyncio.wait_for(gate.entered.wait(), 10)
        [shown] = await sessions(house)
        session_id, later = shown["session_id"], []
        for number, text in enumerate(("Two", "Three"), start=1):
            later.append(asyncio.create_task(house.say(text, model=session_id)))
            async with asyncio.timeout(10):
                while (await house.session(session_id))["queued"] < number:
                    await asyncio.sleep(0.01)
        assert (await house.session(session_id))["state"] == "RESEARCHING"
        assert house.model is not None
        assert len(house.model.requests) == 1

        gate.opened.set()
        assert [content(await task) for task in (first, *later)] == ["First.", "Second.", "Third."]
        # What waits in the queue is not shown to the model before its turn.
        assert [text for text in ("Two", "Three") if text in str(house.model.requests[1])] == []
        assert [text for text in ("Two", "Three") if text in str(house.model.requests[2])] == ["Two"]


async def put(house: House, text: Any, *, model: str = AGENT, key: str = "") -> tuple[int, Any, str]:
    """Sends a prompt and waits for nothing; the status, the answer, and when to ask again."""
    body = {"model": model, "input": text, "background": True}
    headers = {"idempotency-key": key} if key else {}
    async with house.http.post("/v1/responses", json=body, headers=headers) as response:
        return response.status, await response.json(), response.headers.get("retry-after", "")


async def test_a_queue_takes_so_many_prompts_and_so_many_bytes(serving: Serving) -> None:
    most = journals.MOST_WAITING
    async with serving(works=False) as house, serving(works=False) as other:
        assert (await put(house, "First."))[0] == 200
        [shown] = await sessions(house)
        session_id = shown["session_id"]
        many = [put(one, f"Number {n}.", model=session_id, key=f"k{n}") for n in range(70) for one in (house, other)]
        got = await asyncio.gather(*many)
        assert {status for status, _, _ in got} == {200}
        taken = {answer["id"] for _, answer, _ in got}
        assert len(taken) == 70, "each came to both processes under one key"
        more = await asyncio.gather(*(put((house, other)[n % 2], f"{n}", model=session_id) for n in range(60)))
        assert [status for status, _, _ in more].count(200) == most - 71
        refused = next(one for one in more if one[0] == 429)
        assert refused[1]["error"]["code"] == "too_many_waiting"
        assert f"at most {most} prompts" in refused[1]["error"]["message"]
        assert int(refused[2]) > 0
        assert (await house.session(session_id))["queued"] == most
        # A repeated request is the one that was taken; and other doors lead to the same queue.
        assert (await put(house, "Number 3.", model=session_id, key="k3"))[1]["id"] in taken
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "And this?"}]}
        message["contextId"] = (await house.session(session_id))["conversation_id"]
        call_ = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
        async with house.http.post(f"/a2a/{AGENT}", json=call_) as response:
            error = (await response.json())["error"]
            assert (error["code"], error["data"][0]["reason"]) == (-32000, "TOO_MANY_WAITING")
        said = await house.say("And this?", model=session_id)
        assert said["error"]["code"] == "too_many_waiting"
        async with house.http.post(f"/v1/sessions/{session_id}/cancel") as response:
            assert response.status == 202
        assert [(await put(house, "Again.", model=session_id))[0] for _ in range(2)] == [200, 429]
        # Few that are long: files are as long as what they hold.
        await put(house, "Long ones:")
        long_one = (await sessions(house))[0]["session_id"]
        for _ in range(8):
            prompt = events.Prompted(trace="long", content=("ё" * 1_050_000,))
            await journals.add(house.db, long_one, [prompt], trace="long")
        assert (await put(other, "One more.", model=long_one))[0] == 429
        # What is refused leaves nothing behind, not even what is too long for a row, nor images.
        stored = await house.db.value("SELECT count(*) FROM files")
        for text in ("Short.", "long " * 30_000):
            url = "data:image/png;base64," + base64.b64encode(text.encode()).decode()
            image = {"type": "image_url", "image_url": {"url": url}}
            message = {"role": "user", "content": [{"type": "text", "text": text}, image]}
            assert (await chat(house, [message], model=long_one))["error"]["code"] == "too_many_waiting"
            parts = [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": url}]
            assert (await put(house, [{"role": "user", "content": parts}], model=long_one))[0] == 429
        assert await house.db.value("SELECT count(*) FROM files") == stored


async def test_what_an_append_does_not_need_is_not_kept(db: Database) -> None:
    """Of a new session with a long history the prompt without it; and whatever is refused."""
    opened = events.Opened(agent="a", version=1, owner="ann", conversation="c")
    long = events.Prompted(trace="t", content=("x" * 70_000,), prior=(User(content="before " * 10_000),))
    identity = RequestIdentity(owner="ann", digest="d", key="k")
    await journals.open(db, "a_1", opened, long, task="", accepted=identity)
    assert await db.value("SELECT count(*) FROM files") == 1
    for name in ("a_1", "a_2"):
        again = structs.replace(long, trace="u", prior=())
        with pytest.raises((Repeated, journals.NotThere)):
            await journals.add(db, name, [again], trace="u", accepted=identity)
    assert await db.value("SELECT count(*) FROM files") == 1
    [_, placed] = await journals.read(db, "a_1")
    assert placed.event == long


async def test_no_more_is_put_behind_one_turn_by_cancelling_it_again(db: Database) -> None:
    opened = events.Opened(agent="a", version=1, owner="ann", conversation="c")
    await journals.open(db, "a_1", opened, events.Prompted(trace="t", content=("x",)), task="")
    add = """
        INSERT INTO journal (session_id, seq, conversation_id, trace_id, kind, append_id, nth, body, at)
        SELECT 'a_1', n, 'c', 'c' || (n / 2), (ARRAY['Prompted', 'Cancelled'])[n % 2 + 1], gen_random_uuid(), 1, '{}',
               now()
        FROM generate_series(:first::integer, :last) n
    """
    most = 10 * journals.MOST_WAITING
    for first, last, has_room in ((4, 2 * most - 1, True), (2 * most, 2 * most + 3, False)):
        await db.run(add, first=first, last=last)
        assert await db.value("SELECT queue_has_room('a_1', 100, 1000000)") == has_room


async def test_what_is_said_beside_a_call_that_waits_is_bounded_until_it_was_read(serving: Serving) -> None:
    async with serving([asks("Which city?"), answers("Rain.")]) as house:
        session_id = (await house.say("Will it rain?"))["model"]
        trace = (await house.folded(session_id)).trace
        aside = events.Prompted(trace=trace, content=("By the way. " * 6_000,), aside=True)
        for _ in range(3):
            await journals.add(house.db, session_id, [aside], trace=trace, most_waiting=3)
        with pytest.raises(CallerError, match="at most 3 prompts"):
            await journals.add(house.db, session_id, [aside], trace=trace, most_waiting=3)
        assert content(await house.say("Oslo", model=session_id)) == "Rain."
        await journals.add(house.db, session_id, [aside], trace=trace, most_waiting=1)


# Questions


async def test_questions_asked_at_once_are_answered_one_after_the_other(serving: Serving) -> None:
    async with serving([asks("Which city?", "Which day?"), answers("Rain.")]) as house:
        asked = await house.say("Will it rain?")
        session_id = asked["model"]
        questions = (await house.session(session_id))["questions"]
        assert [(one["call_id"], one["text"], one["kind"]) for one in questions] == [
            ("1-action-0", "Which city?", "clarification"),
            ("1-action-1", "Which day?", "clarification"),
        ]
        assert content(asked) == "Which city?"
        assert asked["x_agent"]["call_id"] == "1-action-0"

        second = await house.say("Oslo", model=session_id)
        assert content(second) == "Which day?"
        assert second["x_agent"]["status"] == "waiting"
        assert second["x_agent"]["call_id"] == "1-action-1"
        assert content(await house.say("Monday", model=session_id)) == "Rain."
        assert house.model is not None
        seen = house.model.requests[-1]["messages"][-4:]
        assert [message["content"] for message in seen] == ["Which city?", "Which day?", "Oslo", "Monday"]


async def test_reply_to_names_a_question(serving: Serving) -> None:
    long = f"Which day? {'x' * 70_000}"  # its body lies in `files`
    async with serving([asks("Which city?", long), answers("Rain."), answers("Next.")]) as house:
        session_id = (await house.say("Will it rain?"))["model"]
        other = await house.say("Monday", model=session_id, metadata={"reply_to": "1-action-1"})
        assert content(other) == "Which city?"

        unknown = await house.say("Oslo", model=session_id, metadata={"reply_to": "9-action-9"})
        assert unknown["error"]["param"] == "metadata.reply_to"
        assert len((await house.session(session_id))["questions"]) == 1

        assert content(await house.say("Oslo", model=session_id)) == "Rain."
        # The question has its answer: through chat, a second one is simply the next message.
        late = await house.say("No, Bergen", model=session_id, metadata={"reply_to": "1-action-0"})
        assert content(late) == "Next."
        assert await prompted(house, session_id) == ["Will it rain?", "No, Bergen"]


NAMELESS = ("9-action-9", "", "1-action-9", "clarificationtool", "Ä😀", "x" * 512)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_reply_to_nothing_is_refused_wherever_it_is_sent(serving: Serving, stream: bool) -> None:
    async def refused(house: House, **extra: Any) -> None:
        known = await house.db.value("SELECT count(*) FROM journal")
        for name in NAMELESS:
            body = {"model": AGENT, "messages": [user("Oslo")], "stream": stream, "metadata": {"reply_to": name}}
            async with house.http.post("/v1/chat/completions", json={**body, **extra}) as response:
                assert response.status == 400, (name, extra)
                assert (await response.json())["error"]["param"] == "metadata.reply_to"
        assert await house.db.value("SELECT count(*) FROM journal") == known

    async with serving([asks("Which city?", "Which day?"), answers("Rain."), answers("Next.")]) as house:
        await refused(house)
        await refused(house, chat_id="new")
        await refused(house, context=[user("Before")])
        await refused(house, messages=[user("Hi"), assistant("Hello"), user("Oslo")])
        session_id = (await house.say("Will it rain?", chat_id="c"))["model"]
        await refused(house, model=session_id)
        await refused(house, chat_id="c")
        assert content(await house.say("Oslo", model=session_id, metadata={"reply_to": "1-action-0"})) == "Which day?"

        body = {"model": session_id, "messages": [user("No, Bergen")], "metadata": {"reply_to": "1-action-0"}}
        async with house.http.post("/v1/chat/completions", json={**body, "stream": stream}) as response:
            assert (response.status, response.headers["x-should-retry"]) == (409, "false")
            assert (await response.json())["error"]["code"] == "already_settled", "nor does it answer another question"
        assert content(await house.say("Monday", model=session_id)) == "Rain."
        await refused(house, model=session_id)


async def test_an_answer_by_clarification_names_a_question_of_the_session(serving: Serving) -> None:
    async with serving([calls(call("clocktool"), asks("Which city?")), answers("Rain.")]) as house:
        session_id = (await house.say("Will it rain?"))["model"]
        for name in ("9-action-9", "1-action-0", ""):
            status, _, body = await clarify(house, session_id, answer="Oslo", call_id=name)
            assert (status, body["error"]["param"]) == (400, "call_id"), name
        assert (await clarify(house, session_id, answer="Oslo", call_id="1-action-1"))[0] == 202
        await house.until(session_id, "COMPLETED")
        assert (await clarify(house, session_id, answer="Bergen", call_id="1-action-1"))[0] == 409
        assert (await clarify(house, session_id, answer="Bergen", call_id="9-action-9"))[0] == 400


async def test_a_second_answer_is_a_conflict_by_clarification_and_the_next_message_by_chat(serving: Serving) -> None:
    async with serving([asks("Which city?"), answers("Rain in Oslo."), answers("And sun in Bergen.")]) as house:
        session_id = (await house.say("Will it rain?"))["model"]
        status, _, body = await clarify(house, session_id, answer="Oslo", call_id="1-action-0")
        assert (status, body["session_id"]) == (202, session_id)
        assert (await house.until(session_id, "COMPLETED"))["result"] == "Rain in Oslo."
        before = await house.kinds(session_id)

        for again in ({"answer": "Bergen"}, {"answer": "Bergen", "call_id": "1-action-0"}):
            status, headers, body = await clarify(house, session_id, **again)
            assert status == 409
            assert headers["x-should-retry"] == "false"
            assert body["error"]["code"] == "already_settled"
        assert await house.kinds(session_id) == before

        assert content(await house.say("Bergen?", model=session_id)) == "And sun in Bergen."


async def test_of_two_simultaneous_clarifications_one_wins(serving: Serving) -> None:
    async with serving([asks("Which city?"), answers("Done.")]) as house:
        session_id = (await house.say("Will it rain?"))["model"]
        got = await asyncio.gather(*(clarify(house, session_id, answer=city) for city in ("Oslo", "Bergen", "Voss")))
        assert sorted(status for status, _, _ in got) == [202, 409, 409]
        assert all(headers["x-should-retry"] == "false" for status, headers, _ in got if status == 409)
        await house.until(session_id, "COMPLETED")
        assert (await house.kinds(session_id)).count("Returned") == 2  # the question's and the final answer's


async def test_of_two_simultaneous_answers_by_chat_the_later_is_the_next_message(serving: Serving) -> None:
    async with serving([asks("Which city?"), answers("First."), answers("Second.")]) as house:
        session_id = (await house.say("Will it rain?"))["model"]
        got = await asyncio.gather(*(house.say(city, model=session_id) for city in ("Oslo", "Bergen")))
        assert sorted(content(one) for one in got) == ["First.", "Second."]
        journal = [record.event for record in await house.journal(session_id)]
        [answered] = [event for event in journal if isinstance(event, events.Returned) and event.by == "user"]
        assert isinstance(answered.outcome, events.Output)
        assert {answered.outcome.content, (await prompted(house, session_id))[1]} == {"Oslo", "Bergen"}
