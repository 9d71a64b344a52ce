"""Authentication: API keys and signed-in browsers become callers; each route depends on a guard, user or admin."""

import asyncio
import hmac
import ipaddress
import re
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Final

import msgspec
from fastapi import Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.datastructures import Headers

from longhouse import background, clock
from longhouse.api.caller import Caller
from longhouse.api.console import cookies
from longhouse.api.easy_keys import is_easy
from longhouse.api.http import origins
from longhouse.api.inflight import INFLIGHT, InflightRequest, InflightRequests
from longhouse.api.rate_limits import REPORTED_EVERY, GuessLimit, KeyLimits, Meter, used
from longhouse.errors import CallerError
from longhouse.journal.session import LOCAL_OWNER
from longhouse.store.access import browser_sessions, keys
from longhouse.store.access.keys import FoundKey, Key, Role
from longhouse.store.database import Database, within
from longhouse.store.limits import budgets, permits

OURS: Final = re.compile(r"lh_[A-Za-z0-9_-]{43}")
"""The format of our API keys; anything else is refused without a query to Postgres."""
MAX_KEY: Final = 512
CALLER: Final = "longhouse.caller"
"""The key under which the request's scope holds its caller."""
USE_RECORDED_EVERY: Final = 60.0
"""Seconds between two records of when keys were used last."""
FOUND_WITHIN: Final = 2.0
"""Seconds to find a caller that is not metered: monitors must not wait for Postgres."""
POLL_EVERY: Final = 1.0
"""Seconds between polls for keys that another process has revoked or rotated, and browsers that it has signed out."""
READING_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
READING_PATHS: Final = frozenset({"/admin/tools/search", "/admin/directory/search"})
"""Routes of POST that change nothing. Other methods there are about a tool of that name."""
CHECKING_ROUTES: Final = frozenset({"/mcp", "/a2a/{template}"})
"""Routes whose body says what is done: they check it by themselves."""
CHECKING_AGENTS: Final = ("/admin/sessions/", "/admin/owners/{owner}/conversations/")
"""Routes of admins that change something of certain agents, and ask whether the key may use these."""


LOOPBACK: Final = "127.0.0.1"
LOCAL: Final = Caller(owner=LOCAL_OWNER, role="admin")
"""The only caller while no keys are set."""
ADMIN_KEY_ID: Final = browser_sessions.SETTINGS_KEY
"""The id of the admin key from the settings; its owner is the local owner too."""
ADMIN_KEY_NAME: Final = "LONGHOUSE_ADMIN_KEY"


