"""Routes that take JSON: authentication comes before the body is read, and the body's size is checked before decoding.

FastAPI by itself reads and decodes the body before it runs any dependency, whatever the caller and the size.
"""

import inspect
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import request_body_to_args
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel

from longhouse.api import auth, wire
from longhouse.api.http.lazy_route import LazyRoute
from longhouse.errors import CallerError

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Answers = dict[int | str, dict[str, Any]]
"""By status: what the OpenAPI document says of a response (`wire.answer`); empty: what it says of all such errors."""


def refuses(*statuses: int) -> Answers:
    """Errors of a route besides those that follow from its guard, its path, its query and its body."""
    return {status: {} for status in statuses}


class AppPart:
    """A dependency: the part of the application that `server.build` stored in `app.state` under this name."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def __call__(self, request: Request) -> Any:
        return getattr(request.app.state, self.name)


def of_app(name: str) -> Any:
    return Depends(AppPart(name))


class DecodedRequest(Request):
    """A request whose body is already read and decoded."""

    def __init__(self, request: Request, body: bytes, value: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._read, self._value = body, value

    async def body(self) -> bytes:
        return self._read

    async def json(self) -> Any:
        return self._value


class JsonRoute(LazyRoute):
    """A route whose first dependency is a guard; unknown query parameters are ignored."""

    is_strict = False
    reads_body = False

    def __init__(
        self, path: str, endpoint: Callable[..., Any], *, responses: Answers | None = None, **rest: Any
    ) -> None:
        self.answers = responses or {}
        # What it answers is described by `openapi_schema`: FastAPI would describe validation errors that we never send.
        ours: dict[str, Any] = {"response_model": None, "responses": {"default": {"description": ""}}}
        guard = next((one.dependency for one in rest.get("dependencies") or ()), None)
        assert isinstance(guard, auth.Guard), f"{path} has no guard as its first dependency"
        super().__init__(path, endpoint, **{**rest, **ours})

    def get_route_handler(self) -> Handler:
        answer = _direct(self.dependant) or super().get_route_handler()
        guard = self.dependencies[0].dependency
        assert isinstance(guard, auth.Guard)
        fields = self.dependant.query_params
        known = [name for one in fields for name in _names(one.field_info.annotation) or [one.alias]]
        decode = getattr(self.body_field and self.body_field.field_info.annotation, "decode", wire.decode)

        async def handle(request: Request) -> Response:
            await guard(request)
            if self.is_strict:
                _check_query(request, known)
            if self.body_field is not None:
                body = await wire.read_body(request)
                request = DecodedRequest(request, body, decode(body))
            elif self.is_strict and not self.reads_body and request.method != "GET":
                await wire.refuse_body(request)
            return await answer(request)

        return handle


def _direct(route: Dependant) -> Handler | None:
    """Calls the endpoint of a route that takes the request, its body, its caller and parts of the application. None: it
    takes something else too. FastAPI would find out anew at each request what a route takes."""
    endpoint, body, request_name = route.call, route.body_params, route.request_param_name
    needed = list(dict.fromkeys(one.call for one in route.dependencies if one.call))
    is_ours = all(isinstance(call, auth.Guard | AppPart) for call in needed) and inspect.iscoroutinefunction(endpoint)
    rest = replace(route, call=None, path=None, scope=None, request_param_name=None, dependencies=[], body_params=[])
    if endpoint is None or not is_ours or len(body) > 1 or rest != Dependant():
        return None
    names = [(one.name, one.call) for one in route.dependencies if one.name and one.call]

    async def answer(request: Request) -> Response:
        solved = {call: await call(request) for call in needed}
        values = {name: solved[call] for name, call in names}
        if request_name:
            values[request_name] = request
        if body:
            given, problems = await request_body_to_args(body, await request.json(), embed_body_fields=False)
            if problems:
                raise RequestValidationError(problems)
            values |= given
        response: Response = await endpoint(**values)
        return response

    return answer


class StrictRoute(JsonRoute):
    """A route of our own: it refuses unknown query parameters, and a body if the route takes none."""

    is_strict = True


class UploadRoute(StrictRoute):
    """A route of our own whose body is a file, which it reads by itself."""

    reads_body = True


def _check_query(request: Request, known: Sequence[str]) -> None:
    seen = set[str]()
    for name, value in request.query_params.multi_items():
        if name not in known:
            here = f"; known: {', '.join(known)}" if known else ""
            raise CallerError(f"There is no query parameter {name[:64]!r} here{here}.", param=name[:64])
        if "\x00" in value:
            raise CallerError(f"{name} contains a NUL character.", param=name)
        if name in seen:
            raise CallerError(f"The query parameter {name} is given twice; name it once.", param=name)
        seen.add(name)


def _names(kind: Any) -> list[str]:
    """The query parameters of a model."""
    is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
    return [info.alias or name for name, info in kind.model_fields.items()] if is_model else []


def strict_router(
    tag: str, guard: auth.Guard, *, prefix: str = "", route_class: type[StrictRoute] = StrictRoute
) -> APIRouter:
    """A router for our own routes, all with the same guard."""
    return APIRouter(prefix=prefix, tags=[tag], dependencies=[Depends(guard)], route_class=route_class)
