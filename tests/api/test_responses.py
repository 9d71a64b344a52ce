"""The Responses API in OpenAI's shapes: objects, items, events and their order, parameters, errors."""

import base64
import json
from typing import Any, ClassVar

import openai
import pydantic
import pytest
from key_helpers import client_of, keyed
from test_openai_wire import PIXEL

from longhouse.agents.template import Template, ToolPolicy
from longhouse.journal.events import Effect
from longhouse.models.scripted import Say, call, calls, say
from longhouse.runtime.cleanup.retention import Retention
from longhouse.runtime.inbox import Inbox
from longhouse.tools import BaseTool, ToolContext
from response_helpers import ask, ended, get, resumed, said, streamed, text_of, types_of
from server_helpers import AGENT, Serving, dictated, user


class TransferTool(BaseTool):
    """Send money to somebody."""

    to: str
    effect: ClassVar[Effect] = "once"
    needs_approval: ClassVar[bool] = True
    sent: ClassVar[list[str]] = []

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        self.sent.append(self.to)
        return f"sent to {self.to}"


BANK = Template(name=AGENT, tool_policy=ToolPolicy(allowlist=("transfertool", "finalanswertool")))

ANSWER = call("finalanswertool", answer="Hello, Ada. How are you today?")
LOOK = Say(text="Let me look. ", reasoning="Hm. ", calls=call("clocktool").calls)
MESSAGE = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
           "output_item.done"]  # fmt: skip


def without_repeats(kinds: list[str]) -> list[str]:
    return [kind for before, kind in zip([None, *kinds], kinds, strict=False) if kind != before]


async def test_a_response_has_the_shape_that_clients_expect(serving: Serving) -> None:
    async with serving([LOOK, ANSWER]) as house:
        answer = await said(house, "Hello", metadata={"for": "Ada"}, instructions="Be kind.", temperature=0.5)
        assert answer["object"] == "response"
        assert (answer["status"], answer["error"], answer["incomplete_details"]) == ("completed", None, None)
        assert (answer["metadata"], answer["instructions"]) == ({"for": "Ada"}, "Be kind.")
        assert (answer["model"], answer["temperature"]) == (AGENT, 0.5)
        assert types_of(answer) == ["reasoning", "message", "mcp_call", "message"]
        look, work = answer["output"][1], answer["output"][2]
        assert look["content"][0]["text"] == "Let me look. "
        assert (work["name"], work["status"], work["server_label"]) == ("clocktool", "completed", "longhouse")
        assert text_of(answer) == "Let me look. Hello, Ada. How are you today?"
        assert answer["usage"]["total_tokens"] == answer["usage"]["input_tokens"] + answer["usage"]["output_tokens"] > 0
        assert "user" not in answer
        assert "Be kind." in str(house.model and house.model.requests[0]["messages"][0])
        assert (await get(house, f"/v1/responses/{answer['id']}"))[1] == answer


async def test_a_stream_has_the_events_of_openai_in_their_order(serving: Serving) -> None:
    async with serving([LOOK, ANSWER]) as house, streamed(house) as reader:
        await reader.to_the_end()
        assert reader.numbers == list(range(len(reader.events)))
        assert without_repeats(reader.kinds) == [
            "created", "in_progress",
            "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
            "reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done",
            *MESSAGE,
            "output_item.added", "mcp_call.in_progress", "mcp_call_arguments.delta", "mcp_call_arguments.done",
            "mcp_call.completed", "output_item.done",
            *MESSAGE,
            "completed",
        ]  # fmt: skip
        assert reader.text == text_of(reader.last)
        assert reader.last == (await get(house, f"/v1/responses/{reader.id}"))[1]


