"""The gate of the console: its pages and files, and the life of the cookie that a browser is signed in with."""

import asyncio
import re
from dataclasses import dataclass
from http.cookies import Morsel, SimpleCookie
from importlib import resources
from typing import Any

import aiohttp
import pytest
import structlog
from attack_helpers import CHAT, ask, chat, raw, refusal, remains
from fastapi import Request
from key_helpers import ADMIN, Client, admin_of, client_of, keyed

from longhouse.api.auth import address_of
from longhouse.api.console.pages import PAGES, TYPES
from longhouse.api.rate_limits import GUESSES, GuessLimit
from longhouse.errors import CallerError
from longhouse.store.access import browser_sessions, keys
from server_helpers import House, Serving, process, sse

SESSION = "/console/session"
HTML = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
STRICT = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data: blob:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
}


@dataclass(frozen=True)
class Browser(Client):
    """A client whose key is the token of its cookie, and that says where its requests come from."""

    @property
    def headers(self) -> dict[str, str]:
        return {
            "cookie": f"theme=dark; longhouse={self.key}",
            "origin": self.house.url,
            "sec-fetch-site": "same-origin",
        }


async def signed_in(house: House, key: str, **headers: str) -> tuple[Browser, Morsel[str]]:
    """A browser that pasted this key, and its cookie."""
    own = {"origin": house.url, **{name.replace("_", "-"): value for name, value in headers.items()}}
    async with house.http.post(SESSION, json={"key": key}, headers=own) as response:
        assert response.status == 200, await response.text()
        assert response.headers["cache-control"] == "no-store"
        told, cookie = await response.json(), SimpleCookie(response.headers["set-cookie"])["longhouse"]
    assert told["owner"]
    return Browser(house, cookie.value, told["key"]["id"]), cookie


def policy_of(response: aiohttp.ClientResponse) -> dict[str, str]:
    parts = response.headers["content-security-policy"].split(";")
    return dict(part.strip().split(" ", 1) for part in parts)


def is_guarded(response: aiohttp.ClientResponse) -> bool:
    """Whether the answer runs its own scripts alone, is shown in no frame, and is checked at each load."""
    headers = response.headers
    assert policy_of(response) == STRICT
    return (
        headers["x-frame-options"] == "DENY"
        and headers["x-content-type-options"] == "nosniff"
        and headers["referrer-policy"] == "no-referrer"
        and headers["cross-origin-opener-policy"] == "same-origin"
        and headers["cache-control"] == "no-cache"
        and "access-control-allow-origin" not in headers
    )


# Pages and files


OUTSIDE = (
    "../pages.py", "..%2fpages.py", "%2e%2e/pages.py", "%2e%2e%2fpages.py", "screens/../../pages.py", "/etc/passwd",
    "%2fetc%2fpasswd", "..%5cpages.py", "....//pages.py", "index.html%00.js", "%00", "", ".", "..", "screens",
    "screens/", "MAIN.JS", "main.js/", "main.js%20", "static/main.js", "x" * 3_000,
)  # fmt: skip


async def test_every_address_of_a_screen_is_the_page_and_holds_nothing(serving: Serving) -> None:
    async with keyed(serving) as house:
        tags = set()
        for path in (re.sub("{.*}", "x<img>", page) for page in PAGES):
            async with house.http.get(path, headers=HTML) as response:
                body = await response.text()
                assert (response.status, response.content_type, is_guarded(response)) == (200, "text/html", True), path
                tags.add(response.headers["etag"])
            async with house.http.head(path, headers=HTML) as response:
                assert (response.status, is_guarded(response), await response.read()) == (200, True, b"")
            async with house.http.get(path, headers={"accept": "application/json"}) as response:
                assert (await refusal(response)).status == 404, "whoever wants JSON means a route of the API"
            assert await Client(house).status("POST", path) == 405
        assert len(tags) == 1
        assert ADMIN not in body
        assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|javascript:|https?://", body)
        for address in re.findall(r'(?:src|href)="([^"]*)"', body):
            async with house.http.get(address) as response:
                assert response.status == 200, address


