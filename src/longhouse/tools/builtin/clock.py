"""The clock tool: current date and time. Also a simple example of a tool."""

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field

from longhouse.tools.base import BaseTool
from longhouse.tools.context import ToolContext


class ClockTool(BaseTool):
    """Tell the current date and time in a time zone."""

    timezone: str = Field(default="UTC", description="An IANA time zone such as Europe/Oslo")

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        try:
            zone = ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError(f"{self.timezone!r} is not a time zone; try one such as Europe/Oslo") from error
        return datetime.now(zone).isoformat(timespec="seconds")
