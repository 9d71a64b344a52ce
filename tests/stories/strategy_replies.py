"""The same actions in the three ways to think: what a model writes to take them, and what it was offered."""

import json
from typing import Any

from longhouse.models.scripted import Say, call, say

Action = tuple[str, dict[str, Any]]
"""A tool and its arguments."""


def thought(action: Action) -> dict[str, Any]:
    is_last = action[0] == "finalanswertool"
    return {
        "reasoning_steps": ["Look at what is there.", f"Next is {action[0]}."],
        "current_situation": "In the middle of it.",
        "plan_status": "as planned",
        "enough_data": is_last,
        "remaining_steps": [action[0]],
        "task_completed": is_last,
    }


def native(action: Action) -> list[Say]:
    return [call(action[0], **action[1])]


def hybrid(action: Action) -> list[Say]:
    return [call("reasoningtool", **thought(action)), *native(action)]


def structured(action: Action) -> list[Say]:
    function = {"tool_name_discriminator": action[0], **action[1]}
    return [say(json.dumps({**thought(action), "function": function}))]


WRITE = {"ToolCallingAgent": native, "SGRToolCallingAgent": hybrid, "SGRAgent": structured}


def written(agent: str, *actions: Action) -> list[Say]:
    """The replies of a model that takes these actions, one after another."""
    return [one for action in actions for one in WRITE[agent](action)]


def offered(request: dict[str, Any]) -> list[str]:
    """The names of the tools that a request offers, as functions or as branches of a union."""
    if form := request.get("response_format"):
        branches = form["json_schema"]["schema"]["properties"]["function"]["anyOf"]
        return [branch["properties"]["tool_name_discriminator"]["const"] for branch in branches]
    return [tool["function"]["name"] for tool in request.get("tools", ())]
