"""The pool of warm templates and the life of an instance."""

import asyncio
from datetime import timedelta

import pytest

from longhouse import clock
from longhouse.agents.strategies.tool_calling import ToolCallingAgent
from longhouse.agents.template import Template, ToolPolicy
from longhouse.models.scripted import ScriptedModel
from longhouse.runtime.workers.instances import IDLE_FOR, MOVES, Instance, InstancePool, InstanceStatus

TEMPLATE = Template(name="a", tool_policy=ToolPolicy(allowlist=("finalanswertool", "clocktool")))
NEWER = Template(name="a", tool_policy=ToolPolicy(allowlist=()), version=2)
LEGAL = {
    (InstanceStatus.IDLE, InstanceStatus.BUSY),
    (InstanceStatus.IDLE, InstanceStatus.STOPPED),
    (InstanceStatus.BUSY, InstanceStatus.RESETTING),
    (InstanceStatus.BUSY, InstanceStatus.ERROR),
    (InstanceStatus.ERROR, InstanceStatus.RESETTING),
    (InstanceStatus.RESETTING, InstanceStatus.IDLE),
}


def pool() -> InstancePool:
    async def model_for(template: Template) -> ScriptedModel:
        return ScriptedModel()

    return InstancePool(model_for)


def instance(status: InstanceStatus = InstanceStatus.IDLE) -> Instance:
    return Instance("i", TEMPLATE, ToolCallingAgent(), ScriptedModel(), status=status)


def statuses(pool: InstancePool) -> list[InstanceStatus]:
    return [one.status for one in pool.instances]


@pytest.mark.parametrize("end", InstanceStatus)
@pytest.mark.parametrize("start", InstanceStatus)
def test_every_move_is_legal_or_refused(start: InstanceStatus, end: InstanceStatus) -> None:
    one = instance(start)
    if (start, end) in LEGAL:
        one.move(end)
        assert one.status is end
    else:
        with pytest.raises(ValueError, match=f"cannot go from {start} to {end}"):
            one.move(end)
        assert one.status is start


def test_the_table_of_moves_names_every_status() -> None:
    assert set(MOVES) == set(InstanceStatus)
    assert {(start, end) for start, ends in MOVES.items() for end in ends} == LEGAL


def test_a_served_session_leaves_the_instance_clean() -> None:
    one = instance()
    one.acquire("s")
    assert (one.status, one.session_id) == (InstanceStatus.BUSY, "s")
    one.release()
    assert (one.status, one.session_id, one.served) == (InstanceStatus.IDLE, None, 1)


def test_an_instance_recovers_after_an_exception() -> None:
    one = instance()
    one.acquire("s")
    one.release(failed=True)
    assert (one.status, one.session_id, one.served) == (InstanceStatus.IDLE, None, 1)


@pytest.mark.parametrize("failed", [False, True])
def test_an_idle_instance_has_nothing_to_leave(failed: bool) -> None:
    one = instance()
    with pytest.raises(ValueError, match="cannot go"):
        one.release(failed=failed)


def test_a_busy_instance_serves_nobody_else_and_a_stopped_one_nobody() -> None:
    one = instance()
    one.acquire("s")
    with pytest.raises(ValueError, match="BUSY to BUSY"):
        one.acquire("t")
    with pytest.raises(ValueError, match="BUSY to STOPPED"):
        one.move(InstanceStatus.STOPPED)
    one.release()
    one.move(InstanceStatus.STOPPED)
    with pytest.raises(ValueError, match="STOPPED to BUSY"):
        one.acquire("t")


async def test_an_instance_is_built_with_its_strategy() -> None:
    async with pool().acquired(TEMPLATE, "s") as one:
        assert one.id.startswith("a-")
        assert isinstance(one.strategy, ToolCallingAgent)


async def test_an_idle_instance_is_used_again() -> None:
    warm = pool()
    async with warm.acquired(TEMPLATE, "s") as first:
        pass
    async with warm.acquired(TEMPLATE, "t") as second:
        assert second is first
        assert second.session_id == "t"
    assert first.served == 2
    assert statuses(warm) == [InstanceStatus.IDLE]


async def test_sessions_at_once_have_an_instance_each() -> None:
    warm = pool()
    async with warm.acquired(TEMPLATE, "s") as one, warm.acquired(TEMPLATE, "t") as two:
        assert one is not two
        assert statuses(warm) == [InstanceStatus.BUSY, InstanceStatus.BUSY]
    assert statuses(warm) == [InstanceStatus.IDLE, InstanceStatus.IDLE]


async def test_another_version_is_another_instance() -> None:
    warm = pool()
    async with warm.acquired(TEMPLATE, "s"):
        pass
    async with warm.acquired(NEWER, "s") as newer:
        assert newer.template is NEWER
    assert len(warm.instances) == 2


@pytest.mark.parametrize("error", [ValueError("x"), asyncio.CancelledError(), KeyboardInterrupt()])
async def test_whatever_ends_a_run_the_instance_is_free_again(error: BaseException) -> None:
    warm = pool()
    with pytest.raises(type(error)):
        async with warm.acquired(TEMPLATE, "s"):
            raise error
    assert statuses(warm) == [InstanceStatus.IDLE]
    assert warm.instances[0].session_id is None


async def test_instances_that_nobody_used_for_long_are_retired() -> None:
    warm = pool()
    async with warm.acquired(TEMPLATE, "s") as idle:
        pass
    async with warm.acquired(NEWER, "t") as busy:
        warm.retire_idle(clock.now() + IDLE_FOR - timedelta(seconds=5))
        assert warm.instances == [idle, busy]
        warm.retire_idle(clock.now() + IDLE_FOR + timedelta(seconds=5))
        assert warm.instances == [busy]
    assert idle.status is InstanceStatus.STOPPED
    async with warm.acquired(TEMPLATE, "s") as fresh:
        assert fresh is not idle
