"""The worker of a process: it claims sessions, advances them, releases them, and takes over from dead workers."""

import asyncio
import os
import socket
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import asyncpg
import msgspec
import structlog

from longhouse import background, clock
from longhouse.errors import AlreadyReturned, CannotRun, Deposed, SetupError, UnknownShape
from longhouse.journal.session import Session
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.engine import Engine
from longhouse.runtime.recorder import Run
from longhouse.runtime.workers.backoff import FIRST, HOUSE, LONGEST_OF_HOUSE, Backoff
from longhouse.runtime.workers.dead_workers import POLL_EVERY, DeadWorkers
from longhouse.runtime.workers.heartbeat import RECONNECT_AFTER, Heartbeat
from longhouse.runtime.workers.reservation import Reservation
from longhouse.store import journals, leases, sessions
from longhouse.store.database import OF_HOUSE, PASSING, UNREACHABLE, Database
from longhouse.store.erasing import erasure
from longhouse.store.leases import Claimant, Lease
from longhouse.store.limits import places, usage

log = structlog.get_logger()

SWEEP_EVERY: Final = 0.5
DECLINED_FOR: Final = 30.0
"""Seconds for which the sessions of an agent that this process cannot run are left to others."""
FORGET_EVERY: Final = 600.0
"""Seconds between two deletions of idempotency records that are too old for a retry."""
ROLL_UP_EVERY: Final = 5.0
"""Seconds between two additions of what was used to the days."""
AHEAD: Final = 8
"""Sessions that are found beyond the free slots, for those that become free next: one statement finds several."""
QUIET_FOR: Final = 10.0
"""Seconds that running steps have at shutdown to reach their next record."""


class WorkerOptions(msgspec.Struct, frozen=True):
    slots: int = 32
    lease: float = 6.0
    per_key: int | None = None
    """Sessions that run at once for a key which has no such limit of its own; None: any number."""


