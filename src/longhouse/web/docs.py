"""The API described by itself: /openapi.json, and a page to read it with, for those who may see it all."""

from pathlib import Path
from typing import Final

import fastapi_offline
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.staticfiles import StaticFiles

from longhouse.web import access, wire

STATIC: Final = Path(fastapi_offline.__file__).parent / "static"
"""The page's scripts come with a package: it works without a network."""


def routes(app: FastAPI) -> APIRouter:
    router = APIRouter(include_in_schema=False, dependencies=[Depends(access.admin)])
    files = StaticFiles(directory=STATIC)

    @router.get("/openapi.json", response_model=None)
    async def openapi() -> Response:
        return wire.Json(app.openapi())

    @router.get("/docs", response_model=None)
    async def page() -> Response:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title=app.title,
            swagger_js_url="/docs/static/swagger-ui-bundle.js",
            swagger_css_url="/docs/static/swagger-ui.css",
            swagger_favicon_url="/docs/static/favicon.png",
        )

    @router.get("/docs/static/{name}", response_model=None)
    async def static(name: str, request: Request) -> Response:
        return await files.get_response(name, request.scope)

    return router
