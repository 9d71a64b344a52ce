"""What a request must hold whatever a template's prompts say: the task, the answers of people, and the date once."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from longhouse.agents.template import LLMPolicy, PromptPack, Template, ToolPolicy
from longhouse.errors import SetupError
from longhouse.journal.events import Output
from longhouse.models.scripted import Say, call, say
from server_helpers import House, Serving, content

END = call("finalanswertool", answer="Готово.")
ASK = call("clarificationtool", questions=["哪个城市?"])
TOOLS = ToolPolicy(allowlist=("clarificationtool", "finalanswertool"))


def template(name: str = "a", **prompts: str) -> Template:
    return Template(name=name, prompt_pack=PromptPack(**prompts), tool_policy=TOOLS, llm_policy=LLMPolicy(model="m"))


def messages(house: House, nth: int = -1) -> list[dict[str, Any]]:
    assert house.model is not None
    found: list[dict[str, Any]] = house.model.requests[nth]["messages"]
    return found


async def request_of(house: House, session_id: str, step: int) -> Any:
    async with house.http.get(f"/v1/sessions/{session_id}/steps/{step}/request") as response:
        return await response.json()


async def test_prompts_without_the_task_or_the_answer_are_refused_by_field(serving: Serving, tmp_path: Path) -> None:
    async with serving() as house:
        for field, placeholder in (("initial_user_request", "{task}"), ("clarification_response", "{clarifications}")):
            for text in ("Do your work.", "", "Do {Task} {clarification} { task }."):
                body = {"name": "deaf", "prompt_pack": {field: text}}
                async with house.http.post("/admin/templates", json=body) as response:
                    error = (await response.json())["error"]
                    assert (response.status, error["param"]) == (400, f"prompt_pack.{field}")
                    assert placeholder in error["message"]
    (tmp_path / "agents.yaml").write_text(
        "agents:\n  deaf:\n    prompts:\n      initial_user_request_str: Work.\n"
        "      clarification_response_file: answer.txt\n"
    )
    (tmp_path / "answer.txt").write_text("They answered.")
    with pytest.raises(SetupError, match="there are 2 mistakes") as refused:
        async with serving(agents_file=str(tmp_path / "agents.yaml")):
            raise AssertionError("it opened")
    told = [line.replace(f"{tmp_path}/", "") for line in str(refused.value).splitlines()[1:]]
    assert [line.split(": it ")[0] for line in told] == [
        "agents.yaml:4: agents.deaf.prompts.initial_user_request_str",
        "agents.yaml:5: agents.deaf.prompts.clarification_response_file",
    ]
    assert "has no {task}" in told[0]
    assert "has no {clarifications}" in told[1]
    with pytest.raises(SetupError, match=r"deaf@1: .*initial_user_request has no \{task\}"):
        async with serving(templates=[template("deaf", initial_user_request="Work.")]):
            raise AssertionError("it opened")


async def test_of_an_old_template_without_them_the_task_and_the_answer_still_reach_the_model(serving: Serving) -> None:
    async with serving([ASK, END]) as house:
        old = template(initial_user_request="Do your work.", clarification_response="They have answered.")
        await house.app.catalog.templates.publish([old], by="somebody")
        asked = await house.say("Будет ли дождь?", model="a")
        assert messages(house)[1] == {"role": "user", "content": "Do your work.\n\nБудет ли дождь?"}
        assert content(await house.say("在奥斯陆", model=asked["model"])) == "Готово."
        assert messages(house)[-1] == {"role": "user", "content": "They have answered.\n\n在奥斯陆"}
        for step in (1, 2):
            assert (await request_of(house, asked["model"], step))["matches"] is True


async def test_the_date_is_filled_in_all_prompts_and_told_once_where_none_names_it(serving: Serving) -> None:
    today = datetime.now(UTC).date().isoformat()
    cast = [
        template("silent", system_prompt="Be brief."),
        template("bare", system_prompt=""),
        template("first", system_prompt="Now {current_date}."),
        template("second", system_prompt="Be brief.", initial_user_request="{current_date}: {task}"),
        template("third", system_prompt="Be.", clarification_response="On {current_date}: {clarifications}"),
    ]
    async with serving([ASK, END] * len(cast), templates=cast) as house:
        for one in cast:
            asked = await house.say("Дождь {current_date}?", model=one.name)
            await house.say("Осло {current_date}", model=asked["model"])
            for step in (1, 2):
                assert (await request_of(house, asked["model"], step))["matches"] is True
            shown = messages(house)
            said = "\n".join(str(one.get("content")) for one in shown)
            # What people write themselves is never filled in.
            assert (len(re.findall(today, said)), said.count("{current_date}")) == (1, 2), (one.name, shown)
            system = {
                "silent": f"Be brief.\n\nToday is {today}.", "bare": f"Today is {today}.", "first": f"Now {today}.",
                "second": "Be brief.", "third": "Be.",
            }  # fmt: skip
            assert shown[0] == {"role": "system", "content": system[one.name]}


async def test_an_agent_that_says_it_failed_keeps_its_answer(serving: Serving) -> None:
    sorry = "Не нашёл: 没有"
    async with serving([call("finalanswertool", answer=sorry, status="failed")], templates=[template()]) as house:
        said = await house.say("Find it", model="a")
        assert content(said) == sorry
        shown = await house.session(said["model"])
        assert (shown["state"], shown["result"], shown["error"]) == ("FAILED", sorry, sorry)
        assert shown["context_snapshot"]["execution_result"] == sorry
        async with house.http.get(f"/agents/{said['model']}/state") as response:
            assert (await response.json())["execution_result"] == sorry


@pytest.mark.parametrize("agent_class", ["ToolCallingAgent", "SGRAgent"])
async def test_an_argument_out_of_bounds_is_answered_in_words_and_closes_nothing(
    serving: Serving, agent_class: str
) -> None:
    def chosen(tool: str, **arguments: Any) -> Say:
        if agent_class == "ToolCallingAgent":
            return call(tool, **arguments)
        thought = {"reasoning_steps": [], "current_situation": "", "plan_status": "", "enough_data": False}
        function = {"tool_name_discriminator": tool, **arguments}
        return say(json.dumps({**thought, "remaining_steps": [], "task_completed": False, "function": function}))

    wrong = chosen("websearchtool", query="дождь", max_results=0)
    end = chosen("finalanswertool", answer="Готово.")
    searcher = Template(
        name="s", base_agent_class=agent_class, tool_policy=ToolPolicy(allowlist=("websearchtool", "finalanswertool"))
    )
    async with serving([wrong] * 5 + [end], templates=[searcher]) as house:
        said = await house.say("Ищи", model="s")
        assert content(said) == "Готово."
        session = await house.folded(said["model"])
        outcomes = [use.outcome for step in session.steps for use in step.uses if use.tool == "websearchtool"]
        assert len(outcomes) == 5
        for outcome in outcomes:
            assert outcome is not None
            assert not isinstance(outcome, Output)
            assert (outcome.code, "greater than or equal to 1" in outcome.message) == ("bad_arguments", True)
            assert "closed" not in outcome.message
        assert house.model is not None
        sent = [json.dumps([one.get("tools"), one.get("response_format")]) for one in house.model.requests]
        assert all("websearchtool" in one for one in sent), "it stays open"
