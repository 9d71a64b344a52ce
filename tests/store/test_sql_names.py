"""The SQL names people look for: after a session each holds the rows one expects, whatever the session went through."""

import json
from typing import Any

import pytest

from fake_tavily import KEY, hit, tavily
from ledger_helpers import told
from longhouse import clock
from longhouse.journal import events
from longhouse.journal.events import Event, Fault, Output, Recorded
from longhouse.journal.fold import fold
from longhouse.journal.messages import Assistant, Function, ImagePart, ImageUrl, TextPart, ToolCall, ToolResult, User
from longhouse.models.scripted import call
from longhouse.store import journals, leases
from longhouse.store.database import Database
from server_helpers import AGENT, House, Serving, content, opened, plan_nodes, prompted, returned, started, used

TASK = "How much does it rain in Bergen?"
RAIN, COAST = "https://rain.example.org/bergen", "https://coast.example.org/clouds"
FOUND = {"rain Bergen": [hit(RAIN, "Rain in Bergen", "It rains a lot."), hit(COAST, "Clouds", "Mountains hold them.")]}
PAGE = "Bergen has 2,495 mm of rain a year."
ANSWER = "2,495 mm a year [1]."
STEPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("generateplantool", {"research_goal": "How much it rains", "planned_steps": ["search", "read", "report"]}),
    ("websearchtool", {"query": "rain Bergen"}),
    ("extractpagecontenttool", {"urls": [RAIN]}),
    ("createreporttool", {"title": "Rain in Bergen", "content": "It rains 2,495 mm a year [1]."}),
    ("finalanswertool", {"answer": ANSWER, "status": "completed"}),
)
MODEL = "gpt-4o-mini"


async def select(db: Database, columns: str, source: str, **values: object) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in await db.rows(f"SELECT {columns} FROM {source}", **values)]


