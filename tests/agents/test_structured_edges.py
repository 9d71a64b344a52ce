"""Structured replies that a limit has cut off or that hold no text, and steps in which no tool is open."""

import json
from dataclasses import replace

from longhouse.agents.strategies.protocol import Reply
from longhouse.agents.strategies.structured import SGRAgent
from longhouse.agents.template import Abilities, LLMPolicy, Template, ToolPolicy
from longhouse.agents.tool import Tool
from longhouse.journal.events import Sampling
from server_helpers import folded, opened, prompted, started

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}
WRITE = Tool(name="createfiletool", description="Write a file.", schema=SCHEMA, effect="idempotent")
END = Tool(name="finalanswertool", description="End.", schema={"type": "object", "properties": {}}, finishes=True)
TEMPLATE = Template(
    name="thinker", base_agent_class="SGRAgent", tool_policy=ToolPolicy(allowlist=("createfiletool", "finalanswertool"))
)
SESSION = folded(opened(), prompted("Write it down"), started(2))
WHOLE = json.dumps(
    {"function": {"tool_name_discriminator": "createfiletool", "path": "a.md", "content": "a long text " * 20}}
)


def test_a_reply_cut_off_by_a_limit_is_never_acted_on() -> None:
    agent = SGRAgent()
    request = agent.propose(SESSION, TEMPLATE, [WRITE, END])
    for end in range(1, len(WHOLE)):
        verdict = agent.interpret(request, Reply(text=WHOLE[:end], finish="length"))
        assert verdict.intents == ()
        assert verdict.problem == "it was cut off at the limit of its length; say it in fewer words"


def test_a_reply_that_is_complete_at_the_limit_is_taken() -> None:
    agent = SGRAgent()
    request = agent.propose(SESSION, TEMPLATE, [WRITE, END])
    verdict = agent.interpret(request, Reply(text=WHOLE, finish="length"))
    assert [intent.tool for intent in verdict.intents] == ["createfiletool"]


def test_without_an_open_tool_words_are_the_answer() -> None:
    agent = SGRAgent()
    request = agent.propose(SESSION, TEMPLATE, [])
    assert request.text_is == "answer"
    assert not bytes(request.body.response_format)
    assert agent.interpret(request, Reply(text="Done.", finish="stop")).answer == "Done."


def test_characters_that_no_journal_can_keep_are_made_visible_also_behind_escapes() -> None:
    agent = SGRAgent()
    request = agent.propose(SESSION, TEMPLATE, [WRITE, END])
    text = WHOLE.replace("a.md", r"\ud800").replace("{", r'{"current_situation": "\udcea \u0000 \ud83d\ude00", ', 1)
    verdict = agent.interpret(request, Reply(text=text, finish="stop"))
    assert json.loads(verdict.thought) == {"current_situation": "\ufffd \ufffd \U0001f600"}
    assert json.loads(verdict.intents[0].arguments)["path"] == "\ufffd"
    verdict.thought.encode()


def test_a_reply_nested_without_end_is_a_problem_and_no_thought() -> None:
    agent = SGRAgent()
    request = agent.propose(SESSION, TEMPLATE, [WRITE, END])
    for levels in (51, 900, 100_000):
        text = WHOLE.replace("{", '{"x": ' + "[" * levels + "]" * levels + ", ", 1)
        verdict = agent.interpret(request, Reply(text=text, finish="stop"))
        assert (verdict.intents, verdict.thought) == ((), "")
        assert verdict.problem


def test_the_clients_format_is_for_answers_and_does_not_replace_the_structure_of_a_step() -> None:
    asked = Sampling(response_format='{"type":"json_schema","json_schema":{"name":"mine","schema":{"type":"object"}}}')
    session = folded(opened(), prompted("Write it down", sampling=asked), started(2))
    less = replace(TEMPLATE, llm_policy=LLMPolicy(can=Abilities(json_schema=False)))
    for template, tools in ((TEMPLATE, [WRITE, END]), (less, [WRITE, END]), (less, [])):
        sent = bytes(SGRAgent().propose(session, template, tools).body.response_format)
        assert (b'"mine"' in sent) == (not tools)
