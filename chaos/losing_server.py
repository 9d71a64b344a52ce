"""A Longhouse with an agent that delegates and a tool that takes its process down, for `chaos/losses.py`."""

import os
from collections.abc import Mapping
from typing import Any

import structlog
import uvicorn
import uvloop

from longhouse.agents.template import Template, ToolPolicy
from longhouse.api.http_protocol import config_of
from longhouse.app import TOOLS, open_app
from longhouse.settings import Settings
from longhouse.tools import BaseTool, ToolContext


class DeadlyTool(BaseTool):
    """Look something up; the process does not survive it."""

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        os._exit(3)


CLERK = Template(name="clerk", tool_policy=ToolPolicy(allowlist=("finalanswertool", DeadlyTool.tool_name)))
BOSS = Template(name="boss", tool_policy=ToolPolicy(allowlist=("finalanswertool", f"agent.{CLERK.name}")))


def run(environment: Mapping[str, str], port: int) -> None:
    """Serves at this port, in a process that was forked for it."""
    os.environ.update(environment)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    uvloop.run(_serve(port))


async def _serve(port: int) -> None:
    async with open_app(Settings(port=port), templates=[CLERK, BOSS], tools=(*TOOLS, DeadlyTool)) as app:
        await uvicorn.Server(config_of(app.asgi, port=port)).serve()
