"""What a journal tells of takeovers."""

from collections.abc import Sequence

from longhouse.journal import events
from longhouse.journal.session import Open


def lost_in(records: Sequence[events.Recorded], call: Open) -> str:
    """The lost worker that had this call to run; empty if none was lost."""
    lost = ""
    for record in records:
        event = record.event
        if isinstance(event, events.Decided) and event.call == call.call:
            # A probe that cannot tell changes nothing.
            lost = lost if event.decision == "unknown" and event.by.startswith(events.BY_PROBE) else ""
        elif isinstance(event, events.Resumed) and call.call not in event.unbegun:
            lost = lost or event.previous
    return lost
