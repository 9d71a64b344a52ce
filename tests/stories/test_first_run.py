"""What a first visit shows without a model: agents that say what they can, and a tool that waits for a person."""

import base64
import re
from typing import Any

from longhouse.journal import events
from server_helpers import House, Serving, content

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def read(house: House, path: str) -> Any:
    async with house.http.get(path) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def decide(house: House, session: str, **decision: str) -> None:
    async with house.http.post(f"/v1/sessions/{session}/approval", json=decision) as response:
        assert response.status == 202, await response.text()


async def test_the_demo_model_writes_a_letter_once_a_person_agrees(serving: Serving) -> None:
    async with serving() as house:
        models = {one["id"]: one for one in (await read(house, "/v1/models"))["data"]}
        assert "letters" in models["secretary"]["capabilities"]
        assert models["secretary"]["tags"] == ["letters", "office"]
        assert "capabilities" not in models["auto"]

        asked = await house.say("Write a letter to Bob: it is on Friday.", model="secretary")
        session = asked["model"]
        [question] = (await read(house, f"/v1/sessions/{session}/questions"))["data"]
        assert (question["kind"], question["tool"]) == ("approval", "lettertool")
        assert '"to":"Bob"' in question["arguments"].replace(" ", "")

        await decide(house, session, call_id=question["name"], decision="approve")
        await house.until(session, "COMPLETED")
        [letter] = (await read(house, f"/v1/sessions/{session}/artifacts"))["data"]
        async with house.http.get(letter["download"]) as response:
            text = await response.text()
        assert text == "To: Bob\nRe: From the demo model\n\nWrite a letter to Bob: it is on Friday.\n"

        again = await house.say("Write a letter to Ann.", model="secretary")
        [question] = (await read(house, f"/v1/sessions/{again['model']}/questions"))["data"]
        denied = await house.say("no", model=again["model"])
        assert question["name"] not in content(denied)
        assert (await read(house, f"/v1/sessions/{again['model']}/artifacts"))["data"] == []


async def test_every_agent_of_the_demo_says_what_it_is(serving: Serving) -> None:
    async with serving() as house:
        for task in ("My name is Алия 是.", "What has the user said so far?"):
            told = content(await house.say(task, model="analytic", chat_id="c"))
            assert told.startswith("I am the demo model of Longhouse")
            assert "Алия 是" in told
        assert "It remembers: My name is" in content(await house.say("My name is Ann.", model="master"))


async def test_an_image_is_shown_to_the_session_that_it_was_sent_to(serving: Serving) -> None:
    async with serving() as house:
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"}}
        asked = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}
        async with house.http.post(
            "/v1/chat/completions", json={"model": "tool_calling_agent", "messages": [asked]}
        ) as response:
            session = (await response.json())["model"]
        journal = "".join(events.encode(one.event) for one in await house.journal(session))
        [digest] = re.findall("longhouse-file:([0-9a-f]{64})", journal)
        for path in (f"/v1/sessions/{session}/images/{digest}", f"/admin/sessions/{session}/images/{digest}"):
            async with house.http.get(path) as response:
                assert (response.status, response.content_type) == (200, "image/png")
                assert response.headers["content-security-policy"] == "sandbox; default-src 'none'"
                assert response.headers["x-content-type-options"] == "nosniff"
                assert await response.read() == PIXEL

        other = (await house.say("Hello"))["model"]
        for path in (f"{other}/images/{digest}", f"{session}/images/{'0' * 64}", f"{session}/images/%25"):
            async with house.http.get(f"/v1/sessions/{path}") as response:
                assert (response.status, (await response.json())["error"]["code"]) == (404, "image_not_found")
