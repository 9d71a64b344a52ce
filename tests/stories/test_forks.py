"""A session is opened again at one of its events: both go on, and neither sees the other."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest

from delegating_server import (
    agent,
    answer,
    appears,
    ask,
    cast,
    cast_house,
    in_steps,
    playing,
    question,
    results,
    task_of,
)
from longhouse import clock
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import MemoryPolicy
from longhouse.journal import events
from longhouse.journal.events import Effect
from longhouse.journal.messages import User, text_of
from longhouse.models.scripted import Say, call, calls, step_of
from longhouse.models.scripted_server import serve as serve_model
from longhouse.store.database import Database
from longhouse.store.erasing import retention
from longhouse.store.lists import statistics
from longhouse.tools import BaseTool, ToolContext
from server_helpers import House, HouseClient, Serving

ENDED = ("COMPLETED", "FAILED", "CANCELLED")


async def forked(house: HouseClient, session_id: str, after: int, status: int = 201, key: str = "") -> Any:
    headers = {"idempotency-key": key} if key else {}
    async with house.http.post(f"/v1/sessions/{session_id}/fork", json={"after": after}, headers=headers) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def head_of(house: House, session_id: str) -> int:
    return int(await house.db.value("SELECT head FROM sessions WHERE id = :session", session=session_id))


async def seq_of(house: House, session_id: str, kind: type[Any], nth: int = 0) -> int:
    found = [record.seq for record in await house.journal(session_id) if isinstance(record.event, kind)]
    return found[nth]


async def post(house: House, path: str, status: int = 202, **body: Any) -> Any:
    async with house.http.post(path, json=body) as response:
        assert response.status == status, await response.text()
        return await response.json()


# Each helper tells all that it was ever told.


def helper(body: Body) -> Say:
    return answer(" | ".join(text_of(one.content) for one in body.messages if isinstance(one, User)))


def teller(body: Body) -> Say:
    """Passes on to both what the user says, and tells what they know."""
    if not step_of(body.messages):
        return calls(ask("ann", f"{task_of(body)} (ann)"), ask("ben", f"{task_of(body)} (ben)"))
    return answer(" / ".join(results(body)))


TELLING: dict[str, Any] = {"master": teller, "ann": helper, "ben": helper}


async def test_two_branches_with_two_agents_each_go_on_and_neither_sees_the_other(serving: Serving) -> None:
    async with playing(serving, TELLING) as house:
        said = await house.say("one", model="master")
        origin = said["model"]
        before = await house.session(origin)
        branch = await forked(house, origin, await head_of(house, origin))
        assert branch["forked_from"] == {"session_id": origin, "after": before["head"]}
        assert branch["label"].startswith("branch-")
        assert branch["conversation_id"] != before["conversation_id"]
        assert branch["state"] == "COMPLETED"
        assert sorted(one["template"] for one in branch["agents"]) == ["ann", "ben"]
        assert {one["label"] for one in branch["agents"]} == {""}
        # Nothing happens in a branch that has nothing to do.
        here, there = await house.session(branch["session_id"]), await house.session(origin)
        assert (here["result"], here["head"]) == (there["result"], there["head"])
        assert here["forked_from"] == branch["forked_from"]
        assert there["forked_from"] is None

        await house.say("two, left", model=branch["session_id"])
        await house.say("two, right", model=origin)
        await house.say("three, left", model=branch["session_id"])
        await house.say("three, right", model=origin)
        told = {one: (await house.session(one))["result"] for one in (origin, branch["session_id"])}
        for place, other, one in (("left", "right", branch["session_id"]), ("right", "left", origin)):
            words = " | ".join(f"{text} (ann)" for text in ("one", f"two, {place}", f"three, {place}"))
            assert told[one] == f"{words} / {words.replace('(ann)', '(ben)')}"
            assert other not in told[one]
        rows = await house.db.rows("SELECT id, conversation_id, side, parent FROM sessions")
        assert len(rows) == 6
        conversations = {row["id"]: row["conversation_id"] for row in rows}
        assert conversations[branch["session_id"]] == branch["conversation_id"]
        assert {row["parent"] for row in rows} == {None, origin, branch["session_id"]}
        edges = await house.db.rows("SELECT parent, child FROM delegations")
        assert all(conversations[row["parent"]] == conversations[row["child"]] for row in edges)
        assert len(edges) == 6 + 6
        # No event of the branch names a session of the origin, but for the words that say where it comes from.
        own = {branch["session_id"], *(one["session_id"] for one in branch["agents"])}
        for one in own:
            prompts = [each.event for each in await house.journal(one) if isinstance(each.event, events.Prompted)]
            assert {prompt.reply_to.session for prompt in prompts if prompt.reply_to} <= own
            assert {prompt.root for prompt in prompts} <= {"", branch["session_id"]}
        shared = "SELECT trace_id FROM journal GROUP BY trace_id HAVING count(DISTINCT conversation_id) > 1"
        assert await house.db.rows(shared) == []


async def test_a_call_of_an_agent_that_was_never_asked_keeps_no_branch_waiting(serving: Serving) -> None:
    # The call and its refusal are written together: between them, nobody works for it.
    roles = {"master": in_steps(call("agent_ann", tusk="?"), answer("Done."))}
    async with playing(serving, roles) as house:
        origin = (await house.say("Go", model="master"))["model"]
        branch = await forked(house, origin, await seq_of(house, origin, events.Called))
        assert (await house.until(branch["session_id"], *ENDED))["result"] == "Done."
        [first, *_] = [
            one.event for one in await house.journal(branch["session_id"]) if isinstance(one.event, events.Returned)
        ]
        assert isinstance(first.outcome, events.Fault)
        assert first.outcome.code == "not_made"


async def test_the_clocks_of_machines_may_differ(serving: Serving) -> None:
    async with playing(serving, TELLING) as house:
        origin = (await house.say("one", model="master"))["model"]
        called = await seq_of(house, origin, events.Called, 1)
        returned = await seq_of(house, origin, events.Returned, 1)
        for hours in (3, -6):
            late = "UPDATE journal j SET at = at + make_interval(hours => :hours) FROM sessions s "
            which = "WHERE s.id = j.session_id AND s.side = 'sub' AND s.family IS NULL"
            await house.db.run(late + which, hours=hours)
            # What the session knows, its agents have done; what it does not know, they have not.
            knows = await forked(house, origin, returned)
            assert {one["state"] for one in knows["agents"]} == {"COMPLETED"}, hours
            waits = await forked(house, origin, called)
            assert {one["state"] for one in waits["agents"]} <= {"INITED", "RESEARCHING"}, hours
            for one in (knows, waits):
                shown = await house.until(one["session_id"], *ENDED)
                assert shown["result"] == "one (ann) / one (ben)"


async def test_agents_are_as_they_were_at_that_event(serving: Serving) -> None:
    async with playing(serving, TELLING) as house:
        origin = (await house.say("one", model="master"))["model"]
        after = await head_of(house, origin)
        await house.say("two", model=origin)
        branch = await forked(house, origin, after)
        await house.say("other", model=branch["session_id"])
        result = (await house.session(branch["session_id"]))["result"]
        assert result == "one (ann) | other (ann) / one (ben) | other (ben)"
        # Before they were called, it had none.
        early = await forked(house, origin, await seq_of(house, origin, events.Started))
        assert early["agents"] == []
        shown = await house.until(early["session_id"], *ENDED)
        assert shown["result"] == "one (ann) / one (ben)"


async def test_a_session_can_be_forked_after_each_of_its_events(serving: Serving) -> None:
    def ann(body: Body) -> Say:
        if results(body):
            return answer(f"ann: {results(body)[-1]}")
        return calls(call("clocktool"), ask("cem", "deep"))

    def master(body: Body) -> Say:
        """Goes on from what is there, wherever the branch begins."""
        told = results(body)
        handles = [json.loads(one)["handle"] for one in told if one.startswith('{"handle"')]
        if "b" in told:
            return answer("done b")
        if handles:
            return call("collecttool", handle=handles[-1])
        later = ask("ben", "b", wait=False)
        return later if told else calls(ask("ann", "a"), later, call("clocktool"))

    roles = {"master": master, "ann": ann, "ben": helper, "cem": helper}
    async with playing(serving, roles) as house:
        origin = (await house.say("go", model="master"))["model"]
        shown = await house.until(origin, *ENDED)
        assert shown["result"] == "done b"
        for after in range(1, shown["head"] + 1):
            branch = await forked(house, origin, after)
            if after == 1:
                assert branch["state"] == "INITED"
                continue
            ended = await house.until(branch["session_id"], *ENDED)
            assert (ended["state"], ended["result"]) == ("COMPLETED", "done b"), after
            mine = [record.event for record in await house.journal(branch["session_id"])][:after]
            theirs = [record.event for record in await house.journal(origin)][:after]
            assert [type(one) for one in mine] == [type(one) for one in theirs]
        async with asyncio.timeout(10):
            while await house.db.value("SELECT count(*) FROM sessions WHERE due"):
                await asyncio.sleep(0.02)
        assert await house.db.value("SELECT count(*) FROM delegations WHERE outcome IS NULL") == 0
        assert await house.db.value("SELECT count(*) FROM awaits") == 0
        for row in await house.db.rows("SELECT id, head FROM sessions WHERE side <> 'external'"):
            session = await house.folded(row["id"])
            assert (session.head, session.open) == (row["head"], {})


class PayTool(BaseTool):
    """Pay an invoice; not twice."""

    tool_name: ClassVar[str] = "pay"
    effect: ClassVar[Effect] = "once"
    invoice: str = "1"
    paid: ClassVar[list[str]] = []

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        self.paid.append(context.key)
        return "paid"


class OrderTool(BaseTool):
    """Order something; under the same key it is ordered once."""

    tool_name: ClassVar[str] = "order"
    effect: ClassVar[Effect] = "idempotent"
    ordered: ClassVar[list[str]] = []

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        self.ordered.append(context.key)
        return "ordered"


class FindPaymentTool(BaseTool):
    """Say whether a payment was made: here, it cannot be found yet."""

    tool_name: ClassVar[str] = "findpayment"
    key: str = ""
    found: ClassVar[bool] = False
    asked: ClassVar[list[str]] = []

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        self.asked.append(self.key)
        return '{"happened": true, "result": "paid, as the bank says"}' if self.found else '{"happened": false}'


class ProbedPayTool(PayTool):
    """Pay an invoice, of which a probe can tell."""

    tool_name: ClassVar[str] = "pay"
    probe: ClassVar[str] = "findpayment"


@pytest.fixture
def tills() -> None:
    for tool in (PayTool.paid, OrderTool.ordered, FindPaymentTool.asked):
        tool.clear()
    FindPaymentTool.found = False


PAYER = (agent("payer", calls=[], tools=["pay", "order", "finalanswertool"]),)
PAYING = {"payer": in_steps(calls(call("pay"), call("order")), answer("Done."))}


@pytest.mark.usefixtures("tills")
async def test_a_call_that_must_not_happen_twice_is_a_question_in_a_branch(serving: Serving) -> None:
    tools: list[type[BaseTool]] = [PayTool, OrderTool]
    async with serving(cast(**PAYING), templates=PAYER, tools=tools) as house:
        origin = (await house.say("Pay", model="payer"))["model"]
        called = await seq_of(house, origin, events.Called)
        branch = (await forked(house, origin, called + 1))["session_id"]
        shown = await house.until(branch, "WAITING_FOR_APPROVAL")
        [asked] = shown["questions"]
        assert (asked["kind"], asked["tool"]) == ("unknown_outcome", "pay")
        assert origin in asked["text"]
        assert PayTool.paid == [f"{origin}:1-action-0"]
        # What may be repeated is, under the key of the first time: whoever knows that key does it once.
        assert OrderTool.ordered == [f"{origin}:1-action-1"] * 2
        decided: dict[str, Any] = {"call_id": "1-action-0", "decision": "happened", "result": "paid before"}
        await post(house, f"/v1/sessions/{branch}/approval", **decided)
        assert (await house.until(branch, *ENDED))["result"] == "Done."
        assert len(PayTool.paid) == 1
        # A person who says that it did not happen has it made: in this branch, and under the key of then.
        other = (await forked(house, branch, called))["session_id"]
        await house.until(other, "WAITING_FOR_APPROVAL")
        await post(house, f"/v1/sessions/{other}/approval", call_id="1-action-0", decision="did_not_happen")
        await house.until(other, *ENDED)
        assert PayTool.paid == [f"{origin}:1-action-0"] * 2


@pytest.mark.usefixtures("tills")
async def test_a_probe_that_finds_nothing_does_not_let_a_branch_pay_again(serving: Serving) -> None:
    tools: list[type[BaseTool]] = [ProbedPayTool, OrderTool, FindPaymentTool]
    async with serving(cast(**PAYING), templates=PAYER, tools=tools) as house:
        origin = (await house.say("Pay", model="payer"))["model"]
        called = await seq_of(house, origin, events.Called)
        # Long ago, so that its time is over wherever it was begun.
        past = (
            "UPDATE journal SET body = replace(body::text, '20', '19')::json WHERE session_id = :session AND seq = :seq"
        )
        await house.db.run(past, session=origin, seq=called)
        branch = (await forked(house, origin, called))["session_id"]
        await house.until(branch, "WAITING_FOR_APPROVAL")
        assert FindPaymentTool.asked == [f"{origin}:1-action-0"]
        assert len(PayTool.paid) == 1
        FindPaymentTool.found = True
        known = (await forked(house, origin, called))["session_id"]
        await house.until(known, *ENDED)
        outcomes = [one.event for one in await house.journal(known) if isinstance(one.event, events.Returned)]
        assert outcomes[0].outcome == events.Output(content="paid, as the bank says")
        assert len(PayTool.paid) == 1


async def test_open_questions_stay_open_in_both(serving: Serving) -> None:
    def ann(body: Body) -> Say:
        is_asked = "Which city?" in str(body.messages)
        return answer(f"You said: {task_of(body)}") if is_asked else question("Which city?")

    def master(body: Body) -> Say:
        if step_of(body.messages):
            return answer(results(body)[-1])
        return calls(ask("ann", "Find out"), call("signtool"))

    async with playing(serving, {"master": master, "ann": ann}) as house:
        asked = await house.say("Go", model="master")
        origin = asked["model"]
        branch = (await forked(house, origin, await head_of(house, origin)))["session_id"]
        for one, city in ((branch, "Oslo"), (origin, "Rome")):
            shown = await house.session(one)
            kinds = sorted(each["kind"] for each in shown["questions"])
            assert kinds == ["approval", "clarification"]
            waiting = {each["kind"]: each for each in shown["questions"]}
            answering: dict[str, Any] = {"answer": city, "call_id": waiting["clarification"]["name"]}
            await post(house, f"/v1/sessions/{one}/clarification", **answering)
            signing: dict[str, Any] = {"call_id": waiting["approval"]["call_id"], "decision": "approve"}
            await post(house, f"/v1/sessions/{one}/approval", **signing)
        async with house.http.get("/v1/questions") as response:
            assert (await response.json())["data"] == []
        results_of = {one: (await house.until(one, *ENDED))["result"] for one in (branch, origin)}
        assert set(results_of.values()) == {"signed"}
        said = await house.db.rows("SELECT body ->> 'answer' AS answer FROM journal WHERE kind = 'Finished'")
        assert sorted(row["answer"] for row in said if "said" in row["answer"]) == ["You said: Oslo", "You said: Rome"]


async def test_an_old_approval_has_the_time_that_it_had(serving: Serving) -> None:
    roles = {"master": in_steps(call("signtool"), answer("Signed."))}
    async with playing(serving, roles) as house:
        asked = await house.say("Sign", model="master")
        origin, seq = asked["model"], await head_of(house, asked["model"])
        # A year ago: nobody had approved it, and it was denied.
        await house.db.run("UPDATE journal SET at = at - interval '400 days' WHERE session_id = :one", one=origin)
        late = """
            UPDATE journal SET body = regexp_replace(body::text, '"approve_by":"[0-9]+', '"approve_by":"2000')::json
            WHERE session_id = :one AND seq = :seq
        """
        await house.db.run(late, one=origin, seq=seq)

        async def approve_by(session_id: str) -> datetime:
            [called] = [one.event for one in await house.journal(session_id) if isinstance(one.event, events.Called)]
            assert called.approve_by is not None
            return called.approve_by

        branch = (await forked(house, origin, seq))["session_id"]
        shift = await approve_by(branch) - await approve_by(origin)
        assert shift.days == 400


async def test_a_branch_is_found_by_its_name_and_by_no_history(serving: Serving) -> None:
    async with playing(serving, {"master": in_steps(answer("Yes."))}) as house:
        first = [{"role": "user", "content": "Hello"}]
        said = await house.client.chat.completions.create(model="master", messages=first)  # type: ignore[arg-type]
        origin = said.model
        branch = await forked(house, origin, await head_of(house, origin))
        whole = [*first, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}]
        again = await house.client.chat.completions.create(model="master", messages=whole)  # type: ignore[arg-type]
        assert again.model == origin
        # The same words in the branch: the client of the origin is still at home.
        conversation = {"metadata": {"conversation_id": branch["conversation_id"]}}
        here = await house.client.chat.completions.create(model="master", messages=whole, extra_body=conversation)  # type: ignore[arg-type]
        assert here.model == branch["session_id"]
        further = [*whole, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Then?"}]
        there = await house.client.chat.completions.create(model="master", messages=further)  # type: ignore[arg-type]
        assert there.model == origin
        alone = [{"role": "user", "content": "Once more"}]
        named = await house.client.chat.completions.create(model="master", messages=alone, extra_body=conversation)  # type: ignore[arg-type]
        assert named.model == branch["session_id"]
        assert await house.db.value("SELECT count(*) FROM sessions") == 2


async def test_erasing_one_branch_leaves_the_other(serving: Serving) -> None:
    long = "A long word. " * 6_000
    roles = {
        "master": teller,
        "ann": helper,
        "ben": in_steps(call("createreporttool", title="R", content=long), answer("b")),
    }
    ben = agent("ben", calls=[], tools=["createreporttool", "finalanswertool"])
    ann = agent("ann", calls=[], tools=["finalanswertool"])
    templates = [agent("master", calls=["ann", "ben"], tools=["finalanswertool"]), ann, ben]
    async with serving(cast(**roles), templates=templates) as house:
        origin = (await house.say(f"one {long}", model="master"))["model"]
        branch = await forked(house, origin, await head_of(house, origin))
        twig = await forked(house, branch["session_id"], branch["head"])
        assert twig["forked_from"] == {"session_id": branch["session_id"], "after": branch["head"]}
        files = await house.db.value("SELECT count(*) FROM files")
        for gone, left in ((origin, (branch, twig)), (branch["session_id"], (twig,))):
            async with house.http.delete(f"/v1/sessions/{gone}") as response:
                assert response.status == 200
            for one in left:
                shown = await house.session(one["session_id"])
                assert shown["state"] == "COMPLETED"
                ben = next(each["session_id"] for each in one["agents"] if each["template"] == "ben")
                async with house.http.get(f"/v1/sessions/{ben}/artifacts") as response:
                    [report] = (await response.json())["data"]
                async with house.http.get(f"/v1/sessions/{ben}/artifacts/{report['id']}") as response:
                    assert long.strip() in await response.text()
            await house.say("two", model=left[0]["session_id"])
        assert await house.db.value("SELECT count(*) FROM files") >= files
        async with house.http.delete(f"/v1/sessions/{twig['session_id']}") as response:
            assert response.status == 200
        for table in ("sessions", "journal", "delegations", "awaits", "rests", "files"):
            assert await house.db.value(f"SELECT count(*) FROM {table}") == 0, table


async def test_what_was_told_from_outside_and_what_was_deleted_is_the_same_in_a_branch(serving: Serving) -> None:
    async with playing(serving, {"master": in_steps(answer("Yes."))}) as house:
        said = await house.say("Hello", model="master", metadata={"conversation_id": "c1"})
        origin, path = said["model"], "/v1/conversations/c1/interactions"
        record = {"source": "user", "source_type": "user", "target": "master", "target_type": "agent", "type": "input"}
        await post(house, path, 201, **record, content="By phone: Friday.")
        await house.say("secret", model=origin)
        trace = (await house.session(origin))["trace_id"]
        async with house.http.get(path) as response:
            assert "secret" in await response.text()
        async with house.http.delete(f"{path}?trace_id={trace}") as response:
            assert response.status == 200
        branch = await forked(house, origin, await head_of(house, origin))
        await house.say("And?", model=branch["session_id"])
        assert house.model is not None
        assert "By phone: Friday." in str(house.model.requests[-1]["messages"][0])
        async with house.http.get(f"/v1/conversations/{branch['conversation_id']}/interactions") as response:
            told = await response.text()
        assert "Hello" in told
        assert "Friday" in told
        assert "secret" not in told
        # Also in a branch from before it was deleted: its agent is not shown it again.
        before = await forked(house, origin, await seq_of(house, origin, events.Finished, 1))
        await house.say("And?", model=before["session_id"])
        assert "Hello" in str(house.model.requests[-1]["messages"])
        assert "secret" not in str(house.model.requests[-1]["messages"])
        # Before it was told, it is not known.
        early = await forked(house, origin, await seq_of(house, origin, events.Finished))
        await house.say("And?", model=early["session_id"])
        assert "Friday" not in str(house.model.requests[-1]["messages"])


async def test_files_and_recall_of_a_branch_are_its_own(serving: Serving) -> None:
    def keeper(body: Body) -> Say:
        task = task_of(body)
        if step_of(body.messages):
            return answer(results(body)[-1])
        name, _, words = task.partition(" ")
        return call("createfiletool", path=name, content=words) if words else call("readfiletool", path=name)

    tools = ["createfiletool", "readfiletool", "finalanswertool"]
    policy = MemoryPolicy(scope="conversation", recall=5)
    templates = [agent("master", calls=[], tools=tools, memory_policy=policy)]
    async with serving(cast(master=keeper), templates=templates) as house:
        origin = (await house.say("kept old", model="master"))["model"]
        after = await head_of(house, origin)
        await house.say("later new", model=origin)
        # A request that is repeated, with its key, is one branch, also at once and by another gateway.
        async with serving(templates=templates, works=False) as gateway:
            many = [forked(one, origin, after, key="k-1") for one in (house, gateway) for _ in range(3)]
            branch, *others = await asyncio.gather(*many)
        assert others == [branch] * 5
        assert branch["files_left_out"] == ["later"]
        assert await house.db.value("SELECT count(*) FROM sessions") == 2
        assert (await forked(house, origin, after - 1, 422, "k-1"))["error"]["code"] == "key_reused"
        assert (await forked(house, origin, after, 400, "k" * 256))["error"]["param"] == "Idempotency-Key"

        async def read(session_id: str, name: str) -> str:
            await house.say(name, model=session_id)
            return str((await house.session(session_id))["result"])

        assert "old" in await read(branch["session_id"], "kept")
        assert "Error" in await read(branch["session_id"], "later")
        await house.say("kept-too left-word", model=branch["session_id"])
        assert "Error" in await read(origin, "kept-too")
        assert "new" in await read(origin, "later")
        # Another conversation remembers both; they do not remember each other.
        assert house.model is not None
        await house.say("left-word", model=origin)
        assert "earlier conversations" not in str(house.model.requests[-1]["messages"][0])
        await house.say("left-word", model="master")
        assert "earlier conversations" in str(house.model.requests[-1]["messages"][0])
        # The branch has gone on by now; once it is erased, its key is free.
        again = await forked(house, origin, after, key="k-1")
        assert (again["session_id"], again["files_left_out"]) == (branch["session_id"], ["later"])
        assert again["head"] > branch["head"]
        async with house.http.delete(f"/v1/sessions/{branch['session_id']}") as response:
            assert response.status == 200
        assert (await forked(house, origin, after, key="k-1"))["session_id"] != branch["session_id"]


async def test_nothing_of_a_fork_is_counted_twice(serving: Serving) -> None:
    async with playing(serving, TELLING) as house:
        origin = (await house.say("one", model="master"))["model"]

        async def used() -> tuple[Any, Any]:
            async with house.http.get("/v1/usage") as response:
                usage = (await response.json())["total"]
            now = clock.now()
            counts = await statistics.count_events(house.db, now - timedelta(hours=1), now + timedelta(hours=1))
            return usage, sorted((one.kind, one.name, one.what, one.times, one.tokens) for one in counts)

        before = await used()
        await forked(house, origin, await head_of(house, origin))
        assert await used() == before


class GateTool(BaseTool):
    """Wait at a gate."""

    tool_name: ClassVar[str] = "gate"
    gate: ClassVar[asyncio.Event]
    there: ClassVar[list[str]] = []

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        self.there.append(context.session_id)
        await self.gate.wait()
        return "passed"


async def test_a_running_turn_is_forked_and_what_becomes_of_one_branch_is_nothing_to_the_other(
    serving: Serving,
) -> None:
    GateTool.gate, GateTool.there[:] = asyncio.Event(), []
    ann = agent("ann", calls=[], tools=["gate", "finalanswertool"])
    master = agent("master", calls=["ann"], tools=["finalanswertool"])
    roles = {"master": in_steps(ask("ann", "go"), answer("Done.")), "ann": in_steps(call("gate"), answer("There."))}
    async with serving(cast(**roles), templates=[master, ann], tools=[GateTool]) as house, asyncio.timeout(20):
        saying = asyncio.create_task(house.say("Go", model="master"))
        origin = str(await appears(house.db, "SELECT id FROM sessions WHERE side = 'root'"))
        while len(GateTool.there) < 1:
            await asyncio.sleep(0.01)
        branch = await forked(house, origin, await head_of(house, origin))
        [below] = branch["agents"]
        assert (branch["state"], below["state"]) == ("WAITING_FOR_AGENT", "RESEARCHING")
        # The agent at the gate can be forked by itself, too: it goes on, and reports to nobody.
        alone = await forked(house, GateTool.there[0], await head_of(house, GateTool.there[0]))
        while len(GateTool.there) < 3:
            await asyncio.sleep(0.01)
        assert set(GateTool.there[1:]) == {below["session_id"], alone["session_id"]}
        await post(house, f"/v1/sessions/{origin}/cancel")
        assert (await house.until(origin, *ENDED))["state"] == "CANCELLED"
        await saying
        GateTool.gate.set()
        assert (await house.until(branch["session_id"], *ENDED))["result"] == "Done."
        assert (await house.until(alone["session_id"], *ENDED))["result"] == "There."
        # Which makes it a session as any other: found by its conversation, and kept no longer than others.
        again = await house.say("Again", model="ann", metadata={"conversation_id": alone["conversation_id"]})
        assert again["model"] == alone["session_id"]
        await house.db.run(
            "UPDATE sessions SET created_at = created_at - :old::interval, updated_at = updated_at - :old::interval",
            old=timedelta(days=9),
        )
        old = await retention.page(house.db, default=1, least=1, after=(datetime.min.replace(tzinfo=UTC), ""))
        assert {one.id for one in old if one.is_over} == {origin, branch["session_id"], alone["session_id"]}
        assert (await house.session(origin))["state"] == "CANCELLED"
        assert await house.db.value("SELECT count(*) FROM delegations") == 2


async def test_what_others_had_asked_of_an_agent_is_not_done_again(serving: Serving) -> None:
    GateTool.gate, GateTool.there[:] = asyncio.Event(), []
    ann = agent("ann", calls=[], tools=["gate", "finalanswertool"])
    others = [agent(name, calls=["ann"], tools=["finalanswertool"]) for name in ("master", "ben")]

    def worker(body: Body) -> Say:
        return call("gate") if task_of(body) == "wait" and not results(body) else answer(f"did {task_of(body)}")

    roles = {
        "master": in_steps(ask("ann", "quick"), answer("Done.")),
        "ben": in_steps(ask("ann", "wait"), answer("Waited.")),
        "ann": worker,
    }
    async with serving(cast(**roles), templates=[*others, ann], tools=[GateTool]) as house, asyncio.timeout(20):
        conversation = {"metadata": {"conversation_id": "c1"}}
        origin = (await house.say("Go", model="master", **conversation))["model"]
        saying = asyncio.create_task(house.say("Go", model="ben", **conversation))
        while not GateTool.there:
            await asyncio.sleep(0.01)
        branch = await forked(house, origin, await head_of(house, origin))
        [below] = branch["agents"]
        assert below["state"] == "CANCELLED"
        assert (await house.say("Again", model=branch["session_id"]))["choices"][0]["message"]["content"] == "Done."
        assert len(GateTool.there) == 1
        GateTool.gate.set()
        assert (await saying)["choices"][0]["message"]["content"] == "Waited."


# A fork that comes to nothing leaves nothing.

SLOWLY = """
CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(60); RETURN NULL; END $$;
CREATE TRIGGER slowly AFTER INSERT ON sessions FOR EACH ROW WHEN (NEW.family IS NOT NULL AND NEW.side = 'sub')
EXECUTE FUNCTION slowly();
"""
ASLEEP = "FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
COUNTS = """
SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM journal), (SELECT count(*) FROM delegations),
       (SELECT count(*) FROM rests)
"""


async def test_a_process_that_is_killed_in_a_fork_leaves_nothing_of_it(dsn: str, db: Database) -> None:
    async with serve_model(cast(**TELLING)) as model:
        settings = {"database_url": dsn, "llm_base_url": model.url, "llm_api_key": "sk-test-canary"}
        async with cast_house(**settings) as house:
            origin = (await house.say("one", model="master"))["model"]
            before = await db.row(COUNTS)
            for statement in SLOWLY.split(";\nCREATE TRIGGER"):
                await db.run(statement if "FUNCTION slowly()" in statement[:30] else f"CREATE TRIGGER{statement}")
            forking = asyncio.create_task(forked(house, origin, 5))
            await appears(db, f"SELECT count(*) {ASLEEP}")
            house.kill()
            await house.ended()
            await asyncio.gather(forking, return_exceptions=True)
        # First: it holds a lock for as long as it sleeps.
        await db.rows(f"SELECT pg_terminate_backend(pid) {ASLEEP}")
        await db.run("DROP TRIGGER slowly ON sessions")
        assert await db.row(COUNTS) == before
        async with cast_house(**settings) as again:
            assert (await forked(again, origin, 5))["head"] >= 5
            assert await db.row(COUNTS) != before