async def test_text_is_shown_while_it_is_written(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house, streamed(house) as reader:
        pen = await model.asked()
        pen.call("finalanswertool", '{"answer": "One two three four five six ')
        await reader.until("response.output_text.delta", "One two three fo")
        pen.more('seven."}')
        pen.end()
        await reader.to_the_end()
        assert reader.text == "One two three four five six seven."


# Going on


async def test_a_response_goes_on_with_the_one_before(serving: Serving) -> None:
    async with serving([say("One is here."), say("Two is here.")]) as house:
        first = await said(house, "First")
        second = await said(house, "Second", previous_response_id=first["id"])
        assert second["x_agent"]["session_id"] == first["x_agent"]["session_id"]
        assert second["previous_response_id"] == first["id"]
        assert text_of(second) == "Two is here."
        assert house.model
        sent = [one["content"] for one in house.model.requests[1]["messages"] if one["role"] != "system"]
        assert [text.partition("\n")[0] for text in sent if "First" in text or "Second" in text]
        assert "One is here." in sent
        assert (await get(house, f"/v1/responses/{first['id']}"))[1] == first


async def test_from_an_older_response_a_branch_begins(serving: Serving) -> None:
    async with serving([say("Red."), say("Blue."), say("Green.")]) as house:
        first = await said(house, "A colour?")
        second = await said(house, "Another?", previous_response_id=first["id"])
        third = await said(house, "A better one?", previous_response_id=first["id"])
        sessions = [one["x_agent"]["session_id"] for one in (first, second, third)]
        assert sessions[0] == sessions[1] != sessions[2]
        assert len({one["x_agent"]["conversation_id"] for one in (first, second, third)}) == 1
        assert house.model
        sent = str(house.model.requests[2]["messages"])
        assert "A colour?" in sent
        assert "Red." in sent
        assert "Blue." not in sent


async def test_a_question_ends_a_response_and_the_next_one_answers_it(serving: Serving) -> None:
    async with serving([call("clarificationtool", questions=["Which city?"]), say("Rain in Oslo.")]) as house:
        asked = await said(house, "Will it rain?")
        assert (asked["status"], text_of(asked)) == ("completed", "Which city?")
        assert (asked["x_agent"]["waiting_for"], asked["x_agent"]["call_id"]) == ("clarification", "1-action-0")
        answered = await said(house, "Oslo", previous_response_id=asked["id"])
        assert text_of(answered) == "Rain in Oslo."
        assert answered["x_agent"]["trace_id"] == asked["x_agent"]["trace_id"]
        assert (await get(house, f"/v1/responses/{asked['id']}"))[1] == asked
        async with resumed(house, asked["id"]) as reader:
            await reader.to_the_end()
            assert reader.last == asked


async def test_a_client_that_resends_everything_finds_its_session(serving: Serving) -> None:
    async with serving([LOOK, ANSWER, say("Again.")]) as house:
        first = await said(house, [{"role": "user", "content": "Hello"}])
        again = [{"role": "user", "content": "Hello"}, *first["output"], {"role": "user", "content": "And now?"}]
        second = await said(house, again)
        assert second["x_agent"]["session_id"] == first["x_agent"]["session_id"]


async def test_items_of_other_responses_are_referred_to(serving: Serving) -> None:
    async with serving([say("The code is 4711."), say("4711.")]) as house:
        first = await said(house, "A code?")
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        given = [{"role": "user", "content": "Here:"}, reference, {"role": "user", "content": "Which one?"}]
        await said(house, given)
        assert house.model
        assert "The code is 4711." in str(house.model.requests[1]["messages"])


async def test_what_was_asked_is_listed_in_pages(serving: Serving) -> None:
    async with serving([say("Hello.")]) as house:
        given = [{"role": "user", "content": text} for text in ("One", "Two", "Three")]
        where = f"/v1/responses/{(await said(house, given))['id']}/input_items"

        async def page(query: str) -> tuple[list[str], bool]:
            _, found = await get(house, f"{where}?{query}")
            return [item["content"][0]["text"] for item in found["data"]], found["has_more"]

        assert await page("order=asc") == (["One", "Two", "Three"], False)
        assert await page("limit=2") == (["Three", "Two"], True)
        last = (await get(house, f"{where}?limit=2"))[1]["last_id"]
        assert await page(f"after={last}") == (["One"], False)
        for query in ("limit=0", "limit=101", "order=up", "after=nothing"):
            assert (await get(house, f"{where}?{query}"))[0] == 400, query


# Background


async def test_a_response_in_the_background_is_there_at_once_and_ends_by_itself(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house:
        begun = await said(house, "Hello", background=True)
        assert begun["status"] in ("queued", "in_progress"), "a worker may have it already"
        assert (begun["output"], begun["background"]) == ([], True)
        pen = await model.asked()
        _, running = await get(house, f"/v1/responses/{begun['id']}")
        assert running["status"] == "in_progress"
        pen.call("finalanswertool", '{"answer": "Done by myself."}')
        pen.end()
        done = await ended(house, begun["id"])
        assert (done["status"], text_of(done)) == ("completed", "Done by myself.")
        async with resumed(house, begun["id"]) as reader:
            await reader.to_the_end()
            assert reader.kinds[:3] == ["created", "queued", "in_progress"]
            assert [event["response"]["status"] for event in reader.events[:3]] == ["queued", "queued", "in_progress"]
            assert reader.last == done


async def test_a_client_that_leaves_at_the_first_event_leaves_a_response_that_ends(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house:
        async with streamed(house, background=True) as reader:
            assert (await reader.next())["type"] == "response.created"
        pen = await model.asked()
        pen.call("finalanswertool", '{"answer": "Nobody was listening."}')
        pen.end()
        assert text_of(await ended(house, reader.id)) == "Nobody was listening."


async def test_a_response_is_cancelled(serving: Serving) -> None:
    async with (
        dictated() as model,
        serving(llm_base_url=model.url) as house,
        streamed(house, background=True) as reader,
    ):
        await model.asked()
        await reader.next()
        status, cancelled = await get(house, f"/v1/responses/{reader.id}/cancel", "POST")
        assert (status, cancelled["status"]) == (200, "cancelled")
        await reader.to_the_end()
        assert reader.last["status"] == "cancelled"
        assert await get(house, f"/v1/responses/{reader.id}/cancel", "POST") == (200, cancelled)


# What comes in


async def test_the_sdk_talks_to_it(serving: Serving) -> None:
    async with serving([LOOK, ANSWER, say("Two.")]) as house:
        first = await house.client.responses.create(model=AGENT, input="Hello")
        assert first.output_text == "Let me look. Hello, Ada. How are you today?"
        async with house.client.responses.stream(model=AGENT, input="More", previous_response_id=first.id) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert final.output_text == "Two."
        assert kinds[-1] == "response.completed"
        items = [item async for item in await house.client.responses.input_items.list(final.id)]
        assert [item.content[0].text for item in items if item.type == "message"] == ["More"]  # type: ignore[union-attr]
        again = await house.client.responses.retrieve(final.id, stream=True, starting_after=2)
        assert [event.type async for event in again] == kinds[3:]


class Weather(pydantic.BaseModel):
    city: str
    degrees: int


async def test_a_structured_answer_is_parsed(serving: Serving) -> None:
    answer = call("finalanswertool", answer={"city": "Oslo", "degrees": 7}, status="completed")
    async with serving([answer, answer]) as house:
        parsed = await house.client.responses.parse(model=AGENT, input="The weather?", text_format=Weather)
        assert parsed.output_parsed == Weather(city="Oslo", degrees=7)
        async with house.client.responses.stream(model=AGENT, input="Again?", text_format=Weather) as stream:
            final = await stream.get_final_response()
        assert final.output_parsed == Weather(city="Oslo", degrees=7)


async def test_images_and_files_reach_the_agent(serving: Serving) -> None:
    image = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
    text = f"data:text/plain;base64,{base64.b64encode(b'The code is 4711.').decode()}"
    content = [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": image, "detail": "low"},
        {"type": "input_file", "filename": "code.txt", "file_data": text},
    ]
    async with serving([say("A pixel and a code.")]) as house:
        answer = await said(house, [{"role": "user", "content": content}])
        assert house.model
        sent = str(house.model.requests[0]["messages"])
        assert image in sent
        assert "The code is 4711." in sent
        _, listed = await get(house, f"/v1/responses/{answer['id']}/input_items")
        [item] = listed["data"]
        assert item["content"][0] == {"type": "input_text", "text": "What is this?"}
        assert item["content"][1] == {"type": "input_image", "detail": "low", "image_url": image}
        assert item["content"][2] == {"type": "input_file", "filename": "code.txt"}


FUNCTION = {
    "type": "function", "name": "get_price", "description": "The price of a thing.",
    "parameters": {"type": "object", "properties": {"thing": {"type": "string"}}, "required": ["thing"]},
}  # fmt: skip


@pytest.mark.parametrize("resends", [False, True])
async def test_a_client_runs_its_own_functions(serving: Serving, resends: bool) -> None:
    async with serving([call("get_price", thing="tea"), say("Tea is 3 euros.")]) as house:
        asked = await said(house, "Price of tea?", tools=[FUNCTION])
        [wanted] = [item for item in asked["output"] if item["type"] == "function_call"]
        assert (wanted["name"], wanted["arguments"], wanted["status"]) == ("get_price", '{"thing":"tea"}', "completed")
        assert asked["status"] == "completed"
        assert asked["x_agent"]["waiting_for"] == "function_call"
        result = {"type": "function_call_output", "call_id": wanted["call_id"], "output": "3"}
        if resends:
            given = [{"role": "user", "content": "Price of tea?"}, *asked["output"], result]
            answer = await said(house, given, tools=[FUNCTION])
        else:
            answer = await said(house, [result], previous_response_id=asked["id"], tools=[FUNCTION])
        assert text_of(answer) == "Tea is 3 euros."
        assert answer["x_agent"]["session_id"] == asked["x_agent"]["session_id"]
        assert types_of(answer) == ["message"]


async def test_images_that_a_function_returns_reach_the_agent(serving: Serving) -> None:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"}
    script = [calls(call("get_price", thing="tea"), call("get_price", thing="茶")), say("A pixel."), say("As I said.")]
    async with serving(script) as house:
        asked = await said(house, "Price of tea?", tools=[FUNCTION])
        results = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": output}
            for item, output in zip(asked["output"], ([image], [{"type": "input_text", "text": "3"}]), strict=True)
        ]
        talk = [{"role": "user", "content": "Price of tea?"}, *asked["output"], *results]
        answer = await said(house, talk, tools=[FUNCTION])
        assert text_of(answer) == "A pixel."
        assert house.model
        *_, first, second, shown = house.model.requests[1]["messages"]
        assert [(one["role"], one["content"]) for one in (first, second)] == [("tool", "[image]"), ("tool", "3")]
        assert shown["role"] == "user"
        assert [part["type"] for part in shown["content"]] == ["text", "image_url"]
        assert shown["content"][1]["image_url"]["url"] == image["image_url"]
        _, listed = await get(house, f"/v1/responses/{answer['id']}/input_items?order=asc")
        assert listed["data"][-2]["output"] == [{**image, "detail": "auto"}]
        assert listed["data"][-1]["output"] == [{"type": "input_text", "text": "3"}]
        more = await said(house, [*talk, *answer["output"], {"role": "user", "content": "And?"}], tools=[FUNCTION])
        assert more["x_agent"]["session_id"] == asked["x_agent"]["session_id"]


async def test_a_stream_ends_with_the_calls_of_functions(serving: Serving) -> None:
    script = [Say(text="One moment. ", calls=call("get_price", thing="tea").calls)]
    async with serving(script) as house, streamed(house, "Price of tea?", tools=[FUNCTION]) as reader:
        await reader.to_the_end()
        assert without_repeats(reader.kinds) == [
            "created", "in_progress", *MESSAGE,
            "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
            "output_item.done", "completed",
        ]  # fmt: skip


async def test_approvals_are_asked_for_and_given(serving: Serving) -> None:
    script = [call("transfertool", to="Bob"), say("Bob has it."), call("transfertool", to="Eve"), say("Not to Eve.")]
    TransferTool.sent.clear()
    async with serving(script, templates=[BANK], tools=[TransferTool]) as house:
        for approve, before, after in ((True, [], ["Bob"]), (False, ["Bob"], ["Bob"])):
            asked = await said(house, "Pay")
            assert types_of(asked) == ["message", "mcp_approval_request"]
            assert before == TransferTool.sent
            request = asked["output"][1]
            assert (request["name"], asked["x_agent"]["waiting_for"]) == ("transfertool", "approval")
            answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve}
            done = await said(house, [answer], previous_response_id=asked["id"])
            assert types_of(done) == (["mcp_call", "message"] if approve else ["message"])
            assert text_of(done) == ("Bob has it." if approve else "Not to Eve.")
            assert after == TransferTool.sent
            status, again = await ask(house, [answer], previous_response_id=asked["id"])
            assert (status, again["error"]["code"]) == (409, "already_settled")


async def test_two_approvals_of_one_session_are_given_at_once(serving: Serving) -> None:
    both = calls(call("transfertool", to="Bob"), call("transfertool", to="Eve"))
    TransferTool.sent.clear()
    async with serving([both, say("Both have it.")], templates=[BANK], tools=[TransferTool]) as house:
        asked = await said(house, "Pay both")
        given = [
            {"type": "mcp_approval_response", "approval_request_id": item["id"], "approve": True}
            for item in asked["output"]
            if item["type"] == "mcp_approval_request"
        ]
        assert len(given) == 2
        done = await said(house, given, previous_response_id=asked["id"])
        assert (text_of(done), sorted(TransferTool.sent)) == ("Both have it.", ["Bob", "Eve"])


@pytest.mark.parametrize("refers", [False, True])
async def test_a_client_that_resends_everything_goes_on_after_an_approval(serving: Serving, refers: bool) -> None:
    """Decisions and results of functions that were taken before are history. The Vercel AI SDK refers to items by their
    ids; others send them whole."""
    script = [
        call("get_price", thing="tea"), say("Tea is 3 euros."),
        calls(call("transfertool", to="Bob"), call("transfertool", to="Eve")), say("Both have it."), say("I said so."),
        say("Hello again."),
    ]  # fmt: skip

    def sent(*items: Any) -> list[Any]:
        return [{"type": "item_reference", "id": item["id"]} if refers else item for item in items]

    TransferTool.sent.clear()
    async with serving(script, templates=[BANK], tools=[TransferTool]) as house:
        talk: list[Any] = [user("Price of tea?")]
        asked = await said(house, talk, tools=[FUNCTION])
        [wanted] = asked["output"]
        talk += [*sent(wanted), {"type": "function_call_output", "call_id": wanted["call_id"], "output": "3"}]
        priced = await said(house, talk, tools=[FUNCTION])
        talk += [*sent(*priced["output"]), user("Pay both.")]
        waits = await said(house, talk, tools=[FUNCTION])
        message, *requests = waits["output"]
        talk += sent(message)
        for request in requests:
            answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
            talk += [*sent(request), answer]
        status, refused = await ask(house, [*talk, user("Now!")], tools=[FUNCTION])
        assert (status, refused["error"]["param"]) == (400, "input")
        assert TransferTool.sent == []
        done = await said(house, talk, tools=[FUNCTION])
        assert (text_of(done), sorted(TransferTool.sent)) == ("Both have it.", ["Bob", "Eve"])
        last = await said(house, [*talk, *sent(*done["output"]), user("Have they?")], tools=[FUNCTION])
        assert text_of(last) == "I said so."
        assert {one["x_agent"]["session_id"] for one in (asked, priced, waits, done, last)} == {
            asked["x_agent"]["session_id"]
        }
        # A client that has never seen the answer to its decision goes on, too.
        assert text_of(await said(house, [*talk, user("Hello?")], tools=[FUNCTION])) == "Hello again."
        assert house.model
        assert "(a decision)" not in str(house.model.requests)
        foreign = {"type": "item_reference", "id": requests[0]["id"].replace(requests[0]["id"][5:37], "0" * 32)}
        status, refused = await ask(house, [foreign, user("Hello?")])
        assert (status, refused["error"]["param"]) == (404, "input[0].id")


# Store, delete


async def test_a_response_that_is_not_stored_is_there_while_it_runs(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house:
        async with streamed(house, store=False) as reader:
            pen = await model.asked()
            created = await reader.next()
            where = f"/v1/responses/{created['response']['id']}"
            assert (await get(house, where))[1]["status"] == "in_progress"
            pen.call("finalanswertool", '{"answer": "Forget me."}')
            pen.end()
            await reader.to_the_end()
        assert (await get(house, where))[0] == 404
        assert (await ask(house, "More", previous_response_id=reader.id))[0] == 404
        async with resumed(house, reader.id, 1) as late:
            assert await late.to_the_end() == reader.events[2:]
        await house.db.run("UPDATE responses SET created_at = created_at - interval '1 hour'")
        await house.db.run("UPDATE sessions SET updated_at = updated_at - interval '1 hour'")
        await Retention(Inbox(house.db, house.app.bus)).erase_unstored()
        assert await house.db.value("SELECT count(*) FROM sessions") == 0
        assert await house.db.value("SELECT count(*) FROM responses") == 0


async def test_a_response_that_is_not_stored_goes_on_from_a_copy(serving: Serving) -> None:
    async with serving([say("I know."), say("A secret."), say("Nothing.")]) as house:
        first = await said(house, "I am Ada.")
        aside = await said(house, "Between us?", previous_response_id=first["id"], store=False)
        assert aside["store"] is False
        third = await said(house, "What did I say?", previous_response_id=first["id"])
        assert house.model
        asked = [str(request["messages"]) for request in house.model.requests]
        assert "I am Ada." in asked[1]
        assert "Between us?" not in asked[2]
        sessions = [one["x_agent"]["session_id"] for one in (first, aside, third)]
        assert sessions[0] == sessions[2] != sessions[1]


async def test_the_last_response_takes_its_session_with_it(serving: Serving) -> None:
    async with serving([say("One."), say("Two.")]) as house:
        first = await said(house, "First")
        second = await said(house, "Second", previous_response_id=first["id"])
        assert (await get(house, f"/v1/responses/{first['id']}", "DELETE"))[1] == {
            "id": first["id"], "object": "response", "deleted": True,
        }  # fmt: skip
        assert (await get(house, f"/v1/responses/{first['id']}"))[0] == 404
        assert (await get(house, f"/v1/responses/{first['id']}", "DELETE"))[0] == 404
        assert (await get(house, f"/v1/responses/{second['id']}"))[1] == second
        assert await house.db.value("SELECT count(*) FROM responses WHERE request::text LIKE '%First%'") == 0
        assert (await get(house, f"/v1/responses/{second['id']}", "DELETE"))[0] == 200
        for table in ("sessions", "journal", "responses", "response_drafts"):
            assert await house.db.value(f"SELECT count(*) FROM {table}") == 0, table


async def test_a_session_in_which_others_talked_stays(serving: Serving) -> None:
    async with serving([say("One."), say("Two.")]) as house:
        first = await said(house, "First")
        await house.say("By chat", model=first["x_agent"]["session_id"])
        await get(house, f"/v1/responses/{first['id']}", "DELETE")
        assert (await house.session(first["x_agent"]["session_id"]))["state"] == "COMPLETED"


# Retries


async def test_a_repeated_request_gets_the_same_response(serving: Serving) -> None:
    async with serving([say("Once."), say("Twice.")]) as house:
        key = {"Idempotency-Key": "k-1"}
        (_, first), (_, again) = [await ask(house, "Hello", headers=key) for _ in range(2)]
        assert first == again
        status, other = await ask(house, "Something else", headers=key)
        assert (status, other["error"]["code"]) == (422, "key_reused")
        await ask(house, "By count", headers={"x-stainless-retry-count": "0"})
        assert house.model
        asked = len(house.model.requests)
        _, retried = await ask(house, "By count", headers={"x-stainless-retry-count": "1"})
        assert text_of(retried) == "Twice."
        assert len(house.model.requests) == asked


# Conversations


async def test_conversations_live_with_responses_and_chats(serving: Serving) -> None:
    async with serving([say("Hello, Ada."), say("By chat, too."), say("Goodbye.")]) as house:
        client = house.client
        made = await client.conversations.create(
            metadata={"topic": "names"}, items=[{"type": "message", "role": "user", "content": "I am Ada."}]
        )
        assert made.metadata == {"topic": "names"}
        answer = await client.responses.create(model=AGENT, input="Who am I?", conversation=made.id)
        assert answer.conversation is not None
        assert answer.conversation.id == made.id
        assert house.model
        assert "I am Ada." in str(house.model.requests[0]["messages"])
        await house.say("And here?", metadata={"conversation_id": made.id})
        await client.conversations.items.create(
            made.id, items=[{"type": "message", "role": "user", "content": "It is late."}]
        )
        items = [item async for item in client.conversations.items.list(made.id, order="asc")]
        ids = [str(item.id) for item in items]
        texts = [item.content[0].text for item in items if item.type == "message"]  # type: ignore[union-attr]
        assert texts == ["I am Ada.", "Who am I?", "Hello, Ada.", "And here?", "By chat, too.", "It is late."]
        page = await client.conversations.items.list(made.id, limit=2)
        assert [item.id for item in page.data] == [ids[5], ids[4]]
        assert await client.conversations.items.retrieve(ids[1], conversation_id=made.id) == items[1]
        await client.conversations.items.delete(ids[5], conversation_id=made.id)
        with pytest.raises(openai.ConflictError):
            await client.conversations.items.delete(ids[0], conversation_id=made.id)
        changed = await client.conversations.update(made.id, metadata={"topic": "late"})
        assert changed.metadata == {"topic": "late"}
        await client.responses.create(model=AGENT, input="Bye", conversation={"id": made.id})
        assert str(house.model.requests[2]["messages"]).count("I am Ada.") == 1
        assert "It is late." not in str(house.model.requests[2]["messages"])
        gone = await client.conversations.delete(made.id)
        assert (gone.deleted, gone.object) == (True, "conversation.deleted")
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(answer.id)
        for table in ("conversations", "conversation_items", "responses", "sessions", "journal"):
            assert await house.db.value(f"SELECT count(*) FROM {table}") == 0, table


async def test_an_agent_that_is_new_in_a_conversation_reads_what_was_said(serving: Serving) -> None:
    async with serving([say("Noted."), say("Blue.")], templates=[Template(name="ann"), Template(name="ben")]) as house:
        made = await house.client.conversations.create()
        await said(house, "My colour is blue.", model="ann", conversation=made.id)
        second = await said(house, "My colour?", model="ben", conversation=made.id)
        assert (text_of(second), second["x_agent"]["conversation_id"]) == ("Blue.", made.id)
        assert house.model
        assert "My colour is blue." in str(house.model.requests[1]["messages"])


async def test_a_conversation_keeps_items_of_every_kind(serving: Serving) -> None:
    """The OpenAI Agents SDK keeps its sessions so: it adds all that was done, and sends what it finds there."""
    url = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
    image = {"type": "input_image", "detail": "auto", "image_url": url}
    text = {"type": "input_file", "filename": "код.txt", "file_data": "data:text/plain;base64,NDcxMQ=="}
    added: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "Сколько стоит 茶?"}, image, text]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}], "odd": [None, 1.5]},
        {"type": "mcp_call", "server_label": "longhouse", "name": "clocktool", "arguments": "{}", "output": "12"},
        {"type": "function_call", "call_id": "c1", "name": "get_price", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [image]},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
        {"role": "assistant", "content": "3 €"},
    ]
    async with serving([say("Tea.")]) as house:
        made = await house.client.conversations.create()
        where = f"/v1/conversations/{made.id}/items"
        status, page = await get(house, where, "POST", json={"items": added})
        assert status == 200, page
        _, listed = await get(house, f"{where}?order=asc")
        assert listed["data"] == page["data"]
        kept = [{name: value for name, value in item.items() if name not in ("id", "status")} for item in page["data"]]
        assert kept[0] == {"type": "message", **added[0]}
        assert kept[1] == {name: value for name, value in added[1].items() if name != "id"}
        assert kept[2:6] == added[2:6]
        assert len({item["id"] for item in page["data"]}) == len(added)
        typed = [item async for item in house.client.conversations.items.list(made.id, order="asc")]
        assert [item.type for item in typed] == [item["type"] for item in page["data"]]
        answer = await said(house, [*page["data"], user("What did I ask for?")])
        assert text_of(answer) == "Tea."
        assert house.model
        assert "Сколько стоит 茶?" in str(house.model.requests[0]["messages"])
        for hostile in ("\x00", "\ud800"):
            odd = {"items": [{"type": "reasoning", "summary": [{hostile: hostile}]}]}
            status, refused = await get(
                house, where, "POST", data=json.dumps(odd), headers={"content-type": "application/json"}
            )
            assert status == 400, refused


