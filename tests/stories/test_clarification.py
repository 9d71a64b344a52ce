"""A question frees the worker; the answer may come from anybody who knows the session."""

from longhouse.api.sessions.waiting import MAX_TEXT
from longhouse.models.scripted import call
from server_helpers import AGENT, Serving


async def test_a_question_ends_the_run_and_the_answer_continues_it(serving: Serving) -> None:
    script = [call("clarificationtool", questions=["Which city?"]), call("finalanswertool", answer="Rain in Oslo.")]
    async with serving(script) as house:
        asked = await house.say("Will it rain?")
        session_id = asked["model"]
        assert asked["choices"][0]["message"]["content"] == "Which city?"
        assert asked["x_agent"]["status"] == "waiting"
        assert (await house.session(session_id))["state"] == "WAITING_FOR_CLARIFICATION"
        assert house.app.worker.busy == 0

        answered = await house.say("Oslo", model=session_id)
        assert answered["choices"][0]["message"]["content"] == "Rain in Oslo."
        assert answered["model"] == session_id
        assert await house.kinds(session_id) == [
            "Opened", "Prompted", "Started", "Replied", "Called", "Returned",
            "Replied", "Called", "Returned", "Finished",
        ]  # fmt: skip
        assert house.model is not None
        seen = house.model.requests[-1]["messages"]
        assert [message["role"] for message in seen] == ["system", "user", "assistant", "tool", "user"]
        assert seen[3] == {"role": "tool", "tool_call_id": "1-action-0", "content": "Which city?"}
        assert seen[4] == {"role": "user", "content": "Oslo"}


async def test_the_demo_model_plays_its_scene(serving: Serving) -> None:
    async with serving() as house:
        asked = await house.say("Hello")
        answered = await house.say("Bergen", model=asked["model"])
        text = answered["choices"][0]["message"]["content"]
        assert "demo" in text
        assert "'Bergen'" in text
        assert "LONGHOUSE_LLM_BASE_URL" in text
        async with house.http.get("/v1/models") as response:
            models = [model["id"] for model in (await response.json())["data"]]
            assert models == [
                "auto",
                "analytic",
                "master",
                "reader",
                "secretary",
                "sgr_agent",
                "sgr_tool_calling_agent",
                AGENT,
            ]


async def test_an_answer_that_is_too_long_is_refused_before_anything_is_streamed(serving: Serving) -> None:
    script = [call("clarificationtool", questions=["Which city?"]), call("finalanswertool", answer="Rain in Oslo.")]
    async with serving(script) as house:
        session_id = (await house.say("Will it rain?"))["model"]
        before = await house.kinds(session_id)
        long = "a" * (MAX_TEXT + 1)
        asked = {"model": session_id, "messages": [{"role": "user", "content": long}]}
        for path, body in (
            ("/v1/chat/completions", asked),
            ("/v1/chat/completions", {**asked, "stream": True}),
            (f"/agents/{session_id}/provide_clarification", {"clarifications": long}),
            (f"/agents/{session_id}/provide_clarification", {"messages": asked["messages"]}),
            (f"/v1/sessions/{session_id}/clarification", {"answer": long}),
        ):
            async with house.http.post(path, json=body) as response:
                assert (response.status, response.content_type) == (400, "application/json"), path
        assert await house.kinds(session_id) == before
        answered = await house.say("a" * MAX_TEXT, model=session_id)
        assert answered["choices"][0]["message"]["content"] == "Rain in Oslo."