async def test_every_file_of_the_package_is_served_and_nothing_else(serving: Serving) -> None:
    async with keyed(serving) as house:
        folder = resources.files("longhouse.api.console") / "static"
        with resources.as_file(folder) as root:
            files = [file for file in root.rglob("*") if file.is_file()]
            assert {"index.html", "main.js", "sign_in.js"} <= {file.name for file in files}
            for file in files:
                address = f"/console/{file.relative_to(root).as_posix()}"
                async with house.http.get(address) as response:
                    assert (response.status, is_guarded(response)) == (200, True), address
                    assert response.headers["content-type"] == TYPES[file.suffix]
                    assert await response.read() == file.read_bytes()
                    tag = response.headers["etag"]
                for known in (tag, f'"other", W/{tag}'):
                    async with house.http.get(address, headers={"if-none-match": known}) as response:
                        assert (response.status, is_guarded(response), await response.read()) == (304, True, b"")
                async with house.http.get(address, headers={"if-none-match": '"other"'}) as response:
                    assert response.status == 200
        async with house.http.get("/") as response:
            assert response.headers["cache-control"] == "no-cache"
            kept = re.findall(r"/console/[0-9a-f]{16}/main.js", await response.text())
        other = "/console/0123456789abcdef/main.js"
        for path, cache in ((kept[0], "public, max-age=31536000, immutable"), (other, "no-cache")):
            async with house.http.get(path) as response:
                assert (response.status, response.headers["cache-control"]) == (200, cache), "a page of another release"
        for path in OUTSIDE:
            line = f"GET /console/{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
            assert b" 404 " in (await raw(house.url, line.encode())).splitlines()[0], path


async def test_without_keys_nobody_signs_in_and_another_host_sees_nothing(serving: Serving) -> None:
    async with serving() as house:
        shown = await Client(house).got(SESSION)
        assert shown == {
            "owner": "local", "role": "admin", "key": None, "is_open": True, "is_demo": True, "model": None,
            "address": house.url, "version": shown["version"],
        }  # fmt: skip
        async with house.http.post(SESSION, json={"key": "whatever"}) as response:
            assert (response.status, await response.json()) == (200, shown)
            assert "set-cookie" not in response.headers
        for path in ("/", "/inbox", "/console/main.js", SESSION):
            async with house.http.get(path, headers={"host": "evil.example"}) as response:
                assert (await refusal(response)).status == 421, "a name that was rebound to this machine"
        status, error = await Client(house).refused("POST", SESSION, {"key": "x"}, origin="https://evil.example")
        assert (status, error["code"]) == (403, "foreign_origin")


# The life of a cookie


