"""The probe against endpoints that can this and that: what it asks, what it finds, what it says."""

import json
from typing import Any

import pytest

from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import Abilities
from longhouse.errors import ProviderError
from longhouse.models.http.client import open_endpoint
from longhouse.models.openai import OpenAIModel
from longhouse.models.probe import ProbeFinding, probe, report
from longhouse.models.scripted import Cut, Playable, Say, ScriptedStatus, call, calls, say
from longhouse.models.scripted_server import ScriptedServer, serve
from server_helpers import launched_words

KEY = "sk-very-secret"
FITS = json.dumps({"sure": True, "function": {"tool_name_discriminator": "look_up_time", "city": "Oslo"}})
FORCED = call("note_mood", mood="calm")
BOTH = calls(call("look_up_weather", city="Oslo"), call("look_up_weather", city="Lima"))
HELLO = say("Hello!")


def refused(message: str) -> Say:
    return Say(fault=ScriptedStatus(status=400, message=message))


async def found(server: ScriptedServer) -> list[ProbeFinding]:
    async with open_endpoint(server.url, KEY) as endpoint:
        return await probe(OpenAIModel(endpoint), "m")


def abilities(findings: list[ProbeFinding]) -> Abilities:
    """What a template of this endpoint sets; what is unknown keeps its default."""
    return Abilities(**{finding.ability: finding.holds for finding in findings if finding.holds is not None})


async def holds(script: Playable) -> list[bool | None]:
    async with serve(script) as server:
        return [finding.holds for finding in await found(server)]


async def test_an_endpoint_that_can_everything_needs_no_setting() -> None:
    async with serve([FORCED, BOTH, say(FITS)]) as server:
        findings = await found(server)
    assert [finding.holds for finding in findings] == [True, True, True]
    assert abilities(findings) == Abilities()
    assert report(findings).endswith("there is nothing to set.")


async def test_three_small_requests_ask_for_exactly_what_is_probed() -> None:
    async with serve([FORCED, BOTH, say(FITS)]) as server:
        await found(server)
    forced, parallel, structured = server.requests
    assert forced["tool_choice"] == {"type": "function", "function": {"name": "note_mood"}}
    assert "parallel_tool_calls" not in forced
    assert (parallel["tool_choice"], parallel["parallel_tool_calls"]) == ("auto", True)
    assert "tools" not in structured
    assert structured["response_format"]["type"] == "json_schema"
    assert structured["response_format"]["json_schema"]["strict"] is True
    assert all(len(json.dumps(request)) < 1500 for request in server.requests)


async def test_an_endpoint_that_passes_over_what_it_does_not_know_is_found_out() -> None:
    async with serve([HELLO, HELLO, HELLO]) as server:
        findings = await found(server)
    assert abilities(findings) == Abilities(forced_tool_choice=False, parallel_tool_calls=False, json_schema=False)
    assert report(findings).splitlines() == [
        "forced_tool_choice   no: it called no tool",
        "parallel_tool_calls  no: it called no tool",
        "json_schema          no: it did not write JSON",
        "",
        "In the template's llm_policy.can, set to false: forced_tool_choice, parallel_tool_calls, json_schema.",
    ]


async def test_an_endpoint_that_refuses_is_quoted() -> None:
    async with serve([refused("unknown field tool_choice"), BOTH, refused(f"bad schema, {KEY}")]) as server:
        findings = await found(server)
    assert [finding.holds for finding in findings] == [False, True, False]
    words = report(findings)
    assert "no: it was refused: 127.0.0.1:" in words
    assert "unknown field tool_choice" in words
    assert words.endswith("set to false: forced_tool_choice, json_schema.")
    assert KEY not in words


async def test_another_tool_than_the_one_named_is_not_obedience() -> None:
    assert await holds([call("look_up_weather", city="Oslo"), BOTH, say(FITS)]) == [False, True, True]


async def test_one_call_at_a_time_harms_nobody() -> None:
    assert await holds([FORCED, call("look_up_weather", city="Oslo"), say(FITS)]) == [True, True, True]


@pytest.mark.parametrize(
    "text",
    [
        '{"greeting": "Hello!"}',
        '{"sure": true, "function": {"tool_name_discriminator": "other", "city": "Oslo"}}',
        '{"sure": true, "function": {"tool_name_discriminator": "look_up_time", "city": "Paris"}}',
        '{"sure": "yes", "function": {"tool_name_discriminator": "look_up_time", "city": "Oslo"}}',
        f"```json\n{FITS}\n```",
    ],
)
async def test_json_outside_the_schema_is_not_strict_output(text: str) -> None:
    async with serve([FORCED, BOTH, say(text)]) as server:
        structured = (await found(server))[2]
    assert structured == ProbeFinding("json_schema", False, "it wrote JSON, but not within the schema")


async def test_trouble_that_may_pass_is_not_taken_for_an_answer() -> None:
    async with serve([Say(fault=ScriptedStatus(status=503))] * 2 + [BOTH, say(FITS)]) as server:
        findings = await found(server)
    assert [finding.holds for finding in findings] == [None, True, True]
    assert abilities(findings) == Abilities()
    assert report(findings).endswith("Not judged, probe again later: forced_tool_choice.")


async def test_a_connection_that_dies_once_costs_nothing() -> None:
    assert (
        await holds([Say(fault=Cut(after=0)), FORCED, BOTH, Say(fault=ScriptedStatus(status=503)), say(FITS)])
        == [True] * 3
    )


async def test_an_endpoint_that_answers_nothing_says_nothing_of_its_abilities() -> None:
    async with serve([refused("no such model")] * 3) as server:
        with pytest.raises(ProviderError, match="no such model"):
            await found(server)


async def test_the_command_prints_the_findings_and_never_the_key() -> None:
    def can_less(body: Body) -> Say:
        return say(FITS) if bytes(body.response_format) else refused(f"no tools here, {KEY}")

    async with serve(can_less) as server:
        code, said = await longhouse_probe(llm_base_url=server.url, llm_api_key=KEY, llm_model="m")
        assert server.requests[0]["model"] == "m"
    assert code == 0
    assert "model 'm'" in said
    assert "set to false: forced_tool_choice, parallel_tool_calls." in said
    assert KEY not in said


async def test_the_command_says_in_one_sentence_why_it_cannot_probe() -> None:
    code, said = await longhouse_probe(llm_base_url="")
    assert (code, said.count("\n")) == (1, 1)
    assert "set LONGHOUSE_LLM_BASE_URL" in said
    async with serve([Say(fault=ScriptedStatus(status=401, message=f"wrong key {KEY}"))] * 3) as server:
        code, said = await longhouse_probe(llm_base_url=server.url, llm_api_key=KEY)
    assert code == 1
    assert "longhouse: 127.0.0.1:" in said
    assert "answered 401: wrong key [secret]" in said
    assert "Traceback" not in said


async def longhouse_probe(**environment: Any) -> tuple[int, str]:
    return await launched_words("probe", **environment)
