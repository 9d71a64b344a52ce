"""Questions rise: what an agent far below asks is asked at the top, and the answer goes straight to who asked."""

import asyncio
from typing import Any

import pytest
from test_approval_in_chat import blocked, held, one_by_one

from delegating_server import (
    CAST,
    PLAIN,
    SignTool,
    agent,
    answer,
    appears,
    ask,
    cast,
    cast_house,
    last_result,
    playing,
    question,
    requests_of,
    results,
    session_of,
    task_of,
)
from longhouse.agents.strategies.protocol import Body
from longhouse.models.scripted import Say, call, calls, say, step_of
from longhouse.models.scripted_server import serve as serve_model
from longhouse.tools import BaseTool, ToolContext
from server_helpers import House, Serving, assistant, chat, content, sse, user


def passes_on(name: str) -> Any:
    return lambda body: last_result(body) if step_of(body.messages) else ask(name, "Find out the weather.")


def asks(body: Body) -> Say:
    """Asks for a city, and answers with what it was told."""
    return question("Which city?") if task_of(body) == "Find out the weather." else answer(f"Rain in {task_of(body)}.")


DEEP = {"master": passes_on("ann"), "ann": passes_on("ben"), "ben": passes_on("cem"), "cem": asks}
ASKED = "cem: Which city?"


async def post(house: Any, session_id: str, what: str, **body: Any) -> tuple[int, Any]:
    async with house.http.post(f"/v1/sessions/{session_id}/{what}", json=body) as response:
        return response.status, await response.json()


async def test_a_question_three_levels_down_is_answered_after_a_restart(dsn: str) -> None:
    async with serve_model(cast(**DEEP)) as model:
        settings = {"database_url": dsn, "llm_base_url": model.url, "llm_api_key": "sk-test-canary"}
        async with cast_house(**settings) as first:
            roots = []
            for _ in range(2):
                said = await first.say("Weather?", model="master")
                assert content(said) == ASKED
                assert (said["x_agent"]["waiting_for"], said["x_agent"]["asked_by"]) == ("clarification", "cem")
                roots.append(said["model"])
            first.kill()
            await first.ended()
        async with cast_house(**settings) as second:
            for root in roots:
                shown = await second.session(root)
                assert shown["state"] == "WAITING_FOR_CLARIFICATION"
                [asked] = shown["questions"]
                assert (asked["agent"], asked["kind"], asked["text"]) == ("cem", "clarification", "Which city?")
            assert content(await second.say("Oslo", model=roots[0])) == "Rain in Oslo."
            assert (await post(second, roots[1], "clarification", answer="Rome"))[0] == 202
            assert (await second.until(roots[1], "COMPLETED"))["result"] == "Rain in Rome."
            status, refused = await post(second, roots[1], "clarification", answer="Oslo")
            assert (status, refused["error"]["code"]) == (409, "already_settled")
            for root in roots:
                assert [one["event"]["kind"] for one in await second.facts(root)] == [
                    "Opened", "Prompted", "Started", "Replied", "Called", "Returned",
                    "Replied", "Called", "Returned", "Finished",
                ]  # fmt: skip
        assert len(requests_of(model, "cem")) == 4


async def test_a_decision_on_a_call_of_an_earlier_turn_reaches_no_other(serving: Serving) -> None:
    def signs(body: Body) -> Say:
        return last_result(body) if results(body) else call("signtool")

    def master(body: Body) -> Say:
        if results(body):
            return last_result(body)
        label = {"label": "z"} if task_of(body) == "z" else {}
        return call("signtool") if task_of(body) == "Own." else ask("cem", "Sign.", **label)

    async with playing(serving, {"master": master, "cem": signs}) as house:
        root = (await house.say("Own.", model="master", chat_id="c"))["model"]
        assert (await post(house, root, "approval", call_id="1-action-0", decision="deny"))[0] == 202
        await house.until(root, "COMPLETED")
        for label, stale in (("", ("1-action-0",)), ("z", ("1-action-0", "cem/1-action-0"))):
            await house.say(label or "Go.", model="master", chat_id="c")
            [asked] = (await house.session(root))["questions"]
            assert asked["name"] == (f"cem:{label}/1-action-0" if label else "cem/1-action-0")
            for name in stale:
                status, refused = await post(house, root, "approval", call_id=name, decision="approve")
                assert (status, refused["error"]["code"]) == (409, "already_settled"), "decided in an earlier turn"
                said = await chat(
                    house, [user("yes")], model="master", chat_id="c", metadata={"reply_to": name}, ok=False
                )
                assert said["error"]["code"] == "already_settled"
            assert [one["name"] for one in (await house.session(root))["questions"]] == [asked["name"]]
            own = {"call_id": asked["call_id"], "decision": "deny"}
            assert (await post(house, asked["session_id"], "approval", **own))[0] == 202, "at the session that asks"
            await house.until(root, "COMPLETED")


