"""The browser's session: who looks at the console, signing in with a key, signing out."""

import ipaddress
from typing import Annotated, Any, Final

import structlog
from fastapi import APIRouter, Request, Response
from pydantic import Field, StrictStr, ValidationError

import longhouse
from longhouse.api import auth, origins, wire
from longhouse.api.admin.models import ConfiguredModel
from longhouse.api.auth import LOCAL, Authenticator, Caller
from longhouse.api.console import cookies
from longhouse.api.json_route import of_app
from longhouse.api.rate_limits import Bucket
from longhouse.errors import CallerError

log = structlog.get_logger()

MAX_BODY: Final = 4096
"""Bytes: whoever signs in is nobody yet."""
GUESSES: Final = 10
"""Keys that one address may try in a minute, of those that could be guessed."""
ADDRESSES: Final = 1_000
"""Addresses whose guesses are counted; the one that was heard of longest ago is forgotten."""

router = APIRouter(prefix="/console/session", include_in_schema=False)
TheAuthenticator = Annotated[Authenticator, of_app("authenticator")]
TheModel = Annotated[ConfiguredModel, of_app("model")]


class SignIn(wire.StrictModel):
    key: Annotated[StrictStr, Field(min_length=1, max_length=auth.MAX_KEY)]


class GuessLimit:
    """Bounds how many keys an address may try."""

    def __init__(self, size: int = GUESSES, addresses: int = ADDRESSES) -> None:
        self._size = size
        self._addresses = addresses
        self._buckets: dict[str, Bucket] = {}

    def take(self, address: str) -> None:
        """Counts a key, or raises."""
        bucket = self._buckets.pop(address, None) or Bucket(self._size, 60.0)
        self._buckets[address] = bucket
        if len(self._buckets) > self._addresses:
            del self._buckets[next(iter(self._buckets))]
        if wait := bucket.take():
            message = f"Too many keys were tried from this address. Try again in {int(wait) + 1} s."
            kind, code = "rate_limit_error", "rate_limit_exceeded"
            raise CallerError(message, status=429, kind=kind, code=code, retry_after=int(wait) + 1)


@router.get("")
async def show(request: Request, authenticator: TheAuthenticator, model: TheModel) -> Response:
    """Who this browser is, signed in or not."""
    try:
        caller = await authenticator.authenticate(request)
    except CallerError as error:
        if error.status != 401:
            raise
        caller = None
    return _shown(request, caller, model)


@router.post("")
async def sign_in(
    request: Request,
    authenticator: TheAuthenticator,
    model: TheModel,
    guesses: Annotated[GuessLimit, of_app("guesses")],
) -> Response:
    """Exchanges a key for the browser's cookie; without keys there is nothing to exchange."""
    if origins.is_foreign_write(request.scope):
        raise CallerError(origins.NOT_OUR_PAGE, status=403, code="foreign_origin")
    if await authenticator.is_open():
        return _shown(request, LOCAL, model)
    key = await _key(request)
    # A key of ours is too long to be guessed: those who have one are let in, whatever others try from their address.
    if not auth.OURS.fullmatch(key):
        guesses.take(_address(request))
    caller, token = await authenticator.sign_in(key)
    if before := cookies.token_of(request.headers):
        await authenticator.sign_out(before)
    log.info("browser_signed_in", key=caller.key, owner=caller.owner)
    response = _shown(request, caller, model)
    cookies.put(response, token, request)
    return response


@router.delete("")
async def sign_out(request: Request, authenticator: TheAuthenticator) -> Response:
    """Ends the browser's session and its open streams."""
    if token := cookies.token_of(request.headers):
        origins.refuse_foreign_cookie(request.scope)
        await authenticator.sign_out(token)
        log.info("browser_signed_out")
    response = Response(status_code=204)
    cookies.clear(response, request)
    return response


async def _key(request: Request) -> str:
    body = await wire.read_body(request, MAX_BODY)
    try:
        return SignIn.model_validate(wire.decode(body)).key.strip()
    except ValidationError:
        raise CallerError('Send the key as {"key": "lh_…"}.', param="key") from None


def _shown(request: Request, caller: Caller | None, model: ConfiguredModel) -> Response:
    shown: dict[str, Any] = {
        "owner": caller.owner if caller else None,
        "role": caller.role if caller else None,
        "key": {"id": caller.key, "name": caller.key_name} if caller and caller.key else None,
        "is_open": caller == LOCAL,
        "is_demo": model.is_demo,
        "model": model.name if caller and not model.is_demo else None,
        "address": f"{cookies.scheme_of(request)}://{origins.host_of(request.scope)}",
        "version": longhouse.__version__,
    }
    return wire.Json(shown, headers={"cache-control": "no-store"})


def _address(request: Request) -> str:
    """Who is asking: an IPv4 address, or the network of an IPv6 one, in which everybody has addresses to spare."""
    host = request.client.host if request.client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return host if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))
