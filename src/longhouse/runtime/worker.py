"""A process's part in the work: it claims sessions, advances them, lets them go, and takes over from the dead."""

import asyncio
import os
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import asyncpg
import structlog

from longhouse import clock
from longhouse.errors import AlreadyReturned, Deposed, SetupError, UnknownShape
from longhouse.journal.session import Session, State
from longhouse.runtime.bus import Bus, Look, Stir
from longhouse.runtime.engine import Engine
from longhouse.runtime.recorder import Run
from longhouse.store import journals, leases, views
from longhouse.store.database import UNREACHABLE, Database
from longhouse.store.leases import Lease, Suspect

log = structlog.get_logger()

BEAT_EVERY: Final = 1.0
SWEEP_EVERY: Final = 0.5
FORGET_EVERY: Final = 600.0
"""Seconds between two clearings of requests that are too old to be repeated."""
LOOK_EVERY: Final = 0.25
"""Between two looks at the locks of other workers: who is missing at both, and has not beaten in between, is dead."""
QUIET_FOR: Final = 10.0
"""Seconds that running steps get to reach their next record at shutdown."""


@dataclass(frozen=True, slots=True)
class Terms:
    slots: int = 32
    lease: float = 6.0


@dataclass(slots=True)
class Hold:
    """A session that we are advancing, or about to claim."""

    task: asyncio.Task[None]
    lease: Lease | None = None


def new_id() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


@asynccontextmanager
async def _group() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group out of which a single error comes as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as several:
        if len(several.exceptions) == 1:
            raise several.exceptions[0] from None
        raise


