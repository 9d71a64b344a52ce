"""`longhouse replay`: recorded sessions against a version of a template, before it is activated."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
import typer

from longhouse.agents.template import Template
from longhouse.app.builtin import TOOLS
from longhouse.app.memory import ledger_of, memory_of
from longhouse.app.models import open_embedder, open_model
from longhouse.app.store import open_existing
from longhouse.app.tools import open_finder
from longhouse.cli.one_line import plain
from longhouse.cli.running import group
from longhouse.cli.sessions.capsules import found
from longhouse.config.effective import configure
from longhouse.errors import SetupError, UnknownShape
from longhouse.journal.events import Recorded
from longhouse.journal.session import LOCAL_OWNER
from longhouse.runtime.rehearsal import DescribedTools, Rehearsal, Status, TextAt, TurnReport, status_of, turns_of
from longhouse.search.passages import PassageIndex
from longhouse.search.selection import ToolSearchService
from longhouse.settings import Settings
from longhouse.store import journals
from longhouse.store import sessions as session_store
from longhouse.store.capsules import format, importing
from longhouse.store.capsules import imported as capsules
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.limits import usage
from longhouse.tools.offering import Offering

FailOn = Literal["way", "answer", "never"]
MOST: Final = 10_000


class Source(msgspec.Struct, frozen=True):
    """A recorded session: in the database, or in the file of a capsule."""

    session_id: str
    agent: str
    content: importing.CapsuleContent | None = None
    only_own: bool = False
    """Without the turns that a branch has of the session that it comes from."""

    async def records(self, db: Database) -> Sequence[Recorded]:
        if self.content:
            return self.content.records(self.session_id)
        return [record async for record in journals.every(db, self.session_id)]

    async def remembered(self, db: Database) -> TextAt | None:
        """What requests showed from memory, where that is not in this house."""
        if content := self.content:

            async def text(seq: int) -> str:
                return content.text(self.session_id, seq)

            return text
        if await capsules.capsule_of(db, self.session_id):
            return partial(capsules.remembered, db, self.session_id)
        return None


class SessionReport(msgspec.Struct, frozen=True, kw_only=True):
    session_id: str
    status: Status
    turns: Sequence[TurnReport]


async def replay_sessions(
    settings: Settings,
    what: Annotated[
        list[str] | None, typer.Argument(help="Sessions by their ids, or files that `sessions export` wrote.")
    ] = None,
    *,
    template: Annotated[
        str, typer.Option(help="The template, as name or name@version; by default that of the sessions.")
    ] = "",
    version: Annotated[
        int | None, typer.Option(min=1, help="Its version; by default the newest, active or not.")
    ] = None,
    last: Annotated[int, typer.Option(min=1, max=MOST, help="Without ids: this many of its newest sessions.")] = 50,
    owner: Annotated[str | None, typer.Option(help="Without ids: only those of this owner.")] = None,
    model: Annotated[str | None, typer.Option(help="Another model than that of the version.")] = None,
    parallel: Annotated[int, typer.Option(min=1, max=64, help="Sessions that are replayed at once.")] = 4,
    fail_on: Annotated[
        FailOn, typer.Option(help="When it ends with 1: another way, another answer as well, or never.")
    ] = "way",
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Replay recorded sessions against a version of their template, before it is activated."""
    # The model is asked, and no tool runs: see runtime/rehearsal.py.
    async with _Stage.opened(settings) as stage:
        name, number = _named(template, version)
        sources = await _sources(stage.db, what or [], name, last=last, owner=owner)
        draft, is_active = await _draft(stage.catalog, sources, name, number)
        if model:
            draft = replace(draft, llm_policy=replace(draft.llm_policy, model=model))
        reports = await stage.replay(draft, sources, parallel)
    turns = [turn for one in reports for turn in one.turns]
    if all(turn.status == "skipped" for turn in turns):
        raise SetupError(f"none of {len(sources)} sessions has a finished turn: there is nothing to replay.")
    if as_json:
        typer.echo(msgspec.json.encode(_summary(draft, is_active, reports)).decode())
    else:
        _tell(draft, is_active, reports)
    is_other = any(turn.is_another_way for turn in turns)
    if fail_on != "never" and (is_other or (fail_on == "answer" and any(turn.status == "changed" for turn in turns))):
        raise typer.Exit(1)


