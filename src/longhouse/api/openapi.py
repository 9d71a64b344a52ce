"""The API described by itself: /openapi.json, and a page to read it with, for those who may see it all."""

from pathlib import Path
from typing import Final

import fastapi_offline
from fastapi import APIRouter, Depends, Request, Response
from starlette.staticfiles import StaticFiles

from longhouse.api import auth, wire

STATIC: Final = Path(fastapi_offline.__file__).parent / "static"
"""The page's scripts come with a package: it works without a network."""

PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Longhouse</title>
<link rel="stylesheet" href="/docs/static/swagger-ui.css">
<link rel="icon" href="/docs/static/favicon.png">
</head>
<body>
<div id="swagger-ui"></div>
<script src="/docs/static/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""
# A file of its own: the policy lets nothing run that is written into the page.
START: Final = """SwaggerUIBundle({
    url: "/openapi.json",
    dom_id: "#swagger-ui",
    deepLinking: true,
    showExtensions: true,
    showCommonExtensions: true,
    presets: [SwaggerUIBundle.presets.apis, SwaggerUIBundle.SwaggerUIStandalonePreset],
});
"""

HEADERS: Final = {
    # Swagger UI puts styles into the page, and images of its own into its style sheet.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
"""The page can do everything that whoever reads it may do: nothing else runs in it, and nobody puts it in a frame."""


router = APIRouter(include_in_schema=False, dependencies=[Depends(auth.admin)])
FILES: Final = StaticFiles(directory=STATIC)


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    return wire.Json(request.app.openapi())


@router.get("/docs")
async def page() -> Response:
    return Response(PAGE, media_type="text/html", headers=HEADERS)


@router.get("/docs/start.js")
async def start() -> Response:
    return Response(START, media_type="text/javascript", headers=HEADERS)


@router.get("/docs/static/{name}")
async def static(name: str, request: Request) -> Response:
    response = await FILES.get_response(name, request.scope)
    response.headers.update(HEADERS)
    return response
