"""Streams: what is being written is read along, what happened is read once and in order, whoever comes and goes."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import groupby
from typing import Any

import pytest
from msgspec.structs import replace
from starlette.types import Message

from longhouse.api import auth, wire
from longhouse.api.http import streaming
from longhouse.api.http.streaming import EventStream
from longhouse.api.inflight import InflightRequest
from longhouse.api.openai.completions import Completion
from longhouse.api.openai.session_resolver import SessionResolver
from longhouse.api.openai.turn_handle import TurnHandle
from longhouse.api.openai.turn_stream import ResponsePiece, TurnStream
from longhouse.api.sessions.sse import SessionCursor, events_of
from longhouse.journal.events import Recorded, Replied, Started
from longhouse.journal.fold import blank, fold
from longhouse.journal.session import Session
from longhouse.models.scripted import Say, call, calls, say
from longhouse.runtime.bus.items import Facts, Fragment, GrowingDraft, Written
from longhouse.runtime.bus.local import Bus, Subscription
from longhouse.runtime.inbox import Inbox
from longhouse.store import journals
from longhouse.store.catalog.catalog import Catalog
from server_helpers import AGENT, House, Pen, Serving, Sse, chat, dictated, sse, user

ANSWER = "The answer is written piece by piece, and read as it is written."


@asynccontextmanager
async def asked(house: House, text: str = "Hello", *, model: str = AGENT) -> AsyncIterator[AsyncIterator[Sse]]:
    body = {"model": model, "messages": [user(text)], "stream": True}
    async with asyncio.timeout(30), house.http.post("/v1/chat/completions", json=body) as response:
        assert response.content_type == "text/event-stream"
        yield sse(response)


@asynccontextmanager
async def followed(house: House, session_id: str, last: int | None = None, **query: str) -> AsyncIterator[Any]:
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    path = f"/v1/sessions/{session_id}/events"
    async with asyncio.timeout(30), house.http.get(path, headers=headers, params=query) as response:
        assert response.status == 200
        yield sse(response)


async def facts(house: House, session_id: str, last: int | None = None, **query: str) -> list[Sse]:
    async with followed(house, session_id, last, **query) as events:
        return [event async for event in events]


async def read_until(events: AsyncIterator[Sse], kind: str) -> list[Sse]:
    read = []
    async for event in events:
        read.append(event)
        if event.event == kind:
            return read
    raise AssertionError(f"the stream ended without {kind}")


def deltas(events: list[Any], field: str) -> list[str]:
    """The fragments of one kind on a chat stream."""
    found = [event.json["choices"][0]["delta"].get(field) for event in events if event.data != "[DONE]"]
    return [text for text in found if text]


def ids(events: list[Sse]) -> list[int]:
    return [int(event.id) for event in events if event.id]


def text_of(events: list[Sse]) -> str:
    """The content that these events of a session's stream add up to, placed by step, fence and offset."""
    text, step = "", (0, 0)
    for event in events:
        if event.event not in ("delta", "delta.snapshot") or event.json.get("kind") == "reasoning":
            continue
        assert event.id == ""
        found = event.json
        if (found["after"], found["fence"]) > step:
            text, step = "", (found["after"], found["fence"])
        if event.event == "delta.snapshot":
            text = found["content"]
        elif found["offset"] >= len(text):
            assert found["offset"] == len(text)
            text += found["text"]
    return text


async def begun(events: AsyncIterator[Sse]) -> str:
    """The session of a chat stream that has begun."""
    return str((await anext(events)).json["model"])


async def in_the_middle(pen: Pen, events: AsyncIterator[Sse]) -> None:
    """The answer has begun, and the client has read its beginning."""
    pen.call("finalanswertool", '{"answer": "One ')
    async for event in events:
        if event.json["choices"][0]["delta"].get("content") == "One ":
            return


# Text as it is written