def _named(template: str, version: int | None) -> tuple[str, int | None]:
    name, at, number = template.partition("@")
    if at and (not number.isdecimal() or len(number) > 9):
        raise SetupError(f"{template!r} names no version: write it as {name}@3.")
    if at and version is not None and version != int(number):
        raise SetupError("--template names one version and --version another: leave one out.")
    return name, int(number) if at else version


async def _sources(db: Database, what: Sequence[str], template: str, *, last: int, owner: str | None) -> list[Source]:
    """The sessions that are named; without names, the newest ones of the template."""
    if not what:
        if not template:
            raise SetupError("name sessions or capsules, or a template by --template.")
        rows = await session_store.sessions(db, owner=owner, template=template, limit=last)
        if not rows:
            raise SetupError(f"there are no sessions of the agent {template!r}.")
        return [Source(row.id, row.agent, only_own=True) for row in rows]
    sources: list[Source] = []
    for one in what:
        if in_file := _in_capsule(Path(one), template):
            sources += in_file
            continue
        if one.endswith(".capsule"):
            raise SetupError(f"there is no file {one}.")
        session_id = await found(db, one)
        if agent := await session_store.agent(db, session_id):
            sources.append(Source(session_id, agent))
    for source in sources:
        if template and source.agent != template:
            raise SetupError(f"{source.session_id} is a session of the agent {source.agent!r}, not of {template!r}.")
    return list({source.session_id: source for source in sources}.values())


def _in_capsule(path: Path, template: str) -> list[Source]:
    """The sessions of the template in a capsule; without a template, the session that it was made of. None where there
    is no such file."""
    if not path.is_file():
        return []
    manifest = format.verify(path)
    with format.reading(path) as capsule:
        content = importing.content_of(capsule)
    wanted = [
        Source(one.id, one.agent, content)
        for one in content.sessions
        if (one.agent == template if template else one.id == manifest.session)
    ]
    if not wanted:
        raise SetupError(f"{path} has no session of the agent {template!r}.")
    return wanted


async def _draft(catalog: Catalog, sources: Sequence[Source], name: str, version: int | None) -> tuple[Template, bool]:
    agents = sorted({one.agent for one in sources})
    if len(agents) > 1:
        raise SetupError(f"these sessions are of several agents ({', '.join(agents)}): name one by --template.")
    name = name or agents[0]
    if version is None:
        newest = await catalog.templates.versions(name, limit=1)
        version = newest[0].version if newest else None
    draft = await catalog.templates.find(name, version) if version is not None else None
    if draft is None:
        wanted = f"version {version} of the" if version is not None else ""
        raise SetupError(f"there is no {wanted} template {name!r}; `longhouse templates versions` lists them.")
    return draft, await catalog.templates.active(name) == draft.version