async def test_a_key_becomes_a_cookie_that_ends_with_it(serving: Serving) -> None:
    with structlog.testing.capture_logs() as logs:
        async with keyed(serving, ask) as house:
            admin, ann = admin_of(house), await client_of(house, "ann")
            nobody = await Client(house).got(SESSION)
            assert (nobody["owner"], nobody["role"], nobody["key"], nobody["is_open"]) == (None, None, None, False)
            assert nobody["model"] is None, "a stranger learns nothing of the set-up"
            assert (nobody["is_demo"], bool(nobody["version"])) == (False, True), "on this machine"
            async with house.http.get(SESSION, headers={"host": "agents.example"}) as response:
                far = await response.json()
            assert (far["is_demo"], far["version"]) == (None, None)

            browser, cookie = await signed_in(house, f"  {ann.key}\n")
            assert (cookie["httponly"], cookie["samesite"], cookie["path"], cookie["secure"]) == (
                True,
                "strict",
                "/",
                "",
            )
            assert int(cookie["max-age"]) == browser_sessions.LIFETIME.total_seconds()
            shown = await browser.got(SESSION)
            assert (shown["owner"], shown["role"], shown["key"]) == ("ann", "user", {"id": ann.id, "name": "ann's"})
            assert (shown["is_demo"], shown["model"]) == (False, "gpt-4o-mini")

            session = (await browser.say("hi"))["model"]
            assert [row["session_id"] for row in (await ann.got("/v1/sessions"))["data"]] == [session]
            own = f"/v1/sessions/{session}"
            for path in (
                "/v1/sessions",
                f"{own}/timeline",
                f"{own}/export",
                f"{own}/events",
                "/v1/sessions/none",
                SESSION,
            ):
                async with browser.ask("GET", path) as response:
                    kept = response.headers.get("cache-control"), response.headers.get("x-content-type-options")
                    assert kept == ("no-store", "nosniff"), path
            assert await browser.status("GET", "/admin/keys") == 403
            assert await browser.status("GET", "/docs") == 403

            for stolen in ({"authorization": f"Bearer {browser.key}"}, {"x-api-key": browser.key}):
                async with house.http.get("/v1/models", headers=stolen) as response:
                    assert (await refusal(response)).status == 401, "a token is no key"
            async with browser.ask("GET", SESSION, authorization=f"Bearer {ADMIN}") as response:
                assert (await response.json())["key"]["id"] == "admin", "a key in a header wins"
            assert (await browser.refused("GET", "/v1/models", authorization="Bearer x"))[0] == 401
            both = f"longhouse={browser.key}; longhouse={'x' * 43}"
            assert (await Client(house).refused("GET", "/v1/models", cookie=both))[0] == 401, "which one is meant?"

            path = f"/v1/sessions/{session}/events?until=never"
            async with browser.streaming(path) as stream:
                await anext(sse(stream))
                assert await admin.status("DELETE", f"/admin/keys/{ann.id}") == 204
                async with asyncio.timeout(10):
                    last = [event async for event in sse(stream)][-1]
                assert (last.event, last.json["error"]["code"]) == ("error", "invalid_api_key")
            status, error = await browser.refused("GET", "/v1/models")
            assert (status, "sign in again" in error["message"]) == (401, True)
            assert (await browser.got(SESSION))["owner"] is None
            stored = str(await house.db.rows("SELECT b::text FROM browser_sessions b"))
            assert ann.id in stored
            assert browser.key not in stored
    assert {"browser_signed_in", "request"} <= {record["event"] for record in logs}
    assert all(secret not in str(logs) for secret in (browser.key, ann.key, ADMIN))


async def test_a_cookie_outlives_the_server_and_is_signed_out_in_all_processes(serving: Serving, dsn: str) -> None:
    async with keyed(serving, ask) as house:
        ann, _ = await signed_in(house, (await client_of(house, "ann")).key)
        session = (await ann.say("hi"))["model"]
        admin, _ = await signed_in(house, ADMIN)
    async with keyed(serving, ask) as house, keyed(serving, ask) as other:
        ann, elsewhere = Browser(house, ann.key), Browser(other, ann.key)
        assert await Browser(house, admin.key).status("GET", "/admin/keys") == 200
        for path in ("/docs", "/openapi.json", "/metrics", "/docs/static/swagger-ui.css"):
            async with other.http.get(
                path, headers={"cookie": f"longhouse={admin.key}", "sec-fetch-site": "none"}
            ) as it:
                assert it.status == 200, path
        async with elsewhere.streaming(f"/v1/sessions/{session}/events?until=never") as stream:
            await anext(sse(stream))
            async with ann.ask("DELETE", SESSION) as response:
                assert response.status == 204
                assert SimpleCookie(response.headers["set-cookie"])["longhouse"]["max-age"] == "0"
            async with asyncio.timeout(10):
                last = [event async for event in sse(stream)][-1]
            assert last.json["error"]["message"] == "This browser is not signed in any more."
        for client in (ann, elsewhere):
            assert await client.status("GET", "/v1/models") == 401
        assert await house.db.value("SELECT count(*) FROM browser_sessions") == 1, "the admin's is left"
    async with serving(ask, admin_key=f"{ADMIN}-new") as house:
        assert await Browser(house, admin.key).status("GET", "/admin/keys") == 401, "another key of the house"
    async with process(database_url=dsn, admin_key=ADMIN) as killed:
        async with killed.http.get("/admin/keys", headers={"cookie": f"longhouse={admin.key}"}) as response:
            assert response.status == 200, "back with the key, in a process of its own"
        async with killed.http.post(SESSION, json={"key": ADMIN}) as response:
            token = SimpleCookie(response.headers["set-cookie"])["longhouse"].value
        killed.kill()
        await killed.ended()
    assert not any(secret in line for line in killed.said for secret in (token, admin.key, ADMIN))
    async with keyed(serving) as house:
        assert await Browser(house, token).status("GET", "/admin/keys") == 200, "kill -9 signs nobody out"


