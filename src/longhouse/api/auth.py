"""Who is asking: keys turned into callers, and the two dependencies that every route has one of."""

import asyncio
import hmac
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Final

from fastapi import Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.datastructures import Headers

from longhouse import background
from longhouse.api.inflight import VISIT, InflightRequests
from longhouse.api.rate_limits import KeyLimits, Meter
from longhouse.errors import CallerError
from longhouse.journal.session import LOCAL_OWNER
from longhouse.store import keys
from longhouse.store.database import Database
from longhouse.store.keys import Key, Role

OURS: Final = re.compile(r"lh_[A-Za-z0-9_-]{43}")
"""What our keys look like; Postgres is not asked about anything else."""
MAX_KEY: Final = 512
CALLER: Final = "longhouse.caller"
"""Where a request's scope keeps who is asking."""
LOOK_EVERY: Final = 1.0
"""Seconds between looks for keys that another process has revoked."""


@dataclass(frozen=True, slots=True)
class Caller:
    owner: str
    key: str = ""
    """The id of the API key, part of a client's fingerprint; never the key itself."""
    role: Role = "user"
    meter: Meter | None = field(default=None, compare=False, repr=False)
    """None: nothing is limited."""

    @property
    def publisher(self) -> str:
        """Who is said to have published or decided something in the catalog."""
        return self.key or self.owner

    def opens_session(self) -> None:
        """Refuses one session too many."""
        if self.meter:
            self.meter.open_session()


LOCAL: Final = Caller(owner=LOCAL_OWNER, role="admin")
"""Without keys there is one owner."""
ADMIN_KEY_ID: Final = "admin"
"""The id of the key that the settings bring; it belongs to the local owner too."""


class Authenticator:
    """Lets callers in by their keys. As long as no key was ever set, everybody is the local owner."""

    def __init__(self, db: Database, *, admin_key: str, limits: KeyLimits) -> None:
        self.db = db
        self.visits = InflightRequests()
        self._admin = keys.digest_of(admin_key) if admin_key else ""
        self._limits = limits
        self._meters: dict[str, Meter] = {}
        # It stays shut until the next start: revoking the last key must not let everybody in.
        self._is_shut = bool(admin_key)

    async def is_open(self) -> bool:
        """Is no key set? Asked each time: the first one may come from another process."""
        if not self._is_shut:
            self._is_shut = await keys.is_any_valid(self.db)
        return not self._is_shut

    async def admit(self, request: Request) -> Caller:
        """The caller of this request, or a refusal; asked twice about one request, it answers the same."""
        known: Caller | None = request.scope.get(CALLER)
        if known:
            return known
        caller = LOCAL if await self.is_open() else await self._recognise(request.headers)
        if caller.meter:
            self.visits.enter(request.scope[VISIT], caller.key, caller.meter)
        request.scope[CALLER] = caller
        return caller

    async def revoke(self, key_id: str) -> bool:
        """The key opens nothing any more, and whoever is inside with it is shown out."""
        found = await keys.revoke(self.db, key_id)
        if found:
            self.visits.end(key_id)
        return found

    async def watch(self) -> None:
        """Shows out whose key was revoked by another process."""
        await self.visits.some.wait()
        await asyncio.sleep(LOOK_EVERY)
        for key_id in await keys.revoked(self.db, self.visits.keys):
            self.visits.end(key_id)

    async def _recognise(self, headers: Headers) -> Caller:
        secret = _presented(headers)
        if self._admin and hmac.compare_digest(keys.digest_of(secret), self._admin):
            return Caller(LOCAL_OWNER, ADMIN_KEY_ID, "admin", self._meter(ADMIN_KEY_ID, self._limits))
        found = await keys.find(self.db, secret) if OURS.fullmatch(secret) else None
        if found is None:
            raise _unknown("This API key is not valid.")
        return Caller(found.owner, found.id, found.role, self._meter(found.id, self._limits_of(found)))

    def _limits_of(self, key: Key) -> KeyLimits:
        return KeyLimits(
            rate_limit=key.rate_limit or self._limits.rate_limit,
            max_concurrent=key.max_concurrent or self._limits.max_concurrent,
            sessions_per_hour=key.sessions_per_hour or self._limits.sessions_per_hour,
        )

    def _meter(self, key_id: str, limits: KeyLimits) -> Meter:
        if key_id not in self._meters:
            self._meters[key_id] = Meter(limits)
        return self._meters[key_id]


@asynccontextmanager
async def open_door(
    db: Database, *, admin_key: str = "", limits: KeyLimits | None = None
) -> AsyncIterator[Authenticator]:
    door = Authenticator(db, admin_key=admin_key, limits=limits or KeyLimits())
    await door.is_open()  # a key that is there at the start counts, even if nobody asks before it is revoked
    # Without further looks, revoked keys would stay for good.
    async with background.running("revoked_keys", door.watch):
        yield door


class Guard(SecurityBase):
    """A dependency: the route's caller, who has this role or a higher one."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self.scheme_name = f"{role}_key"
        self.model = HTTPBearer(description=f"An API key with the role {role}; the header x-api-key is as good.")

    async def __call__(self, request: Request) -> Caller:
        door: Authenticator = request.app.state.door
        caller = await door.admit(request)
        if self._role == "admin" and caller.role != "admin":
            raise CallerError("This needs an admin key.", status=403, code="insufficient_permissions")
        return caller


user: Final = Guard("user")
admin: Final = Guard("admin")

User = Annotated[Caller, Depends(user)]
Admin = Annotated[Caller, Depends(admin)]


def _presented(headers: Headers) -> str:
    """The one key that a request carries; two that differ are none."""
    given = [_bearer(value) for value in headers.getlist("authorization")]
    given += [value for value in headers.getlist("x-api-key") if value]
    if not given:
        raise _unknown("Send an API key: 'Authorization: Bearer <key>', or 'x-api-key: <key>'.")
    if len(set(given)) > 1 or not 0 < len(given[0]) <= MAX_KEY:
        raise _unknown("Send one API key: 'Authorization: Bearer <key>', or 'x-api-key: <key>'.")
    return given[0]


def _bearer(value: str) -> str:
    scheme, _, key = value.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _unknown(message: str) -> CallerError:
    return CallerError(message, status=401, code="invalid_api_key")
