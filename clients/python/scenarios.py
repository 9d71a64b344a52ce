"""What the programs have in common: the scenarios, and how their results are told, one line of JSON for each."""

import json
import sys
import traceback
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

TOLD: Final[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "scenarios.json").read_text("utf-8"))
MODEL: Final = "tool_calling_agent"
SECRETARY: Final = "secretary"
"""An agent whose tool needs approval."""
IMAGE: Final = f"data:image/png;base64,{TOLD['images']['image']}"

Part = Callable[[], Awaitable[None]] | str
"""A scenario, or why the client has no such thing."""


class Weather(BaseModel):
    city: str
    degrees: int
    winds: list[str]


WEATHER: Final = Weather(**TOLD["structured"]["answer"])


class PriceList:
    """A function of the client; it keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def get_price(self, thing: str) -> str:
        """The price of a thing."""
        self.asked.append(thing)
        return str(TOLD["tools"]["prices"][thing])

    def check(self) -> None:
        same(sorted(self.asked), sorted(TOLD["tools"]["prices"]))


def same(found: object, expected: object) -> None:
    if found != expected:
        raise AssertionError(f"{found!r} instead of {expected!r}")


def want(what: str) -> None:
    """Asks for something outside of this program ("slowness" of the model, a "kill" of the server)."""
    _print(wants=what)
    sys.stdin.readline()


async def play(*packages: str, **scenarios: Part) -> None:
    """Plays all scenarios."""
    _print(client=", ".join(f"{name} {version(name)}" for name in packages) + " (Python)")
    for name, part in scenarios.items():
        if isinstance(part, str):
            _print(scenario=name, result="lacks", why=part)
            continue
        try:
            await part()
        except Exception:  # noqa: BLE001 - whatever a client raises is a result
            _print(scenario=name, result="failed", why=traceback.format_exc()[-4_000:])
        else:
            _print(scenario=name, result="passed")


def _print(**line: str) -> None:
    print(json.dumps(line), flush=True)