def three(body: Body) -> Say:
    if step_of(body.messages):
        return answer(" ".join(results(body)))
    return calls(ask("ann", "Ask."), ask("ben", "Ask."), ask("cem", "Work."))


def asks_by_name(name: str) -> Any:
    return lambda body: question(f"{name}?") if task_of(body) == "Ask." else answer(f"{name} heard {task_of(body)}.")


TWO = {
    "master": three,
    "ann": asks_by_name("ann"),
    "ben": asks_by_name("ben"),
    "cem": lambda body: last_result(body) if step_of(body.messages) else call("clocktool", timezone="UTC"),
}


@pytest.mark.parametrize("order", [("ann", "ben"), ("ben", "ann")])
async def test_two_questions_are_open_at_once_and_are_answered_in_either_order(
    serving: Serving, order: tuple[str, str]
) -> None:
    async with playing(serving, TWO) as house:
        said = await house.say("Go", model="master")
        root = said["model"]
        assert content(said) in ("ann: ann?", "ben: ben?")
        shown = await house.session(root)
        assert sorted(one["text"] for one in shown["questions"]) == ["ann?", "ben?"]
        # The third one did not wait for the others.
        assert (await house.folded(await session_of(house.db, "cem"))).state == "COMPLETED"
        asking = {one["agent"]: one["session_id"] for one in shown["questions"]}
        for name in order:
            status, _ = await post(house, asking[name], "clarification", answer=name.upper())
            assert status == 202
            await house.until(asking[name], "COMPLETED")
        shown = await house.until(root, "COMPLETED")
        assert shown["result"].startswith("ann heard ANN. ben heard BEN. ")
        assert shown["questions"] == []


async def test_questions_of_two_agents_are_asked_one_after_the_other_in_chat(serving: Serving) -> None:
    async with playing(serving, TWO) as house:
        said = await house.say("Go", model="master")
        first = content(said).partition(":")[0]
        other = {"ann": "ben", "ben": "ann"}[first]
        said = await house.say("one", model=said["model"])
        assert content(said) == f"{other}: {other}?"
        said = await house.say("two", model=said["model"])
        assert f"{first} heard one." in content(said)
        assert f"{other} heard two." in content(said)


async def test_a_question_is_answered_in_chat_while_another_agent_still_works(serving: Serving) -> None:
    may_end = asyncio.Event()

    class PatientTool(BaseTool):
        """Wait until the test has seen enough."""

        async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
            await may_end.wait()
            return "at last"

    works = {**TWO, "ben": lambda body: last_result(body) if step_of(body.messages) else call("patienttool")}
    patient = agent("ben", tools=(*PLAIN, "patienttool"))
    templates = [one for one in CAST if one.name != "ben"] + [patient]
    async with (
        playing(serving, works, templates=templates, tools=[SignTool, PatientTool]) as house,
        asyncio.timeout(30),
    ):
        first = asyncio.create_task(house.say("Go", model="master", chat_id="c"))
        asking = "SELECT id FROM sessions WHERE agent = 'ann' AND state = 'WAITING_FOR_CLARIFICATION'"
        ann = await appears(house.db, asking)
        root = await session_of(house.db, "master", "root")
        assert (await house.session(root))["state"] == "WAITING_FOR_CLARIFICATION"
        second = asyncio.create_task(house.say("blue", model="master", chat_id="c"))
        assert (await house.until(ann, "COMPLETED"))["result"] == "ann heard blue."
        may_end.set()
        for said in (await first, await second):
            assert content(said).startswith("ann heard blue. at last ")
        assert (await house.kinds(root)).count("Prompted") == 1


