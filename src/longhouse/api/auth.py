"""Authentication: API keys become callers; each route depends on one of two guards, user or admin."""

import asyncio
import hmac
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Annotated, Final

from fastapi import Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.datastructures import Headers

from longhouse import background
from longhouse.api.inflight import INFLIGHT, InflightRequests
from longhouse.api.rate_limits import KeyLimits, Meter
from longhouse.errors import CallerError
from longhouse.journal.session import LOCAL_OWNER
from longhouse.store import keys
from longhouse.store.database import Database
from longhouse.store.keys import Key, Role

OURS: Final = re.compile(r"lh_[A-Za-z0-9_-]{43}")
"""The format of our API keys; anything else is refused without a query to Postgres."""
MAX_KEY: Final = 512
CALLER: Final = "longhouse.caller"
"""The key under which the request's scope holds its caller."""
POLL_EVERY: Final = 1.0
"""Seconds between polls for keys that another process has revoked."""


@dataclass(frozen=True, slots=True)
class Caller:
    owner: str
    key: str = ""
    """The id of the API key, part of a client's fingerprint; never the key itself."""
    role: Role = "user"
    meter: Meter | None = field(default=None, compare=False, repr=False)
    """None: no rate limits."""

    @property
    def publisher(self) -> str:
        """The name recorded in the catalog as publisher or decider."""
        return self.key or self.owner

    def user(self, named: str | None) -> str | None:
        """The user of a request: the named one; if it names none and no keys are set, the owner, the only person."""
        return named if self.key or (named and named.strip()) else self.owner

    def opens_session(self) -> None:
        """Counts a new session; raises if the key has reached its limit."""
        if self.meter:
            self.meter.open_session()


LOCAL: Final = Caller(owner=LOCAL_OWNER, role="admin")
"""The only caller while no keys are set."""
ADMIN_KEY_ID: Final = "admin"
"""The id of the admin key from the settings; its owner is the local owner too."""


class Authenticator:
    """Authenticates callers by API key. While no key was ever set, every caller is the local owner."""

    def __init__(self, db: Database, *, admin_key: str, limits: KeyLimits) -> None:
        self.db = db
        self.inflight = InflightRequests()
        self._admin = keys.digest_of(admin_key) if admin_key else ""
        self._limits = limits
        self._meters: dict[str, Meter] = {}
        # Once keys are required, they stay required until the next start: revoking the last key must not open the API.
        self._requires_key = bool(admin_key)

    async def is_open(self) -> bool:
        """True while no key is set. Queried each time, since another process may create the first key."""
        if not self._requires_key:
            self._requires_key = await keys.is_any_valid(self.db)
        return not self._requires_key

    async def authenticate(self, request: Request) -> Caller:
        """Returns the caller of this request, or raises; a second call for the same request returns the same caller."""
        known: Caller | None = request.scope.get(CALLER)
        if known:
            return known
        caller = LOCAL if await self.is_open() else await self._caller_of(request.headers)
        if caller.meter:
            self.inflight.enter(request.scope[INFLIGHT], caller.key, caller.meter)
        request.scope[CALLER] = caller
        return caller

    async def revoke(self, key_id: str) -> bool:
        """Revokes the key and ends the requests in flight that use it."""
        found = await keys.revoke(self.db, key_id)
        if found:
            self.inflight.end(key_id)
        return found

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Authenticator"]:
        await self.is_open()  # a key that exists at the start counts, even if it is revoked before the first request
        # Without this poll, requests with keys revoked elsewhere would never be ended.
        async with background.running("revoked_keys", self.watch):
            yield self

    async def watch(self) -> None:
        """Ends requests in flight whose key was revoked by another process."""
        await self.inflight.not_empty.wait()
        await asyncio.sleep(POLL_EVERY)
        for key_id in await keys.revoked(self.db, self.inflight.keys):
            self.inflight.end(key_id)

    async def _caller_of(self, headers: Headers) -> Caller:
        secret = _api_key(headers)
        if self._admin and hmac.compare_digest(keys.digest_of(secret), self._admin):
            return Caller(LOCAL_OWNER, ADMIN_KEY_ID, "admin", self._meter(ADMIN_KEY_ID))
        found = await keys.find(self.db, secret) if OURS.fullmatch(secret) else None
        if found is None:
            raise _invalid_key("This API key is not valid.")
        return Caller(found.owner, found.id, found.role, self._meter(found.id, found))

    def _meter(self, key_id: str, key: Key | None = None) -> Meter:
        if key_id not in self._meters:
            limits = {name: getattr(key, name, None) or default for name, default in asdict(self._limits).items()}
            self._meters[key_id] = Meter(KeyLimits(**limits))
        return self._meters[key_id]


class Guard(SecurityBase):
    """A dependency: the caller of the route, who must have this role or a higher one."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self.scheme_name = f"{role}_key"
        self.model = HTTPBearer(description=f"An API key with the role {role}; the header x-api-key works too.")

    async def __call__(self, request: Request) -> Caller:
        authenticator: Authenticator = request.app.state.authenticator
        caller = await authenticator.authenticate(request)
        if self._role == "admin" and caller.role != "admin":
            raise CallerError("This needs an admin key.", status=403, code="insufficient_permissions")
        return caller


user: Final = Guard("user")
admin: Final = Guard("admin")

User = Annotated[Caller, Depends(user)]
Admin = Annotated[Caller, Depends(admin)]


def _api_key(headers: Headers) -> str:
    """The API key of a request; two different keys are refused."""
    split = (value.partition(" ") for value in headers.getlist("authorization"))
    given = [key.strip() if scheme.lower() == "bearer" else "" for scheme, _, key in split]
    given += [value for value in headers.getlist("x-api-key") if value]
    if not given:
        raise _invalid_key("Send an API key: 'Authorization: Bearer <key>', or 'x-api-key: <key>'.")
    if len(set(given)) > 1 or not 0 < len(given[0]) <= MAX_KEY:
        raise _invalid_key("Send one API key: 'Authorization: Bearer <key>', or 'x-api-key: <key>'.")
    return given[0]


def _invalid_key(message: str) -> CallerError:
    return CallerError(message, status=401, code="invalid_api_key")
