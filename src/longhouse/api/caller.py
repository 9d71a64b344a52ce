"""Who sends a request: its owner and key, and what the key may do."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from longhouse.api.rate_limits import Meter
from longhouse.errors import CallerError
from longhouse.store import sessions
from longhouse.store.access.keys import Role
from longhouse.store.database import Database
from longhouse.store.limits import budgets
from longhouse.store.limits.budgets import SpentBudget


@dataclass(frozen=True, slots=True)
class Caller:
    owner: str
    key: str = ""
    """The id of the API key, part of a client's fingerprint; never the key itself."""
    role: Role = "user"
    meter: Meter | None = field(default=None, compare=False, repr=False)
    """None: no rate limits."""
    key_name: str = field(default="", compare=False)
    browser: str = field(default="", compare=False, repr=False)
    """The digest of the token, where a signed-in browser calls."""
    key_digest: str = field(default="", compare=False, repr=False)
    """The digest of the key; empty for the key of the settings."""
    read_only: bool = False
    templates: frozenset[str] | None = None
    """The templates that it may use; None: all."""
    spent: SpentBudget | None = field(default=None, compare=False, repr=False)
    """The budget that the key has used up."""
    budgets: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    """Those that the key has, by name."""

    @property
    def publisher(self) -> str:
        """The name recorded in the catalog as publisher or decider."""
        return self.key or self.owner

    @property
    def decider(self) -> str:
        """The journal's name for who answers or decides; the user of a request is recorded beside it."""
        return self.key or "user"

    def user(self, named: str | None) -> str | None:
        """The user of a request: the named one; if it names none and no keys are set, the owner, the only person."""
        return named if self.key or (named and named.strip()) else self.owner

    def may_use(self, template: str) -> bool:
        return self.templates is None or template in self.templates

    def uses(self, template: str, *, param: str = "model") -> None:
        """Raises if the key may not use this template, which the request names in `param`."""
        if self.templates is not None and template not in self.templates:
            allowed = ", ".join(sorted(self.templates)) or "none"
            raise CallerError(
                f"This key may not use the agent {template!r}; it may use: {allowed}.",
                status=403,
                code="template_not_allowed",
                param=param,
            )

    def uses_all(self) -> None:
        """Raises if there are agents that the key may not use: what is about to change is for all of them."""
        if self.templates is not None:
            raise CallerError(
                "This key may not use all agents, and this is for all of them: use a key that may.",
                status=403,
                code="template_not_allowed",
            )

    async def uses_all_of(self, db: Database, conversation: str, *, begun: bool = False) -> None:
        """Raises if an agent that talks in this conversation is one that the key may not use; with `begun` also if
        nobody talks in it yet, since the first may be any agent."""
        if self.templates is None:
            return
        agents = await sessions.agents_in(db, self.owner, conversation)
        if begun and not agents:
            self.uses_all()
        for agent in agents:
            self.uses(agent)

    def writes(self) -> None:
        """Raises if the key may only read."""
        if self.read_only:
            raise CallerError("This key may only read.", status=403, code="read_only_key")

    @property
    def has_turn_budget(self) -> bool:
        return any(name.startswith("turns") for name in self.budgets)

    def spends(self, *, begins_turn: bool = False) -> None:
        """Raises if the key has no tokens left, or no turns for one that begins."""
        if self.spent and (begins_turn or self.spent.name.startswith("tokens")):
            raise budgets.exceeded(self.spent)

    async def opens_session(self) -> None:
        """Counts a new session; raises if the key has reached its limit."""
        if self.meter:
            await self.meter.open_session()
