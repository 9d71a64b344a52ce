"""Which version of its agent a turn runs with."""

from longhouse.agents.template import Template
from longhouse.journal.session import Session
from longhouse.store.catalog.repository import VersionRepository


async def template_of(session: Session, templates: VersionRepository[Template]) -> Template | None:
    """The template of the running or next turn: the requested version, the pinned one, or the active one."""
    if turn := session.running_turn:
        return await templates.find(session.agent, turn.version)
    if requested := session.queue[0].prompt.version:
        return await _visible(session, await templates.find(session.agent, requested), templates)
    opened = await templates.find(session.agent, session.version)
    if opened and opened.follow == "pinned":
        return await _visible(session, opened, templates)
    return await templates.find(session.agent, owner=session.owner)


async def _visible(
    session: Session, version: Template | None, templates: VersionRepository[Template]
) -> Template | None:
    """The version, if the session's owner may see it: by its own visibility, or because its name is visible now."""
    if version is None or version.owner in (None, session.owner):
        return version
    is_named = await templates.active(session.agent, owner=session.owner) is not None
    return version if is_named else None