async def test_sessions_expire_and_do_not_pile_up(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser_sessions, "MOST_OF_KEY", 3)
    async with keyed(serving, ask) as house:
        ann = await client_of(house, "ann")
        old, _ = await signed_in(house, ann.key)
        session = (await ann.say("hi"))["model"]
        async with old.streaming(f"/v1/sessions/{session}/events?until=never") as stream:
            await anext(sse(stream))
            await house.db.run("UPDATE browser_sessions SET expires_at = now()")
            async with asyncio.timeout(10):
                assert [event async for event in sse(stream)][-1].event == "error", "what is open ends too"
        assert await old.status("GET", "/v1/models") == 401
        browsers = [(await signed_in(house, ann.key))[0] for _ in range(5)]
        statuses = [await browser.status("GET", "/v1/models") for browser in browsers]
        assert statuses == [401, 401, 200, 200, 200], "the oldest make room"
        assert await house.db.value("SELECT count(*) FROM browser_sessions") == 3, "expired rows are gone"
        again, _ = await signed_in(house, ann.key, cookie=f"longhouse={browsers[-1].key}")
        assert [await one.status("GET", "/v1/models") for one in (browsers[-1], again)] == [401, 200]
        await keys.revoke(house.db, ann.id)
        assert await again.status("GET", "/v1/models") == 401, "whoever revoked it"


async def test_the_cookie_is_secure_behind_https(serving: Serving) -> None:
    async with keyed(serving) as house:
        for headers, expected in (
            ({"host": "agents.example", "x_forwarded_proto": "https", "origin": "http://agents.example"}, True),
            ({"host": "agents.example", "x_forwarded_proto": "HTTPS, http", "origin": "http://agents.example"}, True),
            ({"host": "agents.example", "origin": "https://agents.example"}, True),
            ({"host": "agents.example", "origin": "http://agents.example"}, False),
            ({"x_forwarded_proto": "https"}, False),
        ):
            _, cookie = await signed_in(house, ADMIN, **headers)
            assert bool(cookie["secure"]) is expected, headers


# What others send


