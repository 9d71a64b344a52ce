"""A model in trouble is waited for by nobody but the clock; past all patience the turn ends in words."""

import asyncio
from typing import Any

import pytest
import structlog

from longhouse.journal import events
from longhouse.models.scripted import Cut, Fault, Garbage, Hang, Say, ScriptedStatus, call, say
from longhouse.models.scripted_server import serve as serve_model
from server_helpers import AGENT, House, Serving, process, sse

CANARY = "sk-test-canary"
ANSWER = call("finalanswertool", answer="Here at last.")
BODY: dict[str, Any] = {"model": AGENT, "messages": [{"role": "user", "content": "Hello"}]}

TROUBLES: dict[str, Fault] = {
    "an error 500": ScriptedStatus(500),
    "a rate limit": ScriptedStatus(429, retry_after=0.05),
    "silence": Hang(),
    "a page of HTML": Garbage(),
    "an answer cut off": Cut(after=2),
}


def in_trouble(fault: Fault) -> Say:
    return Say(calls=ANSWER.calls, chunk=4, fault=fault)


async def streamed(house: House, **extra: Any) -> list[Any]:
    """The data of every event of one streamed turn; the last may be the text `[DONE]`."""
    async with house.http.post("/v1/chat/completions", json={**BODY, "stream": True, **extra}) as response:
        assert response.status == 200
        return [event.data if event.data == "[DONE]" else event.json async for event in sse(response)]


def content_of(chunks: list[Any]) -> str:
    return "".join(
        choice["delta"].get("content") or ""
        for chunk in chunks
        if isinstance(chunk, dict)
        for choice in chunk.get("choices", ())
    )


def usage_of_replies(told: list[events.Recorded]) -> int:
    return sum(r.event.usage.total_tokens for r in told if isinstance(r.event, events.Replied) and r.event.usage)


@pytest.mark.parametrize("fault", TROUBLES.values(), ids=TROUBLES)
async def test_trouble_that_passes_is_not_seen_in_the_answer(serving: Serving, fault: Fault) -> None:
    async with serving([in_trouble(fault), ANSWER], llm_timeout=0.3) as house:
        chunks = await streamed(house, stream_options={"include_usage": True})
        assert content_of(chunks) == "Here at last."
        assert chunks[-1] == "[DONE]"
        session_id = chunks[0]["model"]
        assert await house.kinds(session_id) == [
            "Opened", "Prompted", "Started", "Replied", "Called", "Returned", "Finished",
        ]  # fmt: skip
        assert house.model is not None
        assert len(house.model.requests) == 2
        # Both attempts asked the same; what was paid for is counted.
        assert house.model.requests[0] == house.model.requests[1]
        total = usage_of_replies(await house.journal(session_id))
        assert total > 0
        assert chunks[-2]["usage"]["total_tokens"] == total
        assert (await house.session(session_id))["usage"]["total_tokens"] == total
        assert await house.db.value("SELECT attempts = 0 AND troubled_at IS NULL AND wake_at IS NULL FROM sessions")


async def test_a_retry_and_a_failure_are_each_logged_in_one_sentence(serving: Serving) -> None:
    refusal = ScriptedStatus(401, message="the key was refused")
    async with serving([in_trouble(ScriptedStatus(500)), ANSWER, in_trouble(refusal)]) as house:
        with structlog.testing.capture_logs() as logs:
            await house.say("Hello")
            await house.say("Again")
        said = {one["event"]: one["message"] for one in logs if one["event"].startswith("model_call_")}
        assert said == {
            "model_call_retry": "the model call failed and is retried later",
            "model_call_failed": "the model call failed in a way that no retry can mend: the turn ends",
        }


INSIDE = "http://litellm.internal:4000 said: 10.11.12.13:8000 is down"
LASTING: dict[str, Fault] = {**TROUBLES, "words that name hosts": ScriptedStatus(500, message=INSIDE)}