class RunningSession(msgspec.Struct):
    """A session that this worker advances or is about to claim."""

    task: asyncio.Task[str]
    owner: str = ""
    """Empty until it is known."""
    lease: Lease | None = None
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Cancels the run once: it may take a while to clean up, and a second cancellation would interrupt that."""
        if not self.is_cancelled:
            self.is_cancelled = True
            self.task.cancel()


def _agent_of(session_id: str) -> str:
    return session_id.rpartition("_")[0]


def new_id() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


class Worker:
    def __init__(
        self,
        db: Database,
        bus: Bus,
        engine: Engine,
        options: WorkerOptions,
        keep_log: Callable[[Session], Awaitable[None]] | None = None,
    ) -> None:
        self.id = engine.worker
        self._db = db
        self._bus = bus
        self._engine = engine
        self._options = options
        self._keep_log = keep_log
        self._running: dict[str, RunningSession] = {}
        self._again: set[str] = set()
        self._line: deque[tuple[str, str]] = deque()
        """Sessions that were found in Postgres, with their owners: they get the next free slots."""
        self._is_behind = False
        """Due sessions may lack a slot: Postgres, and no hint, decides who is next."""
        self._is_missed = False
        """A hint came since Postgres was asked."""
        self._last_owner = ""
        self._has_room = asyncio.Event()
        self._finding = asyncio.Lock()
        self._backoff = Backoff(lambda: asyncio.get_running_loop().time())
        self._troubles = 0
        """How often the house was in trouble, and is not any more."""
        self._met: dict[str, int] = {}
        """Session -> which of them it met, and has not got on since. Who meets two has one of its own."""
        self._heartbeat = Heartbeat(db, self.id, lease=options.lease, slots=options.slots, on_late=self._drop_runs)
        self._others = DeadWorkers(db, self.id, self._heartbeat, engine.last_beats, lease=options.lease)
        self._background: set[asyncio.Task[str]] = set()
        self.declined: dict[str, str] = {}
        """Agents that this process cannot run, with the reason."""
        self._declined_until: dict[str, float] = {}
        self.schedules_due = asyncio.Event()
        """Set when the moment of a schedule has come: the sweep sees it at no cost of its own."""
        engine.recorder.on_written.append(self._end_pause)
        engine.tool_runner.is_alive = self.is_alive
        engine.tool_runner.background = self._in_background

    @property
    def busy(self) -> int:
        return len(self._running)

    def is_alive(self) -> bool:
        return self._heartbeat.is_fresh()

    def hint(self, session_id: str) -> bool:
        """This session may be able to move; False if others may have room for it sooner.

        A hint gets a free slot or is dropped: if hints were kept, one owner's ten thousand would delay all others.
        """
        if session_id in self._running:
            self._again.add(session_id)
            return True
        if not self._may_begin or self._backoff.rests(session_id) or self._declines(_agent_of(session_id)):
            return False
        if self._is_behind or not self._free:
            self._is_behind = self._is_missed = True
            self._fill()
            return False
        self._begin(session_id)
        return True

    def reserve(self, session_id: str) -> Reservation | None:
        """A free slot for a session that is about to be opened, on the same terms as a hint is worth one."""
        if not self._may_begin or self._is_behind or not self._free or self._declines(_agent_of(session_id)):
            return None
        reservation = Reservation(Claimant(self.id, self._options.per_key))
        self._begin(session_id, reservation=reservation)
        return reservation

    @property
    def _may_begin(self) -> bool:
        """A worker that leaves, or may be taken for dead, claims nothing: nobody would wait for that run. Nor does one
        that could write nothing."""
        return not self._engine.stopping and self.is_alive() and not self._backoff.rests(HOUSE)

    @property
    def _free(self) -> int:
        # Whoever waits for its trial does nothing: as many others may run meanwhile.
        waiting = min(self._engine.trials.waiting, self._options.slots)
        return max(0, self._options.slots + waiting - len(self._running))

    def leave(self) -> None:
        """Claims nothing more, and releases each session at its next step: others take them."""
        self._engine.leave()

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Runs the worker while the block runs; at its end the sessions are released for other workers."""
        async with (
            background.running("heartbeat", self._heartbeat.beat, every=RECONNECT_AFTER),
            background.running("heartbeat_watch", self._heartbeat.check_late),
        ):
            # Wait until this worker is registered: a lease holder that is not registered counts as dead.
            await self._heartbeat.begun.wait()
            self._bus.on_wake.append(self.hint)
            self._bus.on_open.append(self.reserve)
            self._bus.on_stop.append(self._stop)
            try:
                async with (
                    background.running("worker_dispatch", self._dispatch),
                    background.running("worker_sweep", self._sweep, every=SWEEP_EVERY),
                    background.running("worker_watch", self._watch),
                    background.running("worker_forget", self._forget, every=FORGET_EVERY, after=0.5),
                    background.running(
                        "usage_roll_up", partial(usage.roll_up, self._db), every=ROLL_UP_EVERY, after=ROLL_UP_EVERY
                    ),
                ):
                    try:
                        yield
                    finally:
                        self._bus.on_wake.remove(self.hint)
                        self._bus.on_open.remove(self.reserve)
                        self.leave()  # before the tasks above are awaited: no run begins another step
            finally:
                await self._shut_down()
        # If this write fails, other workers remove us like a dead worker: we hold no session any more.
        await background.guarded("worker_retire", leases.retire(self._db, self.id))

    async def _shut_down(self) -> None:
        """Drains: running steps have some time to reach their next record, so that a paid model reply is not lost."""
        running = [hold.task for hold in self._running.values()]
        if running:
            log.info(
                "shutdown_draining",
                message="waiting for running steps before the sessions are released",
                sessions=len(running),
            )
            await asyncio.wait(running, timeout=QUIET_FOR)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        # Runs that just ended may still be reporting an effect in the background: they have the same time.
        if self._background:
            await asyncio.wait(self._background, timeout=QUIET_FOR)

    # Liveness

    def _drop_runs(self) -> None:
        """No heartbeat for half a lease: others may soon take our sessions, so all runs stop before that."""
        running = [hold for hold in self._running.values() if not hold.is_cancelled]
        if running:
            log.warning("heartbeat_late", message="no heartbeat for half a lease: all runs stop", sessions=len(running))
            for hold in running:
                hold.cancel()

    async def _watch(self) -> None:
        """Takes over from workers that are dead."""
        await asyncio.sleep(POLL_EVERY)
        if await self._others.remove():
            await self._find_runnable()

    # Finding work

    async def _sweep(self) -> None:
        """Finds every runnable session in Postgres, even if hints were lost, and sessions whose lease we have lost."""
        swept = await leases.fire(self._db)
        if swept.is_scheduled:
            self.schedules_due.set()
        if swept.is_awaited:
            self._wake(await self._let_in(await places.with_room(self._db, per_key=self._options.per_key)))
        await self._find_runnable()
        await self._stop_deposed()
        self._engine.pool.retire_idle(clock.now())
        self._engine.resident.drop_idle()

    async def _forget(self) -> None:
        # Sessions that others have taken since do not come back to say that they got on.
        self._met.clear()
        await sessions.forget_requests(self._db)
        await places.forget(self._db)
        await erasure.sweep(self._db)
        await self._engine.catalog.forget_uses()
        await self._engine.tool_runner.forget_settled()

    async def _find_runnable(self) -> None:
        """Asks Postgres who is next, in fair order between owners, unless all slots are taken."""
        async with self._finding:
            if not self._free or not self.is_alive() or self._backoff.rests(HOUSE):
                self._is_behind = True
                return
            self._is_missed = False
            limit = self._free + min(AHEAD, self._options.slots)
            found = await leases.runnable(
                self._db,
                self.id,
                limit,
                running=[*self._running, *self._backoff.resting()],
                running_owners=[one.owner for one in self._running.values() if one.owner],
                after=self._last_owner,
                declined=list(filter(self._declines, self.declined)),
            )
            self._line = deque(found)
            self._is_behind = len(found) == limit or self._is_missed
        self._fill()

    def _fill(self) -> None:
        """Gives free slots to those who are next."""
        if self._engine.stopping:
            self._line.clear()
        while self._free and self._line:
            session_id, owner = self._line.popleft()
            if session_id not in self._running:
                self._last_owner = owner
                self._begin(session_id, owner)
        if self._free and self._is_behind and self.is_alive():
            self._has_room.set()

    async def _let_in(self, held: Sequence[str]) -> list[str]:
        return await places.let_in(self._db, held, per_key=self._options.per_key) if held else []

    def _wake(self, session_ids: Sequence[str]) -> None:
        """Sessions got the place that they had waited for: here or elsewhere they are run."""
        for session_id in session_ids:
            self._bus.wake(session_id)

    async def _stop_deposed(self) -> None:
        held = {session_id: hold.lease for session_id, hold in self._running.items() if hold.lease}
        if not held:
            return
        fences = await leases.fences(self._db, list(held))
        for session_id, lease in held.items():
            hold = self._running.get(session_id)
            # During the query the session may have rested and been claimed again. A session without a row was deleted.
            if hold and hold.lease is lease and lease.fence != fences.get(session_id):
                hold.cancel()

    def _stop(self, session_id: str, fence: int) -> None:
        hold = self._running.get(session_id)
        if hold and hold.lease and hold.lease.fence < fence:
            hold.cancel()

    # Doing it

    async def _dispatch(self) -> None:
        await self._has_room.wait()
        self._has_room.clear()
        await self._find_runnable()

    def _begin(self, session_id: str, owner: str = "", reservation: Reservation | None = None) -> None:
        serving = background.guarded("session_run", self._serve(session_id, reservation))
        self._running[session_id] = RunningSession(task=asyncio.create_task(serving), owner=owner)

    async def _serve(self, session_id: str, reservation: Reservation | None) -> None:
        try:
            lease = await (reservation.lease() if reservation else self._claim(session_id))
            if lease is not None:
                await self._run(lease)
        except UNREACHABLE as error:
            log.warning(
                "database_unreachable",
                message="Postgres cannot be reached",
                session=session_id,
                error=str(error) or type(error).__name__,
            )
        except asyncpg.PostgresError as error:
            self._put_off(session_id, error)
        finally:
            del self._running[session_id]
            if session_id in self._again:
                self._again.discard(session_id)
                self.hint(session_id)
            self._fill()

    async def _claim(self, session_id: str) -> Lease | None:
        if not self._may_begin:
            return None  # the sweep finds it again, here or elsewhere
        claim = await leases.claim(self._db, session_id, self.id, per_key=self._options.per_key)
        self._wake(claim.woken)
        return claim.lease

    async def _run(self, lease: Lease) -> None:
        hold = self._running[lease.session_id]
        hold.lease, hold.owner = lease, lease.owner
        try:
            session = await self._advance(lease)
            if session and self._keep_log:
                await self._keep_log(session)
        finally:
            self._wake(await self._let_in(lease.limits))

    async def _advance(self, lease: Lease) -> Session | None:
        """The session after the run; None if the lease was lost or the run failed."""
        try:
            session = await self._engine.advance(lease)
            log.debug(
                "session_rested", message="the session has nothing to do now", session=session.id, state=session.state
            )
            self._backoff.over(session.id)
            self._met.pop(session.id, None)
            self.declined.pop(session.agent, None)
            return session
        except Deposed as deposed:
            log.info(
                "lease_lost",
                message="another worker took over the session",
                session=lease.session_id,
                reason=str(deposed),
            )
        except CannotRun as error:
            self._decline(_agent_of(lease.session_id), str(error))
            await leases.let_go(self._db, lease)
        except asyncio.CancelledError:
            await self._break_off(lease)
        except UnknownShape as error:
            message = "this process cannot read the journal; it leaves the session to others"
            log.error("journal_unreadable", message=message, session=lease.session_id, error=str(error))
            self._backoff.leave_alone(lease.session_id)
            await leases.break_off(self._db, lease)
        except UNREACHABLE:
            raise
        except Exception as error:
            # An error of Postgres is not the turn's fault, and is retried within the limit.
            lasted = self._backoff.troubled_for(lease.session_id)
            if isinstance(error, PASSING) and lasted < self._engine.retry_limits.unattended:
                await self._break_off_for_now(lease, error)
                return None
            if isinstance(error, SetupError):
                message = "the turn needs something that is not configured here"
                log.warning("turn_setup_missing", message=message, session=lease.session_id, error=str(error))
            else:
                log.exception("turn_failed", message="a defect ended the turn", session=lease.session_id)
            return await self._fail(lease, error)
        return None

    def _decline(self, agent: str, reason: str) -> None:
        """Leaves the agent's sessions to other processes for a while."""
        if self.declined.get(agent) != reason:
            message = "this process lacks a package of the agent, and leaves its sessions to others"
            log.warning("agent_declined", message=message, agent=agent, reason=reason)
        self.declined[agent] = reason
        self._declined_until[agent] = asyncio.get_running_loop().time() + DECLINED_FOR

    def _declines(self, agent: str) -> bool:
        return asyncio.get_running_loop().time() < self._declined_until.get(agent, 0.0)

    async def _break_off_for_now(self, lease: Lease, error: Exception) -> None:
        self._put_off(lease.session_id, error)
        # If this write fails too, the lease stays ours, and the session is found like any lost run.
        with suppress(asyncpg.PostgresError):
            await self._break_off(lease)

    async def _break_off(self, lease: Lease) -> None:
        """Releases the lease as a lost run, under the previous lost worker's name if the journal lacks it."""
        if lease.previous and not self._engine.knows_all_holders(lease):
            await leases.put_back(self._db, lease)
        else:
            await leases.break_off(self._db, lease)

    def _put_off(self, session_id: str, error: Exception) -> None:
        if isinstance(error, OF_HOUSE) and self._met.setdefault(session_id, self._troubles) == self._troubles:
            self._pause_all(error)
            return
        pause = self._backoff.put_off(session_id)
        message, what = "the session is retried after a back-off", str(error) or type(error).__name__
        log.warning("session_retry", message=message, session=session_id, seconds=pause, error=what)

    def _pause_all(self, error: Exception) -> None:
        """Nobody is to blame, and whoever tried now would meet the same."""
        if self._backoff.rests(HOUSE):
            return
        pause = self._backoff.put_off(HOUSE, LONGEST_OF_HOUSE)
        asyncio.get_running_loop().call_later(pause, self._has_room.set)
        if pause == FIRST:
            log.warning("database_trouble", task="session_run", error=str(error) or type(error).__name__)

    def _end_pause(self) -> None:
        """Something was written: all go on."""
        if seconds := self._backoff.troubled_for(HOUSE):
            log.info("database_reachable", task="session_run", seconds=round(seconds, 1))
            self._backoff.over(HOUSE)
            self._troubles += 1
            self._has_room.set()

    async def _fail(self, lease: Lease, error: Exception) -> Session | None:
        """Records the end of the turn in the journal; if even that fails, the session is put off with a back-off."""
        is_public = isinstance(error, SetupError)  # what is missing is no secret, and the message says what to do
        reason = str(error) if is_public else f"an internal error: {type(error).__name__}"
        code = "not_set_up" if is_public else "internal_error"
        try:
            session = await journals.load(self._db, lease.session_id)
            run = Run(lease, session)
            await self._engine.give_up(run, reason, code)
        except (Deposed, AlreadyReturned):
            return None
        except UNREACHABLE:
            raise
        except Exception as trouble:
            log.exception(
                "session_advance_failed", message="the failure cannot be recorded either", session=lease.session_id
            )
            await self._break_off_for_now(lease, trouble)
            return None
        if not run.rested:
            await leases.let_go(self._db, lease)
        return run.session

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(background.guarded("effect_report", work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
