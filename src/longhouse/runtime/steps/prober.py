"""Asks the probes of tools whether calls took effect whose worker or result was lost, before a person is asked."""

import asyncio
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import structlog
from msgspec.structs import replace

from longhouse.agents.tool import Tool
from longhouse.journal import events
from longhouse.journal.events import Fault, Output
from longhouse.journal.open_calls import lost_in
from longhouse.journal.session import MOST_LOST, Open, Session, Turn
from longhouse.store import journals, leases
from longhouse.store.database import Database
from longhouse.tools.bindings.base import OWN_PROBE
from longhouse.tools.context import key_of
from longhouse.tools.outcomes import text_of
from longhouse.tools.toolbox import Toolbox

log = structlog.get_logger()

Settlement = events.Returned | events.Decided
FOUND_NOTHING: Final = "its probe found nothing"


class ProbeAnswer(msgspec.Struct, frozen=True):
    """What a probe returns: did the call with this key happen, and with what result?"""

    happened: bool
    result: Any = None


class Prober(msgspec.Struct, frozen=True):
    db: Database
    toolbox: Toolbox

    async def settled(
        self, session: Session, turn: Turn, doubtful: Sequence[Open]
    ) -> tuple[list[Settlement], datetime | None]:
        """What probes say of open calls with an unknown outcome; and when to ask again, if a probe found nothing but
        the call may still run. A call that a branch has inherited may still run in its origin: finding nothing
        proves nothing."""
        asked = [(call, await self._probe_of(session, call)) for call in doubtful]
        answers = await asyncio.gather(*(self._ask(call, probe, session, turn) for call, probe in asked))
        found: list[Settlement] = []
        again: list[datetime] = []
        for (call, probe), answer in zip(asked, answers, strict=True):
            by = f"{events.BY_PROBE}{probe.name.removesuffix(OWN_PROBE) if probe else ''}"
            if answer and answer.happened:
                found.append(events.Returned(call=call.call, outcome=Output(content=text_of(answer.result)), by=by))
            elif answer and not session.is_inherited(call) and await self._is_over(session, call):
                found.append(events.Decided(call=call.call, decision="did_not_happen", by=by, comment=FOUND_NOTHING))
            elif answer and call.deadline and not session.is_inherited(call):
                again.append(call.deadline)
            elif call.probed:  # from now on a person is asked
                found.append(events.Decided(call=call.call, decision="unknown", by=by, comment=call.doubt))
        return found, min(again, default=None)

    async def able(self, session: Session, probed: Collection[str]) -> list[str]:
        """The calls whose outcome is unknown and that have a probe, other than these. One that may itself be what takes
        workers down is not asked."""
        if session.lost >= MOST_LOST:
            return []
        doubtful = [call for call in session.uncertain if call.call not in probed]
        return [call.call for call in doubtful if await self._probe_of(session, call)]

    async def asks_elsewhere(self, session: Session, doubtful: Sequence[Open]) -> bool:
        """Whether the probes of these calls run in other processes."""
        probes = [await self._probe_of(session, call) for call in doubtful]
        return await self.toolbox.run_elsewhere((probe.name, probe.version) for probe in probes if probe)

    async def _probe_of(self, session: Session, call: Open) -> Tool | None:
        """The probe of a call whose outcome is unknown; None if there is none that only reads."""
        tool = await self.toolbox.resolve(call.tool, call.version)
        probe = await self.toolbox.probe_of(tool, session.owner) if tool else None
        if tool is None or (probe is None and not tool.probe):
            return None
        if probe and probe.effect == "read":
            return probe
        message = "a tool names a probe that is not there or does not only read; a person is asked"
        log.warning("probe_unusable", message=message, session=session.id, tool=tool.name, probe=tool.probe)
        return None

    async def _ask(self, call: Open, probe: Tool | None, session: Session, turn: Turn) -> ProbeAnswer | None:
        if probe is None:
            return None
        arguments = (call.arguments or "{}").encode()
        given = {"key": key_of(session, call), "tool": call.tool, "arguments": msgspec.Raw(arguments)}
        taken = probe.schema.get("properties", {})
        asked = msgspec.json.encode({name: value for name, value in given.items() if name in taken}).decode()
        asking = replace(
            call,
            call=f"{call.call}-probe",
            tool=probe.name,
            version=probe.version,
            arguments=asked,
            effect="read",
            deadline=None,
            uncertain=False,
            has_waited=False,
            probed=False,
        )
        result = await self.toolbox.perform(asking, session, turn)
        outcome = result.outcome
        about = {"session": session.id, "call": call.call, "probe": probe.name}
        if isinstance(outcome, Fault):
            log.warning("probe_failed", message="a probe failed; a person is asked", code=outcome.code, **about)
            return None
        try:
            return msgspec.json.decode(outcome.content, type=ProbeAnswer)
        except msgspec.MsgspecError:
            message = 'a probe has to return {"happened": true or false, "result": …}; a person is asked'
            log.warning("probe_unclear", message=message, **about)
            return None

    async def _is_over(self, session: Session, call: Open) -> bool:
        """Can the call take effect no more: its time is over, or its process has ended?"""
        if call.deadline and await self.db.value("SELECT :at < now()", at=call.deadline):
            return True
        records: Sequence[events.Recorded] = await journals.read(self.db, session.id, after=call.seq)
        decisions = (
            one.event for one in records if isinstance(one.event, events.Decided) and one.event.call == call.call
        )
        if any([event.ended for event in decisions if not event.by.startswith(events.BY_PROBE)][-1:]):
            return True
        lost = lost_in(records, call)
        return bool(lost) and call.at is not None and await leases.is_gone(self.db, lost, since=call.at)
