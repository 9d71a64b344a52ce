"""Attacks by web pages: what a browser sends to a server on its own machine for a page of elsewhere."""

import re
from typing import Any

import pytest
from attack_helpers import CHAT, ask, chat, leaves_no_trace, raw, refusal
from key_helpers import Client, admin_of, keyed, methods_of, routes_of

from server_helpers import AGENT, House, Serving

FOREIGN: list[dict[str, str]] = [
    {"origin": "https://evil.example"},
    {"origin": "http://localhost:3000"},
    {"origin": "http://localhost"},
    {"origin": "null"},
    {"origin": ""},
    {"origin": "file://"},
    {"origin": "http://127.0.0.1.evil.example:{port}"},
    {"origin": "http://{host}@evil.example"},
    {"origin": "http://{host}, https://evil.example"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "Cross-Site"},
    {"origin": "http://{host}", "sec-fetch-site": "cross-site"},
    {"origin": "https://evil.example", "sec-fetch-site": "same-origin"},
]
OWN: list[dict[str, str]] = [
    {},
    {"origin": "http://{host}"},
    {"origin": "https://{host}"},
    {"origin": "http://{host}", "sec-fetch-site": "same-origin"},
    {"sec-fetch-site": "none"},
]
SAFE = {"GET", "HEAD", "OPTIONS"}


def sent(house: House, headers: dict[str, str]) -> dict[str, str]:
    """These headers, with the house's own address where they name it."""
    host = house.url.removeprefix("http://")
    return {name: value.format(host=host, port=host.partition(":")[2]) for name, value in headers.items()}


async def active(house: House) -> Any:
    return [tuple(row) for row in await house.db.rows("SELECT name, is_active FROM tools ORDER BY name, version")]


async def test_without_keys_a_page_of_elsewhere_changes_nothing(serving: Serving) -> None:
    async with serving(ask) as house, leaves_no_trace(house):
        known = await active(house)
        for headers in FOREIGN:
            for path, body in ((CHAT, chat()), ("/admin/tools/clocktool/deactivate", None), ("/admin/keys", None)):
                async with house.http.post(path, json=body, headers=sent(house, headers)) as response:
                    found = await refusal(response)
                    assert (found.status, found.error["code"]) == (403, "foreign_origin"), (path, headers)
                    assert "LONGHOUSE_ADMIN_KEY" in found.error["message"], "it says what to do"
                    assert "access-control-allow-origin" not in response.headers
        for route in routes_of(house):
            for method in set(methods_of(route)) - SAFE:
                path = re.sub(r"{[^}]*}", "clocktool", route.path or "")
                status, error = await Client(house).refused(method, path, origin="https://evil.example")
                assert (status, error["code"]) == (403, "foreign_origin"), (method, path)
        assert await active(house) == known


async def test_without_keys_our_own_pages_and_plain_clients_are_let_in(serving: Serving) -> None:
    async with serving(ask) as house:
        for headers in OWN:
            async with house.http.post(CHAT, json=chat(), headers=sent(house, headers)) as response:
                assert response.status == 200, headers
        for headers in FOREIGN:
            for method, path in (("GET", "/v1/models"), ("HEAD", "/health"), ("GET", "/health")):
                async with house.http.request(method, path, headers=sent(house, headers)) as response:
                    assert response.status in (200, 405), "a page may cause it, and cannot read what comes back"
                    assert "access-control-allow-origin" not in response.headers


async def test_with_keys_the_key_decides(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        for headers in FOREIGN:
            given = sent(house, headers)
            async with house.http.post(CHAT, json=chat(), headers=given) as response:
                assert (await refusal(response)).status == 401, headers
            async with house.http.post(CHAT, json=chat(), headers={**given, **admin_of(house).headers}) as response:
                assert response.status == 200, "no browser adds a key by itself"


async def test_the_document_page_runs_its_own_scripts_alone_and_in_no_frame(serving: Serving) -> None:
    async with serving() as house:
        async with house.http.get("/docs") as response:
            page, headers = await response.text(), response.headers
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["frame-ancestors"] == "'none'"
        assert (policy["base-uri"], policy["form-action"]) == ("'none'", "'none'")
        assert policy["script-src"] == "'self'", "what is written into the page does not run"
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|javascript:", page)
        for address in re.findall(r'(?:src|href)="([^"]*)"', page):
            assert address.startswith("/docs/"), "nothing comes from elsewhere"
            async with house.http.get(address) as response:
                assert response.status == 200, address
                assert response.headers["x-content-type-options"] == "nosniff"
                assert response.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_two_origins_are_as_good_as_a_foreign_one(serving: Serving, method: str) -> None:
    async with serving() as house:
        own = f"Origin: {house.url}\r\n"
        for origins in (own + "Origin: https://evil.example\r\n", "Origin: https://evil.example\r\n" + own):
            host = house.url.removeprefix("http://")
            head = (
                f"{method} /v1/sessions/{AGENT}/cancel HTTP/1.1\r\nHost: {host}\r\n{origins}Connection: close\r\n\r\n"
            )
            assert b" 403 " in (await raw(house.url, head.encode())).splitlines()[0]
