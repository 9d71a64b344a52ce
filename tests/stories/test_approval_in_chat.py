"""A chat never hangs on a decision: what is said meanwhile is answered at once, and a clear yes or no decides."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from test_approval import DONE, NAMES, TRANSFER, DraftTool, TransferTool, decide, last_message, republished

from delegating_server import (
    CAST,
    PLAIN,
    SignTool,
    agent,
    answer,
    appears,
    ask,
    last_result,
    playing,
    question,
    session_of,
    sessions_of,
    task_of,
)
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import ExecutionPolicy, Template, ToolPolicy
from longhouse.journal import events
from longhouse.journal.messages import Assistant, ToolResult
from longhouse.models.scripted import Call, Playable, Say, call, calls, step_of
from longhouse.runtime.inbox import with_outcome
from longhouse.store import journals
from longhouse.store.database import Transaction
from longhouse.tools import BaseTool, ToolContext
from server_helpers import AGENT, House, Serving, assistant, chat, content, sse, user

WAITS = 'transfertool (1-action-0) needs your approval before it begins. Its arguments: `{"to":"Bob"}`'
HOW = "Answer yes or no (да, нет; 是, 否), or decide at POST /v1/sessions/"
NEXT = "Still waiting for a decision. Your message is next, once this is decided:"
KEPT = "Still waiting for a decision. Your message is kept, and reaches the agent once this is decided:"


class EchoTool(BaseTool):
    """Say yes to everything."""

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return "yes"


class GateTool(BaseTool):
    """Wait until the test has seen enough."""

    open: ClassVar[asyncio.Event]

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        await self.open.wait()
        return "the gate is open"


TOOLS: list[type[BaseTool]] = [TransferTool, DraftTool, EchoTool, GateTool]
POLICY = ToolPolicy(allowlist=(*NAMES, "echotool", "gatetool"))
BANK = Template(name=AGENT, tool_policy=POLICY)


@pytest.fixture(autouse=True)
def _nothing_sent_yet() -> None:
    TransferTool.sent.clear()


def bank(serving: Serving, script: Playable, template: Template = BANK) -> AbstractAsyncContextManager[House]:
    return serving(script, templates=[template], tools=TOOLS)


async def decisions(house: House, session_id: str) -> list[tuple[str, str, str]]:
    journal = [record.event for record in await house.journal(session_id)]
    return [(one.decision, one.by, one.via) for one in journal if isinstance(one, events.Decided)]


def kept(house: House, first: str, session_id: str) -> str:
    """What a message is answered with while it waits: what was asked first, and where a person decides."""
    page = first.replace(f"POST /v1/sessions/{session_id}/approval", f"{house.url}/s/{session_id}")
    return f"{KEPT}\n\n{page}"


class Client:
    """A client that knows no ids, and sends all of the conversation each time."""

    def __init__(self, house: House, **extra: Any) -> None:
        self.house, self.extra = house, extra
        self.messages: list[Any] = []
        self.sessions: set[str] = set()

    async def say(self, text: str, **extra: Any) -> str:
        self.messages.append(user(text))
        said = await chat(self.house, self.messages, **{**self.extra, **extra})
        self.messages.append(assistant(content(said)))
        self.sessions.add(said["model"])
        return content(said)

    @property
    def session(self) -> str:
        """The one session that all of it went to."""
        [session_id] = self.sessions
        return session_id


async def test_what_is_said_meanwhile_is_answered_at_once_and_reaches_the_agent_with_the_decision(
    serving: Serving,
) -> None:
    async with bank(serving, [TRANSFER, DONE, call("finalanswertool", answer="You are welcome.")]) as house:
        client = Client(house)
        first = await client.say("Pay Bob")
        assert first == f"{WAITS}\n{HOW}{client.session}/approval."
        assert await client.say("Is Bob honest?") == kept(house, first, client.session)
        shown = await house.session(client.session)
        assert (shown["state"], shown["queued"]) == ("WAITING_FOR_APPROVAL", 0)
        assert TransferTool.sent == []

        body = {"model": AGENT, "messages": [*client.messages, user("Hello?")], "stream": True}
        async with asyncio.timeout(10), house.http.post("/v1/chat/completions", json=body) as response:
            chunks = [event.json async for event in sse(response) if event.data != "[DONE]"]
        heard = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
        assert heard == kept(house, first, client.session)
        assert (chunks[-1]["choices"][0]["finish_reason"], chunks[-1]["x_agent"]["status"]) == ("stop", "waiting")
        assert chunks[-1]["x_agent"]["call_id"] == "1-action-0"
        client.messages += [user("Hello?"), assistant(heard)]

        assert await client.say("Yes.") == "Done."
        assert await client.say("Thanks") == "You are welcome."
        assert TransferTool.sent == [f"{client.session}:1-action-0"]
        assert await decisions(house, client.session) == [("approve", "user", "chat")]
        assert house.model is not None
        seen = [(one["role"], one.get("content")) for one in house.model.requests[1]["messages"]][-3:]
        assert seen == [("tool", "sent to Bob"), ("user", "Is Bob honest?"), ("user", "Hello?")]
        async with house.http.get(f"/v1/sessions/{client.session}/log") as response:
            tasks = [one["task"] for one in (await response.json())["log"] if one["step_type"] == "task"]
        assert tasks == ["Is Bob honest?", "Hello?", "Thanks"]


@pytest.mark.parametrize(("words", "is_yes"), [("Да!", True), ("批准", True), ("НЕТ", False), ("拒绝。", False)])
async def test_a_word_decides_in_other_languages(serving: Serving, words: str, is_yes: bool) -> None:
    async with bank(serving, [TRANSFER, DONE]) as house:
        client = Client(house, user="ada")
        await client.say("Заплати Бобу")
        assert await client.say(words) == "Done."
        assert await decisions(house, client.session) == [("approve" if is_yes else "deny", "user", "chat")]
        [decided] = [one.event for one in await house.journal(client.session) if isinstance(one.event, events.Decided)]
        assert decided.user == "ada", "whom the request names is told beside who it was"
        assert len(TransferTool.sent) == is_yes
        assert last_message(house) == ("sent to Bob" if is_yes else "Error: the user did not approve this call")


async def test_a_bare_yes_does_not_choose_among_several(serving: Serving) -> None:
    both = calls(TRANSFER, call("drafttool"), call("echotool"))
    async with bank(serving, [both, DONE]) as house:
        client = Client(house)
        first = await client.say("Pay Bob and write")
        which = "Say which one you mean, as in: yes 1-action-0"
        assert first.splitlines()[:3] == [WAITS, first.splitlines()[1], which]
        assert first.splitlines()[1].startswith("drafttool (1-action-1) needs your approval")
        assert (await house.session(client.session))["state"] == "WAITING_FOR_APPROVAL", "a tool's yes decides nothing"
        assert which in await client.say("yes")
        assert await decisions(house, client.session) == []
        left = await client.say("no 1-action-0")
        assert left.startswith("drafttool (1-action-1) needs your approval")
        assert await client.say("OK") == "Done."
        assert [one for one, *_ in await decisions(house, client.session)] == ["deny", "approve"]
        assert TransferTool.sent == []


async def test_where_the_template_does_not_allow_it_a_yes_is_a_message_like_others(serving: Serving) -> None:
    template = replace(BANK, execution_policy=ExecutionPolicy(approve_in_chat=False))
    async with bank(serving, [TRANSFER, DONE], template) as house:
        client = Client(house)
        first = await client.say("Pay Bob")
        assert first == f"{WAITS}\nDecide at POST /v1/sessions/{client.session}/approval."
        assert await client.say("yes") == kept(house, first, client.session)
        assert await decisions(house, client.session) == []
        assert await decide(house, client.session, "approve") == 202
        await house.until(client.session, "COMPLETED")
        assert await decisions(house, client.session) == [("approve", "user", "")]


async def test_only_the_user_of_the_session_decides_in_its_chat(serving: Serving) -> None:
    async with bank(serving, [TRANSFER, DONE]) as house:
        session_id = (await house.say("Pay Bob", user="ada"))["model"]
        for other in ("bob", None):
            said = content(await house.say("yes", model=session_id, **({"user": other} if other else {})))
            assert said.startswith(KEPT)
            assert said.endswith(f"Decide at {house.url}/s/{session_id}.")
        assert await decisions(house, session_id) == []
        assert content(await house.say("yes", model=session_id, user="ada")) == "Done."


async def test_a_repeated_yes_decides_once_and_never_on_what_came_after_it(serving: Serving) -> None:
    def script(body: Body) -> Say:
        if task_of(body) == "yes":
            return answer("What?")  # it came too late to decide anything
        return (TRANSFER, call("transfertool", to="Eve"), DONE)[len(tool_results(body))]

    async with bank(serving, script) as house:
        client = Client(house)
        await client.say("Pay them")
        yes = [*client.messages, user("yes")]
        key, retried = {"Idempotency-Key": "k1"}, {"Idempotency-Key": "k1", "x-stainless-retry-count": "1"}
        heard = [await chat(house, yes, headers=headers) for headers in (key, key, retried)]
        assert len({(one["model"], content(one)) for one in heard}) == 1
        assert '"to":"Eve"' in content(heard[0])
        again = await chat(house, yes, headers={"x-stainless-retry-count": "1"})
        assert content(again) == content(heard[0])
        assert len(TransferTool.sent) == 1, "the second waits for a yes of its own"

        client.messages = [*yes, assistant(content(heard[0]))]
        answers = await asyncio.gather(*(chat(house, [*client.messages, user("yes")]) for _ in range(3)))
        assert "Done." in [content(one) for one in answers]
        assert len(TransferTool.sent) == 2
        assert [one for one, *_ in await decisions(house, client.session)] == ["approve", "approve"]


async def test_a_decision_made_elsewhere_does_not_part_the_client_from_its_session(serving: Serving) -> None:
    async with bank(serving, [TRANSFER, DONE, call("finalanswertool", answer="It is paid.")]) as house:
        client = Client(house)
        await client.say("Pay Bob")
        await client.say("Hm")
        assert await decide(house, client.session, "approve") == 202
        await house.until(client.session, "COMPLETED")
        assert await client.say("And?") == "It is paid."
        assert client.session


async def test_a_word_on_what_was_decided_elsewhere_does_not_decide_what_waits_by_now(serving: Serving) -> None:
    eve = "Eve`[Bob](http://b)` <!-- -->"
    async with bank(serving, [TRANSFER, call("transfertool", to=eve), DONE]) as house:
        root = (await house.say("Pay them", chat_id="c"))["model"]
        assert await decide(house, root, "approve") == 202
        await appears(house.db, "SELECT 1 FROM journal WHERE kind = 'Called' AND call_id = '2-action-0'")
        late = content(await house.say("yes", chat_id="c"))
        assert late.startswith(f"{KEPT}\n\ntransfertool (2-action-0) needs your approval before it begins. Its")
        assert f'arguments: ``{{"to":"{eve}"}}``\nAnswer yes or no' in late
        assert len(await decisions(house, root)) == 1
        assert content(await house.say("yes", chat_id="c")) == "Done."
        assert await decisions(house, root) == [("approve", "user", ""), ("approve", "user", "chat")]


async def test_the_next_prompt_is_told_that_it_waits_behind_a_decision(serving: Serving) -> None:
    GateTool.open = asyncio.Event()
    later = [call("finalanswertool", answer=words) for words in ("Noon.", "Night.")]
    async with bank(serving, [call("gatetool"), TRANSFER, DONE, *later]) as house:
        first = asyncio.create_task(house.say("Pay Bob", chat_id="c", user="ada"))
        async with asyncio.timeout(10):
            while not (rows := await house.db.rows("SELECT session_id FROM journal WHERE kind = 'Called'")):
                await asyncio.sleep(0.01)
            [session_id] = [row["session_id"] for row in rows]
            second = asyncio.create_task(house.say("What time is it?", chat_id="c", user="ada"))
            while (await house.session(session_id))["queued"] != 1:
                await asyncio.sleep(0.01)
            other = asyncio.create_task(house.say("And here?", chat_id="c", user="bob"))
            while (await house.session(session_id))["queued"] != 2:
                await asyncio.sleep(0.01)
            GateTool.open.set()
            assert WAITS.replace("1-", "2-") in content(await first)
            said = await second
        assert content(said).startswith(f"{NEXT}\n\ntransfertool (2-action-0)")
        assert said["usage"]["total_tokens"] == 0
        assert content(said).endswith(f"Answer yes or no (да, нет; 是, 否), or decide at {house.url}/s/{session_id}.")
        assert content(await other).endswith(f"\nDecide at {house.url}/s/{session_id}."), "it is not his to decide"
        assert content(await house.say("yes", chat_id="c", user="ada")) == "Done."
        async with asyncio.timeout(10):
            while (await house.session(session_id))["result"] != "Night.":
                await asyncio.sleep(0.02)


# Sub-agents


def tool_results(body: Body) -> list[str]:
    return [one.content for one in body.messages if isinstance(one, ToolResult)]


def signs(body: Body) -> Say:
    return last_result(body) if step_of(body.messages) else call("signtool")


def asks_two(body: Body) -> Say:
    return answer("Both said.") if tool_results(body) else calls(ask("ann", "Sign."), ask("ben", "Sign."))


async def test_an_approval_of_an_agent_beneath_is_decided_in_the_chat(serving: Serving) -> None:
    def master(body: Body) -> Say:
        if task_of(body) == "Thanks":
            return answer("You are welcome.")
        return answer(tool_results(body)[0]) if tool_results(body) else ask("cem", "Sign it.")

    async with playing(serving, {"master": master, "cem": signs}) as house:
        client = Client(house, model="master")
        first = await client.say("Sign it.")
        assert first.startswith("cem: May signtool run? Its arguments: `{}` (cem/1-action-0)\nAnswer yes or no")
        assert await client.say("Who is Cem?") == kept(house, first, client.session)
        assert await client.say("да") == "signed"
        assert await client.say("Thanks") == "You are welcome."
        assert await decisions(house, await session_of(house.db, "cem")) == [("approve", "user", "chat")]
        assert house.model is not None
        heard = [one.get("content") for request in house.model.requests for one in request["messages"]]
        assert "Who is Cem?" in heard
        assert client.session == await session_of(house.db, "master", "root")


async def test_an_approval_beneath_is_answered_at_once_while_the_agent_above_has_other_work(serving: Serving) -> None:
    GateTool.open = asyncio.Event()

    def master(body: Body) -> Say:
        return answer("Both done.") if tool_results(body) else calls(ask("cem", "Sign it."), call("gatetool"))

    above = agent("master", tools=(*PLAIN, "gatetool"))
    gated = {"templates": [above, *CAST[1:]], "tools": [SignTool, GateTool]}
    async with playing(serving, {"master": master, "cem": signs}, **gated) as house:
        first = asyncio.create_task(house.say("Sign it.", model="master", chat_id="c"))
        assert await appears(house.db, "SELECT 1 FROM sessions WHERE state = 'WAITING_FOR_APPROVAL'")
        session_id = await session_of(house.db, "master", "root")
        body = {"model": session_id, "messages": [user("Well?")], "stream": True}
        proxied = {"x-forwarded-proto": "https, http", "x-forwarded-host": "agents.example"}
        async with asyncio.timeout(10), house.http.post("/v1/chat/completions", json=body, headers=proxied) as response:
            chunks = [event.json async for event in sse(response) if event.data != "[DONE]"]
        heard = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
        assert heard.startswith(f"{KEPT}\n\ncem: May signtool run?")
        assert heard.endswith(f", or decide at https://agents.example/s/{session_id}.")
        assert (await house.session(session_id))["state"] == "RESEARCHING", "it goes on with its own work"
        forged = {"x-forwarded-host": "evil.example/path?", "x-forwarded-proto": "javascript"}
        said = await chat(house, [user("And?")], model=session_id, headers=forged)
        assert f"or decide at POST /v1/sessions/{session_id}/approval." in content(said), "no address is made of that"
        assert not first.done()
        yes = asyncio.create_task(house.say("是", model=session_id))
        assert await appears(house.db, "SELECT 1 FROM sessions WHERE agent = 'cem' AND state = 'COMPLETED'")
        GateTool.open.set()
        assert content(await yes) == "Both done."
        await first


async def test_of_two_approvals_beneath_each_is_called_by_its_agent(serving: Serving) -> None:
    async with playing(serving, {"master": asks_two, "ann": signs, "ben": signs}) as house:
        client = Client(house, model="master")
        first = await client.say("Go")
        assert {line.partition(":")[0] for line in first.splitlines()[:2]} == {"ann", "ben"}
        assert "Say which one you mean" in await client.say("yes")
        assert "Say which one you mean" in await client.say("yes 1-action-0"), "both have one of that name"
        left = await client.say("同意 ben/1-action-0")
        assert left.startswith("ann: May signtool run?")
        assert await client.say("no") == "Both said."
        made = {name: await decisions(house, (await sessions_of(house.db, name))[0]) for name in ("ann", "ben")}
        assert made == {"ann": [("deny", "user", "chat")], "ben": [("approve", "user", "chat")]}


async def test_of_two_sessions_of_one_agent_each_is_called_by_its_label(serving: Serving) -> None:
    def master(body: Body) -> Say:
        if tool_results(body):
            return answer("All said.")
        return calls(*(ask("ann", "Sign.", label=label) for label in ("eu", "us", "zh:x")))

    async with playing(serving, {"master": master, "ann": signs}) as house:
        client = Client(house, model="master")
        first = await client.say("Go")
        shown = {line.rpartition(" ")[2] for line in first.splitlines()[:3]}
        assert shown == {f"(`ann:{label}/1-action-0`)" for label in ("eu", "us", "zh:x")}
        for unclear in ("yes", "yes 1-action-0", "yes ann/1-action-0"):
            assert "Say which one you mean, as in: yes `ann:" in await client.say(unclear), unclear
        assert "ann:zh:x" not in await client.say("同意 `ann:zh:x/1-action-0`")
        assert await decide(house, client.session, "approve", "ann/1-action-0") == 409
        assert await decide(house, client.session, "approve", "ann:us/1-action-0") == 202
        us = "SELECT 1 FROM sessions WHERE label = 'us' AND state = 'COMPLETED'"
        assert await appears(house.db, us)
        said = await house.say("no", model=client.session, metadata={"reply_to": "ann:eu/1-action-0"})
        assert content(said) == "All said."
        rows = await house.db.rows("SELECT id, label FROM sessions WHERE agent = 'ann'")
        made = {row["label"]: [one for one, *_ in await decisions(house, row["id"])] for row in rows}
        assert made == {"eu": ["deny"], "us": ["approve"], "zh:x": ["approve"]}


async def test_a_question_beneath_comes_before_an_approval(serving: Serving) -> None:
    def asks_back(body: Body) -> Say:
        return call("clarificationtool", questions=["Sure?"]) if task_of(body) == "Sign." else answer("fine")

    async with playing(serving, {"master": asks_two, "ann": signs, "ben": asks_back}) as house:
        client = Client(house, model="master")
        assert await client.say("Go") == "ben: Sure?"
        left = await client.say("yes")
        assert left.startswith("ann: May signtool run?"), "the yes was an answer, and no approval"
        assert await decisions(house, (await sessions_of(house.db, "ann"))[0]) == []
        assert await client.say("yes") == "Both said."


def one_by_one(*says: Say) -> Any:
    """These replies, one after another, whoever speaks in between; the last one repeats."""
    return lambda body: says[min(sum(isinstance(one, Assistant) for one in body.messages), len(says) - 1)]


async def test_what_was_decided_or_answered_here_is_not_taken_for_a_call_beneath(serving: Serving) -> None:
    roles = {
        "master": one_by_one(question("Sure?"), TRANSFER, ask("cem", "Sign."), answer("Done.")),
        "cem": one_by_one(call("signtool"), call("signtool"), answer("Signed.")),
    }
    master = agent("master", tools=(*PLAIN, "transfertool"))
    async with playing(serving, roles, templates=(*CAST[1:], master), tools=[SignTool, TransferTool]) as house:
        root = (await house.say("Go", model="master"))["model"]

        async def yes(reply_to: str) -> Any:
            return await house.say("yes", model=root, metadata={"reply_to": reply_to})

        async def signed() -> int:
            return len(await decisions(house, await session_of(house.db, "cem")))

        assert content(await yes("1-action-0")).startswith("transfertool (2-action-0) needs your approval")
        assert "(cem/1-action-0)" in content(await yes("2-action-0"))
        again = await yes("1-action-0")
        assert content(again).startswith(NEXT), "an answer decides nothing"
        assert await signed() == 0

        assert "(cem/2-action-0)" in content(await yes("cem/1-action-0"))
        assert await signed() == 1
        for name in ("2-action-0", "cem/1-action-0"):
            assert (await yes(name))["error"]["code"] == "already_settled", name
            assert await decide(house, root, "approve", name) == 409, name
        for nobody in ("ann/2-action-0", "cem/9-action-0", "cem/"):
            assert (await yes(nobody))["error"]["param"] == "metadata.reply_to", nobody
            assert await decide(house, root, "approve", nobody) == 409, nobody
        assert await signed() == 1
        assert await decide(house, root, "approve", "cem/2-action-0") == 202
        await house.until(root, "COMPLETED")
        assert await signed() == 2
        assert len(TransferTool.sent) == 1


async def test_what_the_session_asks_itself_is_meant_before_a_question_beneath_with_its_id(serving: Serving) -> None:
    roles = {
        "master": one_by_one(calls(TRANSFER, ask("cem", "Ask.")), answer("Done.")),
        "cem": lambda body: question("Sure?") if task_of(body) == "Ask." else answer("Fine."),
    }
    master = agent("master", tools=(*PLAIN, "transfertool"))
    async with playing(serving, roles, templates=(*CAST[1:], master), tools=[SignTool, TransferTool]) as house:
        said = await house.say("Go", model="master")
        assert content(said) == "cem: Sure?"
        left = await house.say("yes", model=said["model"], metadata={"reply_to": "1-action-0"})
        assert content(left) == "cem: Sure?"
        assert await decisions(house, said["model"]) == [("approve", "user", "chat")]
        assert content(await house.say("yes", model=said["model"])) == "Done."
        assert len(TransferTool.sent) == 1


async def test_what_nobody_decided_in_time_is_not_taken_for_a_call_beneath(serving: Serving) -> None:
    roles = {
        "master": one_by_one(TRANSFER, ask("dia", "Pay."), ask("cem", "Sign."), answer("Done.")),
        "dia": one_by_one(TRANSFER, answer("Fine.")),
        "cem": one_by_one(call("signtool"), answer("Fine.")),
    }
    paying = [agent(name, tools=(*PLAIN, "transfertool")) for name in ("master", "dia")]
    others = [one for one in CAST if one.name not in ("master", "dia")]
    async with playing(serving, roles, templates=(*others, *paying), tools=[SignTool, TransferTool]) as house:
        await republished(house, "transfertool", approval_timeout=0.2)
        root = (await house.say("Go", model="master"))["model"]
        cem = await appears(house.db, "SELECT id FROM sessions WHERE agent = 'cem' AND state = 'WAITING_FOR_APPROVAL'")
        for name in ("1-action-0", "dia/1-action-0"):
            late = await house.say("yes", model=root, metadata={"reply_to": name})
            assert late["error"]["code"] == "already_settled", name
            assert await decide(house, root, "approve", name) == 409
        assert await decisions(house, cem) == []
        assert TransferTool.sent == []


@asynccontextmanager
async def held(house: House) -> AsyncIterator[Transaction]:
    """A transaction of somebody else."""
    async with house.db.connection() as connection, connection.transaction():
        yield Transaction(connection)


async def blocked(house: House, count: int) -> None:
    """Waits until so many statements stand still for somebody's lock."""
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(20):
        while await house.db.value(waits) < count:
            await asyncio.sleep(0.02)


