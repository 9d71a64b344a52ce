"""A draft of a template meets what was recorded, before it is activated: no tool runs, and what changed is told."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from conftest import database
from databases import TEMPLATE
from delegating_server import answer, in_steps
from longhouse.agents.template import LLMPolicy
from longhouse.cli.sessions import replays
from longhouse.errors import SetupError
from longhouse.settings import Settings
from longhouse.store.capsules import format as capsules
from longhouse.store.capsules import importing
from server_helpers import NO_FILES, House, Serving, process
from shop import SHOP, WeighTool, drafted, play


@pytest.fixture(autouse=True)
def scales() -> None:
    WeighTool.weighed.clear()


async def recorded(house: House) -> str:
    """A session with a question, a tool and a sub-agent."""
    session_id = str((await house.say("Weigh apples", model="shop"))["model"])
    await house.say("two", model=session_id)
    assert (await house.session(session_id))["state"] == "COMPLETED"
    return session_id


async def replayed(house: House, capsys: pytest.CaptureFixture[str], *what: str, **options: Any) -> tuple[int, Any]:
    """The exit status, and what it says as JSON."""
    assert house.model is not None
    settings = Settings(
        database_url=house.db.dsn, llm_base_url=house.model.url, llm_api_key="sk-test-canary", **NO_FILES
    )
    given: dict[str, Any] = {"template": "", "version": None, "last": 50, "owner": None, "model": None, "parallel": 2}
    capsys.readouterr()
    status = 0
    try:
        await replays.replay_sessions(settings, list(what), **{**given, "fail_on": "way", "as_json": True, **options})
    except typer.Exit as ended:
        status = ended.exit_code
    out = capsys.readouterr().out
    return status, json.loads(out) if options.get("as_json", True) else out


COUNTED = """
SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM journal), (SELECT sum(head) FROM sessions),
       (SELECT sum(fence) FROM sessions)