class Authenticator:
    """Authenticates callers by API key, or by the cookie of a browser that was signed in with one.

    While no key was ever set, every caller is the local owner.
    """

    def __init__(self, db: Database, *, admin_key: str, limits: KeyLimits) -> None:
        self.db = db
        self.inflight = InflightRequests()
        self.guesses = GuessLimit()
        self._admin = keys.digest_of(admin_key) if admin_key else ""
        self._is_easy = is_easy(admin_key)
        self._limits = limits
        self._gateway, self._report_soon = uuid.uuid4().hex, asyncio.Event()
        self._meters: dict[str, Meter] = {}
        self._used: dict[str, datetime] = {}
        """Keys that were used since that was last recorded."""
        # Once keys are required, they stay required until the next start: revoking the last key must not open the API.
        self._requires_key = bool(admin_key)

    async def is_open(self) -> bool:
        """True while no key is set. Queried each time, since another process may create the first key."""
        if not self._requires_key:
            self._requires_key = await keys.is_any_valid(self.db)
        return not self._requires_key

    def stay_shut(self, former: "Authenticator") -> None:
        """Requires keys if the former one did, even if no valid key is left by now."""
        self._requires_key = self._requires_key or former._requires_key

    async def authenticate(self, request: Request, *, is_metered: bool = True) -> Caller:
        """Returns the caller of this request, or raises; a second call for the same request returns the same caller.

        One that is not metered uses nothing of its key's limits, and with the key of the settings needs no Postgres.
        """
        known: Caller | None = request.scope.get(CALLER)
        if known:
            return known
        finding = self._find_caller(request)
        caller = await (finding if is_metered else within(FOUND_WITHIN, finding))
        inflight: InflightRequest = request.scope[INFLIGHT]
        inflight.needs_caller = True
        if caller.meter:
            inflight.browser, inflight.key_digest = caller.browser, caller.key_digest
            if is_metered:
                await self.inflight.enter(inflight, caller.key, caller.meter)
            self._used[caller.key] = clock.now()
        request.scope[CALLER] = caller
        return caller

    async def sign_in(self, secret: str, address: str) -> tuple[Caller, str]:
        """Signs a browser in with a key, or raises; returns its caller, and the token for its cookie."""
        caller = await self._caller_with_key(secret, address)
        token = await browser_sessions.create(self.db, key_id=caller.key, key_digest=keys.digest_of(secret))
        return caller, token

    async def sign_out(self, token: str) -> None:
        """Signs a browser out and ends its requests in flight."""
        await browser_sessions.delete(self.db, token)
        self.inflight.end(browser=keys.digest_of(token))

    async def revoke(self, key_id: str) -> bool:
        """Revokes the key and ends the requests in flight that use it, of browsers too."""
        found = await keys.revoke(self.db, key_id)
        if found:
            self.inflight.end(key=key_id)
        return found

    async def rotate(self, key_id: str, *, overlap: float = 0.0) -> tuple[Key, str] | None:
        """Gives the key a new secret. Without an overlap, in which the old one is valid too, what uses the old one
        ends."""
        rotated = await keys.rotate(self.db, key_id, overlap=overlap)
        if rotated and not overlap:
            self.inflight.end(key=key_id)
        return rotated

    def limits_of(self, key: Key) -> KeyLimits:
        """The limits that hold for a key: its own, and those of the settings."""
        return KeyLimits(
            **{name: getattr(key, name) or default for name, default in msgspec.structs.asdict(self._limits).items()}
        )

    async def used_by(self, listed: Sequence[Key]) -> list[dict[str, int]]:
        """What of their limits and budgets keys use now, at all gateways."""
        limits = [self.limits_of(key) for key in listed]
        rates, hourlies = [one.rate_limit for one in limits], [one.sessions_per_hour for one in limits]
        ids = [key.id for key in listed]
        known = await permits.used(self.db, self._gateway, ids, rates=rates, hourlies=hourlies)
        of_budgets = await budgets.used(self.db, ids)
        return [
            {**used(one, known[key], self._meters.get(key)), **of_budgets[key]}
            for key, one in zip(ids, limits, strict=True)
        ]

    def last_use_of(self, key: Key) -> datetime | None:
        return self._used.get(key.id, key.last_used_at)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Authenticator"]:
        await self.is_open()  # a key that exists at the start counts, even if it is revoked before the first request
        # Without this poll, requests with keys revoked elsewhere would never be ended.
        async with (
            background.running("revoked_keys", self.watch),
            background.running("used_keys", self.record_use, every=USE_RECORDED_EVERY),
            background.running("key_limits", self._share_use),
        ):
            try:
                yield self
            finally:
                await background.guarded("key_limits_return", self._give_back_all())

    async def record_use(self) -> None:
        """Writes when keys were used last: once for all requests of a while, so that no request waits for it."""
        lately, self._used = self._used, {}
        if lately:
            await keys.record_use(self.db, lately)
            await permits.forget(self.db)

    async def share_use(self) -> None:
        """Reports to the other gateways the open requests of keys, and gives back permits that nobody uses."""
        changed = {key: meter for key, meter in self._meters.items() if meter.open or meter.reported}
        if changed:
            opened = {key: meter.open for key, meter in changed.items()}
            others = await permits.report_open(self.db, self._gateway, opened)
            for meter in changed.values():
                meter.hear(others)
        for meter in self._meters.values():
            await meter.give_back()

    async def _share_use(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(background.until_tick(REPORTED_EVERY)):
                await self._report_soon.wait()
        self._report_soon.clear()
        await self.share_use()

    async def _give_back_all(self) -> None:
        for meter in self._meters.values():
            await meter.give_back(idle=0.0)

    async def watch(self) -> None:
        """Ends requests in flight whose key another process has revoked or rotated, or whose browser it signed out."""
        await self.inflight.not_empty.wait()
        await asyncio.sleep(POLL_EVERY)
        if digests := self.inflight.named("key_digest"):
            for digest in await keys.invalid(self.db, digests):
                self.inflight.end(key_digest=digest)
        if browsers := self.inflight.named("browser"):
            for browser in await browser_sessions.ended(self.db, browsers):
                self.inflight.end(browser=browser)

    async def _find_caller(self, request: Request) -> Caller:
        return LOCAL if await self.is_open() else await self._caller_of(request)

    async def _caller_of(self, request: Request) -> Caller:
        """A key in a header wins over the cookie: a program that sends one means it."""
        secret = _api_key(request.headers)
        if secret is not None:
            return await self._caller_with_key(secret, address_of(request))
        token = cookies.token_of(request.headers)
        if token is None:
            raise _invalid_key(
                "Send an API key: 'Authorization: Bearer <key>', or 'x-api-key: <key>'. A browser signs in at /sign-in."
            )
        origins.refuse_foreign_cookie(request.scope)
        return await self._caller_with_token(token)

    async def _caller_with_key(self, secret: str, address: str) -> Caller:
        # A key of ours is too long to be guessed, and so is that of the settings where others reach the server: whoever
        # has one is let in, whatever is tried from that address.
        is_ours, digest = OURS.fullmatch(secret) is not None, keys.digest_of(secret)
        is_compared = is_ours or not self._is_easy or self.guesses.has_some(address)
        if self._admin and is_compared and hmac.compare_digest(digest, self._admin):
            return self._caller()
        found = await keys.with_digest(self.db, digest) if is_ours else None
        if found:
            return self._caller(_unexpired(found), digest)
        if not is_ours:
            self.guesses.take(address, digest)
        raise _invalid_key("This API key is not valid.")

    async def _caller_with_token(self, token: str) -> Caller:
        browser, digest = await browser_sessions.find(self.db, token), keys.digest_of(token)
        if browser and browser.key_id == ADMIN_KEY_ID and self._admin:
            bound = browser_sessions.bound_digest(ADMIN_KEY_ID, self._admin, token)
            if hmac.compare_digest(browser.key_digest, bound):
                return replace(self._caller(), browser=digest)
        elif browser and (found := await keys.with_digest(self.db, browser.key_digest)):
            return replace(self._caller(_unexpired(found), browser.key_digest), browser=digest)
        raise _invalid_key("This browser is not signed in any more: sign in again at /sign-in.")

    async def caller_of(self, key_id: str | None) -> Caller | None:
        """Who acts with this key where nobody sends it: for a schedule. None: the key was revoked, or has expired."""
        if key_id is None:
            return LOCAL
        if key_id == ADMIN_KEY_ID:
            return self._caller()
        found = await keys.with_id(self.db, key_id)
        return self._caller(found) if found and not found.is_expired else None

    def _caller(self, found: FoundKey | None = None, digest: str = "") -> Caller:
        """The caller with this key, and its digest; None: with the admin key from the settings."""
        if found is None:
            meter = self._meter(ADMIN_KEY_ID)
            return Caller(LOCAL_OWNER, ADMIN_KEY_ID, "admin", meter, key_name=ADMIN_KEY_NAME)
        key = found.key
        return Caller(
            key.owner,
            key.id,
            key.role,
            self._meter(key.id, key),
            key_name=key.name,
            key_digest=digest,
            read_only=key.read_only,
            templates=None if key.templates is None else frozenset(key.templates),
            spent=found.spent,
            budgets={name: limit for name in budgets.NAMES if (limit := getattr(key, name))},
        )

    def _meter(self, key_id: str, key: Key | None = None) -> Meter:
        limits = self.limits_of(key) if key else self._limits
        if key_id not in self._meters:
            self._meters[key_id] = Meter(self.db, self._gateway, key_id, limits, self._report_soon.set)
        self._meters[key_id].adopt(limits)
        return self._meters[key_id]


class Guard(SecurityBase):
    """A dependency: the caller of the route, who must have this role or a higher one."""

    def __init__(self, role: Role, *, is_metered: bool = True) -> None:
        self.role = role
        self.is_metered = is_metered
        self.scheme_name = f"{role}_key"
        self.model = HTTPBearer(description=f"An API key with the role {role}; the header x-api-key works too.")

    async def __call__(self, request: Request) -> Caller:
        authenticator: Authenticator = request.app.state.authenticator
        caller = await authenticator.authenticate(request, is_metered=self.is_metered)
        if self.role == "admin" and caller.role != "admin":
            raise CallerError("This needs an admin key.", status=403, code="insufficient_permissions")
        if not _is_reading(request):
            caller.writes()
            if self.role == "admin" and not _route(request).startswith(CHECKING_AGENTS):
                caller.uses_all()  # it could make itself a key that may do more
        return caller


user: Final = Guard("user")
admin: Final = Guard("admin")
watcher: Final = Guard("admin", is_metered=False)

User = Annotated[Caller, Depends(user)]
Admin = Annotated[Caller, Depends(admin)]


def _is_reading(request: Request) -> bool:
    """By the path that was routed: that of `request.url` is made of what a client may write."""
    is_search = request.method == "POST" and request.scope["path"] in READING_PATHS
    checks_itself = _route(request).rstrip("/") in CHECKING_ROUTES
    return is_search or checks_itself or request.method in READING_METHODS


def _route(request: Request) -> str:
    """The path of the route, with the names of its parameters."""
    path: str = getattr(request.scope.get("route"), "path", "")
    return path


def _api_key(headers: Headers) -> str | None:
    """The API key of a request; two different keys are refused. None: no header has one."""
    split = (value.partition(" ") for value in headers.getlist("authorization"))
    given = [key.strip() if scheme.lower() == "bearer" else "" for scheme, _, key in split]
    given += [value for value in headers.getlist("x-api-key") if value]
    if not given:
        return None
    if len(set(given)) > 1 or not 0 < len(given[0]) <= MAX_KEY:
        raise _invalid_key("Send one API key: 'Authorization: Bearer <key>', or 'x-api-key: <key>'.")
    return given[0]


def _invalid_key(message: str) -> CallerError:
    return CallerError(message, status=401, code="invalid_api_key")


def _unexpired(found: FoundKey) -> FoundKey:
    if found.is_expired:
        at = f"{found.key.expires_at:%Y-%m-%d %H:%M}"
        raise CallerError(f"This API key expired on {at} UTC: ask for another one.", status=401, code="expired_api_key")
    return found


def address_of(request: Request) -> str:
    """Who is asking: an IPv4 address, or the network of an IPv6 one, in which everybody has addresses to spare; this
    machine has many addresses too, and is one."""
    host = request.client.host if request.client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback:
        return LOOPBACK
    return str(ipaddress.ip_network((address, 64), strict=False)) if address.version == 6 else str(address)


def is_local(request: Request) -> bool:
    """Whether somebody on this machine asks, by a local name: a proxy in front of the server asks by another."""
    return address_of(request) == LOOPBACK and origins.LOCAL_HOST.fullmatch(origins.host_of(request.scope)) is not None
