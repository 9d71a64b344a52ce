"""Forks and replays over the API: who may, what is refused, and what a replay tells."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attack_helpers import refusal
from key_helpers import Client, admin_of, client_of, keyed
from test_replay import TEMPLATE, Lines, final, replies

from delegating_server import agent, ask, cast, in_steps
from longhouse.agents.template import LLMPolicy, PromptPack
from longhouse.models.scripted import ScriptedStatus, call, calls, say
from longhouse.store.limits import budgets
from server_helpers import House, Serving

REPORT = [f"Line {nth} of a report about the weather in Oslo, in the {nth} days before." for nth in range(600)]
OTHER = [f"In {nth} days, the weather of Oslo will be told by line {nth} of another report." for nth in range(600)]
UNKNOWN = "stepper_00000000-0000-4000-8000-000000000000"
BAD_FORKS: Sequence[tuple[Any, str | None]] = (
    ({}, "after"),
    ({"after": 0}, "after"),
    ({"after": -1}, "after"),
    ({"after": "3"}, "after"),
    ({"after": 3.5}, "after"),
    ({"after": True}, "after"),
    ({"after": None}, "after"),
    ({"after": 10**18}, "after"),
    ({"after": 10**30}, "after"),
    ({"after": 3, "before": 1}, "before"),
    ([], None),
    (7, None),
)
BAD_REPLAYS: Sequence[tuple[Any, str | None]] = (
    ({"dry": False}, "dry"),
    ({"dry": "yes"}, "dry"),
    ({"model": ""}, "model"),
    ({"model": 7}, "model"),
    ({"model": "m" * 201}, "model"),
    ({"template_version": 0}, "template_version"),
    ({"template_version": "1"}, "template_version"),
    ({"template_version": 99}, "template_version"),
    ({"template_version": 10**30}, "template_version"),
    ({"base_url": "http://127.0.0.1"}, "base_url"),
    ([], None),
)


async def refused(house: House, path: str, body: Any) -> tuple[int, Any]:
    async with house.http.post(path, json=body) as response:
        found = await refusal(response)
        return found.status, found.error


async def replayed(house: House, session_id: str, step: int, **body: Any) -> Any:
    async with house.http.post(f"/v1/sessions/{session_id}/steps/{step}/replay", json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


COUNTED = "SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM journal), (SELECT sum(head) FROM sessions)"


async def test_what_is_no_fork_and_no_replay_names_its_field_and_leaves_nothing(serving: Serving) -> None:
    async with serving([call("lines"), final("One.")], templates=[TEMPLATE], tools=[Lines]) as house:
        session_id = (await house.say("Go", model="stepper"))["model"]
        before = tuple(await house.db.row(COUNTED) or ())
        for body, param in BAD_FORKS:
            status, error = await refused(house, f"/v1/sessions/{session_id}/fork", body)
            assert (status, error["param"]) == (400, param), (body, error)
        for body, param in BAD_REPLAYS:
            status, error = await refused(house, f"/v1/sessions/{session_id}/steps/1/replay", body)
            assert (status, error["param"]) == (400, param), (body, error)
        _, error = await refused(house, f"/v1/sessions/{session_id}/fork", {"after": 99})
        assert error["message"] == f"after should be an event of the session: 1 to {before[1]}."
        _, error = await refused(house, f"/v1/sessions/{session_id}/steps/1/replay", {"dry": False})
        assert "fork the session" in error["message"]
        for path in (f"{UNKNOWN}/fork", f"{UNKNOWN}/steps/1/replay", f"{session_id}/steps/9/replay"):
            status, error = await refused(house, f"/v1/sessions/{path}", {"after": 1} if "fork" in path else {})
            assert (status, error["param"]) == (404, None), path
        status, error = await refused(house, f"/v1/sessions/{session_id}/steps/one/replay", {})
        assert (status, error["param"]) == (400, "step")
        assert tuple(await house.db.row(COUNTED) or ()) == before
        assert house.model is not None
        assert len(house.model.requests) == 2


async def test_the_model_is_asked_again_what_it_was_asked_then(serving: Serving) -> None:
    script = [
        calls(say("Hm."), call("lines", number=2), call("clocktool")),
        final("\n".join(REPORT)),
        calls(say("Hm."), call("clocktool"), call("lines", number=3)),
        final("\n".join(REPORT)),
        final("\n".join([REPORT[0], *OTHER, REPORT[-1]])),
    ]
    async with serving(script, templates=[TEMPLATE], tools=[Lines]) as house:
        session_id = (await house.say("Go", model="stepper", temperature=0.1, seed=7))["model"]
        before = await house.session(session_id)
        recorded = await replies(house, session_id)
        other = await replayed(house, session_id, 1)
        assert other["request"] == {"digest": recorded[0].digest, "recorded": recorded[0].digest, "matches": True}
        assert house.model is not None
        assert house.model.requests[2] == house.model.requests[0]
        assert [(one["change"], one["tool"]) for one in other["changes"]["calls"]] == [
            ("removed", "lines"),
            ("same", "clocktool"),
            ("added", "lines"),
        ]
        assert other["changes"]["same"] is False
        assert other["changes"]["text"] == []
        same = await replayed(house, session_id, 2, dry=True)
        assert same["request"]["matches"]
        assert same["changes"]["same"]
        assert same["recorded"]["answer"] == same["replayed"]["answer"] == "\n".join(REPORT)
        # Long answers that have little in common are told apart while others are served.
        other = await replayed(house, session_id, 2)
        told = [*(f"- {line}" for line in REPORT[1:-1]), *(f"+ {line}" for line in OTHER)]
        assert other["changes"]["answer"] == told
        # Nothing was recorded, nothing was done, and nobody was told.
        after = await house.session(session_id)
        assert after == before
        counted = "SELECT replies, turns FROM usage_lately UNION ALL SELECT replies, turns FROM usage_days"
        used = await house.db.row(f"SELECT sum(replies)::int AS replies, sum(turns)::int AS turns FROM ({counted}) c")
        assert used is not None
        assert (used["replies"], used["turns"]) == (5, 1)


async def test_a_step_is_replayed_with_another_version_and_another_model(serving: Serving) -> None:
    draft = replace(TEMPLATE, prompt_pack=PromptPack(system_prompt="Be brief.", initial_user_request="Task: {task}"))
    draft = replace(draft, tool_policy=replace(draft.tool_policy, allowlist=("finalanswertool",)))
    async with serving(
        [call("lines"), final("One."), final("Brief."), final("Other.")], templates=[TEMPLATE], tools=[Lines]
    ) as house:
        session_id = (await house.say("Go", model="stepper"))["model"]
        [published] = await house.app.catalog.templates.publish([draft], by="test", activate=False)
        shown = await replayed(house, session_id, 1, template_version=published.version)
        assert (shown["version"], shown["request"]["matches"]) == (published.version, False)
        assert shown["changes"]["answer"] == ["+ Brief."]
        assert house.model is not None
        request = house.model.requests[-1]
        assert request["messages"][0]["content"].startswith("Be brief.")
        assert [one["function"]["name"] for one in request["tools"]] == ["finalanswertool"]
        await replayed(house, session_id, 2, model="another-model")
        assert house.model.requests[-1]["model"] == "another-model"
        assert house.model.requests[-1]["messages"] == house.model.requests[1]["messages"]
        assert (await house.session(session_id))["version"] == 1


async def test_a_model_that_fails_is_told_in_a_sentence(serving: Serving) -> None:
    broken = say("", fault=ScriptedStatus(status=400, message="secret-host says no"))
    async with serving([final("One."), broken], templates=[TEMPLATE], tools=[Lines]) as house:
        session_id = (await house.say("Go", model="stepper"))["model"]
        async with house.http.post(f"/v1/sessions/{session_id}/steps/1/replay", json={}) as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"]) == (503, "provider_error")
        assert error["message"] == "The model did not answer: the model answered 400."


async def post(client: Client, path: str, body: Any) -> tuple[int, Any]:
    async with client.ask("POST", path, body) as response:
        shown = await response.json()
        return response.status, shown.get("error", shown)


async def test_keys_fork_and_replay_what_is_theirs(serving: Serving) -> None:
    cheap = replace(TEMPLATE, name="cheap", llm_policy=LLMPolicy(model="cheap-model"))
    async with keyed(serving, lambda body: final("Yes."), templates=[TEMPLATE, cheap], tools=[Lines]) as house:
        ann, eve = await client_of(house, "ann"), await client_of(house, "eve")
        reader = await client_of(house, "ann", read_only=True)
        narrow = await client_of(house, "ann", templates=["cheap"])
        session_id = (await ann.say("Go", model="stepper"))["model"]
        fork, replay = f"/v1/sessions/{session_id}/fork", f"/v1/sessions/{session_id}/steps/1/replay"
        for path, body in ((fork, {"after": 3}), (replay, {})):
            status, error = await post(eve, path, body)
            assert (status, error["code"]) == (404, "session_not_found")
            assert (await post(reader, path, body))[1]["code"] == "read_only_key"
            assert (await post(narrow, path, body))[1]["code"] == "template_not_allowed"
            assert (await post(Client(house), path, body))[0] == 401
        status, error = await post(ann, replay, {"model": "dear-model"})
        assert (status, error["code"], error["param"]) == (403, "model_not_allowed", "model")
        assert "cheap-model" in error["message"]
        assert (await post(ann, replay, {"model": "cheap-model"}))[0] == 200
        assert (await post(admin_of(house), f"/admin{replay.removeprefix('/v1')}", {"model": "dear-model"}))[0] == 200
        # An admin forks for the owner of the session: the branch is the owner's, and works for the admin's key.
        status, branch = await post(admin_of(house), f"/admin{fork.removeprefix('/v1')}", {"after": 3})
        assert status == 201
        row = await house.db.row("SELECT owner, key_id FROM sessions WHERE id = :one", one=branch["session_id"])
        assert row is not None
        assert (row["owner"], row["key_id"]) == ("ann", "admin")
        assert (await ann.got(f"/v1/sessions/{branch['session_id']}"))["forked_from"]["session_id"] == session_id


async def test_a_replay_counts_for_the_budget_of_its_key(serving: Serving) -> None:
    async with keyed(serving, lambda body: final("Yes."), templates=[TEMPLATE], tools=[Lines]) as house:
        ann, other = await client_of(house, "ann"), await client_of(house, "ann")
        session_id = (await ann.say("Go", model="stepper"))["model"]
        replay = f"/v1/sessions/{session_id}/steps/1/replay"
        status, shown = await post(other, replay, {})
        assert status == 200
        used = (await budgets.used(house.db, [other.id]))[other.id]
        assert used["tokens_per_day"] == shown["replayed"]["usage"]["total_tokens"] > 0
        assert used["turns_per_day"] == 0
        async with admin_of(house).ask("PATCH", f"/admin/keys/{other.id}", {"tokens_per_day": 1}) as response:
            assert response.status == 200
        for path, body in ((replay, {}), (f"/v1/sessions/{session_id}/fork", {"after": 3})):
            status, error = await post(other, path, body)
            assert (status, error["code"]) == (429, "budget_exceeded")
        assert await house.db.value("SELECT count(*) FROM sessions") == 1


async def test_a_key_may_not_set_agents_to_work_in_a_branch_that_it_may_not_use(serving: Serving) -> None:
    roles = {
        "master": in_steps(ask("ann", "go"), final("Done.")),
        "ann": in_steps(call("clarificationtool", questions=["?"])),
    }
    tools = ["clarificationtool", "finalanswertool"]
    templates = [agent("master", calls=["ann"], tools=tools), agent("ann", calls=[], tools=tools)]
    async with keyed(serving, cast(**roles), templates=templates) as house:
        owner, narrow = await client_of(house, "ann"), await client_of(house, "ann", templates=["master"])
        session_id = (await owner.say("Go", model="master"))["model"]
        head = (await owner.got(f"/v1/sessions/{session_id}"))["head"]
        status, error = await post(narrow, f"/v1/sessions/{session_id}/fork", {"after": head})
        assert (status, error["code"]) == (403, "template_not_allowed")
        assert await house.db.value("SELECT count(*) FROM sessions") == 2
        assert (await post(owner, f"/v1/sessions/{session_id}/fork", {"after": head}))[0] == 201
        # In a branch of a sub-agent it is the client who asks: its turn counts for the budget of the key.
        assert (await budgets.used(house.db, [owner.id]))[owner.id]["turns_per_day"] == 1
        below = await house.db.value("SELECT id FROM sessions WHERE agent = 'ann' AND inherited IS NULL")
        status, branch = await post(owner, f"/v1/sessions/{below}/fork", {"after": 2})
        assert (status, branch["agents"]) == (201, [])
        async with asyncio.timeout(20):
            while (await owner.got(f"/v1/sessions/{branch['session_id']}"))["state"] != "WAITING_FOR_CLARIFICATION":
                await asyncio.sleep(0.05)
        assert (await budgets.used(house.db, [owner.id]))[owner.id]["turns_per_day"] == 2


async def test_a_session_from_a_capsule_is_replayed_here_and_never_forked(
    serving: Serving, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    from conftest import database  # noqa: PLC0415
    from databases import TEMPLATE as EMPTY  # noqa: PLC0415
    from longhouse.store.capsules import format as capsules  # noqa: PLC0415
    from longhouse.store.capsules import importing  # noqa: PLC0415

    elsewhere = replace(TEMPLATE, llm_policy=LLMPolicy(base_url="http://127.0.0.1:9/v1", model="their-model"))
    file = tmp_path / "one.capsule"
    async with serving([final("One.")], templates=[TEMPLATE], tools=[Lines]) as house:
        session_id = (await house.say("Go", model="stepper"))["model"]
        recorded = await replies(house, session_id)
        # As if it had been made with an endpoint of theirs.
        encoded = house.app.catalog.templates.encoded(elsewhere)
        assert "127.0.0.1:9" in encoded
        async with house.http.get(f"/v1/sessions/{session_id}/capsule") as response:
            file.write_bytes(await response.read())
    async with database(request, EMPTY) as dsn, Serving(dsn)(lambda body: final("Two."), templates=[]) as there:
        capsules.verify(file)
        with capsules.reading(file) as capsule:
            await importing.bring(there.db, capsule)
        await there.db.run("UPDATE capsule_versions SET descriptor = :one WHERE kind = 'template'", one=encoded)
        path = f"/admin/sessions/{session_id}"
        async with there.http.post(f"{path}/steps/1/replay", json={}) as response:
            shown = await response.json()
            assert response.status == 200, shown
        # The request of then, but for the model; and it went to the model of this house.
        assert shown["request"]["recorded"] == recorded[0].digest
        assert shown["changes"]["answer"] == ["- One.", "+ Two."]
        assert there.model is not None
        assert len(there.model.requests) == 1
        status, error = await refused(there, f"{path}/fork", {"after": 2})
        assert (status, error["code"]) == (409, "session_read_only")
        assert await there.db.value("SELECT count(*) FROM sessions") == 1