async def test_an_answer_is_read_while_its_arguments_are_still_being_written(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house, asked(house) as events:
        pen = await model.asked()
        pen.call("finalanswertool")
        heard = ""
        for fragment, then in (
            ('{"reasoning": "so", "answer": "One \\u00', "One "),
            ("e9", "One é"),
            (" two", "One é two"),
        ):
            pen.more(fragment)
            while heard != then:
                assert then.startswith(heard)
                heard += (await anext(events)).json["choices"][0]["delta"].get("content") or ""
        pen.end('", "status": "completed"}')
        rest = [event async for event in events]
        assert deltas(rest, "content") == []
        assert rest[-1].data == "[DONE]"


async def test_an_answer_in_many_fragments_arrives_in_several_deltas(serving: Serving) -> None:
    answer = Say(calls=call("finalanswertool", answer=ANSWER, status="completed").calls, chunk=8, delay=0.005)
    async with serving([answer]) as house, asked(house) as events:
        read = deltas([event async for event in events], "content")
        assert "".join(read) == ANSWER
        assert len(read) > 3


async def test_what_is_thought_on_the_way_is_never_content_and_what_is_said_always(serving: Serving) -> None:
    thoughts = Say(reasoning="Hm. ", text="I look at the clock. ", calls=call("clocktool").calls, chunk=5, delay=0.002)
    last = calls(say("Now I know. "), call("finalanswertool", answer="It is late."))
    async with serving([thoughts, last, thoughts, last]) as house:
        async with asked(house) as events:
            read = [event async for event in events]
        assert "".join(deltas(read, "reasoning_content")) == "Hm. "
        assert "".join(deltas(read, "content")) == "I look at the clock. \n\nNow I know. \n\nIt is late."
        assert deltas(read, "tool_calls") == []
        whole = await chat(house, [user("Again")])
        assert whole["choices"][0]["message"]["content"] == "".join(deltas(read, "content"))
        assert whole["choices"][0]["message"]["reasoning_content"] == "Hm. "


async def test_a_session_that_the_recorder_has_added_up_is_shown_as_if_the_stream_had(serving: Serving) -> None:
    looked = calls(say("Я смотрю на часы."), call("clocktool"), call("clocktool"), call("nosuchtool"))
    script = [looked, calls(call("clocktool")), call("finalanswertool", answer="很晚了。")]
    async with serving(script) as house:
        session_id = (await chat(house, [user("What time is it?")]))["model"]
        records = await journals.read(house.db, session_id)
        start = next(nth for nth, one in enumerate(records) if isinstance(one.event, Started))
        begun = fold(records[:start], blank(session_id))
        appends = [tuple(append) for _, append in groupby(records[start:], lambda one: one.at)]
        assert max(map(len, appends)) > 3

        def stream_of(bus: Bus) -> TurnStream:
            return TurnStream(house.db, bus, TurnHandle(begun, records[start].trace), Subscription(), beat=0.1)

        async def shown(told: Callable[[Session], Session | None]) -> tuple[list[ResponsePiece], Session]:
            """All at once, each append with the session after it."""
            stream, session = stream_of(Bus()), begun
            for append in appends:
                session = fold(append, session)
                stream.subscription.put(Facts(append, session=told(session)))
            return [piece async for batch in stream.pieces() for piece in batch], stream.session

        added_up = await shown(lambda session: None)
        assert await shown(lambda session: session) == added_up
        assert await shown(lambda session: session if session.head % 2 else None) == added_up
        _, session = await shown(lambda session: replace(session, title="told"))
        assert session.title == "told"  # it was not added up again

        # Event by event, as a page of the journal may end anywhere: a reply is part of the session at once.
        bus, session, pieces = Bus(), begun, list[ResponsePiece]()
        stream, last = stream_of(bus), [one for one in records if isinstance(one.event, Replied)][-1]
        batches = stream.pieces()
        for record in records[start:]:
            session = fold([record], session)
            stream.subscription.put(Facts((record,)))
            if record is last:
                bus._drafts[session_id] = GrowingDraft(record.seq, 1, "Ещё раз.")
                stream.subscription.put(Written(record.seq, 1, "Ещё раз.", ""))
            while stream.session.head < record.seq:  # what shows nothing is followed by a beat
                pieces += await anext(batches)
            assert stream.session == session
            if record is last:
                break
        assert "".join(piece.content for piece in pieces) == "Я смотрю на часы.\n\nЕщё раз."


@pytest.mark.parametrize("deltas", [True, False])
async def test_nothing_is_kept_of_what_was_sent_to_a_client_that_only_listens(serving: Serving, deltas: bool) -> None:
    async with serving([call("clocktool"), call("finalanswertool", answer="It is late.")]) as house:
        session_id = (await chat(house, [user("What time is it?")]))["model"]
        last = (await journals.read(house.db, session_id))[-1]
        draft = GrowingDraft(last.seq, 1, "It is ")
        bus, sent = Bus(_drafts={session_id: draft}), list[bytes]()

        async def send(message: Message) -> None:
            if message.get("body"):
                sent.append(message["body"])

        def is_let_go(count: int) -> bool:
            """Is so much sent, and in the list alone? The call that counts has a reference of its own."""
            return len(sent) == count and all(sys.getrefcount(sent[nth]) == 2 for nth in range(count))

        beginning = SessionCursor(session_id, {session_id: 0})
        stream: EventStream[Any] = EventStream(events_of(house.db, bus, beginning, until_rest_of=None, deltas=deltas))
        writing = asyncio.create_task(stream._write(send, InflightRequest(None, send)))
        async with asyncio.timeout(20):
            count = 2 if deltas else 1  # the journal, and what is being written
            while not is_let_go(count):
                await asyncio.sleep(0.01)
            bus.publish(session_id, Fragment(last.seq, 1, "content", 6, "late"))
            for more in range(1, 4):
                count += deltas if more == 1 else 1
                while not is_let_go(count):
                    await asyncio.sleep(0.01)
                record = Recorded(seq=last.seq + more, at=last.at, event=last.event)
                ours = sys.getrefcount(record)
                bus.publish(session_id, Facts((record,)))
                await asyncio.sleep(0.01)
                while sys.getrefcount(record) > ours:
                    await asyncio.sleep(0.01)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


# Clients that leave, and come back


async def test_a_session_goes_on_without_its_client_and_is_read_again_once_and_in_order(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house:
        async with asked(house) as events:
            session_id = await begun(events)
            pen = await model.asked()
            pen.call("clocktool", "{}")
            pen.end()
            pen = await model.asked()
            await in_the_middle(pen, events)
        before = await facts_so_far(house, session_id)
        pen.end('two"}')
        assert (await house.until(session_id, "COMPLETED"))["result"] == "One two"

        kinds = await house.kinds(session_id)
        after = await facts(house, session_id, before[-1])
        assert before + ids(after) == list(range(1, len(kinds) + 1))
        for seen in range(len(kinds) + 1):
            read = await facts(house, session_id, seen)
            assert ids(read) == list(range(seen + 1, len(kinds) + 1))
            assert [event.event for event in read] == kinds[seen:]
        assert ids(await facts(house, session_id, after=str(before[-1]))) == ids(after)
        for event in after:
            keys = {"seq", "at", "session_id", "trace_id", "worker", "fence", "event"}
            assert (event.json.keys(), event.json["event"]["kind"]) == (keys, event.event)
            assert (event.json["seq"], event.json["session_id"]) == (int(event.id), session_id)


async def facts_so_far(house: House, session_id: str) -> list[int]:
    """Follows a running session up to its draft, then leaves."""
    async with followed(house, session_id) as events:
        return ids(await read_until(events, "delta.snapshot"))


async def test_who_joins_in_the_middle_gets_a_snapshot_and_then_the_rest(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house, asked(house) as events:
        session_id = await begun(events)
        pen = await model.asked()
        pen.write(reasoning_content="Hm.")
        await in_the_middle(pen, events)
        async with followed(house, session_id) as late:
            read = await read_until(late, "delta.snapshot")
            assert [event.event for event in read] == ["Opened", "Prompted", "Started", "delta.snapshot"]
            snapshot = read[-1].json
            assert (snapshot["after"], snapshot["content"], snapshot["reasoning"]) == (3, "One ", "Hm.")
            pen.more("two")
            delta = await anext(late)
            assert delta.event == "delta"
            assert delta.json == {
                "after": 3, "fence": snapshot["fence"], "offset": 4, "kind": "content", "text": "two",
            }  # fmt: skip
            pen.end('"}')
            rest = [event async for event in late]
        assert [event.event for event in rest if event.id] == ["Replied", "Called", "Returned", "Finished"]
        assert text_of([*read, delta, *rest]) == "One two"


async def test_parallel_followers_see_the_same(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house, asked(house) as events:
        session_id = await begun(events)
        pen = await model.asked()
        await in_the_middle(pen, events)
        async with AsyncExitStack() as stack:
            followers, read = [], []
            for word in ("two ", "three ", "four"):
                follower = await stack.enter_async_context(followed(house, session_id))
                followers.append(follower)
                read.append(await read_until(follower, "delta.snapshot"))
                pen.more(word)
            bare = await stack.enter_async_context(followed(house, session_id, deltas="false"))
            without = await read_until(bare, "Started")
            pen.end('"}')
            for one, follower in zip(read, followers, strict=True):
                one += [event async for event in follower]
            without += [event async for event in bare]
        journal = await house.kinds(session_id)
        for one in read:
            assert [event.event for event in one if event.id] == journal
            assert ids(one) == list(range(1, len(journal) + 1))
            assert text_of(one) == "One two three four"
        assert [event.event for event in without] == journal


async def test_a_stream_until_never_outlives_the_turn(serving: Serving) -> None:
    async with serving([call("finalanswertool", answer=text) for text in ("One.", "Two.")]) as house:
        session_id = (await house.say("Hello"))["model"]
        async with followed(house, session_id, until="never", deltas="false") as events:
            first = await read_until(events, "Finished")
            await house.say("More", model=session_id)
            second = await read_until(events, "Finished")
        assert ids([*first, *second]) == list(range(1, len(await house.kinds(session_id)) + 1))
        assert second[-1].json["event"]["answer"] == "Two."
        # Until rest, the default, a session at rest is read to its end and closed.
        assert len(await facts(house, session_id)) == len(first) + len(second)


async def test_a_question_ends_a_stream_until_rest(serving: Serving) -> None:
    async with serving([call("clarificationtool", questions=["Which city?"])]) as house, asked(house) as events:
        session_id = await begun(events)
        read = await facts(house, session_id)
        assert [event.event for event in read if event.id][-1] == "Called"
        [*_, last] = [event.json async for event in events if event.data != "[DONE]"]
        assert last["x_agent"]["call_id"] == "1-action-0"


# Signs of life


async def attached(house: House, text: str, model: str = AGENT) -> TurnHandle:
    request = wire.ChatRequest.model_validate({"model": model, "messages": [user(text)]})
    return await SessionResolver(house.db, Catalog(house.db), Inbox(house.db, house.app.bus)).attach(
        auth.LOCAL, request, text.encode(), {}
    )


async def chunks_of(house: House, where: TurnHandle, beat: float) -> AsyncIterator[bytes]:
    with house.app.bus.subscribed(where.session.id) as subscription:
        telling = TurnStream(house.db, house.app.bus, where, subscription, beat=beat)
        async for chunk in Completion(telling).chunks():
            yield chunk


async def test_a_silent_stream_beats_although_the_session_is_looked_at_every_second(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house:
        chunks = chunks_of(house, await attached(house, "Hello"), beat=2.0)
        read: list[bytes] = []
        async with asyncio.timeout(30):
            while streaming.HEARTBEAT not in read:
                read.append(await anext(chunks))
            assert streaming.HEARTBEAT == b": keep-alive\n\n"
            pen = await model.asked()
            pen.call("finalanswertool", '{"answer": "Still here."}')
            pen.end()
            read += [chunk async for chunk in chunks]
        assert b'"content":"Still here."' in b"".join(read)
        assert read[-1].endswith(streaming.DONE)


async def test_a_client_in_the_queue_hears_the_beat_behind_a_turn_that_never_stops_talking(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house, asked(house) as events:
        session_id = await begun(events)
        pen = await model.asked()
        await in_the_middle(pen, events)
        queued = chunks_of(house, await attached(house, "More", session_id), beat=0.3)
        async with asyncio.TaskGroup() as group:
            talking = group.create_task(_talk(pen))
            async with asyncio.timeout(30):
                assert b'"event":"accepted"' in await anext(queued)
                assert await anext(queued) == streaming.HEARTBEAT
            talking.cancel()
        pen.end('"}')
        pen = await model.asked()
        pen.call("finalanswertool", '{"answer": "Now you."}')
        pen.end()
        assert b'"content":"Now you."' in b"".join([chunk async for chunk in queued])


async def _talk(pen: Pen) -> None:
    while True:
        pen.more("on and on ")
        await asyncio.sleep(0.02)