async def test_an_answer_may_name_the_question(serving: Serving) -> None:
    def asks_late(body: Body) -> Say:
        if task_of(body) != "Ask.":
            return answer(f"ben heard {task_of(body)}.")
        return question("ben?") if results(body) else call("clocktool", timezone="UTC")

    async with playing(serving, {**TWO, "ben": asks_late}) as house:
        said = await house.say("Go", model="master")
        questions = {one["agent"]: one["call_id"] for one in (await house.session(said["model"]))["questions"]}
        assert questions == {"ann": "1-action-0", "ben": "2-action-0"}
        answered = await house.say("two", model=said["model"], metadata={"reply_to": "2-action-0"})
        assert content(answered) == "ann: ann?"
        assert (await house.session(await session_of(house.db, "ben")))["result"] == "ben heard two."
        wrong = await house.say("none", model=said["model"], metadata={"reply_to": "9-action-0"})
        assert wrong["error"]["param"] == "metadata.reply_to"
        again = await house.say("three", model=said["model"], metadata={"reply_to": "2-action-0"})
        assert again["error"]["code"] == "already_settled"
        status, refused = await post(house, said["model"], "clarification", answer="three", call_id="2-action-0")
        assert (status, refused["error"]["code"]) == (409, "already_settled")
        status, refused = await post(house, said["model"], "clarification", answer="three", call_id="9-action-0")
        assert (status, refused["error"]["param"]) == (400, "call_id")
        again = await house.say("three", model=said["model"], metadata={"reply_to": "ben/2-action-0"})
        assert again["error"]["code"] == "already_settled"
        for nobody in ("cem/1-action-0", "ann/2-action-0", "master/1-action-0"):
            wrong = await house.say("none", model=said["model"], metadata={"reply_to": nobody})
            assert wrong["error"]["param"] == "metadata.reply_to", nobody
            assert (await post(house, said["model"], "clarification", answer="none", call_id=nobody))[0] == 400
        assert (await post(house, said["model"], "clarification", answer="one", call_id="ann/1-action-0"))[0] == 202
        assert (await house.until(said["model"], "COMPLETED"))["result"].startswith("ann heard one. ben heard two. ")


async def test_of_two_questions_with_one_id_the_one_of_the_named_agent_is_answered(serving: Serving) -> None:
    async with playing(serving, TWO) as house:
        root = (await house.say("Go", model="master"))["model"]
        either = await house.say("None", model=root, metadata={"reply_to": "1-action-0"})
        assert "Several agents wait" in either["error"]["message"]
        assert (await post(house, root, "clarification", answer="None", call_id="1-action-0"))[0] == 409
        for name in ("ben", "ann"):
            said = await house.say(name.upper(), model=root, metadata={"reply_to": f"{name}/1-action-0"})
        assert content(said).startswith("ann heard ANN. ben heard BEN. ")


async def test_an_answer_that_is_sent_again_answers_no_other_agent(serving: Serving) -> None:
    roles = {
        "master": one_by_one(question("Where?"), ask("cem", "Find out the weather."), answer("Done.")),
        "cem": asks,
    }
    async with playing(serving, roles) as house:
        said = await house.say("Go", model="master")
        root = said["model"]
        assert (said["x_agent"]["call_id"], said["x_agent"]["name"]) == ("1-action-0", "1-action-0")
        again: Any = None
        for _ in range(2):
            said, again = again, await house.say("Oslo", model=root, metadata={"reply_to": "1-action-0"})
        assert content(said) == ASKED
        assert (said["x_agent"]["call_id"], said["x_agent"]["name"]) == ("1-action-0", "cem/1-action-0")
        assert again["error"]["code"] == "already_settled"
        status, refused = await post(house, root, "clarification", answer="Oslo", call_id="1-action-0")
        assert (status, refused["error"]["code"]) == (409, "already_settled")
        [asked] = (await house.session(root))["questions"]
        assert (asked["call_id"], asked["name"]) == ("1-action-0", "cem/1-action-0")
        assert content(await house.say("Rome", model=root, metadata={"reply_to": asked["name"]})) == "Done."
        assert (await house.session(asked["session_id"]))["result"] == "Rain in Rome."