async def test_of_two_answers_at_once_the_second_approves_nothing(serving: Serving) -> None:
    def asks_back(body: Body) -> Say:
        return question("Sure?") if task_of(body) == "Sign." else answer("fine")

    async with playing(serving, {"master": asks_two, "ann": signs, "ben": asks_back}) as house:
        first = await house.say("Go", model="master")
        assert content(first) == "ben: Sure?"
        ann, ben = [await session_of(house.db, name) for name in ("ann", "ben")]
        async with held(house) as holding:
            await holding.run("SELECT FROM sessions WHERE id = :id FOR UPDATE", id=ben)
            both = [asyncio.create_task(house.say("yes", model=first["model"])) for _ in range(2)]
            await blocked(house, 2)
        heard = sorted([content(one) for one in await asyncio.gather(*both)])
        assert heard[0].startswith(KEPT), heard
        assert heard[1].startswith("ann: May signtool run?"), heard
        assert await decisions(house, ann) == []
        assert content(await house.say("no", model=first["model"])) == "Both said."

        # What is forgotten while somebody speaks is not there: it is not busy.
        root = (await house.say("Go", model="master", chat_id="gone"))["model"]
        assert content(await house.say("fine", model=root)).startswith("ann: May signtool run?")
        async with held(house) as holding:
            await holding.run("SELECT FROM sessions WHERE id = :id FOR UPDATE", id=root)
            hanging = asyncio.create_task(house.say("Hm", model=root))
            await blocked(house, 1)
            await holding.run("DELETE FROM sessions WHERE id = :id", id=root)
        assert (await hanging)["error"]["code"] == "model_not_found"