def compact(value: Any) -> str:
    """JSON as the scripted model writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# After one research session


async def test_after_one_research_session_each_name_holds_its_rows(serving: Serving) -> None:
    script = [call(tool, **arguments) for tool, arguments in STEPS]
    async with (
        tavily(FOUND, {RAIN: PAGE}) as stand_in,
        serving(script, tavily_base_url=stand_in.url, tavily_api_key=KEY) as house,
    ):
        answered = await house.say(TASK, chat_id="rainy")
        assert content(answered) == ANSWER
        session = str(answered["model"])
        await sessions_as_expected(house, session)
        await catalog_as_expected(house)
        results = await executions_as_expected(house, session)
        await messages_as_expected(house, session, results)
        await sources_as_expected(house, session)
        await artifacts_as_expected(house, session)
        await interactions_as_expected(house, session, results)


async def sessions_as_expected(house: House, session: str) -> None:
    columns = "id, agent, conversation_id, side, state, task, version"
    assert await select(house.db, columns, "sessions") == [(session, AGENT, "rainy", "root", "COMPLETED", TASK, 1)]


async def catalog_as_expected(house: House) -> None:
    """What was used is what the catalog says may be used."""
    template = "sessions s JOIN agent_templates t ON t.template_id = s.agent AND t.version = s.version"
    assert await select(house.db, "t.name, t.is_active, t.base_agent_class", template) == [
        (AGENT, True, "ToolCallingAgent")
    ]
    tools = {tool for tool, _ in STEPS}
    known = "tool_executions e JOIN tools t ON t.name = e.tool_name AND t.version = e.tool_version WHERE t.is_active"
    assert {row[0] for row in await select(house.db, "t.tool_id", known)} == tools
    policy = "agent_template_tool_policy WHERE template_id = :template AND version = 1 AND rule = 'allow'"
    assert {row[0] for row in await select(house.db, "tool_name", policy, template=AGENT)} >= tools


async def executions_as_expected(house: House, session: str) -> list[str]:
    """What the tools said, in the order of the calls."""
    columns = "call_id, tool_name, tool_version, args, status, effect, started_at <= finished_at"
    rows = await select(
        house.db, columns, "tool_executions WHERE session_id = :session ORDER BY call_id", session=session
    )
    effects = ["read", "read", "read", "idempotent", "read"]
    assert rows == [
        (f"{n}-action-0", tool, 1, compact(arguments), "ok", effect, True)
        for n, ((tool, arguments), effect) in enumerate(zip(STEPS, effects, strict=True), start=1)
    ]
    told = await select(
        house.db, "result", "tool_executions WHERE session_id = :session ORDER BY call_id", session=session
    )
    results = [str(row[0]) for row in told]
    assert results[1] == (
        f"Search query: rain Bergen\n\n[1] Rain in Bergen\n{RAIN}\nIt rains a lot.\n\n[2] Clouds\n{COAST}\n"
        "Mountains hold them."
    )
    assert results[2] == f"[1] Rain in Bergen\n{RAIN}\n{PAGE}"
    assert (json.loads(results[3])["title"], results[4]) == ("Rain in Bergen", ANSWER)
    return results


async def messages_as_expected(house: House, session: str, results: list[str]) -> None:
    columns = "role, content, tool_calls, tool_call_id, name"
    rows = await select(
        house.db, columns, "session_messages WHERE session_id = :session ORDER BY seq, nth", session=session
    )
    expected: list[tuple[Any, ...]] = [("user", TASK, None, None, None)]
    for n, ((tool, arguments), result) in enumerate(zip(STEPS, results, strict=True), start=1):
        function = {"name": tool, "arguments": compact(arguments)}
        made = [{"id": f"{n}-action-0", "type": "function", "function": function}]
        expected += [("assistant", None, made, None, None), ("tool", result, None, f"{n}-action-0", tool)]
    expected.append(("assistant", ANSWER, None, None, None))
    assert [(role, said, made and json.loads(made), *rest) for role, said, made, *rest in rows] == expected


async def sources_as_expected(house: House, session: str) -> None:
    columns = "url, title, snippet, full_content, first_seen"
    found_at = await house.db.value("SELECT finished_at FROM tool_executions WHERE call_id = '2-action-0'")
    assert await select(house.db, columns, "sources ORDER BY url DESC") == [
        (RAIN, "Rain in Bergen", "It rains a lot.", PAGE, found_at),
        (COAST, "Clouds", "Mountains hold them.", "", found_at),
    ]
    numbered = await select(house.db, "session_id, number, url", "session_sources ORDER BY number")
    assert numbered == [(session, 1, RAIN), (session, 2, COAST)]


async def artifacts_as_expected(house: House, session: str) -> None:
    async with house.http.get(f"/v1/sessions/{session}/artifacts") as response:
        [listed] = (await response.json())["data"]
    async with house.http.get(listed["download"]) as response:
        report = await response.read()
    columns = "session_id, artifact_id::text, path, media_type, size, digest, call_id"
    shown = [listed[name] for name in ("session_id", "id", "path", "media_type", "size", "digest", "call_id")]
    assert await select(house.db, columns, "artifacts") == [tuple(shown)]
    assert (shown[3], shown[4], shown[6]) == ("text/markdown", len(report), "4-action-0")
    assert await select(house.db, "f.content", "artifacts a JOIN files f USING (digest)") == [(report,)]


async def interactions_as_expected(house: House, session: str, results: list[str]) -> None:
    await told(house.db)
    ordered = "interactions WHERE conversation_id = 'rainy' ORDER BY timestamp, id"
    columns = "source, source_type, target, target_type, content, type"
    rows = await select(house.db, columns, ordered)
    provider = [
        [{"id": f"call_{n}", "name": tool, "arguments": compact(arguments)}]
        for n, (tool, arguments) in enumerate(STEPS, start=1)
    ]
    expected = [("user", "user", AGENT, "agent", TASK, "input")]
    sent = [TASK, *results[:-1]]
    for (tool, arguments), result, new, asked in zip(STEPS, results, sent, provider, strict=True):
        expected += [
            (AGENT, "agent", MODEL, "llm", new, "input"),
            (MODEL, "llm", AGENT, "agent", compact(asked), "output"),
            (AGENT, "agent", tool, "tool", compact(arguments), "input"),
            (tool, "tool", AGENT, "agent", result, "output"),
        ]
    expected.append((AGENT, "agent", "user", "user", ANSWER, "output"))
    assert rows == expected
    paired = await select(house.db, "id, pair_id, type, conversation_id, trace_id", ordered)
    trace = await house.db.value("SELECT trace_id FROM sessions")
    assert {row[3:] for row in paired} == {("rainy", trace)}
    assert len({row[0] for row in paired}) == len(paired)
    assert all(id_ == pair for id_, pair, kind, *_ in paired if kind == "input")
    outputs = [pair for _, pair, kind, *_ in paired if kind == "output"]
    assert sorted(outputs) == sorted(id_ for id_, _, kind, *_ in paired if kind == "input")


async def test_the_columns_are_those_people_know(db: Database) -> None:
    rows = await select(
        db, "table_name, string_agg(column_name, ' ' ORDER BY ordinal_position)",
        "information_schema.columns WHERE table_schema = current_schema() GROUP BY 1",
    )  # fmt: skip
    columns = {name: listed.split() for name, listed in rows}
    assert columns["interactions"] == [
        "id", "conversation_id", "trace_id", "source", "source_type", "target", "target_type", "content", "type",
        "timestamp", "pair_id",
    ]  # fmt: skip
    for name, known in {
        "session_messages": "session_id seq nth role content tool_calls tool_call_id name at",
        "tool_executions": "session_id call_id tool_name tool_version args result status started_at finished_at effect",
        "sources": "url title snippet full_content first_seen",
        "session_sources": "session_id number url",
        "artifacts": "session_id artifact_id path media_type size digest call_id at",
        "session_details": "session_id template_id version instance_id owner user conversation_id side label parent"
        " trace_id state first_task task result error turns steps tool_calls failed_calls tokens prompt_tokens"
        " cached_tokens completion_tokens iteration searches_used clarifications_used created_at updated_at"
        " context_snapshot",
    }.items():
        assert columns[name] == known.split()
    assert columns.keys() >= {"tools", "agent_templates", "agent_template_tool_policy", "agent_instances", "sessions"}


# What else a session may go through


async def lived(db: Database, *appends: list[Event], prompt: events.Prompted | None = None) -> None:
    """A session `s` with these appends after its prompt, each written as a worker does."""
    await journals.open(db, "s", opened(), prompt or prompted("Hello"), task="Hello")
    assert (await leases.claim(db, "s", "w")).lease
    await append(db, [started(2)])
    for new in appends:
        await append(db, new)


async def append(db: Database, new: list[Event]) -> None:
    before, at = await journals.load(db, "s"), clock.now()
    after = fold((Recorded(seq=before.head + 1 + i, at=at, event=event) for i, event in enumerate(new)), before)
    await journals.append(db, after, new, fence=1, worker="w", at=at, rest=None)


async def messages(db: Database) -> list[tuple[Any, ...]]:
    return await select(db, "seq, role, content, tool_call_id", "session_messages ORDER BY seq, nth")


async def test_an_answer_in_plain_words_is_there_once(db: Database) -> None:
    await lived(db, [events.Replied(text="Hi there."), events.Finished(answer="Hi there.")])
    assert await messages(db) == [(2, "user", "Hello", None), (5, "assistant", "Hi there.", None)]


async def test_an_agent_that_says_it_failed_is_quoted_and_other_failures_are_not(db: Database) -> None:
    ended: list[Event] = [used("1-action-0", tool="finalanswertool"), returned("1-action-0", "I could not.")]
    await lived(db, [events.Replied(), *ended, events.Failed(reason="I could not.", code="agent_failed")])
    await journals.add(db, "s", [prompted("Again")], trace="t")
    await append(db, [started(8), events.Failed(reason="the model is away", code="provider_error")])
    assert (await messages(db))[2:] == [
        (6, "tool", "I could not.", "1-action-0"),
        (7, "assistant", "I could not.", None),
        (8, "user", "Again", None),
    ]
    await told(db)
    outputs = "interactions WHERE target_type = 'user' ORDER BY timestamp, id"
    assert await select(db, "content", outputs) == [("I could not.",), ("the model is away",)]


async def test_a_question_stands_where_it_was_asked_and_its_answer_is_the_users(db: Database) -> None:
    asked = used("1-action-0", tool="clarificationtool", call_kind="ask", question="Which city?")
    await lived(db, [events.Replied(), asked])
    assert (await messages(db))[2:] == [(5, "tool", "Which city?", "1-action-0")]
    assert await select(db, "status, result, finished_at", "tool_executions") == [("open", None, None)]
    await journals.add(db, "s", [returned("1-action-0", "Oslo", by="user")], trace="t")
    assert (await messages(db))[2:] == [(5, "tool", "Which city?", "1-action-0"), (6, "user", "Oslo", None)]
    assert await select(db, "status, result", "tool_executions") == [("ok", "Oslo")]


async def test_a_question_that_nobody_answered_tells_what_became_of_it(db: Database) -> None:
    asked = used("1-action-0", tool="clarificationtool", call_kind="ask", question="Which city?")
    gone = events.Returned(call="1-action-0", outcome=Fault(code="cancelled", message="the turn was cancelled"))
    await lived(db, [events.Replied(), asked], [gone])
    assert (await messages(db))[2:] == [(6, "tool", "Error: the turn was cancelled", "1-action-0")]


async def test_calls_fail_stay_open_and_are_written_in_nonsense(db: Database) -> None:
    failed = events.Returned(call="1-action-1", outcome=Fault(code="tool_failed", message="no network"))
    await lived(
        db,
        [events.Replied(text="Let me see."), used("1-action-0", tool="bank.pay", version=3, effect="once"),
         used("1-action-1", arguments='{"zone":'), used("1-action-2", arguments="[" * 100_000)],
        [failed],
    )  # fmt: skip
    columns = "tool_name, tool_version, effect, status, result, left(args::text, 12)"
    assert await select(db, columns, "tool_executions ORDER BY call_id") == [
        ("bank.pay", 3, "once", "open", None, "{}"),
        ("clocktool", 1, "read", "error", "no network", r'"{\"zone\":"'),
        ("clocktool", 1, "read", "open", None, '"' + "[" * 11),
    ]
    assert (await messages(db))[1:] == [
        (4, "assistant", "Let me see.", None),
        (8, "tool", "Error: no network", "1-action-1"),
    ]
    [made] = await select(db, "tool_calls", "session_messages WHERE role = 'assistant'")
    assert [one["id"] for one in json.loads(made[0])] == ["1-action-0", "1-action-1", "1-action-2"]


async def test_a_prompt_shows_its_words_and_what_was_said_before(db: Database) -> None:
    looked = ToolCall(id="x", function=Function(name="look", arguments="{}"))
    picture = ImagePart(image_url=ImageUrl(url="longhouse-file:abc"))
    prior = (
        User(content="Earlier"),
        Assistant(tool_calls=(looked,)),
        ToolResult(tool_call_id="x", content="seen"),
        Assistant(content="Then"),
    )
    two = ((TextPart(text="Look:"), picture, TextPart(text="a cat?")), "Well?")
    await lived(db, prompt=events.Prompted(trace="t", content=two, prior=prior))
    columns = "nth, role, content, tool_calls ->> 0 IS NOT NULL, tool_call_id"
    assert await select(db, columns, "session_messages ORDER BY seq, nth") == [
        (1, "user", "Earlier", False, None),
        (2, "assistant", None, True, None),
        (3, "tool", "seen", False, "x"),
        (4, "assistant", "Then", False, None),
        (5, "user", "Look:\na cat?", False, None),
        (6, "user", "Well?", False, None),
    ]
    await told(db)
    assert await select(db, "content", "interactions WHERE type = 'input'") == [("Look:\na cat?\n\nWell?",)]


async def test_structured_reasoning_is_what_the_assistant_said(db: Database) -> None:
    replied = events.Replied(text='{"plan_status":"fine","function":{}}', thought='{"plan_status":"fine"}')
    await lived(db, [replied, used("1-action-0")])
    assert (await messages(db))[1][2] == '{"plan_status":"fine"}'


async def test_long_bodies_are_shown_in_full_and_forgotten_ones_not_at_all(db: Database) -> None:
    long = "x" * (journals.BODY_LIMIT + 1)
    page = {"number": 1, "title": "Page", "url": RAIN, "snippet": "", "full_content": long}
    found = events.Returned(call="1-action-0", outcome=Output(content=long), adds={"sources": {RAIN: page}})
    await lived(db, [events.Replied(), used("1-action-0")], [found], [events.Finished(answer=long)])
    assert await db.value("SELECT count(*) FROM journal WHERE body_digest IS NOT NULL") == 2
    assert await select(db, "content", "session_messages WHERE seq > 4 ORDER BY seq") == [(long,), (long,)]
    assert await select(db, "result", "tool_executions") == [(long,)]
    assert await select(db, "url, title, full_content", "sources") == [(RAIN, "Page", long)]
    await db.run("""UPDATE journal SET body = '{"forgotten": true}', body_digest = NULL""")
    for name in NAMES:
        assert await db.value(f"SELECT count(*) FROM {name}") == 0, name


async def test_a_page_found_twice_has_both_its_numbers_and_the_best_that_is_known(db: Database) -> None:
    def found(call_id: str, source: Any) -> list[Event]:
        return [events.Returned(call=call_id, outcome=Output(content="ok"), adds={"sources": {RAIN: source}})]

    calls = [used(f"1-action-{n}", tool="websearchtool") for n in range(4)]
    await lived(
        db,
        [events.Replied(), *calls],
        found("1-action-0", {"number": 1, "title": "Rain", "snippet": "wet", "full_content": ""}),
        found("1-action-1", {"number": 11, "title": "", "snippet": "", "full_content": PAGE}),
        found("1-action-2", {"number": 1, "title": "Rain, again", "snippet": "", "full_content": ""}),
        found("1-action-3", "a tool of somebody's own keeps what it likes"),
    )
    assert await select(db, "number, url", "session_sources ORDER BY number") == [(1, RAIN), (11, RAIN), (None, RAIN)]
    assert await select(db, "title, snippet, full_content", "sources") == [("Rain, again", "wet", PAGE)]


async def test_each_end_is_paired_with_the_prompt_of_its_turn(db: Database) -> None:
    """Also where a prompt waited behind a turn, and where an agent prompted."""
    await lived(db, prompt=prompted("First", sender="master"))
    await journals.add(db, "s", [prompted("Second")], trace="t")
    await append(db, [events.Finished(answer="1")])
    await append(db, [started(4), events.Finished(answer="2")])
    await told(db)
    columns = "source, source_type, target, target_type, content, right(pair_id, 2)"
    assert await select(db, columns, "interactions ORDER BY timestamp, id") == [
        ("master", "agent", AGENT, "agent", "First", "02"),
        ("user", "user", AGENT, "agent", "Second", "04"),
        (AGENT, "agent", "master", "agent", "1", "02"),
        (AGENT, "agent", "user", "user", "2", "04"),
    ]


# How they are answered

NAMES = ("session_messages", "tool_executions", "session_sources", "sources", "artifacts", "interactions")
CROWD = """
    WITH many AS (
        INSERT INTO sessions (id, owner, conversation_id, side, agent, head, due, version, created_at, updated_at)
        SELECT 's' || n, 'local', 'c' || n, 'root', 'a', 12, false, 1, now(), now() FROM generate_series(1, 1000) AS n
        RETURNING id, conversation_id
    )
    INSERT INTO journal (session_id, seq, conversation_id, kind, call_id, append_id, nth, body, at)
    SELECT id, seq, conversation_id,
           (ARRAY['Prompted', 'Started', 'Replied', 'Called', 'Returned', 'Stored', 'Finished'])[1 + seq % 7],
           CASE WHEN seq % 7 IN (3, 4) THEN (seq / 7)::text END, gen_random_uuid(), 1, '{}', now()
    FROM many, generate_series(1, 12) AS seq
