"""Runs the configured projections (Redis mirror, session logs) while the server runs."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from longhouse.integrations.redis.client import open_redis
from longhouse.integrations.redis.mirror import Mirror
from longhouse.integrations.session_log_lines import Language
from longhouse.integrations.session_log_projection import SessionLog, subagents_in
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database

Nudge = Callable[[str], None]


@asynccontextmanager
async def running(
    db: Database,
    on_news: Callable[[Nudge], None],
    *,
    redis_url: str | None,
    log_dir: Path | None,
    language: Language,
) -> AsyncIterator[Mirror | None]:
    """Starts the Redis mirror and the session logs; `on_news` registers a callback for new events."""
    catalog = Catalog(db)
    async with AsyncExitStack() as stack:
        mirror = None
        if redis_url:
            client = await stack.enter_async_context(open_redis(redis_url))
            mirror = await stack.enter_async_context(Mirror(db, client, catalog=catalog).running())
            on_news(mirror.nudge)
        if log_dir:
            logs = partial(SessionLog, db, log_dir, language=language, subagents=subagents_in(catalog))
            log = logs(confirmed=mirror.confirmed) if mirror else logs()
            on_news((await stack.enter_async_context(log.running())).nudge)
        yield mirror