class _Stage(msgspec.Struct, frozen=True):
    """What sessions are replayed with."""

    db: Database
    catalog: Catalog
    rehearse: Callable[[Template], Rehearsal]

    @classmethod
    @asynccontextmanager
    async def opened(cls, settings: Settings) -> AsyncIterator["_Stage"]:
        setup = configure(settings)
        settings = setup.settings
        async with (
            open_existing(settings) as db,
            open_embedder(settings) as embedder,
            open_finder(db, embedder) as finder,
            open_model(setup) as model_for,
        ):
            ledger = ledger_of(settings, PassageIndex(db, embedder))
            catalog = Catalog(db, model=settings.llm_model)
            toolbox = DescribedTools(TOOLS, catalog=catalog)
            search = ToolSearchService(catalog, finder, toolbox.resolve)

            def rehearse(draft: Template) -> Rehearsal:
                return Rehearsal(
                    db, draft, model_for, toolbox, Offering(catalog, toolbox, search), memory_of(settings, ledger),
                    packages=settings.tool_packages,
                )  # fmt: skip

            yield cls(db, catalog, rehearse)

    async def replay(self, draft: Template, sources: Sequence[Source], parallel: int) -> list[SessionReport]:
        """Replays all of them, some at once; each is told on the standard error when it is done."""
        await self.rehearse(draft).check()  # once, and as one sentence: tasks would raise it many times
        places, done = asyncio.Semaphore(parallel), 0

        async def one(source: Source) -> SessionReport:
            nonlocal done
            async with places:
                report = await self._replay(draft, source)
            done += 1
            typer.echo(f"{done} of {len(sources)}  {plain(source.session_id)}  {_words(report.status)}", err=True)
            return report

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(source)) for source in sources]
        return [task.result() for task in tasks]

    async def _replay(self, draft: Template, source: Source) -> SessionReport:
        rehearsal, turns = self.rehearse(draft), list[TurnReport]()
        try:
            records = await source.records(self.db)
            remembered = await source.remembered(self.db)
            for turn in turns_of(source.session_id, records, only_own=source.only_own):
                turns.append(await rehearsal.play(turn, remembered))
        except UnknownShape as error:
            turns.append(TurnReport(turn=len(turns) + 1, status="failed", reason=str(error)))
        finally:
            # Nobody's key: whoever has the command line has the house.
            for name, used in rehearsal.used.items():
                await usage.charge(self.db, key="", owner=LOCAL_OWNER, model=name, usage=used, replies=0)
        return SessionReport(session_id=source.session_id, status=status_of(turns), turns=turns)


def _summary(draft: Template, is_active: bool, reports: Sequence[SessionReport]) -> dict[str, Any]:
    turns = [turn for one in reports for turn in one.turns]
    pairs = [(one.recorded, one.replayed) for one in turns if one.recorded and one.replayed]
    return {
        "template": draft.name,
        "version": draft.version,
        "is_active": is_active,
        "turns": {name: sum(one.status == name for one in turns) for name in get_args(Status)},
        "tokens": {
            "recorded": sum(then.tokens for then, _ in pairs),
            "replayed": sum(now.tokens for _, now in pairs),
        },
        "sessions": reports,
    }


def _tell(draft: Template, is_active: bool, reports: Sequence[SessionReport]) -> None:
    for report in reports:
        for turn in report.turns:
            if turn.status != "same":
                typer.echo(f"{plain(report.session_id)}  turn {turn.turn}  {_difference(turn)}")
                for line in turn.answer:
                    typer.echo(f"    {plain(line)}")
    summary = _summary(draft, is_active, reports)
    counted = ", ".join(f"{count} {_words(name)}" for name, count in summary["turns"].items() if count)
    tokens = summary["tokens"]
    typer.echo(
        f"{draft.name}@{draft.version}, {'active' if is_active else 'not active'}, against {len(reports)} sessions:"
        f" {counted}; tokens {tokens['recorded']:,} → {tokens['replayed']:,}"
    )


def _difference(turn: TurnReport) -> str:
    then, now = turn.recorded, turn.replayed
    if turn.reason or then is None or now is None:
        return plain(turn.reason)
    parts = ["another answer"] if turn.answer else []
    if turn.calls:
        parts.append("tools: " + ", ".join(f"{one.change} {plain(one.tool)}" for one in turn.calls))
    if then.steps != now.steps:
        parts.append(f"steps {then.steps} → {now.steps}")
    if then.ended != now.ended:
        parts.append(f"{then.ended} → {now.ended}")
    return "; ".join(parts)


def _words(status: str) -> str:
    return {"another_way": "went another way"}.get(status, status)


cli = group({"replay": replay_sessions})