@pytest.mark.parametrize("fault", LASTING.values(), ids=LASTING)
async def test_trouble_that_lasts_ends_a_stream_with_an_error(serving: Serving, fault: Fault) -> None:
    async with serving(lambda body: in_trouble(fault), llm_timeout=0.2, patience=0.8) as house:
        with structlog.testing.capture_logs() as logs:
            chunks = await streamed(house)
        assert set(chunks[-1]) == {"error"}
        assert chunks[-1]["error"]["code"] == "provider_error"
        assert chunks[-1]["error"]["type"] == "server_error"
        assert house.model is not None
        assert len(house.model.requests) > 1
        shown = await house.session(chunks[0]["model"])
        assert shown["state"] == "FAILED"
        assert shown["error"] == chunks[-1]["error"]["message"]
        [failed] = [r.event for r in await house.journal(shown["session_id"]) if isinstance(r.event, events.Failed)]
        assert failed.reason == shown["error"]
        assert shown["error"].startswith("the model ")
        port = house.model.url.rpartition(":")[2].partition("/")[0]
        async with house.http.get(f"/v1/sessions/{shown['session_id']}/log") as response:
            log = await response.text()
        for told in (str(chunks), str(shown), str(await house.journal(shown["session_id"])), log):
            assert not [inside for inside in ("127.0.0.1", f":{port}", "10.11.12.13", "litellm") if inside in told]
        [line] = [one for one in logs if one["event"] == "model_call_failed"]
        assert line["session"] == shown["session_id"]
        assert f"127.0.0.1:{port}" in line["error"], "the operator is told"
        assert line["message"] == "the model call failed past the retry limit: the turn ends"


