"""What webhooks are told, found in journals that are written by hand."""

from datetime import timedelta

from longhouse.integrations.webhooks.occurrences import Occurrence, occurrences
from longhouse.journal import events
from longhouse.journal.events import Recorded
from longhouse.journal.fold import blank
from server_helpers import BEGAN, started


def told(later: timedelta) -> list[Occurrence]:
    """What a turn tells that failed so much later."""
    written: list[events.Event] = [
        events.Opened(agent="clerk", version=1, owner="ann", conversation="c"),
        events.Prompted(trace="a" * 32, content=("早上好",)),
        started(2, trace="a" * 32),
        events.Failed(reason="Не вышло", code="failed"),
    ]
    records = [Recorded(seq=nth, at=BEGAN + timedelta(seconds=nth), event=one) for nth, one in enumerate(written, 1)]
    records[-1] = Recorded(seq=4, at=BEGAN + later, event=written[-1])
    return occurrences(blank("clerk_1"), records)[0]


def test_a_house_from_a_backup_tells_other_events_in_the_same_places_under_other_ids() -> None:
    """A receiver that knows the ids of what it was told before the restore must not take them for the same."""
    before, after = told(timedelta(seconds=4)), told(timedelta(hours=1))
    assert [one.type for one in before] == [one.type for one in after] == ["turn.failed", "session.rested"]
    assert not {one.key for one in before} & {one.key for one in after}
    assert before == told(timedelta(seconds=4)), "found twice, it is the same"
