"""`longhouse usage`: what keys have used, by key, owner, model or day."""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from longhouse.api.watching import usage as usage_answers
from longhouse.app.api import prices_of
from longhouse.app.store import open_existing
from longhouse.cli.one_line import plain
from longhouse.cli.running import group
from longhouse.errors import CallerError, SetupError
from longhouse.settings import Settings
from longhouse.store.limits import usage

By = Literal["key", "owner", "model", "day"]
Day = typer.Option(formats=["%Y-%m-%d"])


async def show_usage(
    settings: Settings,
    *,
    by: Annotated[By, typer.Option(help="What a line stands for.")] = "key",
    since: Annotated[datetime | None, Day] = None,
    until: Annotated[datetime | None, Day] = None,
    owner: Annotated[str | None, typer.Option(help="Of this owner.")] = None,
    key: Annotated[str | None, typer.Option(help="Of the key with this id.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As `GET /admin/usage` tells it.")] = False,
) -> None:
    """What keys have used: turns, tokens, and what that cost."""
    prices = prices_of(settings)
    try:
        first, last = usage_answers.span(since.date() if since else None, until.date() if until else None)
    except CallerError as error:
        raise SetupError(str(error)) from None
    async with open_existing(settings) as db:
        rows = await usage.found(db, since=first, until=last, owner=owner, key=key)
    found: dict[str, Any] = {
        **usage_answers.summary(rows, first, last, prices),
        "owners": usage_answers.owners(rows, prices),
    }
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
        return
    if not rows:
        typer.echo(f"nothing was used from {first} to {last}")
        return
    typer.echo(f"{first} to {last}, days of UTC")
    Console(soft_wrap=True).print(_table(found, by))
    if found["unpriced"] and prices.of_models:
        typer.echo(
            f"no price is set for: {', '.join(plain(one) or 'a model without a name' for one in found['unpriced'])}"
        )


def _table(found: dict[str, Any], by: By) -> Table:
    """One line each, and the total."""
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_footer=True)
    lines, total, has_cost = found[f"{by}s"], found["total"], found["total"]["cost"] is not None
    names = ["name", "owner", "key"] if by == "key" else [by]
    for name in names:
        drawn.add_column(name, overflow="fold", footer="total" if name == names[0] else "")
    numbers = ("turns", "replies", "prompt_tokens", "completion_tokens", "total_tokens")
    for name in numbers:
        drawn.add_column(name.removesuffix("_tokens"), justify="right", no_wrap=True, footer=f"{total[name]:,}")
    if has_cost:
        drawn.add_column(found["currency"], justify="right", no_wrap=True, footer=_cost(total["cost"]))
    for line in lines:
        cells = [Text(plain(str(line[name])) or "-") for name in names]
        cells += [Text(f"{line[name]:,}" if name in line else "") for name in numbers]
        drawn.add_row(*cells, *([Text(_cost(line["cost"]))] if has_cost else []))
    return drawn


def _cost(cost: float | None) -> str:
    return "" if cost is None else f"{cost:,.4f}"


cli = group({"usage": show_usage})
