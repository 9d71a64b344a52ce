"""What operators see of each turn that ends: one record in the log, and the numbers of /metrics."""

import structlog

from longhouse.activity import ActivityCounts
from longhouse.journal.session import Session

log = structlog.get_logger()


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
