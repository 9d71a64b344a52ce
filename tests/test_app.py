"""The composition root refuses what cannot work, before anything is served."""

import pytest

from longhouse.agents.template import Template, ToolPolicy
from longhouse.errors import SetupError
from server_helpers import Serving


async def test_templates_that_name_what_is_not_there_are_refused_all_at_once(serving: Serving) -> None:
    templates = [
        Template(name="a", tool_policy=ToolPolicy(allowlist=("finalanswertool", "unheard_of"))),
        Template(name="b", tool_policy=ToolPolicy(allowlist=("finalanswertool",)), base_agent_class="UnheardOfAgent"),
    ]
    with pytest.raises(SetupError, match="a@1: no tool 'unheard_of'; b@1: no agent class 'UnheardOfAgent'"):
        async with serving([], templates=templates):
            raise AssertionError("it started")
