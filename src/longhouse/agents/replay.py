"""A request composed again: what the model saw at a step, from what the journal says."""

from collections.abc import Callable

from longhouse.agents.strategy import Request, Strategy
from longhouse.agents.template import Template
from longhouse.agents.tool import Tool
from longhouse.journal.events import Replied
from longhouse.journal.session import Session


def offered_at(session: Session, replied: Replied) -> list[str]:
    """The tools (name@version) that were offered in the request which `replied` answers, in their order."""
    return [ref for ref in session.offered if ref not in replied.withdrawn] + list(replied.offered)


def request_of(
    session: Session, replied: Replied, template: Template, strategy: Strategy, find: Callable[[str], Tool | None]
) -> Request:
    """`session` is the fold up to just before `replied`; a tool that nobody knows any more is left out."""
    found = (find(ref.rpartition("@")[0]) for ref in offered_at(session, replied))
    return strategy.propose(session, template, [tool for tool in found if tool])
