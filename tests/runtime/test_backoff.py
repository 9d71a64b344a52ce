"""When a session that failed may be tried again."""

from longhouse.runtime.workers.backoff import FIRST, FORGOTTEN, LONGEST, Backoff


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_each_pause_is_twice_the_one_before_up_to_a_limit() -> None:
    clock = Clock()
    pauses = Backoff(clock)
    lengths = []
    for _ in range(10):
        lengths.append(pauses.put_off("s"))
        clock.now += lengths[-1]
    assert lengths[:3] == [FIRST, 2 * FIRST, 4 * FIRST]
    assert lengths[-1] == LONGEST
    assert pauses.troubled_for("s") == sum(lengths)


def test_a_session_rests_until_its_pause_is_over() -> None:
    clock = Clock()
    pauses = Backoff(clock)
    assert not pauses.rests("s")
    pauses.put_off("s")
    assert pauses.rests("s")
    assert pauses.resting() == ["s"]
    clock.now += FIRST
    assert not pauses.rests("s")
    assert pauses.resting() == []


def test_a_session_that_has_moved_begins_anew() -> None:
    clock = Clock()
    pauses = Backoff(clock)
    pauses.put_off("s")
    clock.now += FIRST
    pauses.over("s")
    pauses.over("unknown")
    assert pauses.troubled_for("s") == 0
    assert pauses.put_off("s") == FIRST


def test_what_cannot_be_read_here_is_left_alone_for_good_and_what_others_took_is_forgotten() -> None:
    clock = Clock()
    pauses = Backoff(clock)
    pauses.leave_alone("unreadable")
    pauses.put_off("taken")
    clock.now += FIRST + FORGOTTEN
    assert pauses.resting() == ["unreadable"]
    assert pauses.troubled_for("taken") == 0
    clock.now += 1e9
    assert pauses.rests("unreadable")
