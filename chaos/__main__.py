"""Runs the chaos test: faults under load, then quiet, then the checks; exits with 1 if an invariant was violated."""

import argparse
import asyncio
import itertools
import logging
import random
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog
import uvloop

from chaos import losses, mutants
from chaos.checks import Violation, check
from chaos.evidence import Evidence, gathered
from chaos.history import History
from chaos.house import SECRETS, House, open_house, run_folder
from chaos.kill_points import POINTS
from chaos.load import MIX, PATIENCE, Load, answer_twice
from chaos.nemesis import WEIGHTS, WITH_NATS, Nemesis
from chaos.report import report, summary
from longhouse.store.database import Database

ALL_POINTS_FROM: Final = 100
"""Kills from which on a run that has not reached every kill point has failed."""
UNREST: Final = "SELECT count(*) FROM sessions WHERE due OR holder IS NOT NULL OR wake_at IS NOT NULL"


@dataclass(frozen=True)
class Options:
    seed: int
    kills: int = 100
    minutes: float = 60.0
    at_once: int = 8
    lease: float = 4.0
    nats: bool = False
    mutant: str = ""
    folder: Path | None = None
    report: Path | None = None
    losses: bool = False


@dataclass(frozen=True)
class Outcome:
    options: Options
    evidence: Evidence
    violations: list[Violation]
    seconds: float


async def run(options: Options) -> Outcome:
    began = time.monotonic()
    async with run_folder(options.folder) as folder:
        history = History(folder / "history.jsonl")
        history.log("began", seed=options.seed, kills=options.kills, mutant=options.mutant)
        mutant = mutants.BY_NAME[options.mutant] if options.mutant else None
        house = House(folder, history, seed=options.seed, lease=options.lease, mutant=mutant)
        async with open_house(house, nats=options.nats) as db:
            load = Load(house, history, seed=options.seed, mix=mutant.mix if mutant else MIX)
            weights = mutant.faults if mutant else WITH_NATS if options.nats else WEIGHTS
            nemesis = Nemesis(house, db, history, seed=options.seed, weights=weights, without_workers=load.withdraw)
            async with load.opened():
                await _rage(load, nemesis, options)
                await _quiesce(load, house, db, history, is_mutant=mutant is not None)
                evidence = await gathered(db, history, folder, secrets=list(SECRETS.values()), lease=options.lease)
        violations = [*check(evidence), *(Violation("I4", "", what) for what in history.defects)]
        return Outcome(options, evidence, violations, time.monotonic() - began)


async def _rage(load: Load, nemesis: Nemesis, options: Options) -> None:
    """Faults under load, until there were enough of them."""
    tasks = [asyncio.create_task(load.run(options.at_once)), asyncio.create_task(load.operate())]
    tasks.append(asyncio.create_task(_tell(load, nemesis, options)))
    try:
        await nemesis.rage(kills=options.kills, seconds=60 * options.minutes)
        await nemesis.rest()
        load.is_over.set()
        await asyncio.wait(tasks[:1], timeout=5 if options.mutant else PATIENCE)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for done in ended:
        if isinstance(done, Exception):
            raise done


async def _tell(load: Load, nemesis: Nemesis, options: Options) -> None:
    """How far it is, twice a minute."""
    for half_minutes in itertools.count(1):
        await asyncio.sleep(30)
        sessions = load.history.sessions.total()
        print(
            f"chaos: {half_minutes / 2:g} of {options.minutes:g} minutes,"
            f" {nemesis.kills} of {options.kills} kills, {sessions} sessions",
            flush=True,
        )


async def _quiesce(load: Load, house: House, db: Database, history: History, *, is_mutant: bool) -> None:
    """Quiet: everybody comes to rest, people answer, every session takes one more turn, followers read to the end."""
    await house.restart_armed()
    await _rested(db, house.lease)
    if is_mutant:
        history.streams.clear()  # its followers may wait for ever: only what is stored counts against it
        return
    for _ in range(20):
        if not await load.settle(is_calm=True):
            break
        await _rested(db, house.lease)
    for session_id, call in history.held.items():
        await answer_twice(load, session_id, call)
    await _rested(db, house.lease)
    await _one_more_turn(load, db, history)
    await _rested(db, house.lease)
    async with asyncio.timeout(600):
        await load.followed()