"""


async def test_a_draft_is_tried_on_what_was_recorded(serving: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(play, templates=SHOP, tools=[WeighTool]) as house:
        first, second = await recorded(house), await recorded(house)
        templates, weighed = house.app.catalog.templates, list(WeighTool.weighed)
        before = tuple(await house.db.row(COUNTED) or ())

        async def publish(words: str) -> int:
            [published] = await templates.publish([drafted(words)], by="test", activate=False)
            return published.version

        status, same = await replayed(house, capsys, template="shop")
        assert (status, same["version"], same["is_active"]) == (0, 1, True), same
        assert same["turns"] == {"same": 2, "changed": 0, "another_way": 0, "failed": 0, "skipped": 0}, same
        assert same["tokens"]["recorded"] == same["tokens"]["replayed"] > 0
        assert [one["session_id"] for one in same["sessions"]] == [second, first]

        polite = await publish("Be polite.")
        status, told = await replayed(house, capsys, first, template="shop")
        assert (status, told["version"], told["is_active"]) == (0, polite, False)
        [turn] = told["sessions"][0]["turns"]
        assert turn["status"] == "changed"
        assert [line[:17] for line in turn["answer"]] == ["- two apples weig", "+ Dear customer: "]
        assert "calls" not in turn
        assert (await replayed(house, capsys, first, fail_on="answer"))[0] == 1

        await publish("Prefer pears.")
        status, told = await replayed(house, capsys, first, second)
        assert status == 1
        for one in told["sessions"]:
            [turn] = one["turns"]
            assert (turn["status"], turn["step"]) == ("another_way", 2)
            assert turn["reason"] == "went another way at step 2: no such weigh call on record"
            assert [(each["change"], each["tool"]) for each in turn["calls"]] == [("changed", "weigh")]
        assert (await replayed(house, capsys, first, fail_on="never"))[0] == 0

        await publish("Take longer.")
        status, told = await replayed(house, capsys, first)
        [turn] = told["sessions"][0]["turns"]
        assert (status, turn["status"]) == (1, "changed")
        assert (turn["recorded"]["steps"], turn["replayed"]["steps"]) == (3, 4)
        assert [each["change"] for each in turn["calls"]] == ["added"]
        status, words = await replayed(house, capsys, first, as_json=False)
        assert "turn 1  another answer; tools: added weigh; steps 3 → 4" in words
        assert "shop@4, not active, against 1 sessions: 1 changed; tokens" in words

        # No tool ran, nothing was journaled, nothing is active that was not; what was used is counted.
        assert WeighTool.weighed == weighed
        assert tuple(await house.db.row(COUNTED) or ()) == before
        assert await templates.active("shop") == 1
        assert house.model is not None
        counted = "SELECT replies FROM usage_lately UNION ALL SELECT replies FROM usage_days"
        replies = await house.db.value(f"SELECT sum(replies) FROM ({counted}) c")
        assert replies == len(house.model.requests)


async def test_what_cannot_be_replayed_is_said(serving: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(play, templates=SHOP, tools=[WeighTool]) as house:
        waiting = str((await house.say("Weigh apples", model="shop"))["model"])
        for what, options, words in (
            ((), {}, "name sessions or capsules"),
            ((), {"template": "nobody"}, "no sessions of the agent 'nobody'"),
            (("nosuchsession",), {}, "no session 'nosuchsession'"),
            (("nofile.capsule",), {}, "no file nofile.capsule"),
            ((waiting,), {"template": "ann"}, "of the agent 'shop', not of 'ann'"),
            ((waiting,), {"version": 9}, "no version 9"),
            ((waiting,), {"template": "shop@x"}, "names no version"),
            ((waiting,), {"template": "shop@1", "version": 2}, "leave one out"),
            ((waiting,), {}, "nothing to replay"),
        ):
            with pytest.raises(SetupError, match=words):
                await replayed(house, capsys, *what, **options)
        # A draft that this process cannot play is one sentence too, and no secret is in it.
        shop = await house.app.catalog.templates.find("shop")
        assert shop is not None
        theirs = LLMPolicy(base_url="https://models.example/v1", api_key_ref="THEIR_KEY")
        for draft, words in (
            (replace(shop, base_agent_class="gone_agent"), "no agent class 'gone_agent'"),
            (replace(shop, llm_policy=theirs), "names the secret 'THEIR_KEY'"),
        ):
            await house.app.catalog.templates.publish([draft], by="test", activate=False)
            with pytest.raises(SetupError, match=words):
                await replayed(house, capsys, waiting)


async def test_a_capsule_is_replayed_in_a_house_that_never_had_the_session(
    serving: Serving, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "shop.capsule"
    async with serving(play, templates=SHOP, tools=[WeighTool]) as house:
        top = await recorded(house)
        async with house.http.get(f"/v1/sessions/{top}/capsule") as response:
            file.write_bytes(await response.read())
    async with (
        database(request, TEMPLATE) as dsn,
        Serving(dsn)(play, templates=SHOP, tools=[WeighTool]) as there,
    ):
        status, told = await replayed(there, capsys, str(file))
        assert (status, told["turns"]["same"]) == (0, 1), told
        assert [one["session_id"] for one in told["sessions"]] == [top]
        # The sub-agent's own session is in it too.
        status, told = await replayed(there, capsys, str(file), template="ann")
        assert (status, told["turns"]["same"]) == (0, 1), told
        assert await there.db.value("SELECT count(*) FROM sessions") == 0
        file.write_bytes(file.read_bytes()[:-20])
        with pytest.raises(SetupError):
            await replayed(there, capsys, str(file))


OLD = Path(__file__).parents[1] / "golden" / "shop.capsule"
"""What a release wrote that knew no branches."""


async def test_a_capsule_of_an_earlier_release_is_replayed_too(
    serving: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(play, templates=SHOP, tools=[WeighTool]) as house:
        status, told = await replayed(house, capsys, str(OLD))
        assert (status, told["turns"]["same"]) == (0, 1), told
        with capsules.reading(OLD) as capsule:
            [*ids] = await importing.bring(house.db, capsule)
            top = capsule.manifest.session
        status, told = await replayed(house, capsys, top)
        assert (status, told["turns"]["same"]) == (0, 1), told
        for step in range(1, 4):
            async with house.http.post(f"/admin/sessions/{top}/steps/{step}/replay", json={}) as response:
                shown = await response.json()
            assert (response.status, shown["request"]["matches"]) == (200, True), shown
        async with house.http.post(f"/admin/sessions/{top}/fork", json={"after": 3}) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (409, "session_read_only")
        assert await house.db.value("SELECT count(*) FROM sessions") == len(ids) == 2


async def test_the_command_line_forks_and_replays(serving: Serving) -> None:
    async with serving(in_steps(answer("Yes.")), templates=SHOP, tools=[WeighTool]) as house:
        session_id = str((await house.say("Go", model="shop"))["model"])
        assert house.model is not None
        environment = {"database_url": house.db.dsn, "llm_base_url": house.model.url, "llm_api_key": "sk-test-canary"}

        async def ran(*command: str) -> tuple[int, str]:
            async with process(*command, log_level="warning", **environment) as running:
                status = await running.ended()
            return status, "\n".join(running.said)

        status, words = await ran("sessions", "fork", session_id, "--after", "2")
        assert (status, f"after 2 of {session_id}" in words) == (0, True), words
        [branch] = [word for word in words.split() if word.startswith("shop_") and word != session_id]
        assert (await house.until(branch, "COMPLETED"))["result"] == "Yes."
        status, words = await ran("sessions", "fork", session_id, "--after", "99")
        assert (status, "1 to" in words) == (1, True), words
        # Of a branch, what it has of another session is replayed there.
        head = (await house.session(session_id))["head"]
        async with house.http.post(f"/v1/sessions/{session_id}/fork", json={"after": head}) as response:
            assert response.status == 201, await response.text()
        status, words = await ran("replay", "--template", "shop", "--last", "5", "--json")
        assert (status, '"same":2' in words) == (0, True), words