async def test_a_decision_that_somebody_else_made_first_is_not_made_on_what_waits_by_then(serving: Serving) -> None:
    GateTool.open = asyncio.Event()
    roles = {
        "master": asks_two,
        "ann": one_by_one(call("clocktool"), call("signtool"), answer("Fine.")),
        "ben": one_by_one(call("gatetool"), call("signtool"), answer("Fine.")),
    }
    ben = agent("ben", tools=(*PLAIN, "gatetool"))
    cast = (*(one for one in CAST if one.name != "ben"), ben)
    waiting = "SELECT id FROM sessions WHERE agent = :agent AND state = 'WAITING_FOR_APPROVAL'"
    async with playing(serving, roles, templates=cast, tools=[SignTool, GateTool]) as house:
        going = asyncio.create_task(house.say("Go", model="master"))
        signing = await house.folded(await appears(house.db, waiting, agent="ann"))
        root = await session_of(house.db, "master", "root")
        denied = events.Decided(call="2-action-0", decision="deny", by="somebody else")
        async with held(house) as holding:
            await holding.run("SELECT FROM sessions WHERE id = :id FOR UPDATE", id=signing.id)
            late = [
                asyncio.create_task(house.say("yes", model=root)),
                asyncio.create_task(house.say("yes", model=root, metadata={"reply_to": "2-action-0"})),
            ]
            route = asyncio.create_task(decide(house, root, "approve", "2-action-0"))
            await blocked(house, 3)
            GateTool.open.set()
            other = await appears(house.db, waiting, agent="ben")
            assert signing.turn is not None
            await journals.add(holding, signing.id, with_outcome(denied), trace=signing.turn.trace, head=signing.head)
        house.app.bus.wake(signing.id)
        for one in await asyncio.gather(*late):
            assert content(one).startswith(KEPT)
        assert await route == 409
        assert await decisions(house, other) == []
        assert (await decisions(house, signing.id)) == [("deny", "somebody else", "")]
        assert "(ben/2-action-0)" in content(await going)


