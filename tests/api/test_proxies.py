"""Behind a reverse proxy: who asks is believed from trusted addresses alone, and everything is below a path."""

import re
from typing import Any

import pytest
from key_helpers import ADMIN

from longhouse.api.rate_limits import GUESSES
from longhouse.errors import SetupError
from longhouse.settings import Settings
from server_helpers import House, Serving

KEY = {"authorization": f"Bearer {ADMIN}"}


async def guess(house: House, nth: int, forwarded: str) -> int:
    headers = {"authorization": f"Bearer guess {nth}", "x-forwarded-for": forwarded}
    async with house.http.get("/v1/models", headers=headers) as response:
        return response.status


async def test_a_client_has_the_address_that_a_trusted_proxy_says(serving: Serving) -> None:
    async with serving(admin_key=ADMIN, trusted_proxies="127.0.0.1, 10.0.0.0/8") as house:
        # What a client writes itself stands before what the proxies add, of which 10.0.0.9 is one.
        tried = [await guess(house, nth, f"198.51.100.{nth}, 203.0.113.7, 10.0.0.9") for nth in range(GUESSES + 1)]
        assert tried == [*GUESSES * [401], 429]
        assert await guess(house, 99, "203.0.113.8") == 401, "another client"
        assert await guess(house, 99, "203.0.113.7") == 429
        many = [f"2001:db8::{nth:x}" for nth in range(GUESSES + 1)]
        assert [await guess(house, nth, one) for nth, one in enumerate(many)] == [*GUESSES * [401], 429]
    async with serving(admin_key=ADMIN, trusted_proxies="127.0.0.1/32") as house:
        local = [*(f"127.0.{nth}.2" for nth in range(GUESSES - 2)), "::1", "::ffff:127.9.9.9", "127.255.255.254"]
        tried = [await guess(house, nth, one) for nth, one in enumerate(local)]
        assert tried == [*GUESSES * [401], 429], "all addresses of this machine are one"
    async with serving(admin_key=ADMIN, trusted_proxies="10.0.0.0/8") as house:
        tried = [await guess(house, nth, f"203.0.113.{nth}") for nth in range(GUESSES + 1)]
        assert tried == [*GUESSES * [401], 429], "nobody else chooses an address"


async def test_pages_of_origins_that_are_named_may_call_the_api_with_a_key(serving: Serving) -> None:
    ours, preflight = {"origin": "https://app.example.com"}, {
        "access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type",
    }  # fmt: skip
    allow = "access-control-allow-origin"
    async with serving(admin_key=ADMIN, cors_origins="https://app.example.com, tauri://localhost") as house:
        async with house.http.options("/v1/chat/completions", headers={**ours, **preflight}) as response:
            assert (response.status, response.headers[allow]) == (200, ours["origin"])
            assert "authorization" in response.headers["access-control-allow-headers"]
            assert "access-control-allow-credentials" not in response.headers
        for headers, status in (({}, 401), (KEY, 200)):
            async with house.http.get("/v1/models", headers={**ours, **headers}) as response:
                assert (response.status, response.headers[allow]) == (status, ours["origin"])
                assert "x-request-id" in response.headers["access-control-expose-headers"]
                assert "origin" in response.headers["vary"].lower()
        for path, origin in (("/admin/keys", ours["origin"]), ("/v1/models", "https://evil.example")):
            async with house.http.options(path, headers={**preflight, "origin": origin}) as response:
                assert (response.status >= 400, allow in response.headers) == (True, False)
            async with house.http.get(path, headers={**KEY, "origin": origin}) as response:
                assert (response.status, allow in response.headers) == (200, False)
    async with (
        serving(admin_key=ADMIN) as house,
        house.http.options("/v1/models", headers={**ours, **preflight}) as response,
    ):
        assert (response.status, allow in response.headers) == (405, False)
    for wrong in ("*", "app.example.com", "https://app.example.com/", "null"):
        with pytest.raises(SetupError, match="LONGHOUSE_CORS_ORIGINS: should be origins"):
            Settings(cors_origins=wrong)


@pytest.mark.parametrize("wrong", ["*", "proxy.example.com", "10.0.0.1/8", "10.0.0.0/33"])
def test_a_proxy_that_is_no_address_is_refused(wrong: str) -> None:
    with pytest.raises(SetupError, match="LONGHOUSE_TRUSTED_PROXIES: should be addresses or networks"):
        Settings(trusted_proxies=wrong)


async def test_everything_is_below_the_path_that_the_proxy_shows(serving: Serving) -> None:
    async with serving(admin_key=ADMIN, root_path="/team/longhouse/") as house:

        async def read(path: str, **headers: str) -> Any:
            async with house.http.get(path, headers={**KEY, **headers}) as response:
                assert response.status == 200, (path, await response.text())
                return await (response.json() if "json" in response.content_type else response.text())

        root = "/team/longhouse"
        for prefix in (root, ""):  # the proxy passes it on, or has taken it away
            assert (await read(f"{prefix}/health")) == {"status": "healthy", "service": "Longhouse"}
            page = await read(f"{prefix}/", accept="text/html")
            files = re.findall(r'(?:src|href)="([^"]+)"', page)
            assert files
            assert all(file.startswith(f"{root}/console/") for file in files)
            assert "import" in await read(next(file for file in files if file.endswith("main.js")))
            described = await read(f"{prefix}/openapi.json")
            assert described["servers"] == [{"url": root}]
            assert "/v1/models" in described["paths"]
            shown = await read(f"{prefix}/docs")
            assert f'src="{root}/docs/start.js"' in shown
            assert await read(f"{prefix}/docs/static/swagger-ui.css")
            assert f'"{root}/openapi.json"' in await read(f"{prefix}/docs/start.js")
            who = await read(f"{prefix}/console/session", host="house.example", **{"x-forwarded-proto": "https"})
            assert who["address"] == f"https://house.example{root}"
        assert await read(root, accept="text/html")
        async with house.http.post(f"{root}/console/session", json={"key": ADMIN}) as response:
            assert response.cookies["longhouse"]["path"] == root
        async with house.http.get(f"{root}x/health") as response:
            assert response.status == 404

        body = {"model": "secretary", "messages": [{"role": "user", "content": "Write a letter to Bob."}]}
        async with house.http.post(f"{root}/v1/chat/completions", json=body, headers=KEY) as response:
            session = (await response.json())["model"]
        questions = await read(f"{root}/v1/sessions/{session}/questions")
        decided = {"call_id": questions["data"][0]["name"], "decision": "approve"}
        async with house.http.post(f"{root}/v1/sessions/{session}/approval", json=decided, headers=KEY) as response:
            assert response.status == 202
        while not (files := (await read(f"{root}/v1/sessions/{session}/artifacts"))["data"]):
            pass
        assert files[0]["download"].startswith(f"{root}/v1/sessions/")
        assert "Bob" in await read(files[0]["download"])
    for taken in ("/v1", "/agents/x", "/console", "/s"):
        with pytest.raises(SetupError, match="is a path of Longhouse itself"):
            async with serving(root_path=taken):
                raise AssertionError("it started")
    for wrong in ("agents", "/a//b", "/a/../b", "/a b", "/a?b", "//evil"):
        with pytest.raises(SetupError, match="LONGHOUSE_ROOT_PATH: should be a path such as"):
            Settings(root_path=wrong)
