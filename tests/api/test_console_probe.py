"""A probe over HTTP: what an endpoint can, before it is configured; and where nobody may look."""

import structlog
from attack_helpers import canary
from key_helpers import Client, admin_of, client_of, keyed

from longhouse.models.scripted import call, say
from longhouse.models.scripted_server import serve as serve_model
from server_helpers import Serving

PROBE = "/admin/models/probe"
KEY = "sk-probe-canary-51c0"
REPLIES = [call("note_mood", mood="calm"), say("hello"), say("no json")]


async def test_an_endpoint_is_probed_before_it_is_configured(serving: Serving) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serve_model(REPLIES) as endpoint, serving() as house, canary() as closed:
            here = Client(house)
            asked = {"base_url": endpoint.url, "model": "m", "api_key": KEY}
            async with here.ask("POST", PROBE, asked) as response:
                found = await response.json()
                assert response.status == 200, found
            assert [(one["ability"], one["holds"]) for one in found["report"]] == [
                ("forced_tool_choice", True),
                ("parallel_tool_calls", False),
                ("json_schema", False),
            ]
            first, *_, last = found["sentences"]
            assert first == {"tone": "good", "text": "forced_tool_choice: it called the tool that it was told to call."}
            assert (last["tone"], "to false: parallel_tool_calls, json_schema." in last["text"]) == ("wait", True)
            assert KEY not in str(found)
            for wrong in (
                closed.url,
                "http://169.254.169.254/v1",
                "http://u:p@127.0.0.1/v1",
                "file:///etc/passwd",
                "x",
            ):
                status, error = await here.refused("POST", PROBE, {**asked, "base_url": wrong})
                assert (status, error["param"], KEY in str(error)) == (400, "base_url", False), wrong
    assert KEY not in str(logs)


async def test_a_key_probes_what_templates_may_name(serving: Serving) -> None:
    async with canary() as heard, serve_model(REPLIES) as endpoint, keyed(serving, llm_base_url=endpoint.url) as house:
        admin, ann = admin_of(house), await client_of(house, "ann")
        status, error = await admin.refused("POST", PROBE, {"base_url": heard.url, "api_key": KEY})
        assert (status, error["param"]) == (400, "base_url")
        assert "LONGHOUSE_ALLOW_EGRESS" in error["message"]
        assert heard.calls == 0
        assert await ann.status("POST", PROBE, {"base_url": endpoint.url}) == 403
        assert await admin.status("POST", PROBE, {"base_url": endpoint.url}) == 200