async def test_trouble_that_lasts_is_a_502_that_clients_do_not_repeat(serving: Serving) -> None:
    async with serving(lambda body: in_trouble(ScriptedStatus(503, message="overloaded")), patience=0.8) as house:
        async with house.http.post("/v1/chat/completions", json=BODY) as response:
            assert (response.status, response.headers["x-should-retry"]) == (502, "false")
            error = (await response.json())["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["message"] == "the model answered 503"
        assert await house.db.value("SELECT state = 'FAILED' AND NOT due AND holder IS NULL FROM sessions")


async def test_a_refusal_fails_the_turn_at_once_and_the_next_prompt_is_heard(serving: Serving) -> None:
    async with serving([in_trouble(ScriptedStatus(401, message=f"wrong key {CANARY}")), ANSWER]) as house:
        async with house.http.post("/v1/chat/completions", json=BODY) as response:
            assert (response.status, response.headers["x-should-retry"]) == (502, "false")
            assert "401" in (await response.json())["error"]["message"]
        assert house.model is not None
        assert len(house.model.requests) == 1
        session_id = await house.db.value("SELECT id FROM sessions")
        assert (await house.session(session_id))["state"] == "FAILED"
        answered = await house.say("Once more", model=session_id)
        assert answered["choices"][0]["message"]["content"] == "Here at last."


async def test_the_worker_is_free_while_a_provider_is_waited_for(serving: Serving) -> None:
    script = [in_trouble(ScriptedStatus(429, retry_after=2)), ANSWER]
    async with serving(script, worker_slots=1) as house:
        waiting = asyncio.create_task(house.say("Hello"))
        row = None
        async with asyncio.timeout(10):
            while row is None or row["wake_at"] is None:
                row = await house.db.row("SELECT * FROM sessions")
                await asyncio.sleep(0.005)
            while house.app.worker.busy:
                await asyncio.sleep(0.005)
        assert (row["holder"], row["due"], row["attempts"]) == (None, False, 1)
        assert row["troubled_at"] is not None
        assert 1 < (row["wake_at"] - row["troubled_at"]).total_seconds() < 3
        assert not waiting.done()
        assert (await house.session(row["id"]))["state"] == "RESEARCHING"
        answered = await asyncio.wait_for(waiting, 20)
        assert answered["choices"][0]["message"]["content"] == "Here at last."


async def test_a_prompt_does_not_wait_for_the_clock(serving: Serving) -> None:
    script = [in_trouble(ScriptedStatus(429, retry_after=50)), ANSWER, call("finalanswertool", answer="And to you.")]
    async with serving(script) as house:
        first = asyncio.create_task(house.say("Hello"))
        async with asyncio.timeout(10):
            while not await house.db.value("SELECT wake_at IS NOT NULL FROM sessions"):
                await asyncio.sleep(0.01)
        second = await asyncio.wait_for(
            house.say("Good day", model=await house.db.value("SELECT id FROM sessions")), 20
        )
        assert second["choices"][0]["message"]["content"] == "And to you."
        assert (await first)["choices"][0]["message"]["content"] == "Here at last."


async def test_text_that_was_shown_is_continued_when_the_step_is_repeated(serving: Serving) -> None:
    whole = Say(calls=ANSWER.calls, chunk=4, delay=0.01)
    broken = Say(calls=ANSWER.calls, chunk=4, delay=0.01, fault=Cut(after=6))
    async with serving([broken, whole]) as house:
        chunks = await streamed(house)
        assert content_of(chunks) == "Here at last."
        assert chunks[-1] == "[DONE]"


async def test_text_that_cannot_be_taken_back_ends_the_stream_and_not_the_turn(serving: Serving) -> None:
    broken = Say(calls=call("finalanswertool", answer="Oslo, I think").calls, chunk=4, delay=0.01, fault=Cut(after=6))
    async with serving([broken, call("finalanswertool", answer="Bergen.")]) as house:
        chunks = await streamed(house)
        assert content_of(chunks).startswith("Osl")
        assert chunks[-1]["error"]["code"] == "step_restarted"
        shown = await house.until(chunks[0]["model"], "COMPLETED")
        assert shown["result"] == "Bergen."


async def test_an_empty_answer_is_trouble_too(serving: Serving) -> None:
    async with serving([say(" "), ANSWER]) as house:
        answered = await house.say("Hello")
        assert answered["choices"][0]["message"]["content"] == "Here at last."
        told = await house.journal(answered["model"])
        [spent] = [record.event for record in told if isinstance(record.event, events.Spent)]
        assert (spent.reason, spent.usage.total_tokens > 0) == ("the model answered with nothing", True)
        # It was paid for, and is in the bill.
        assert answered["usage"]["total_tokens"] == usage_of_replies(told) + spent.usage.total_tokens


async def test_empty_answers_are_counted_and_end_with_all_patience(serving: Serving) -> None:
    """What was spent is written down between the tries, and says nothing of how many there were."""
    async with serving(lambda body: say(" "), patience=1.0) as house:
        failed = await asyncio.wait_for(house.say("Hello"), 30)
        assert failed["error"]["code"] == "provider_error"
        session_id = await house.db.value("SELECT id FROM sessions")
        session, told = await house.folded(session_id), await house.journal(session_id)
        spent = [record.event.usage.total_tokens for record in told if isinstance(record.event, events.Spent)]
        assert house.model is not None
        assert len(spent) == len(house.model.requests) >= 2
        assert session.turn is not None
        assert session.turn.usage.total_tokens == sum(spent) > 0


async def test_the_key_of_the_model_is_nowhere_to_be_read(dsn: str) -> None:
    """A provider that repeats our key in its errors, as some do, must not carry it into journal, answers or logs."""
    leak = ScriptedStatus(500, message=f"Incorrect API key provided: {CANARY}. You can find your key at …")
    refusal = ScriptedStatus(401, message=f"Bearer {CANARY} was refused")
    script = [in_trouble(leak), ANSWER, in_trouble(refusal)]
    settings = {"database_url": dsn, "llm_api_key": CANARY, "log_level": "debug"}
    async with serve_model(script) as model, process(llm_base_url=model.url, **settings) as house:
        answered = await house.say("Hello")
        failed = await house.say("Again", model=answered["model"])
        assert model.headers[-1]["authorization"] == f"Bearer {CANARY}"
        shown = [answered, failed, await house.session(answered["model"]), await house.facts(answered["model"])]
        async with house.http.get("/metrics") as response:
            shown.append(await response.text())
        assert "the model answered 401" in str(shown)
        assert CANARY not in str(shown)
        house.process.terminate()
        await house.ended()
    assert any("model_call_retry" in line for line in house.said)
    assert any("model_call_failed" in line and "was refused" in line for line in house.said)
    assert CANARY not in "\n".join(house.said)
