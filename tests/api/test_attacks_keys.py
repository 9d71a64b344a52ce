"""Attacks on the door: keys that are none, names and paths that try to get around it, and guests who stay too long."""

import asyncio
import base64
import socket
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from attack_helpers import CHAT, answers, ask, canary, chat, raw, refusal, remains
from key_helpers import ADMIN, Client, admin_of, client_of, keyed
from openai import APIError, AsyncOpenAI, AuthenticationError

from longhouse.api.inflight import InflightRequests
from longhouse.cli.processes.listening import refuse_easy_key
from longhouse.errors import SetupError
from longhouse.models.scripted import Hang, Say
from longhouse.store.access import keys
from longhouse.store.database import open_database
from server_helpers import AGENT, House, Serving, launched_words, process, sse

OURS = "lh_" + "A" * 43
NEVER = "until=never"


def hang(body: Any = None) -> Say:
    """A model that never answers: whoever waits for it waits."""
    return Say(fault=Hang())


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


STRANGERS: list[dict[str, str]] = [
    {},
    {"authorization": ""},
    {"authorization": "Bearer"},
    {"authorization": "Bearer "},
    {"authorization": f"Bearer {OURS}"},
    {"authorization": f"Bearer {ADMIN}x"},
    {"authorization": f"Bearer {ADMIN[:-1]}"},
    {"authorization": f"Bearer {ADMIN.upper()}"},
    {"authorization": f"Bearer Bearer {ADMIN}"},
    {"authorization": ADMIN},
    {"authorization": f"Token {ADMIN}"},
    {"authorization": basic(f"admin:{ADMIN}")},
    {"authorization": basic(ADMIN)},
    {"authorization": f"Bearer {'x' * 5_000}"},
    {"authorization": "Bearer ' OR '1'='1' --"},
    {"authorization": "Bearer lh_'; DROP TABLE api_keys; --"},
    {"authorization": "Bearer lh_%"},
    {"authorization": "Bearer é\xff"},
    {"x-api-key": OURS},
    {"x-api-key": "' OR 1=1 --"},
    {"x-api-key": f"Bearer {ADMIN}"},
    {"x-api-key": "é"},
    {"cookie": f"authorization=Bearer {ADMIN}; x-api-key={ADMIN}"},
    {"proxy-authorization": f"Bearer {ADMIN}"},
    {"x-forwarded-user": "admin", "x-forwarded-for": "127.0.0.1", "x-real-ip": "127.0.0.1"},
    {"x-original-url": "/health", "x-rewrite-url": "/health", "x-forwarded-prefix": "/health"},
    {"x-http-method-override": "GET", "x-forwarded-host": "localhost"},
    # Two that differ: which of them was meant?
    {"authorization": f"Bearer {ADMIN}", "x-api-key": OURS},
    {"authorization": f"Bearer {OURS}", "x-api-key": ADMIN},
    {"authorization": basic(ADMIN), "x-api-key": ADMIN},
]


