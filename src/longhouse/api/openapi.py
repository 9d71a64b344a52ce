"""/openapi.json and the Swagger UI page at /docs, for admins."""

from typing import Final

from fastapi import APIRouter, Depends, Request, Response
from starlette.staticfiles import StaticFiles

from longhouse.api import auth, openapi_schema, wire

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
# A separate file: the content security policy allows no inline scripts.
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
    # Swagger UI uses inline styles, and data: images in its style sheet.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
"""The page acts with all rights of its reader, so no foreign script runs in it and it cannot be framed."""
FILES: Final = StaticFiles(packages=[("fastapi_offline", "static")])
"""The page's scripts come with a package, so that it works offline."""

router = APIRouter(include_in_schema=False, dependencies=[Depends(auth.admin)])


@router.get("/openapi.json")
def openapi(request: Request) -> Response:
    """Runs in a thread: the first call builds the document, for almost half a second."""
    app = request.app
    app.openapi_schema = app.openapi_schema or openapi_schema.document(app)
    return wire.Json(app.openapi_schema)


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