async def test_what_was_meant_for_one_agent_reaches_no_other_with_the_same_id(serving: Serving) -> None:
    twice = calls(ask("dia", "Ask.", label="a"), ask("dia", "Ask.", label="b"))
    roles = {
        "master": one_by_one(ask("ann", "Sign."), ask("ben", "Sign."), ask("cem", "Ask."), twice, answer("Done.")),
        "ann": signs, "ben": signs, "cem": asks_by_name("cem"), "dia": asks_by_name("dia"),
    }  # fmt: skip
    async with playing(serving, roles) as house:
        root = (await house.say("Go", model="master"))["model"]

        async def yes(name: str) -> Any:
            return await house.say("yes", model=root, metadata={"reply_to": name})

        async def refused(name: str) -> None:
            """Whatever way it is sent."""
            open_ones = (await house.session(root))["questions"]
            assert (await yes(name))["error"]["code"] == "already_settled"
            for what, body in (("clarification", {"answer": "yes"}), ("approval", {"decision": "approve"})):
                assert (await post(house, root, what, call_id=name, **body))[0] == 409, what
            assert (await house.session(root))["questions"] == open_ones

        # Only one was ever asked by that id: there is no doubt.
        assert content(await yes("1-action-0")).startswith("ben: May signtool run?")
        await refused("1-action-0")
        assert (await post(house, root, "approval", call_id="ben/1-action-0", decision="deny"))[0] == 202
        await house.until(root, "WAITING_FOR_CLARIFICATION")
        await refused("1-action-0")
        assert content(await yes("cem/1-action-0")) == "dia: dia?"
        await refused("1-action-0")
        await refused("dia/1-action-0")
        first, second = (await house.session(root))["questions"]
        assert {first["name"], second["name"]} == {"dia:a/1-action-0", "dia:b/1-action-0"}
        assert (await post(house, first["session_id"], "clarification", answer="A", call_id="1-action-0"))[0] == 202
        for name in ("1-action-0", "dia/1-action-0", first["name"]):
            await refused(name)
        assert content(await yes(second["name"])) == "Done."
        assert (await house.session(second["session_id"]))["result"] == "dia heard yes."


async def test_of_two_answers_at_once_the_second_is_the_next_message_and_is_told_what_waits(serving: Serving) -> None:
    roles = {
        **TWO,
        "master": one_by_one(
            calls(question("City?"), question("Day?")), calls(ask("ann", "Ask."), ask("ben", "Ask.")), answer("Done.")
        ),
    }
    waits = "Your message is next, once this is answered:\n\n"
    async with playing(serving, roles) as house, asyncio.timeout(40):
        root = (await house.say("Go", model="master"))["model"]

        async def both(at: str, *words: str) -> list[str]:
            """What is answered to each, where all of them are sent before the first has reached the session."""
            async with held(house) as holding:
                await holding.run("SELECT FROM sessions WHERE id = :id FOR UPDATE", id=at)
                sent = [asyncio.create_task(house.say(one, model=root)) for one in words]
                await blocked(house, len(sent))
            return sorted([content(one) for one in await asyncio.gather(*sent)])

        assert await both(root, "Oslo", "Rome") == ["Day?", f"{waits}Day?"]
        assert [one["text"] for one in (await house.session(root))["questions"]] == ["Day?"]
        await house.say("Monday", model=root)
        first, second = (await house.session(root))["questions"]
        left = f"{second['agent']}: {second['agent']}?"
        assert await both(first["session_id"], "one", "two") == sorted([left, f"{waits}{left}"])
        assert [one["agent"] for one in (await house.session(root))["questions"]] == [second["agent"]]
        assert content(await house.say("three", model=root)) == "Done."
        await appears(
            house.db, "SELECT count(*) = 3 FROM journal WHERE session_id = :session AND kind = 'Finished'", session=root
        )