async def test_who_brings_no_key_of_ours_is_refused_alike(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        before = await remains(house.db)
        for headers in STRANGERS:
            for method, path, body in (
                ("POST", CHAT, chat()),
                ("GET", "/v1/models", None),
                ("GET", "/admin/keys", None),
            ):
                async with house.http.request(method, path, json=body, headers=headers) as response:
                    found = await refusal(response)
                    assert (found.status, found.error["code"]) == (401, "invalid_api_key"), headers
                    assert response.headers["www-authenticate"] == "Bearer"
                    assert ADMIN not in str(found.error)
        for name in ("api_key", "key", "access_token", "authorization", "x-api-key"):
            async with house.http.get("/v1/models", params={name: ADMIN}) as response:
                assert (await refusal(response)).status == 401, "a key in an address ends up in logs"
        assert await remains(house.db) == before
        assert await house.db.value("SELECT count(*) FROM api_keys") == 0, "the table is still there"


async def test_bytes_that_are_no_header_are_no_key(serving: Serving) -> None:
    async with keyed(serving) as house:
        for key in (b"a\x00b", b"\x00", ADMIN.encode() + b"\x00", b"x" * 60_000, b"\xff\xfe", b"a\r\n b", b"a\nb"):
            sent = (
                b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer %b\r\n\r\n"
            )
            statuses = answers(await raw(house.url, sent % key))
            assert set(statuses) <= {400, 401, 431}, (key[:20], statuses)
        assert await admin_of(house).status("GET", "/v1/models") == 200


async def test_a_key_counts_the_same_in_either_header(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        ann = await client_of(house, "ann", rate_limit=100)
        ways = ({"authorization": f"Bearer {ann.key}"}, {"authorization": f"bearer  {ann.key}"}, {"x-api-key": ann.key})
        for headers in (*ways, {**ways[0], **ways[2]}):
            for method, path, expected in (
                ("GET", "/v1/models", 200),
                ("GET", "/admin/keys", 403),
                ("GET", "/docs", 403),
            ):
                async with house.http.request(method, path, headers=headers) as response:
                    assert response.status == expected, (headers, path)


HOSTS = (
    "evil.example/health?", "evil.example/health", "localhost/health?", "localhost#", "localhost@evil.example",
    "evil.example:80:80", "evil.example\\health", "[::1", "a b", "%6c", "", "x" * 300,
)  # fmt: skip


async def test_a_name_in_the_request_opens_nothing(serving: Serving) -> None:
    async with keyed(serving) as house:
        for host in (*HOSTS, "evil.example", "localhost"):
            for path in ("/v1/models", "/admin/keys", "/v1/sessions", "/openapi.json"):
                sent = f"GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode()
                statuses = answers(await raw(house.url, sent))
                assert set(statuses) <= {400, 401, 421}, (host, path, statuses)
        for host in ("agents.example.com", "agents.example.com:8400", "10.0.0.7:8400", "[fe80::1]:8400", "localhost"):
            async with house.http.get("/v1/models", headers={**admin_of(house).headers, "host": host}) as response:
                assert response.status == 200, "with keys, any name will do"
            async with house.http.get("/v1/models", headers={"host": host}) as response:
                assert response.status == 401


async def test_another_spelling_of_a_path_leads_nowhere(serving: Serving) -> None:
    paths = (
        "//v1//models", "/v1//models", "/x/../v1/models", "/health/../v1/models", "/v1/x/../models", "/v1/./models",
        "/%76%31/models", "/v1/%6dodels", "/v1/models/", "/V1/models", "/v1/models;x", "/v1/models%00", "/v1%2fmodels",
        "/health%2f..%2fadmin/keys", "/health/..;/admin/keys", "//admin/keys", "/admin//keys", "/admin/keys/",
        "/docs/../admin/keys", "/docs/static/../../admin/keys", "/docs/static/%2e%2e/core.py", "/.//admin/keys",
        "http://localhost/admin/keys", "http://evil.example/admin/keys",
    )  # fmt: skip
    async with keyed(serving) as house:
        for path in paths:
            for extra in ("", "x-original-url: /health\r\nx-forwarded-prefix: /health\r\n"):
                sent = f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{extra}connection: close\r\n\r\n".encode()
                statuses = answers(await raw(house.url, sent))
                assert statuses, path
                assert set(statuses) <= {400, 401, 404}, (path, statuses)


async def test_only_health_and_readiness_are_for_everybody(serving: Serving) -> None:
    async with keyed(serving) as house:
        nobody, ann = Client(house), await client_of(house, "ann")
        assert await nobody.got("/health") == {"status": "healthy", "service": "Longhouse"}
        assert set(await nobody.got("/ready")) == {"status", "workers"}
        for path in ("/docs", "/openapi.json", "/metrics", "/docs/static/swagger-ui.css", "/admin/keys"):
            assert [await client.status("GET", path) for client in (nobody, ann, admin_of(house))] == [401, 403, 200]
        for path in ("/redoc", "/docs/oauth2-redirect", "/debug", "/admin", "/.env", "/version"):
            assert await nobody.status("GET", path) == 404


async def test_a_body_that_names_an_endpoint_changes_nothing(serving: Serving) -> None:
    async with canary() as heard, keyed(serving, ask) as house:
        ann = await client_of(house, "ann")
        for name in ("api_base", "base_url", "llm_base_url", "endpoint", "proxy"):
            assert "choices" in await ann.say("hi", **{name: heard.url, "api_key": "sk-x"})
        assert heard.calls == 0
        assert house.model is not None
        assert "sk-x" not in str(house.model.requests)


# Guests who stay


async def ended(response: Any, within: float = 10.0) -> list[Any]:
    """The events of a stream that ends by itself."""
    async with asyncio.timeout(within):
        return [event async for event in sse(response)]


async def exhausted(stream: Any) -> None:
    async for _ in stream:
        pass


async def cancel_all(client: Client) -> None:
    """So that no turn is waited for when the house closes."""
    for row in (await client.got("/v1/sessions"))["data"]:
        assert await client.status("POST", f"/v1/sessions/{row['session_id']}/cancel") == 202


async def inside(house: House, key: Client, visitors: int) -> None:
    """Waits until so many requests of this key are being served."""
    inflight: InflightRequests = house.app.authenticator.inflight
    async with asyncio.timeout(10):
        while len(inflight.of(key=key.id)) != visitors:
            await asyncio.sleep(0.01)


async def test_revoking_a_key_ends_what_it_has_open(serving: Serving) -> None:
    async with keyed(serving, hang) as house:
        admin, ann, bob = admin_of(house), await client_of(house, "ann"), await client_of(house, "ann")
        waiting = asyncio.create_task(ann.refused("POST", CHAT, chat(chat_id="w")))
        async with ann.streaming(CHAT, chat(stream=True)) as talk, AsyncExitStack() as stack:
            session_id = (await anext(sse(talk))).json["model"]
            path = f"/v1/sessions/{session_id}/events?{NEVER}"
            watched = await stack.enter_async_context(ann.streaming(path))
            others = await stack.enter_async_context(bob.streaming(path))
            await inside(house, ann, 3)
            assert await admin.status("DELETE", f"/admin/keys/{ann.id}") == 204
            for stream, name in ((talk, ""), (watched, "error")):
                last = (await ended(stream))[-1]
                assert (last.event, last.json["error"]["code"]) == (name, "invalid_api_key")
                assert last.json["error"]["message"] == "This API key was revoked or has expired."
            status, error = await asyncio.wait_for(waiting, 10)
            assert (status, error["code"]) == (401, "invalid_api_key")
            await inside(house, ann, 0)
            assert not others.content.at_eof(), "another key of the same owner stays"
            await cancel_all(bob)


async def test_a_key_that_another_process_revokes_is_missed_soon(serving: Serving) -> None:
    async with keyed(serving, hang) as house:
        ann = await client_of(house, "ann")
        client = AsyncOpenAI(base_url=f"{house.url}/v1", api_key=ann.key, max_retries=0)
        async with client, ann.streaming(CHAT, chat(stream=True)) as talk:
            stream = await client.chat.completions.create(model=AGENT, messages=chat()["messages"], stream=True)
            await inside(house, ann, 2)
            assert await keys.revoke(house.db, ann.id)
            assert (await ended(talk))[-1].json["error"]["code"] == "invalid_api_key"
            with pytest.raises(APIError, match="was revoked"):
                await asyncio.wait_for(exhausted(stream), 10)
            with pytest.raises(AuthenticationError):
                await client.models.list()
        assert not house.app.authenticator.inflight.not_empty.is_set()
        await cancel_all(await client_of(house, "ann"))


async def test_one_key_cannot_take_all_places(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        ann, bob = await client_of(house, "ann", max_concurrent=20), await client_of(house, "bob")
        session_id = (await ann.say("hi"))["model"]
        path = f"/v1/sessions/{session_id}/events?{NEVER}"
        slow = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {ann.key}\r\n"
        slow += "content-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
        async with AsyncExitStack() as stack:
            for _ in range(10):
                await stack.enter_async_context(ann.streaming(path))
            for _ in range(10):
                host, _, port = house.url.removeprefix("http://").partition(":")
                _, writer = await asyncio.open_connection(host, int(port))
                stack.callback(writer.close)
                writer.write(slow.encode())
            await inside(house, ann, 20)
            tries = [ann.status("GET", path), *(ann.status("POST", CHAT, chat()) for _ in range(30))]
            assert set(await asyncio.gather(*tries)) == {429}
            async with ann.ask("GET", "/v1/models") as response:
                assert (response.status, response.headers["retry-after"]) == (429, "1")
            assert "choices" in await bob.say("hi"), "others are served"
            assert await Client(house).status("GET", "/health") == 200
        await inside(house, ann, 0)
        assert await ann.status("GET", "/v1/models") == 200, "places are given back"


async def test_many_sessions_and_much_metadata_are_refused(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        ann = await client_of(house, "ann", sessions_per_hour=5)
        tries = [ann.status("POST", CHAT, chat()) for _ in range(40)]
        assert sorted(await asyncio.gather(*tries)) == [200] * 5 + [429] * 35
        assert await house.db.value("SELECT count(*) FROM sessions") == 5
        metadata: list[dict[str, str]] = [{str(n): "v" for n in range(17)}, {"k": "v" * 513}, {"k" * 65: "v"}]
        for one in metadata:
            status, error = await admin_of(house).refused("POST", CHAT, chat(metadata=one))
            assert (status, error["param"].startswith("metadata")) == (400, True)


async def test_of_two_answers_at_once_one_wins_whoever_sends_them(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        one, two = await client_of(house, "ann"), await client_of(house, "ann")
        path = f"/v1/sessions/{(await one.say('hi'))['model']}/clarification"

        async def answered(client: Client) -> tuple[int, str | None]:
            async with client.ask("POST", path, {"answer": "Oslo", "call_id": "1-action-0"}) as response:
                return response.status, response.headers.get("x-should-retry")

        assert sorted(await asyncio.gather(answered(one), answered(two))) == [(202, None), (409, "false")]


# At the start

EASY = (
    "admin",
    "changeme",
    "changeme-changeme",
    "x",
    "a" * 40,
    "abababababababab",
    "123456789012345",
    "my-Secret-key-1234567",
)


def test_an_admin_key_that_is_easy_to_guess_is_for_loopback_only() -> None:
    for key in EASY:
        with pytest.raises(SetupError, match="easy to guess"):
            refuse_easy_key("0.0.0.0", key)
        refuse_easy_key("127.0.0.1", key)
    refuse_easy_key("0.0.0.0", "f3c1b0a9d8e7462598ab")
    refuse_easy_key("0.0.0.0", "")


async def test_other_addresses_than_loopback_need_a_key(dsn: str) -> None:
    tries: list[dict[str, Any]] = [{"admin_key": " "}, {"admin_key": "changeme"}]
    elsewhere = ("serve", "--port", "0", "--host", "0.0.0.0")
    told = await asyncio.gather(*(launched_words(*elsewhere, database_url=dsn, **one) for one in tries))
    for one, (status, said) in zip(tries, told, strict=True):
        assert status == 1, (one, said)
        [sentence] = [line for line in said.splitlines() if not line.startswith("{")]
        assert sentence.startswith("longhouse: "), "one sentence beside the log"
    assert "no API key is set" in told[0][1]
    assert "easy to guess" in told[1][1]
    assert "changeme" not in told[1][1]


async def test_a_missing_key_is_noticed_before_a_port_or_a_postgres_is_touched(dsn: str) -> None:
    with socket.socket() as taken, tempfile.TemporaryDirectory() as folder:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        serve = ("serve", "--host", "0.0.0.0", "--port", str(taken.getsockname()[1]))
        new = Path(folder) / "data"
        mounted = Path(folder) / "mounted"
        mounted.mkdir()
        tries: list[dict[str, Any]] = [{"database_url": dsn}, {"data_dir": str(new)}, {"data_dir": str(mounted)}]
        told = await asyncio.gather(*(launched_words(*serve, **one) for one in tries))
        for status, said in told:
            assert (status, "no API key is set" in said) == (1, True), "who binds first is told of the port"
        assert (new.exists(), list(mounted.iterdir())) == (False, [])
        async with open_database(dsn) as db:
            await keys.create(db, name="ann's", owner="ann", role="user")
        status, said = await launched_words(*serve, database_url=dsn)
        assert (status, "cannot be used" in said) == (1, True), "a key of the database will do"


async def test_with_a_key_any_address_may_be_served_and_without_one_a_warning_is_given(dsn: str) -> None:
    elsewhere = ("serve", "--port", "0", "--host", "0.0.0.0")
    async with process(database_url=dsn) as house:
        async with house.http.get("/v1/models") as response:
            assert response.status == 200
        house.process.terminate()
        await house.ended()
    assert sum("no API key is set" in line for line in house.said) == 1
    async with process(*elsewhere, database_url=dsn, admin_key=ADMIN) as house:
        async with house.http.get("/v1/models") as response:
            assert response.status == 401
        async with house.http.get("/v1/models", headers={"authorization": f"Bearer {ADMIN}"}) as response:
            assert response.status == 200
        house.process.terminate()
        await house.ended()
    assert ADMIN not in "\n".join(house.said)
    assert not any("no API key is set" in line for line in house.said)