async def _rested(db: Database, lease: float) -> None:
    """Until nobody has anything to do, for two leases and half a minute at most; the checks tell who has."""
    with suppress(TimeoutError):
        async with asyncio.timeout(2 * lease + 30):
            while await db.value(UNREST):
                await asyncio.sleep(0.1)


async def _one_more_turn(load: Load, db: Database, history: History) -> None:
    rows = await db.rows(
        "SELECT id FROM sessions WHERE side = 'root' AND state IN ('COMPLETED', 'FAILED', 'CANCELLED')"
    )
    ids = iter([row["id"] for row in rows])

    async def talk() -> None:
        for session_id in ids:
            body = {"model": session_id, "messages": [{"role": "user", "content": f"m-last{session_id[-12:]} say"}]}
            status, _ = await load.post("/v1/chat/completions", body)
            if status != 200:
                history.unaccepted.append(session_id)

    await asyncio.gather(*(talk() for _ in range(8)))


def parsed() -> Options:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--kills", type=int, default=100, help="so many processes are killed")
    parser.add_argument("--minutes", type=float, default=60.0, help="for so long at most")
    parser.add_argument("--at-once", type=int, default=8, help="sessions side by side")
    parser.add_argument("--lease", type=float, default=4.0, help="seconds")
    parser.add_argument("--nats", action="store_true", help="hints over NATS instead of Postgres")
    parser.add_argument("--mutant", choices=["all", *mutants.BY_NAME], default="", help="a broken Longhouse")
    parser.add_argument("--folder", type=Path, help="keep logs, journal and ledger there")
    parser.add_argument("--report", type=Path, help="write the report to this file, as Markdown")
    parser.add_argument("--losses", action="store_true", help="seconds until all are done after kills in a row")
    return Options(**vars(parser.parse_args()))


async def main(options: Options) -> int:
    if options.losses:
        return await losses.main()
    if options.mutant == "all":
        return await _all_mutants(options)
    print(f"chaos: seed {options.seed}", flush=True)
    outcome = await run(options)
    evidence, violations = outcome.evidence, outcome.violations
    text = report(evidence, violations, seed=options.seed, seconds=outcome.seconds, nats=options.nats)
    if options.report:
        options.report.write_text(text, "utf-8")
    for violation in violations:
        print(violation)
    missed = [one.name for one in POINTS if not evidence.history.points[one.name]]
    is_short = options.mutant or options.kills < ALL_POINTS_FROM
    if missed:
        print(f"chaos: kill points that were not reached: {', '.join(missed)}")
    print(summary(evidence, violations, seconds=outcome.seconds), flush=True)
    return 1 if violations or (missed and not is_short) else 0


async def _all_mutants(options: Options) -> int:
    """Each mutant must be caught, by the invariant that it violates."""
    missed = 0
    for mutant in mutants.MUTANTS:
        folder = options.folder / mutant.name if options.folder else None
        short = replace(options, mutant=mutant.name, minutes=MUTANT_MINUTES, folder=folder)
        outcome = await run(short)
        found = {violation.invariant for violation in outcome.violations}
        is_caught = mutant.invariant in found
        missed += not is_caught
        verdict = "caught" if is_caught else "MISSED"
        print(
            f"{mutant.name}: {verdict} by {mutant.invariant} (found {', '.join(sorted(found)) or 'nothing'})",
            flush=True,
        )
    return 1 if missed else 0


MUTANT_MINUTES: Final = 0.6

if __name__ == "__main__":
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)  # of clients that were killed
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    try:
        sys.exit(uvloop.run(main(parsed())))
    except KeyboardInterrupt:
        sys.exit(130)