def signs(body: Body) -> Say:
    return last_result(body) if step_of(body.messages) else call("signtool")


@pytest.mark.parametrize(("decision", "result"), [("approve", "signed"), ("deny", "did not approve")])
async def test_an_approval_three_levels_down_is_decided_at_the_top(
    serving: Serving, decision: str, result: str
) -> None:
    async with playing(serving, {**DEEP, "cem": signs}) as house:
        said = await house.say("Sign it.", model="master")
        root = said["model"]
        assert content(said).startswith("cem: May signtool run?")
        assert said["x_agent"]["waiting_for"] == "approval"
        shown = await house.session(root)
        assert shown["state"] == "WAITING_FOR_APPROVAL"
        [asked] = shown["questions"]
        assert (asked["agent"], asked["kind"], asked["tool"]) == ("cem", "approval", "signtool")
        status, _ = await post(house, root, "approval", call_id=asked["call_id"], decision=decision)
        assert status == 202
        assert result in (await house.until(root, "COMPLETED"))["result"]
        status, _ = await post(house, root, "approval", call_id=asked["call_id"], decision=decision)
        assert status == 409


async def test_a_client_that_resends_everything_goes_on_in_the_same_session(serving: Serving) -> None:
    roles = {**DEEP, "master": lambda body: answer("Bye.") if task_of(body) == "Thanks." else passes_on("ann")(body)}
    async with playing(serving, roles) as house:
        said: list[Any] = []
        answers = []
        for words in ("Weather?", "Oslo", "Thanks.", "Weather?", "Rome"):
            said.append(user(words))
            answered = await chat(house, said, model="master")
            answers.append((answered["model"], content(answered)))
            said.append(assistant(content(answered)))
        assert [text for _, text in answers] == [ASKED, "Rain in Oslo.", "Bye.", ASKED, "Rain in Rome."]
        assert len({session_id for session_id, _ in answers}) == 1
        assert await house.db.value("SELECT count(*) FROM sessions") == 4


async def test_an_answer_that_is_sent_again_is_one_answer(serving: Serving) -> None:
    async with playing(serving, DEEP) as house:
        said = await chat(house, [user("Weather?")], model="master")
        talk = [user("Weather?"), assistant(content(said)), user("Oslo")]
        for _ in range(2):
            again = await chat(house, talk, model="master", headers={"Idempotency-Key": "k1"})
            assert (again["model"], content(again)) == (said["model"], "Rain in Oslo.")
        talk += [assistant("Rain in Oslo."), user("Weather?")]
        once_more = await chat(house, talk, model="master")
        assert (once_more["model"], content(once_more)) == (said["model"], ASKED)
        assert len(requests_of(house.model, "cem")) == 3
        # Whatever has happened since: the same request has the same answer.
        again = await chat(house, talk[:3], model="master", headers={"Idempotency-Key": "k1"})
        assert content(again) == "Rain in Oslo."
        # Who talks to the sub-agent itself follows that one, also the second time.
        cem = await session_of(house.db, "cem")
        for _ in range(2):
            direct = await chat(house, [user("Rome")], model=cem, headers={"Idempotency-Key": "k2"})
            assert (direct["model"], content(direct)) == (cem, "Rain in Rome.")


def talks(body: Body) -> Say:
    """Talks while it works, before it asks another agent and after."""
    if not results(body):
        return calls(say("I pass it on. "), ask("cem", "Find out the weather."))
    return answer("Take a coat.") if len(results(body)) > 1 else calls(say("One moment. "), call("clocktool"))


async def test_what_was_said_before_a_question_beneath_is_not_said_again_after_its_answer(serving: Serving) -> None:
    async with playing(serving, {"master": talks, "cem": asks}) as house:
        said = await chat(house, [user("Weather?")], model="master")
        assert content(said) == f"I pass it on. \n\n{ASKED}"
        talk = [user("Weather?"), assistant(content(said)), user("Oslo")]
        for _ in range(2):
            assert await streamed(house, talk) == "One moment. \n\nTake a coat."
        talk += [assistant("One moment. \n\nTake a coat."), user("Weather?")]
        assert (await chat(house, talk, model="master"))["model"] == said["model"]