async def _set_within(seconds: float, event: asyncio.Event) -> None:
    """Waits for the event, but not for longer than that."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class Worker:
    def __init__(
        self,
        db: Database,
        bus: Bus,
        engine: Engine,
        terms: Terms,
        keep_log: Callable[[Session], Awaitable[None]] | None = None,
    ) -> None:
        self.id = engine.worker
        self._db = db
        self._bus = bus
        self._engine = engine
        self._terms = terms
        self._keep_log = keep_log
        self._running: dict[str, Hold] = {}
        self._hinted: asyncio.Queue[str] = asyncio.Queue()
        self._pending: set[str] = set()
        self._again: set[str] = set()
        self._unreadable: set[str] = set()
        self._slots = asyncio.Semaphore(terms.slots)
        self._last_beat = 0.0
        self._beating = asyncio.Event()
        self._suspected: dict[str, Suspect] = {}
        self._background: set[asyncio.Task[None]] = set()
        engine.performer.is_alive = self.is_alive
        engine.performer.background = self._in_background
        bus.on_wake(self.hint)
        bus.on_stop(self._stop)

    @property
    def busy(self) -> int:
        return len(self._running)

    def is_alive(self) -> bool:
        """Have we beaten within half a lease? If not, others may be about to take our sessions."""
        return asyncio.get_running_loop().time() - self._last_beat < self._terms.lease / 2

    def hint(self, session_id: str) -> None:
        """This session may be able to move."""
        if session_id in self._running:
            self._again.add(session_id)
        elif session_id not in self._pending and session_id not in self._unreadable:
            self._pending.add(session_id)
            self._hinted.put_nowait(session_id)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Works while the block runs; at its end the sessions are let go, to be taken up elsewhere."""
        async with _group() as group:
            beating = group.create_task(self._beat())
            # Only then are we on the roster: a holder that is not on it counts as gone.
            await self._beating.wait()
            finding = [group.create_task(self._keep(loop)) for loop in self._loops()]
            try:
                yield
            finally:
                for task in finding:
                    task.cancel()
                await self._shut_down()
                beating.cancel()
        await leases.retire(self._db, self.id)

    def _loops(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        return self._dispatch, self._sweep, self._watch, self._forget

    async def _shut_down(self) -> None:
        """Running steps get a while to reach their next record; a reply that is being paid for is worth it."""
        self._engine.stopping = True
        running = [hold.task for hold in self._running.values()]
        if running:
            log.info("letting go", sessions=len(running))
            await asyncio.wait(running, timeout=QUIET_FOR)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        # Runs that were just ended may have left the report of an effect behind: it gets the same while.
        if self._background:
            await asyncio.wait(self._background, timeout=QUIET_FOR)

    async def _keep(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Runs a loop for ever, over any absence of Postgres."""
        while True:
            try:
                await loop()
            except UNREACHABLE as error:
                log.warning("Postgres is away", error=str(error))
                await asyncio.sleep(1)

    # Liveness

    async def _beat(self) -> None:
        """Holds our lock and beats on a connection of its own; reconnects under the same id."""
        while True:
            try:
                async with self._db.connection() as connection:
                    lost = asyncio.Event()
                    connection.add_termination_listener(lambda _, lost=lost: lost.set())
                    await self._enlist(connection)
                    while await leases.beat(connection, self.id):
                        self._last_beat = asyncio.get_running_loop().time()
                        self._beating.set()
                        # A lost connection is noticed at once: our lock is free, and others look for it.
                        await _set_within(BEAT_EVERY, lost)
                        self._drop_runs_if_late()
            except (*UNREACHABLE, asyncpg.PostgresError) as error:
                log.info("the heartbeat lost its connection", error=str(error))
            self._drop_runs_if_late()
            await asyncio.sleep(0.1)

    async def _enlist(self, connection: asyncpg.Connection) -> None:
        await leases.enlist(connection, self.id, node=socket.gethostname(), pid=os.getpid(), slots=self._terms.slots)

    def _drop_runs_if_late(self) -> None:
        """Without a beat for half a lease, others may be about to take our sessions: we stop before they start."""
        if self._running and not self.is_alive():
            log.warning("no heartbeat for half a lease: stopping all runs", sessions=len(self._running))
            for hold in self._running.values():
                hold.task.cancel()

    async def _watch(self) -> None:
        """Buries workers that are dead: unlocked at two looks and silent in between, or silent for a whole lease."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            suspects = await leases.suspects(self._db, self.id, self._terms.lease)
            dead = [suspect for suspect in suspects if self._is_dead(suspect)]
            self._suspected = {suspect.worker: suspect for suspect in suspects if suspect.unlocked}
            for suspect in dead:
                log.warning("a worker is gone", worker=suspect.worker)
                await leases.bury(self._db, suspect)
            if dead:
                await self._find_runnable()

    def _is_dead(self, suspect: Suspect) -> bool:
        if suspect.silent:
            return True
        before = self._suspected.get(suspect.worker)
        return bool(before and suspect.unlocked and not suspect.restarted and before.beat_at == suspect.beat_at)

    # Finding work

    async def _sweep(self) -> None:
        """Finds every runnable session in Postgres, whatever became of the hints; and those that are ours no more."""
        while True:
            await leases.fire(self._db)
            await self._find_runnable()
            await self._stop_deposed()
            await self._tell_followers()
            self._engine.pool.retire_idle(clock.now())
            await asyncio.sleep(SWEEP_EVERY)

    async def _forget(self) -> None:
        while True:
            await views.forget_requests(self._db)
            await self._engine.catalog.forget_uses()
            await asyncio.sleep(FORGET_EVERY)

    async def _find_runnable(self) -> None:
        for session_id in await leases.runnable(self._db, self.id, 4 * self._terms.slots, running=list(self._running)):
            self.hint(session_id)

    async def _stop_deposed(self) -> None:
        held = {session_id: hold.lease.fence for session_id, hold in self._running.items() if hold.lease}
        if not held:
            return
        for session_id, fence in (await leases.fences(self._db, list(held))).items():
            if fence != held[session_id]:
                self._stop(session_id)

    async def _tell_followers(self) -> None:
        """Every follower looks at Postgres at least once a second: a hint may have been lost."""
        followed = self._bus.followed
        for session_id, (head, state) in (await leases.heads(self._db, followed)).items() if followed else ():
            self._bus.publish(session_id, Look(head))
            if state == State.WAITING_FOR_AGENT:
                self._bus.publish(session_id, Stir())

    def _stop(self, session_id: str) -> None:
        if session_id in self._running:
            self._running[session_id].task.cancel()

    # Doing it

    async def _dispatch(self) -> None:
        while True:
            session_id = await self._hinted.get()
            await self._slots.acquire()
            self._pending.discard(session_id)
            self._running[session_id] = Hold(task=asyncio.create_task(self._serve(session_id)))

    async def _serve(self, session_id: str) -> None:
        try:
            if not self.is_alive():
                return  # the sweep finds it again, here or elsewhere
            lease = await leases.claim(self._db, session_id, self.id)
            if lease is not None:
                self._running[session_id].lease = lease
                session = await self._advance(lease)
                if session and self._keep_log:
                    await self._keep_log(session)
        except UNREACHABLE as error:
            log.warning("Postgres is away", session=session_id, error=str(error))
        finally:
            self._served(session_id)

    async def _advance(self, lease: Lease) -> Session | None:
        """The session as we left it; None where it was taken from us."""
        try:
            session = await self._engine.advance(lease)
            log.debug("session rested", session=session.id, state=session.state)
            return session
        except Deposed as deposed:
            log.info("deposed", session=lease.session_id, reason=str(deposed))
        except asyncio.CancelledError:
            await leases.break_off(self._db, lease)
        except UnknownShape as error:
            log.error("a journal cannot be read here", session=lease.session_id, error=str(error))
            self._unreadable.add(lease.session_id)
            await leases.break_off(self._db, lease)
        except UNREACHABLE:
            raise
        except Exception as error:
            log.exception("a defect ended a turn", session=lease.session_id)
            return await self._fail(lease, error)
        return None

    def _served(self, session_id: str) -> None:
        del self._running[session_id]
        self._slots.release()
        if session_id in self._again:
            self._again.discard(session_id)
            self.hint(session_id)

    async def _fail(self, lease: Lease, error: Exception) -> Session | None:
        """Says in the journal that the turn ended; a session that cannot even be told so is left alone."""
        is_told = isinstance(error, SetupError)  # what is missing here is no secret, and its words say what to do
        reason = str(error) if is_told else f"an internal error: {type(error).__name__}"
        try:
            session = await journals.load(self._db, lease.session_id)
            run = Run(lease=lease, session=session, loaded=session.head)
            await self._engine.give_up(run, reason, "internal_error")
        except (Deposed, AlreadyReturned):
            return None
        except UNREACHABLE:
            raise
        except Exception:
            log.exception("a session cannot be advanced here", session=lease.session_id)
            self._unreadable.add(lease.session_id)
            await leases.break_off(self._db, lease)
            return None
        if not run.rested:
            await leases.let_go(self._db, lease)
        return run.session

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
