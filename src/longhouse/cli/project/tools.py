"""The tools of this project. They run in processes of their own; a save makes `longhouse dev` start new ones.

They find only those variables of the environment that LONGHOUSE_TOOL_ENVIRONMENT in `.env` names.
"""

import secrets
from typing import Annotated

from pydantic import Field

from longhouse import ToolContext, tool


@tool
async def roll_dice(
    sides: Annotated[int, Field(ge=2, le=1000, description="Sides of each die")] = 6,
    times: Annotated[int, Field(ge=1, le=100, description="How many dice")] = 1,
) -> str:
    """Roll dice and tell what they show."""
    shown = [secrets.randbelow(sides) + 1 for _ in range(times)]
    return f"The dice show {', '.join(map(str, shown))}."


@tool(effect="once")
async def keep_score(player: str, points: int, context: ToolContext) -> str:
    """Write down the points of a player."""
    return f"{player} has {points} points, noted under {context.key}."