async def test_a_client_that_left_before_the_end_is_known_when_it_sends_its_answer_again(serving: Serving) -> None:
    async with playing(serving, DEEP) as house:
        said = await chat(house, [user("Weather?")], model="master")
        root = said["model"]
        talk = [user("Weather?"), assistant(content(said)), user("Oslo")]
        await streamed(house, talk, leaves=True)
        await house.until(root, "COMPLETED")
        assert await streamed(house, talk) == "Rain in Oslo."
        talk += [assistant("Rain in Oslo."), user("Weather?")]
        assert (await chat(house, talk, model="master"))["model"] == root


async def streamed(house: House, talk: list[Any], *, leaves: bool = False) -> str:
    """The words of a streamed answer; or nothing, where the client hangs up once its request was taken."""
    body = {"model": "master", "messages": talk, "stream": True}
    async with house.http.post("/v1/chat/completions", json=body, headers={"Idempotency-Key": "k1"}) as response:
        if leaves:
            await response.content.readany()
            response.close()
            return ""
        chunks = [one.json for one in [one async for one in sse(response)] if one.data != "[DONE]"]
    return "".join(one["choices"][0]["delta"].get("content") or "" for one in chunks)


async def test_an_agent_that_nobody_waits_for_asks_at_the_top_after_the_turn_has_ended(dsn: str) -> None:
    def master(body: Body) -> Say:
        if task_of(body) == "Go":
            return answer("Off it goes.") if results(body) else ask("ann", "Find out the weather.", wait=False)
        return answer('{"heard": "JSON"}' if task_of(body) == "JSON" else f"I heard {task_of(body)}.")

    def ann(body: Body) -> Say:
        """Passes it on, so that who asks is two levels down, and asks after she was let go."""
        return last_result(body) if results(body) else ask("cem", "Find out the weather.")

    async with serve_model(cast(master=master, ann=ann, cem=asks)) as model:
        settings = {"database_url": dsn, "llm_base_url": model.url, "llm_api_key": "sk-test-canary"}
        async with cast_house(**settings) as first:
            talk = [user("Go")]
            said = await first.say("Go", model="master")
            root = said["model"]
            assert content(said).startswith("Off it goes.")
            first.kill()
            await first.ended()
        async with cast_house(**settings) as house:
            async with asyncio.timeout(20):
                while not (found := (await house.session(root))["questions"]):
                    await asyncio.sleep(0.02)
            assert [(one["name"], one["agent"], one["text"]) for one in found] == [
                ("cem/1-action-0", "cem", "Which city?")
            ]
            assert (await house.session(root))["state"] == "COMPLETED", "it waits for nobody"
            async with house.http.get("/v1/questions") as response:
                [listed] = (await response.json())["data"]
            assert (listed["root"], listed["name"]) == (root, "cem/1-action-0")

            # The next message is not the answer, and its response tells of the question. A client that resends what it
            # was told is known by it.
            for words in ("Hello", "And now?"):
                talk += [assistant(content(said)), user(words)]
                async with house.http.post("/v1/chat/completions", json={"model": "master", "messages": talk}) as sent:
                    said = await sent.json()
                assert said["model"] == root
                assert content(said).startswith(f"I heard {words}.")
                assert ASKED in content(said)
                assert f"/s/{root}" in content(said), "and where to answer it"
            shaped = await house.say("JSON", model=root, response_format={"type": "json_object"})
            assert content(shaped) == '{"heard": "JSON"}', "a program reads that"

            named = {"reply_to": "cem/1-action-0"}
            told = await house.say("Oslo", model=root, metadata=named)
            assert content(told) == "cem has your answer, and goes on with it."
            cem = found[0]["session_id"]
            assert (await house.until(cem, "COMPLETED"))["result"] == "Rain in Oslo."
            assert (await house.session(root))["questions"] == []
            again = await house.say("Rome", model=root, metadata=named)
            assert again["error"]["code"] == "already_settled"
            assert content(await house.say("Bye", model=root)) == "I heard Bye."
