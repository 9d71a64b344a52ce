"""A request composed again: what the model saw at a step, from what the journal says."""

from longhouse.journal.events import Replied
from longhouse.journal.session import Session


def offered_at(session: Session, replied: Replied) -> list[str]:
    """The tools (name@version) that were offered in the request which `replied` answers, in their order."""
    return [ref for ref in session.offered if ref not in replied.withdrawn] + list(replied.offered)
