"""Runs the configured projections (Redis mirror, session logs) while the server runs."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from longhouse.integrations.mirror import Mirror
from longhouse.integrations.redis.client import TROUBLE, open_redis
from longhouse.integrations.session_log_lines import Language
from longhouse.integrations.session_log_projection import SessionLog
from longhouse.store.database import Database


@asynccontextmanager
async def running(
    db: Database,
    on_news: Callable[[Callable[[str], None]], None],
    *,
    redis_url: str | None,
    log_dir: Path | None,
    language: Language,
) -> AsyncIterator[Mirror | None]:
    """Starts the Redis mirror and the session logs; `on_news` registers a callback for new events."""
    async with AsyncExitStack() as stack:
        mirror = None
        if redis_url:
            client = await stack.enter_async_context(open_redis(redis_url))
            mirror = await stack.enter_async_context(Mirror(db, client).running())
            on_news(mirror.nudge)
        if log_dir:
            log = SessionLog(db, log_dir, language=language, confirmed=mirror.confirmed if mirror else None)
            on_news((await stack.enter_async_context(log.running())).nudge)
        yield mirror


async def remove_erased(db: Database, *, redis_url: str | None, log_dir: Path | None) -> str:
    """Removes what Redis and the session logs have of erased sessions, once; why it could not, or nothing."""
    if log_dir:
        await SessionLog(db, log_dir).remove_erased()
    if not redis_url:
        return ""
    try:
        async with open_redis(redis_url) as client:
            await Mirror(db, client).remove_erased()
    except TROUBLE as error:
        return f"Redis cannot be reached ({str(error) or type(error).__name__}); a server removes its keys once it is."
    return ""