FOREIGN: list[dict[str, str]] = [
    {},
    {"origin": "https://evil.example"},
    {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"},
    {"origin": "null"},
    {"origin": "{url}", "sec-fetch-site": "cross-site"},
    {"origin": "https://evil.example", "sec-fetch-site": "same-origin"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "none"},
    {"origin": "http://evil.example", "host": "evil.example", "sec-fetch-site": "cross-site"},
]


async def test_a_page_of_elsewhere_does_nothing_with_the_cookie(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        browser, _ = await signed_in(house, ADMIN)
        cookie = {"cookie": f"longhouse={browser.key}"}
        before = await remains(house.db)
        for foreign in FOREIGN:
            headers = {**cookie, **{name: value.format(url=house.url) for name, value in foreign.items()}}
            for method, path in (("POST", CHAT), ("POST", "/admin/tools/clocktool/deactivate"), ("DELETE", SESSION)):
                for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
                    sent = {**headers, "content-type": kind}
                    async with house.http.request(method, path, data=b'{"a":"="}', headers=sent) as response:
                        found = await refusal(response)
                        assert (found.status, found.error["code"]) == (403, "foreign_origin"), (foreign, path)
                        assert "access-control-allow-origin" not in response.headers
        status, error = await Client(house).refused("POST", SESSION, {"key": ADMIN}, origin="https://evil.example")
        assert (status, error["code"]) == (403, "foreign_origin"), "nor signs it a browser in with a key of its own"
        async with house.http.options(CHAT, headers={"origin": "https://evil.example"}) as response:
            assert "access-control-allow-origin" not in response.headers
        assert await remains(house.db) == before

        other_port = {**cookie, "sec-fetch-site": "same-site"}
        for mode, status in (("no-cors", 403), ("cors", 403), ("navigate", 200)):
            async with house.http.get("/v1/models", headers={**other_port, "sec-fetch-mode": mode}) as response:
                assert response.status == status, "another port of this machine may link here, and read nothing"
        for own in ({"origin": house.url}, {"sec-fetch-site": "same-origin"}):
            async with house.http.post(CHAT, json=chat(), headers={**cookie, **own}) as response:
                assert response.status == 200, own
        assert await browser.status("GET", "/v1/models") == 200, "still signed in"


async def test_keys_are_tried_only_so_often(serving: Serving) -> None:
    async with keyed(serving) as house:
        ann, nobody = await client_of(house, "ann"), Client(house)
        bodies: list[Any] = [{}, {"key": ""}, {"key": 7}, {"key": "x" * 513}, {"key": "x", "more": 1}, [], "x"]
        for body in bodies:
            status, error = await nobody.refused("POST", SESSION, body)
            assert (status, error["param"]) == (400, "key"), body
        assert (await nobody.refused("POST", SESSION, {"key": "x" * 9_000}))[0] == 413
        for nth in range(GUESSES):
            for _ in range(2):  # a program with a wrong key sends it again and again
                if nth % 2:
                    refused = await nobody.refused("POST", SESSION, {"key": f"{ADMIN}{nth}"})
                else:
                    refused = await nobody.refused("GET", "/v1/models", authorization=f"Bearer {ADMIN}{nth}")
                status, error = refused
                assert (status, error["message"]) == (401, "This API key is not valid."), nth
        for guess in ({"authorization": "Bearer x"}, {"x_api_key": "y"}):
            async with nobody.ask("GET", "/v1/models", **guess) as response:
                assert (response.status, 0 < int(response.headers["retry-after"]) <= 6) == (429, True)
        assert (await nobody.refused("POST", SESSION, {"key": "lh_" + "x" * 43}))[0] == 401
        for key in (ADMIN, ann.key):
            await signed_in(house, key)  # what nobody can guess is let in, whatever others try from there
            assert await Client(house, key).status("GET", "/v1/models") == 200
    async with serving(admin_key="easy") as house:
        assert await Client(house, "easy").status("GET", "/admin/keys") == 200
        statuses = [await Client(house, f"guess {nth}").status("GET", "/v1/models") for nth in range(GUESSES + 1)]
        assert statuses == [*GUESSES * [401], 429]
        assert await Client(house, "easy").status("GET", "/admin/keys") == 429, "it is not even compared"
        assert await Client(house).status("POST", SESSION, {"key": "easy"}) == 429


def test_only_so_many_addresses_are_remembered() -> None:
    limit = GuessLimit(size=1, addresses=2)
    for address in ("a", "b"):
        assert limit.has_some(address)
        limit.take(address, "one")
        limit.take(address, "one")
        assert not limit.has_some(address)
        with pytest.raises(CallerError, match="Too many keys"):
            limit.take(address, "two")
    limit.take("c", "one")
    limit.take("a", "one")
    assert len(limit._buckets) == 2


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("10.0.0.7", "10.0.0.7"), ("::ffff:10.0.0.7", "10.0.0.7"), ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::2", "2001:db8::/64"), ("127.0.0.7", "127.0.0.1"), ("::1", "127.0.0.1"),
        ("testclient", "testclient"),
    ],
)  # fmt: skip
def test_guesses_are_counted_by_who_can_have_an_address(host: str, counted: str) -> None:
    assert address_of(Request({"type": "http", "client": (host, 1), "headers": []})) == counted
