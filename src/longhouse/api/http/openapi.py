"""/openapi.json and the Swagger UI page at /docs, for admins."""

from string import Template
from typing import Final

from fastapi import APIRouter, Depends, Request, Response
from starlette.staticfiles import StaticFiles

from longhouse.api import auth, wire
from longhouse.api.http import addresses, openapi_schema
from longhouse.api.http.lazy_route import LazyRoute

PAGE: Final = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Longhouse</title>
<link rel="stylesheet" href="$root/docs/static/swagger-ui.css">
<link rel="icon" href="$root/docs/static/favicon.png">
</head>
<body>
<div id="swagger-ui"></div>
<script src="$root/docs/static/swagger-ui-bundle.js"></script>
<script src="$root/docs/start.js"></script>
</body>
</html>
""")
# A separate file: the content security policy allows no inline scripts.
START: Final = Template("""SwaggerUIBundle({
    url: "$root/openapi.json",
    dom_id: "#swagger-ui",
    deepLinking: true,
    showExtensions: true,
    showCommonExtensions: true,
    presets: [SwaggerUIBundle.presets.apis, SwaggerUIBundle.SwaggerUIStandalonePreset],
});
""")

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

router = APIRouter(include_in_schema=False, dependencies=[Depends(auth.admin)], route_class=LazyRoute)


@router.get("/openapi.json")
def openapi(request: Request) -> Response:
    """Runs in a thread: the first call builds the document, for almost half a second."""
    app, root = request.app, addresses.root_of(request.scope)
    document = app.openapi_schema = app.openapi_schema or openapi_schema.document(app)
    return wire.Json({**document, "servers": [{"url": root}]} if root else document)


@router.get("/docs")
async def page(request: Request) -> Response:
    return _written(PAGE, "text/html", request)


@router.get("/docs/start.js")
async def start(request: Request) -> Response:
    return _written(START, "text/javascript", request)


def _written(text: Template, media_type: str, request: Request) -> Response:
    content = text.substitute(root=addresses.root_of(request.scope))
    return Response(content, media_type=media_type, headers=HEADERS)


@router.get("/docs/static/{name}")
async def static(name: str, request: Request) -> Response:
    response = await FILES.get_response(name, request.scope)
    response.headers.update(HEADERS)
    return response
