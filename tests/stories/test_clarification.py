"""A question frees the worker; the answer may come from anybody who knows the session."""

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