# What is shown is what runs

TURNED = "Bob\u202e\u2066 yllaer\u200b\U000e0041\u3164"
READ = "Bob\\u202e\\u2066 yllaer\\u200b\\udb40\\udc41\\u3164"


async def test_what_is_unseen_is_written_out_and_runs_as_it_was_written(serving: Serving) -> None:
    pay = Say(calls=(Call(name="transfertool", arguments=f'{{\r\n"to":"{TURNED} Боб 鲍勃 بوب 👍"}}'),))
    shown = f'{{  "to":"{READ} Боб 鲍勃 بوب 👍"}}'
    async with bank(serving, [pay, DONE]) as house:
        client = Client(house)
        assert f"Its arguments: `{shown}`\n" in await client.say("Pay")
        assert shown in await client.say("Whom?")
        [question] = (await house.session(client.session))["questions"]
        assert question["arguments"] == shown
        assert await client.say("yes") == "Done."
        results = [m["content"] for m in house.model.requests[-1]["messages"] if m["role"] == "tool"]  # type: ignore[union-attr]
        assert results == [f"sent to {TURNED} Боб 鲍勃 بوب 👍"]


async def test_what_the_agent_above_leaves_to_no_chat_is_decided_in_no_chat_of_the_agent_below(
    serving: Serving,
) -> None:
    """Whoever may talk to both would else approve in the one what the other refuses."""
    roles = {
        "master": lambda body: last_result(body) if step_of(body.messages) else calls(ask("ann", "Sign.")),
        "ann": lambda body: answer("Ann has.") if step_of(body.messages) else call("signtool"),
    }
    careful = ExecutionPolicy(approve_in_chat=False)
    cast = [replace(one, execution_policy=careful) if one.name == "master" else one for one in CAST]
    async with playing(serving, roles, templates=cast) as house:
        top = (await house.say("Sign it.", model="master", user="ada"))["model"]
        below = await session_of(house.db, "ann")
        for session_id in (top, below):
            said = content(await house.say("yes", model=session_id, user="ada"))
            assert "Decide at " in said
        assert "Returned" not in await house.kinds(below), "nobody has decided"
        body = {"call_id": (await journals.load(house.db, below)).undecided_calls[0].call, "decision": "approve"}
        async with house.http.post(f"/v1/sessions/{below}/approval", json=body) as response:
            assert response.status == 202, "at the route it is decided"
        async with asyncio.timeout(30):
            while "Returned" not in await house.kinds(below):
                await asyncio.sleep(0.02)