"""


ASKED = {
    "session_messages": "session_id = 's7'",
    "tool_executions": "session_id = 's7'",
    "session_sources": "session_id = 's7'",
    "artifacts": "session_id = 's7'",
    "interactions": "conversation_id = 'c7'",
    "session_details": "conversation_id = 'c7'",
}


@pytest.mark.parametrize("analyzed", [True, False])
async def test_one_session_is_asked_for_without_reading_the_whole_journal(db: Database, analyzed: bool) -> None:
    await db.run(CROWD)
    if analyzed:
        await db.run("ANALYZE")
    for name, condition in ASKED.items():
        plan = json.loads(await db.value(f"EXPLAIN (FORMAT JSON) SELECT * FROM {name} WHERE {condition}"))
        for table, column in {"journal": "session_id", "sessions": "conversation_id"}.items():
            reads = [node for node in plan_nodes(plan[0]["Plan"]) if node.get("Relation Name") == table]
            assert all(column in node.get("Index Cond", node.get("Recheck Cond", "")) for node in reads), (name, reads)


LONG = """
    INSERT INTO journal (session_id, seq, conversation_id, kind, call_id, append_id, nth, body, at)
    SELECT 's7', 100 + 3 * step + nth, 'c7', (ARRAY['Replied', 'Called', 'Returned'])[nth],
           CASE WHEN nth > 1 THEN 'call-' || step END, md5(step || 'a' || nth / 3)::uuid, 1 + (nth - 1) % 2,
           '{"tool": "clocktool", "arguments": "{}"}', now()
    FROM generate_series(1, 300) AS step, generate_series(1, 3) AS nth
"""


async def test_a_long_session_is_read_in_few_passes(db: Database) -> None:
    """The calls of a reply stand beside it: for each reply, nobody reads the rest of the session."""
    await db.run(CROWD)
    await db.run(LONG)
    await db.run("ANALYZE")
    messages = "SELECT * FROM session_messages WHERE session_id = 's7'"
    plan = json.loads(await db.value(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {messages}"))
    reads = [node for node in plan_nodes(plan[0]["Plan"]) if node.get("Relation Name") == "journal"]
    seen = sum((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in reads)
    assert seen < 20 * 912, [(node["Alias"], node["Actual Rows"], node["Actual Loops"]) for node in reads]
    calls = await db.rows(f"SELECT tool_calls FROM ({messages}) m WHERE tool_calls IS NOT NULL")
    assert len(calls) == 300