async def test_an_empty_conversation_is_deleted_too(serving: Serving) -> None:
    async with serving() as house:
        made = await house.client.conversations.create()
        assert (await house.client.conversations.retrieve(made.id)).metadata == {}
        assert (await house.client.conversations.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await house.client.conversations.delete(made.id)


# Refusals


WRONG_REQUESTS: list[tuple[Any, str]] = [
    ({}, "input"),
    ({"input": 7}, "input"),
    ({"input": []}, "input"),
    ({"input": [7]}, "input[0]"),
    ({"input": [{"type": "nonsense"}]}, "input[0]"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0]"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://127.0.0.1/x.png"}]}]},
        "input[0].content[0].image_url",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "http://127.0.0.1/x"}]}]},
        "input[0].content[0]",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "not a data url"}]}]},
        "input[0].content[0]",
    ),
    ({"input": [{"type": "function_call_output", "output": "3"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "call_1", "output": "3"}]}, "input"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
    (
        {"input": [{"type": "mcp_approval_response", "approval_request_id": "x", "approve": True}]},
        "input[0].approval_request_id",
    ),
    ({"input": [{"role": "assistant", "content": "I am last."}]}, "input"),
    ({"input": "x", "model": 7}, "model"),
    ({"input": "x", "model": None}, "model"),
    ({"input": "x", "temperature": 99}, "temperature"),
    ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
    ({"input": "x", "stream": "yes"}, "stream"),
    ({"input": "x", "metadata": {"k": "v" * 513}}, "metadata.k"),
    ({"input": "x", "previous_response_id": "resp_none"}, "previous_response_id"),
    ({"input": "x", "previous_response_id": "resp_1", "conversation": "c"}, "previous_response_id"),
    ({"input": "x", "conversation": "../c"}, "conversation"),
    ({"input": "x", "conversation": "c", "store": False}, "store"),
    ({"input": "x", "background": True, "store": False}, "store"),
    ({"input": "x", "truncation": "sometimes"}, "truncation"),
    ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format"),
    ({"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": 7}}}}, "text.format"),
    ({"input": "x", "tools": [{"type": "function", "name": "no spaces"}]}, "tools[0].name"),
    ({"input": "x", "tools": [FUNCTION], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
]


async def test_what_is_wrong_is_refused_by_its_name(serving: Serving) -> None:
    async with serving([]) as house:
        for body, param in WRONG_REQUESTS:
            async with house.http.post("/v1/responses", json={"model": AGENT, **body}) as response:
                refused = await response.json()
            assert response.status in (400, 404), refused
            assert refused["error"]["param"] == param, refused
            for table in ("sessions", "responses", "requests"):
                assert await house.db.value(f"SELECT count(*) FROM {table}") == 0, table


NOT_THERE = [
    ("GET", "/v1/responses/resp_none"),
    ("GET", "/v1/responses/resp_none?stream=true"),
    ("DELETE", "/v1/responses/resp_none"),
    ("POST", "/v1/responses/resp_none/cancel"),
    ("GET", "/v1/responses/resp_none/input_items"),
    ("GET", "/v1/conversations/none"),
    ("GET", "/v1/conversations/none/items"),
    ("GET", "/v1/conversations/none/items/x"),
    ("DELETE", "/v1/conversations/none/items/x"),
]


async def test_what_is_not_there_is_not_found(serving: Serving) -> None:
    async with serving([]) as house:
        for method, path in NOT_THERE:
            status, refused = await get(house, path, method)
            assert (status, refused["error"]["type"]) == (404, "invalid_request_error")


NO_PDF = f"data:application/pdf;base64,{base64.b64encode(b'no PDF').decode()}"
NO_FILE = {"type": "input_file", "file_data": NO_PDF, "filename": "a.pdf"}
WRONG_CONVERSATIONS: list[tuple[str, Any, str]] = [
    ("", {"metadata": 7}, "metadata"),
    ("", {"items": [{"type": "item_reference", "id": "msg_1"}]}, "items[0].type"),
    ("", {"items": [{"role": "user", "content": [NO_FILE]}]}, "items[0].content[0].file_data"),
    ("", {"items": [{"role": "user", "content": "x"}] * 21}, "items"),
    ("/c-1", {}, "metadata"),
    ("/c-1/items", {}, "items"),
    ("/c-1/items", {"items": []}, "items"),
]


async def test_wrong_conversations_are_refused_by_name(serving: Serving) -> None:
    async with serving([say("Hello.")]) as house:
        await house.say("Hello", metadata={"conversation_id": "c-1"})
        for path, body, param in WRONG_CONVERSATIONS:
            status, refused = await get(house, f"/v1/conversations{path}", "POST", json=body)
            assert (status, refused["error"]["param"]) == (400, param), refused


async def test_an_owner_sees_its_own_responses_only(serving: Serving) -> None:
    async with keyed(serving, [say("Secret."), say("Mine.")]) as house:
        acme, globex = await client_of(house, "acme"), await client_of(house, "globex")
        reader = await client_of(house, "acme", read_only=True)
        async with acme.ask("POST", "/v1/responses", {"model": AGENT, "input": "Hello"}) as response:
            made = await response.json()
        where = f"/v1/responses/{made['id']}"
        assert (await reader.got(where))["id"] == made["id"]
        assert (await reader.refused("DELETE", where))[0] == 403
        assert (await reader.refused("POST", "/v1/responses", {"model": AGENT, "input": "x"}))[0] == 403
        for method, path in (("GET", where), ("GET", f"{where}?stream=true"), ("DELETE", where),
                             ("POST", f"{where}/cancel"), ("GET", f"{where}/input_items")):  # fmt: skip
            assert (await globex.refused(method, path))[0] == 404, path
        item = {"type": "item_reference", "id": made["output"][0]["id"]}
        for more in ({"previous_response_id": made["id"]}, {"input": [item]}):
            status, error = await globex.refused("POST", "/v1/responses", {"model": AGENT, "input": "x", **more})
            assert (status, "Secret" in str(error)) == (404, False)
        assert (await globex.refused("GET", f"/v1/conversations/{made['x_agent']['conversation_id']}"))[0] == 404
