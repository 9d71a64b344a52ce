"""Opens what all other parts stand on: Postgres, the bus and its connection to other processes, traces."""

import asyncio
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import msgspec
import structlog

from longhouse import background
from longhouse.activity import ActivityCounts
from longhouse.app.store import open_store
from longhouse.config.effective import Configured
from longhouse.integrations.otlp import TraceProjector, open_collector
from longhouse.journal.session import Session, State
from longhouse.runtime.bus.doorbell import Doorbell
from longhouse.runtime.bus.items import Gone, JournalGrew, SubagentsChanged
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.workers.resident_sessions import ResidentSessions
from longhouse.runtime.workers.worker import new_id
from longhouse.settings import Settings
from longhouse.store import leases
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.postgres import Postgres
from longhouse.store.postgres.embedded import Embedded
from longhouse.tracing import Tracing

log = structlog.get_logger()

LOOK_EVERY: Final = 0.5
"""Seconds between two looks of followers at Postgres: a hint may have been lost."""


class Core(msgspec.Struct, frozen=True):
    setup: Configured
    name: str
    """Of this process, among the workers."""
    works: bool
    """False: sessions are left to the workers of other processes."""
    db: Database
    postgres: Postgres | None
    """None with an external Postgres."""
    bus: Bus
    catalog: Catalog
    activity: ActivityCounts
    traces: TraceProjector | None
    """None: no collector is set."""
    resident: ResidentSessions

    @property
    def settings(self) -> Settings:
        return self.setup.settings


@asynccontextmanager
async def open_core(setup: Configured, *, works: bool, embedded: Embedded | None = None) -> AsyncIterator[Core]:
    settings, bus, name = setup.settings, Bus(), new_id()
    activity, resident = ActivityCounts(settings.metrics_owners), ResidentSessions()
    bus.on_stop.append(resident.drop)
    bus.on_turn_end.append(partial(record_end, activity))
    async with (
        open_store(settings, embedded=embedded) as (db, running),
        open_traces(settings, db, bus) as traces,
        open_relay(settings, db, bus, name, works=works),
    ):
        yield Core(
            setup=setup,
            name=name,
            works=works,
            db=db,
            postgres=running,
            bus=bus,
            catalog=Catalog(db, model=settings.llm_model),
            activity=activity,
            traces=traces,
            resident=resident,
        )


@asynccontextmanager
async def open_relay(settings: Settings, db: Database, bus: Bus, name: str, *, works: bool) -> AsyncIterator[None]:
    """Connects the bus to those of other processes: through NATS, or else through Postgres."""
    async with background.running("followers", partial(look_for_followers, db, bus), every=LOOK_EVERY):
        if settings.nats_url is None:
            doorbell = bus.relay = Doorbell(db, bus, name)
            async with doorbell.connected():
                yield
            return
        # Only those who use NATS pay for the import of its client.
        module = await asyncio.to_thread(importlib.import_module, "longhouse.runtime.bus.nats")
        relay = bus.relay = module.NatsRelay(db, bus, name, await leases.house(db), works=works)
        async with relay.connected(settings.nats_url.get_secret_value().split(",")):
            yield


@asynccontextmanager
async def open_traces(settings: Settings, db: Database, bus: Bus) -> AsyncIterator[TraceProjector | None]:
    """Sends the traces of turns to a collector, where one is set."""
    if not settings.otlp_endpoint:
        yield None
        return
    tracing, headers = Tracing(settings.trace_share), settings.otlp_headers.get_secret_value()
    async with (
        open_collector(settings.otlp_endpoint, headers) as collector,
        TraceProjector(db, collector, tracing, service=settings.service_name).running() as traces,
    ):
        bus.on_append.append(traces.nudge)
        yield traces


def record_end(activity: ActivityCounts, session: Session) -> None:
    """Counts and logs the turn of this session that has just ended."""
    turn = session.turn
    if turn is None:
        return
    seconds = max(0.0, ((session.updated_at or turn.started_at) - turn.started_at).total_seconds())
    activity.turn_ended(session.agent, session.owner, turn.ended, seconds)
    log.info(
        "turn_finished",
        session=session.id,
        owner=session.owner,
        agent=session.agent,
        state=turn.ended,
        steps=turn.iteration,
        # Its own: sub-agents have records of theirs.
        tokens=max(0, turn.usage.total_tokens - turn.subagents.tokens),
        seconds=round(seconds, 3),
        **({"code": turn.code} if turn.code else {}),
    )


async def look_for_followers(db: Database, bus: Bus) -> None:
    """Tells the followers in this process how far their sessions have come."""
    followed = bus.followed
    heads = await leases.heads(db, followed) if followed else {}
    for session_id in followed:
        if session_id not in heads:
            bus.deliver(session_id, Gone())
            continue
        head, state = heads[session_id]
        bus.deliver(session_id, JournalGrew(head))
        if state == State.WAITING_FOR_AGENT:
            bus.deliver(session_id, SubagentsChanged())
