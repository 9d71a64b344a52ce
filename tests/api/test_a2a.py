"""Agents over A2A: cards, messages, tasks and questions, in the JSON of its versions 1.0 and 0.3."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from attack_helpers import ask, leaves_no_trace
from key_helpers import Client, admin_of, client_of, keyed

from longhouse.agents.builtin import BUILT_IN
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import MultiAgentMeta, Template
from longhouse.journal import events
from longhouse.models.scripted import Hang, Say, call
from server_helpers import AGENT, House, Serving, sse

CITY = call("clarificationtool", questions=["Which city?"])
RAIN = call("finalanswertool", answer="Rain in Oslo.")
PATH = f"/a2a/{AGENT}"
VERSIONS = ("1.0", "0.3")


class Peer:
    """Somebody who speaks one version of A2A with an agent."""

    def __init__(self, house: House, version: str, path: str = PATH, client: Client | None = None) -> None:
        self.house, self.version, self.path = house, version, path
        self.headers = {"a2a-version": version, **(client.headers if client else {})}
        self.is_new = version == "1.0"
        self._ids = 0

    def message(self, text: str, **fields: Any) -> dict[str, Any]:
        self._ids += 1
        part = {"text": text} if self.is_new else {"kind": "text", "text": text}
        role = {"role": "ROLE_USER"} if self.is_new else {"kind": "message", "role": "user"}
        return {"message": {"messageId": f"m-{self._ids}", **role, "parts": [part], **fields}}

    def body(self, new: str, old: str, params: Any) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": 7, "method": new if self.is_new else old, "params": params}

    async def called(self, body: Any) -> Any:
        async with self.house.http.post(self.path, json=body, headers=self.headers) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def result(self, new: str, old: str, params: Any) -> Any:
        answer = await self.called(self.body(new, old, params))
        assert (answer["jsonrpc"], answer["id"], "error" in answer) == ("2.0", 7, False), answer
        return answer["result"]

    async def send(self, text: str, configuration: Any = None, **fields: Any) -> Any:
        """The task of a message."""
        params = {**self.message(text, **fields), **({"configuration": configuration} if configuration else {})}
        sent = await self.result("SendMessage", "message/send", params)
        return sent["task"] if self.is_new else sent

    async def get(self, task: str, **fields: Any) -> Any:
        return await self.result("GetTask", "tasks/get", {"id": task, **fields})

    async def refused(self, new: str, old: str, params: Any) -> Any:
        answer = await self.called(self.body(new, old, params))
        assert (answer["id"], "result" in answer) == (7, False), answer
        return answer["error"]

    @asynccontextmanager
    async def events(self, new: str, old: str, params: Any) -> AsyncIterator[AsyncIterator[Any]]:
        body = self.body(new, old, params)
        async with self.house.http.post(self.path, json=body, headers=self.headers) as response:
            assert response.content_type == "text/event-stream", await response.text()
            yield (event.json["result"] async for event in sse(response))

    def state(self, task: Any) -> str:
        told = str(task["status"]["state"])
        return told.removeprefix("TASK_STATE_").lower().replace("_", "-") if self.is_new else told

    def text(self, said: Any) -> str:
        """Of a message or an artifact."""
        return "".join(part["text"] for part in said["parts"])

    def kind(self, event: Any) -> tuple[str, Any]:
        """What an event is, and what it tells."""
        if not self.is_new:
            return event["kind"], event
        [(name, told)] = event.items()
        return {"task": "task", "statusUpdate": "status-update", "artifactUpdate": "artifact-update"}[name], told


async def test_every_template_has_a_card_that_says_where_it_is_reached(serving: Serving) -> None:
    own = Template(name="clerk", multi_agent_meta=MultiAgentMeta(capabilities="Knows the stock.", tags=("stock",)))
    async with keyed(serving, templates=(*BUILT_IN, own)) as house:
        ann, bound = await client_of(house, "ann"), await client_of(house, "ann", templates=[AGENT])
        card = await ann.got("/a2a/clerk/.well-known/agent-card.json")
        url = f"{house.url}/a2a/clerk"
        assert (card["name"], card["description"], card["version"]) == ("clerk", "Knows the stock.", "1")
        assert [
            (one["url"], one["protocolBinding"], one["protocolVersion"]) for one in card["supportedInterfaces"]
        ] == [
            (url, "JSONRPC", "1.0"),
            (url, "JSONRPC", "0.3"),
        ]
        assert (card["url"], card["protocolVersion"], card["preferredTransport"]) == (url, "0.3.0", "JSONRPC")
        assert card["capabilities"]["streaming"] is True
        assert card["skills"][0]["tags"] == ["stock"]
        assert await Client(house).status("GET", "/a2a/clerk/.well-known/agent-card.json") == 401
        assert await bound.status("GET", "/a2a/clerk/.well-known/agent-card.json") == 403
        for nobody in ("nobody", "_tool", "clerk@99", "auto"):
            assert await ann.status("GET", f"/a2a/{nobody}/.well-known/agent-card.json") == 404
            assert await ann.status("POST", f"/a2a/{nobody}", {}) == 404


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_task_is_a_turn_and_its_context_the_conversation(serving: Serving, version: str) -> None:
    async with serving([RAIN, call("finalanswertool", answer="Snow.")]) as house:
        peer = Peer(house, version)
        first = await peer.send("Will it rain?")
        assert peer.state(first) == "completed"
        assert [peer.text(one) for one in first["artifacts"]] == ["Rain in Oslo."]
        assert [peer.text(one) for one in first["history"]] == ["Will it rain?"]
        session_id = first["metadata"]["session_id"]
        assert (await house.session(session_id))["conversation_id"] == first["contextId"]
        second = await peer.send("And tomorrow?", contextId=first["contextId"])
        assert second["metadata"]["session_id"] == session_id
        assert (second["contextId"], second["id"] != first["id"]) == (first["contextId"], True)
        assert await peer.get(first["id"]) == first, "an earlier turn is told as it was"
        assert await peer.get(second["id"]) == second
        assert (await peer.get(second["id"], historyLength=0))["history"] == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_question_is_input_required_and_a_message_with_the_task_answers_it(
    serving: Serving, version: str
) -> None:
    async with serving([CITY, RAIN]) as house:
        peer = Peer(house, version)
        asked = await peer.send("Will it rain?", contextId="weather")
        assert (peer.state(asked), peer.text(asked["status"]["message"])) == ("input-required", "Which city?")
        assert "artifacts" not in asked
        assert await peer.get(asked["id"]) == asked
        peer.headers["idempotency-key"] = "k-1"
        answered = await peer.send("Oslo", taskId=asked["id"], contextId="weather")
        assert (answered["id"], peer.state(answered)) == (asked["id"], "completed")
        # Whoever has lost the response sends the answer again, and gets it.
        assert await peer.send("Oslo", taskId=asked["id"]) == answered
        error = await peer.refused("SendMessage", "message/send", peer.message("Rome", taskId=asked["id"]))
        [about] = error["data"]
        assert (error["code"], about["reason"], about["domain"]) == (-32602, "INVALID_PARAMS", "a2a-protocol.org")
        assert about["metadata"] == {"code": "key_reused"}
        del peer.headers["idempotency-key"]
        assert [peer.text(one) for one in answered["history"]] == ["Will it rain?", "Which city?", "Oslo"]
        assert [peer.text(one) for one in answered["artifacts"]] == ["Rain in Oslo."]
        error = await peer.refused("SendMessage", "message/send", peer.message("Bergen", taskId=asked["id"]))
        assert (error["code"], "has ended" in error["message"]) == (-32004, True)
        other = {**peer.message("Bergen", taskId=asked["id"], contextId="other")}
        assert (await peer.refused("SendMessage", "message/send", other))["code"] == -32602


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_task_that_waits_for_a_person_is_followed_to_its_end(serving: Serving, version: str) -> None:
    async with serving([CITY, CITY, RAIN]) as house:
        peer = Peer(house, version)
        asked = await peer.send("Will it rain?")
        async with peer.events("SubscribeToTask", "tasks/resubscribe", {"id": asked["id"]}) as stream:
            kind, task = peer.kind(await anext(stream))
            assert (kind, peer.state(task)) == ("task", "input-required")
            again = await peer.send("Which?", taskId=asked["id"])
            assert peer.state(again) == "input-required"
            assert peer.state(await peer.send("Oslo", taskId=asked["id"])) == "completed"
            told = [peer.kind(event) async for event in stream]
        states = [peer.state(one) for kind, one in told if kind == "status-update"]
        assert (states[0], states[-1]) == ("input-required", "completed")
        assert [one["final"] for kind, one in told if kind == "status-update" and not peer.is_new][:-1].count(True) == 0
        assert "".join(peer.text(one["artifact"]) for kind, one in told if kind == "artifact-update") == "Rain in Oslo."


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_stream_tells_the_task_its_text_and_where_it_stops(serving: Serving, version: str) -> None:
    slow = Say(calls=RAIN.calls, chunk=8, delay=0.05)
    async with serving([CITY, slow]) as house:
        peer = Peer(house, version)
        asking = peer.events("SendStreamingMessage", "message/stream", peer.message("Will it rain?"))
        async with asking as stream:
            told = [peer.kind(event) async for event in stream]
        assert told[0][0] == "task"
        assert {kind for kind, _ in told[1:]} == {"status-update"}
        assert (peer.state(told[-1][1]), peer.text(told[-1][1]["status"]["message"])) == (
            "input-required",
            "Which city?",
        )
        answer = peer.message("Oslo", taskId=told[0][1]["id"])
        async with peer.events("SendStreamingMessage", "message/stream", answer) as stream:
            told = [peer.kind(event) async for event in stream]
        chunks = [one for kind, one in told if kind == "artifact-update"]
        assert "".join(peer.text(one["artifact"]) for one in chunks) == "Rain in Oslo."
        assert [one["append"] for one in chunks] == [False, *(True for _ in chunks[1:])]
        assert [one["lastChunk"] for one in chunks] == [*(False for _ in chunks[1:]), True]
        assert len(chunks) > 2, "as it is written"
        assert peer.state(told[-1][1]) == "completed"
        if not peer.is_new:
            assert told[-1][1]["final"] is True


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_task_is_left_subscribed_to_and_cancelled(serving: Serving, version: str) -> None:
    async with serving([Say(calls=RAIN.calls, chunk=1, delay=0.03), Say(fault=Hang(seconds=60))]) as house:
        peer = Peer(house, version)
        at_once = {"returnImmediately": True} if peer.is_new else {"blocking": False}
        begun = await peer.send("Will it rain?", at_once)
        assert peer.state(begun) in ("submitted", "working")
        async with peer.events("SubscribeToTask", "tasks/resubscribe", {"id": begun["id"]}) as stream:
            told = [peer.kind(event) async for event in stream]
        assert (told[0][0], told[0][1]["id"]) == ("task", begun["id"])
        text = "".join(peer.text(one["artifact"]) for kind, one in told if kind == "artifact-update")
        assert (text, peer.state(told[-1][1])) == ("Rain in Oslo.", "completed")
        error = await peer.refused("SubscribeToTask", "tasks/resubscribe", {"id": begun["id"]})
        assert error["code"] == -32004
        assert (await peer.refused("CancelTask", "tasks/cancel", {"id": begun["id"]}))["code"] == -32002
        hangs = await peer.send("And tomorrow?", at_once, contextId=begun["contextId"])
        queued = await peer.send("And then?", at_once, contextId=begun["contextId"])
        while peer.state(await peer.get(hangs["id"])) != "working":
            await asyncio.sleep(0.02)
        assert peer.state(await peer.get(queued["id"])) == "submitted"
        error = await peer.refused("SendMessage", "message/send", peer.message("hm", taskId=hangs["id"]))
        assert (error["code"], "at work" in error["message"]) == (-32004, True)
        cancelled = await peer.result("CancelTask", "tasks/cancel", {"id": queued["id"]})
        assert peer.state(cancelled) == "canceled"
        assert peer.state(await peer.get(hangs["id"])) == "working", "the one before it goes on"
        cancelled = await peer.result("CancelTask", "tasks/cancel", {"id": hangs["id"]})
        assert peer.state(cancelled) == "canceled"
        assert peer.state(await peer.get(queued["id"])) == "canceled"
        journal = await house.journal(hangs["metadata"]["session_id"])
        assert sum(isinstance(one.event, events.Cancelled) for one in journal) == 2


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_turn_that_fails_is_a_failed_task(serving: Serving, version: str) -> None:
    async with serving([call("finalanswertool", answer="I cannot know.", status="failed")]) as house:
        peer = Peer(house, version)
        failed = await peer.send("Will it rain?")
        assert (peer.state(failed), peer.text(failed["status"]["message"])) == ("failed", "I cannot know.")


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_is_wrong_is_named_in_the_errors_of_json_rpc_and_nothing_is_done(
    serving: Serving, version: str
) -> None:
    async with serving(ask) as house, leaves_no_trace(house):
        peer = Peer(house, version)
        good = peer.message("hi")["message"]

        async def code(body: Any) -> Any:
            return (await peer.called(body))["error"]["code"]

        send = "SendMessage" if peer.is_new else "message/send"
        assert await code([]) == -32600
        assert await code(7) == -32600
        assert await code({"id": 1, "method": send}) == -32600
        assert await code({"jsonrpc": "2.0", "id": True, "method": send}) == -32600
        assert await code({"jsonrpc": "2.0", "id": 1, "method": 7}) == -32600
        assert await code({"jsonrpc": "2.0", "id": 1, "method": "tasks/sing"}) == -32601
        async with house.http.post(PATH, data=b"{", headers={"content-type": "application/json"}) as response:
            assert (await response.json())["error"]["code"] == -32700
        async with house.http.post(PATH, data=b"{}", headers={"content-type": "text/plain"}) as response:
            told = await response.json()
            assert (response.status, told["jsonrpc"], told["id"], told["error"]["code"]) == (415, "2.0", None, -32600)
        async with house.http.post(f"{PATH}/", json=peer.body("GetTask", "tasks/get", {"id": "x"})) as response:
            assert (await response.json())["error"]["code"] == -32001, "with a slash it is the same address"
        for params, param in (
            ({}, "message"),
            ([], "params"),
            ({"message": 7}, "message"),
            ({"message": {**good, "messageId": ""}}, "message.messageId"),
            ({"message": {**good, "role": "agent"}}, "message.role"),
            ({"message": {**good, "parts": []}}, "message.parts"),
            ({"message": {**good, "parts": [{"text": 7}]}}, "message.parts[0].text"),
            ({"message": {**good, "parts": [{"text": " "}]}}, "message.parts"),
            ({"message": {**good, "contextId": "../x"}}, "message.contextId"),
            ({"message": {**good, "taskId": "nobody's"}}, "message.taskId"),
            ({"message": good, "configuration": {"historyLength": -1}}, "configuration.historyLength"),
            ({"message": good, "configuration": {"acceptedOutputModes": ["image/png"]}}, "acceptedOutputModes"),
            ({"message": {**good, "parts": [{"url": "http://127.0.0.1/x"}]}}, "message.parts[0]"),
            ({"message": good, "configuration": {"pushNotificationConfig": {"url": "http://x"}}}, "configuration"),
        ):
            error = await peer.refused("SendMessage", "message/send", params)
            assert error["data"][0]["metadata"]["param"].endswith(param), (params, error)
            assert error["code"] in (-32602, -32001, -32003, -32005), (params, error)
            assert "dictionary" not in error["message"], "no class is named"
        for new, old, params in (
            ("GetTask", "tasks/get", {}),
            ("GetTask", "tasks/get", {"id": ""}),
            ("GetTask", "tasks/get", {"id": "x" * 600}),
            ("CancelTask", "tasks/cancel", {"id": 7}),
            ("SubscribeToTask", "tasks/resubscribe", {}),
        ):
            assert (await peer.refused(new, old, params))["code"] == -32602
        for unknown in ("x", ":", "a:b", f"{AGENT}_00000000-0000-4000-8000-000000000000:{'0' * 32}"):
            assert (await peer.refused("GetTask", "tasks/get", {"id": unknown}))["code"] == -32001
        push = {"taskId": "x", "id": "y"}
        error = await peer.refused("GetTaskPushNotificationConfig", "tasks/pushNotificationConfig/get", push)
        assert error["code"] == -32003
        for new, old, reason in (
            ("GetTaskPushNotificationConfig", "tasks/pushNotificationConfig/get", "PUSH_NOTIFICATION_NOT_SUPPORTED"),
            ("GetExtendedAgentCard", "agent/getAuthenticatedExtendedCard", "EXTENDED_AGENT_CARD_NOT_CONFIGURED"),
            ("GetTask", "tasks/get", "TASK_NOT_FOUND"),
            ("sing", "tasks/sing", "METHOD_NOT_FOUND"),
            *([("ListTasks", "", "UNSUPPORTED_OPERATION")] if peer.is_new else []),
        ):
            [about] = (await peer.refused(new, old, {"id": "x"}))["data"]
            assert (about["@type"].partition("/")[2], about["reason"]) == ("google.rpc.ErrorInfo", reason)
            assert about["domain"] == "a2a-protocol.org"
        peer.headers["a2a-version"] = "9.0"
        error = await peer.refused("GetTask", "tasks/get", {"id": "x"})
        assert (error["code"], error["data"][0]["reason"]) == (-32009, "VERSION_NOT_SUPPORTED")
        peer.headers["a2a-version"] = ""
        assert (await peer.called(peer.body("SendMessage", "message/send", peer.message("a\x00b"))))["error"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_keys_owners_and_budgets_hold_as_for_chat(serving: Serving, version: str) -> None:
    def play(body: Body) -> Say:
        return Say(fault=Hang(seconds=60)) if "hang" in str(body.messages[-1]) else ask(body)

    async with keyed(serving, play) as house:
        ann, ben = await client_of(house, "ann"), await client_of(house, "ben")
        reader, bound = (
            await client_of(house, "ann", read_only=True),
            await client_of(house, "ann", templates=["reader"]),
        )
        poor = await client_of(house, "ann", tokens_per_day=1)
        asked = await Peer(house, version, client=ann).send("hi", contextId="12345")
        his = Peer(house, version, client=ben)
        assert (await his.refused("GetTask", "tasks/get", {"id": asked["id"]}))["code"] == -32001
        assert (await his.refused("CancelTask", "tasks/cancel", {"id": asked["id"]}))["code"] == -32001
        answer = his.message("Oslo", taskId=asked["id"])
        assert (await his.refused("SendMessage", "message/send", answer))["code"] == -32001
        assert (await his.send("hi", contextId="12345"))["id"] != asked["id"]
        other = Peer(house, version, path="/a2a/reader", client=ann)
        assert (await other.refused("GetTask", "tasks/get", {"id": asked["id"]}))["code"] == -32001
        only = Peer(house, version, client=reader)
        assert (await only.get(asked["id"]))["id"] == asked["id"]
        for new, old, params in (
            ("SendMessage", "message/send", only.message("hi")),
            ("SendStreamingMessage", "message/stream", only.message("hi")),
            ("CancelTask", "tasks/cancel", {"id": asked["id"]}),
        ):
            error = await only.refused(new, old, params)
            assert (error["code"], error["data"][0]["reason"]) == (-32000, "READ_ONLY_KEY")
        assert await bound.status("POST", PATH, {}) == 403
        assert await Client(house).status("POST", PATH, {}) == 401
        of_poor = Peer(house, version, client=poor)
        first = await of_poor.send("hi")
        assert of_poor.state(first) in ("working", "input-required")
        error = await of_poor.refused("SendMessage", "message/send", of_poor.message("hi"))
        assert (error["code"], error["data"][0]["reason"]) == (-32000, "BUDGET_EXCEEDED")
        assert (await ann.got(f"/v1/sessions/{asked['metadata']['session_id']}"))["state"] == (
            "WAITING_FOR_CLARIFICATION"
        )
        # Who follows a task is told why that ends.
        gone = await client_of(house, "ann")
        hers = Peer(house, version, client=gone)
        body = hers.body("SendStreamingMessage", "message/stream", hers.message("hang"))
        async with house.http.post(PATH, json=body, headers=hers.headers) as response:
            told = sse(response)
            session_id = (await anext(told)).data.partition('"session_id":"')[2].partition('"')[0]
            assert await admin_of(house).status("DELETE", f"/admin/keys/{gone.id}") == 204
            last = [event.json async for event in told][-1]
        assert (last["error"]["code"], last["error"]["data"][0]["reason"]) == (-32000, "INVALID_API_KEY")
        assert await ann.status("POST", f"/v1/sessions/{session_id}/cancel") == 202  # a server waits for its steps
