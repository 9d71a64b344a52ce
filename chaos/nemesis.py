"""The nemesis: faults at seeded moments, each one logged."""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

from chaos import clocks, freezing
from chaos.history import History, Loss
from chaos.house import TIME_BUDGET, House, Member
from chaos.model import FAULTS
from longhouse.store.database import PASSING, Database

WEIGHTS: Final[Mapping[str, float]] = {
    "worker": 0.30,
    "in a row": 0.05,
    "leave": 0.10,
    "gateway": 0.20,
    "freeze": 0.10,
    "freeze recording": 0.05,
    "terminate": 0.10,
    "postmaster": 0.05,
    "model": 0.05,
    "clock": 0.04,
    "outage": 0.01,
}
WITH_NATS: Final[Mapping[str, float]] = {**WEIGHTS, "nats": 0.05}
KILLS: Final = ("worker", "gateway", "postmaster", "kill point")
"""The kinds of faults that are kills; the others are counted beside them."""
TERMINATE: Final = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'longhouse' AND pid <> pg_backend_pid()
"""
MODEL_FAILS_FOR: Final = 3.0
OUTAGE: Final = 2.2 * TIME_BUDGET
"""Seconds without any process of ours: a turn that had counted them would have failed."""
BACK_WITHIN: Final = 15.0
"""Seconds in which workers that were killed are there again; kill points and other faults may keep them longer."""


class Nemesis:
    def __init__(
        self,
        house: House,
        db: Database,
        history: History,
        *,
        seed: int,
        weights: Mapping[str, float] = WEIGHTS,
        without_workers: Callable[[], Awaitable[None]],
    ) -> None:
        """`without_workers`: what clients do in the moment of an outage in which only gateways are left."""
        self._house = house
        self._db = db
        self._history = history
        self._random = random.Random(f"{seed} nemesis")
        self._weights = weights
        self._without_workers = without_workers
        self._later: set[asyncio.Task[None]] = set()

    @property
    def kills(self) -> int:
        return sum(self._history.kills[kind] for kind in KILLS)

    async def rage(self, *, kills: int, seconds: float) -> None:
        """Until there were so many kills, or so many seconds are over."""
        began, give_up_at = time.monotonic(), time.monotonic() + seconds
        while self.kills < kills and time.monotonic() < give_up_at:
            await asyncio.sleep(self._random.uniform(0.5, 4.0))
            [kind] = self._random.choices(list(self._weights), list(self._weights.values()))
            is_half = 2 * self.kills >= kills or 2 * (time.monotonic() - began) >= seconds
            if "outage" in self._weights and is_half and not self._history.kills["outage"]:
                kind = "outage"
            await self._strike(kind)
        self._house.disarm()

    async def rest(self) -> None:
        """Ends what still goes on: whoever is frozen goes on, the model is well again."""
        await asyncio.gather(*self._later)
        self._house.model.fault = None

    async def _strike(self, kind: str) -> None:
        if kind in ("worker", "gateway", "leave", "freeze", "freeze recording"):
            is_struck = self._strike_one(kind)
        else:
            is_struck = True
            await self._strike_all(kind)
        self._history.kills[kind] += is_struck

    def _strike_one(self, kind: str) -> bool:
        """Strikes one process; False if none is there to be struck."""
        role = "gateway" if kind == "gateway" else "worker"
        ready = [one for one in self._house.members if one.role == role and one.is_ready.is_set()]
        if kind not in ("worker", "gateway"):
            ready = [one for one in ready if not one.is_frozen]
        if not ready:
            return False
        chosen = self._random.choice(ready)
        if kind == "leave":
            self._house.dismiss(chosen)
        elif kind in ("worker", "gateway"):
            self._house.kill(chosen, kind)
        else:
            self._start(self._freeze(chosen, is_recording=kind == "freeze recording"))
        return True

    async def _strike_all(self, kind: str) -> None:
        match kind:
            case "clock":
                self._set_clocks()
            case "outage":
                await self._outage()
            case "in a row":
                await self._kill_in_a_row(self._random.choice((2, 3)))
            case "terminate":
                await self._terminate()
            case "postmaster":
                await self._kill_postmaster()
            case "nats":
                await self._restart_nats()
            case "model":
                self._start(self._fail_model(self._random.choice(list(FAULTS))))

    def _start(self, fault: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.create_task(fault)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _freeze(self, member: Member, *, is_recording: bool) -> None:
        """SIGSTOP for two leases, then SIGCONT: a worker that was replaced and does not know it. `is_recording`: it
        stops right before it records something, if it comes to that."""
        process = member.process
        assert process is not None
        member.is_frozen = True
        if is_recording:
            process.send(freezing.BEFORE_IT_RECORDS)
            is_recording = await freezing.is_stopped(process.pid)
        began = time.time()
        self._history.log("frozen", member=member.name, pid=process.pid, is_recording=is_recording)
        process.send(signal.SIGSTOP)
        await asyncio.sleep(2 * self._house.lease)
        process.send(signal.SIGCONT)
        if member.process is process:
            member.is_frozen = False
        self._history.losses.append(Loss(pid=process.pid, kind="frozen", at=began, until=time.time()))
        self._history.log("thawed", member=member.name, pid=process.pid)

    def _set_clocks(self) -> None:
        for member in self._house.workers:
            if member.is_ready.is_set() and member.process and self._random.random() < 0.5:
                member.process.send(clocks.JUMP)
                self._history.log("clock_set", member=member.name, pid=member.process.pid)

    async def _outage(self) -> None:
        """Every process is killed, and none is started for longer than a turn may work."""
        began = time.time()
        self._house.may_run.clear()
        for role in ("worker", "gateway"):
            for member in self._house.members:
                if member.role == role and member.process and not member.process.ended.is_set():
                    self._house.kill(member, "outage")
            if role == "worker":
                await self._without_workers()
        await asyncio.sleep(OUTAGE)
        self._house.may_run.set()
        await self._house.all_ready()
        self._history.troubles.append((began, time.time()))

    async def _kill_in_a_row(self, times: int) -> None:
        """All workers, as soon as they have taken over from each other: nobody is to blame for that."""
        for _ in range(times):
            for worker in [one for one in self._house.workers if one.is_ready.is_set()]:
                self._house.kill(worker, "in a row")
                worker.is_ready.clear()
                self._history.kills["worker"] += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(BACK_WITHIN):
                    await asyncio.gather(*(one.is_ready.wait() for one in self._house.workers))
            await asyncio.sleep(self._random.uniform(0.3, 1.5))

    async def _terminate(self) -> None:
        began = time.time()
        try:
            cut = await self._db.value(TERMINATE)
        except PASSING:
            cut = None  # it has cut its own line too
        self._history.troubles.append((began, time.time()))
        self._history.log("terminated", connections=cut)

    async def _kill_postmaster(self) -> None:
        began = time.time()
        self._history.log("postmaster_killed")
        await self._house.postgres.kill()
        await asyncio.sleep(self._random.uniform(0, 1))
        await self._house.postgres.start()
        self._history.troubles.append((began, time.time()))
        self._history.log("postmaster_started", seconds=time.time() - began)

    async def _restart_nats(self) -> None:
        assert self._house.nats is not None
        self._history.log("nats_killed")
        await self._house.nats.kill()
        await asyncio.sleep(self._random.uniform(0, 3))
        await self._house.nats.start()
        self._history.log("nats_started")

    async def _fail_model(self, name: str) -> None:
        self._house.model.fault = FAULTS[name]
        self._history.log("model_fails", how=name)
        await asyncio.sleep(MODEL_FAILS_FOR)
        self._house.model.fault = None
        self._history.log("model_works")
