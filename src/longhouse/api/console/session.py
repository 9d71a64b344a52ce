"""The browser's session: who looks at the console, signing in with a key, signing out."""

from typing import Annotated, Any, Final

import structlog
from fastapi import APIRouter, Request, Response
from pydantic import Field, ValidationError

import longhouse
from longhouse.api import auth, wire
from longhouse.api.admin.models import ConfiguredModel
from longhouse.api.auth import LOCAL, Authenticator
from longhouse.api.caller import Caller
from longhouse.api.console import cookies
from longhouse.api.http import addresses, origins
from longhouse.api.http.json_route import of_app
from longhouse.api.http.lazy_route import LazyRoute
from longhouse.errors import CallerError

log = structlog.get_logger()

MAX_BODY: Final = 4096
"""Bytes: whoever signs in is nobody yet."""

router = APIRouter(prefix="/console/session", include_in_schema=False, route_class=LazyRoute)
TheAuthenticator = Annotated[Authenticator, of_app("authenticator")]
TheModel = Annotated[ConfiguredModel, of_app("model")]


class SignIn(wire.StrictModel):
    key: Annotated[str, Field(min_length=1, max_length=auth.MAX_KEY)]


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
async def sign_in(request: Request, authenticator: TheAuthenticator, model: TheModel) -> Response:
    """Exchanges a key for the browser's cookie; without keys there is nothing to exchange."""
    if origins.is_foreign_write(request.scope):
        raise CallerError(origins.NOT_OUR_PAGE, status=403, code="foreign_origin")
    if await authenticator.is_open():
        return _shown(request, LOCAL, model)
    key = await _key(request)
    caller, token = await authenticator.sign_in(key, auth.address_of(request))
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
    may_know = caller is not None or auth.is_local(request)  # a stranger learns nothing of the set-up
    shown: dict[str, Any] = {
        "owner": caller.owner if caller else None,
        "role": caller.role if caller else None,
        "key": {"id": caller.key, "name": caller.key_name} if caller and caller.key else None,
        "is_open": caller == LOCAL,
        "is_demo": model.is_demo if may_know else None,
        "model": model.name if caller and not model.is_demo else None,
        "address": addresses.base_of(request.scope),
        "version": longhouse.__version__ if may_know else None,
    }
    return wire.Json(shown, headers={"cache-control": "no-store", "x-content-type-options": "nosniff"})
