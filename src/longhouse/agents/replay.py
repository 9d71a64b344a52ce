"""Replay: reconstructs from the journal which tools the model was offered at a step."""

from longhouse.journal.events import Replied
from longhouse.journal.session import Session


def offered_at(session: Session, replied: Replied) -> list[str]:
    """The tools (name@version) offered in the request that `replied` answers, in order."""
    return [ref for ref in session.offered if ref not in replied.withdrawn] + list(replied.offered)
