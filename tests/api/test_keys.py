"""Keys as resources: made, listed, revoked; what they may use; and the command line that makes the first one."""

import asyncio
import re
import time
from datetime import timedelta
from typing import Any

import pytest
from attack_helpers import ask, chat, refused, remains
from key_helpers import ADMIN, Client, admin_of, client_of, keyed
from pydantic import SecretStr

from longhouse.api.rate_limits import Bucket, KeyLimits, Meter
from longhouse.cli import keys as commands
from longhouse.errors import CallerError, SetupError
from longhouse.settings import Settings
from longhouse.store.access import keys
from longhouse.store.database import Database
from longhouse.store.limits import budgets
from server_helpers import Serving, content, launched_words, sse

SHOWN = {
    "id", "name", "owner", "role", "rate_limit", "max_concurrent", "sessions_per_hour", "max_running",
    "tokens_per_day", "tokens_per_month", "turns_per_day", "turns_per_month", "read_only", "templates", "expires_at",
    "created_at", "revoked_at", "last_used_at", "former_until",
}  # fmt: skip
NEW = {"name": "the website", "owner": "shop", "role": "user"}


async def test_a_key_is_shown_once_and_kept_as_a_digest(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        admin = admin_of(house)
        async with admin.ask("POST", "/admin/keys", {**NEW, "rate_limit": 7}) as response:
            made = await response.json()
            assert (response.status, response.headers["cache-control"]) == (201, "no-store")
        assert set(made) == SHOWN | {"key"}
        assert (made["name"], made["owner"], made["role"], made["rate_limit"]) == ("the website", "shop", "user", 7)
        assert (made["max_concurrent"], made["revoked_at"]) == (None, None)
        assert re.fullmatch(r"lh_[A-Za-z0-9_-]{43,}", made["key"])
        client = Client(house, made["key"])
        assert content(await client.say("hi")) == "Which city?"
        page = await admin.got("/admin/keys")
        [row] = page.pop("data")
        assert page == {"object": "list", "has_more": False, "next": None}
        assert {k: row[k] for k in SHOWN - {"last_used_at"}} == {k: made[k] for k in SHOWN - {"last_used_at"}}
        assert set(row) == SHOWN | {"limits", "used"}
        rows = str(await house.db.rows("SELECT k::text FROM api_keys k"))
        assert made["id"] in rows
        assert made["key"] not in rows
        assert made["key"].removeprefix("lh_") not in rows


async def test_a_key_tells_its_limits_what_it_used_and_when(serving: Serving) -> None:
    async with keyed(serving, ask, max_concurrent=9) as house:
        admin, shop = admin_of(house), await client_of(house, "shop", rate_limit=7)
        await client_of(house, "depot")
        depot, before = (await admin.got("/admin/keys"))["data"]
        assert (depot["last_used_at"], before["last_used_at"]) == (None, None)
        held = {"rate_limit": 7, "max_concurrent": 9, "sessions_per_hour": 1000, "max_running": None}
        assert before["limits"] == {**held, **dict.fromkeys(budgets.NAMES)}
        await shop.say("hi")
        _, row = (await admin.got("/admin/keys"))["data"]
        counted = {"rate_limit": 1, "max_concurrent": 0, "sessions_per_hour": 1, "max_running": 0}
        assert {name: row["used"][name] for name in counted} == counted
        assert (row["used"]["turns_per_day"], row["used"]["turns_per_month"]) == (1, 1)
        assert row["last_used_at"] > before["created_at"]
        # No request writes it: what was used is written together, now and then, and never set back.
        in_table = "SELECT last_used_at FROM api_keys WHERE id = :id"
        assert await house.db.value(in_table, id=shop.id) is None
        await house.app.authenticator.record_use()
        written = await house.db.value(in_table, id=shop.id)
        await keys.record_use(house.db, {shop.id: written - timedelta(hours=1), "admin": written})
        assert await house.db.value(in_table, id=shop.id) == written
        assert (await admin.got("/admin/keys"))["data"][1]["last_used_at"] == row["last_used_at"]


async def test_a_rotated_key_is_the_same_key_with_another_secret(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        admin, shop = admin_of(house), await client_of(house, "shop", rate_limit=7)
        async with admin.ask("POST", f"/admin/keys/{shop.id}/rotate") as response:
            rotated = await response.json()
            assert (response.status, response.headers["cache-control"]) == (200, "no-store")
        assert (rotated["id"], rotated["owner"], rotated["rate_limit"]) == (shop.id, "shop", 7)
        assert rotated["key"] != shop.key
        assert await shop.status("GET", "/v1/sessions") == 401
        assert await Client(house, rotated["key"]).status("GET", "/v1/sessions") == 200
        assert await Client(house, rotated["key"]).status("POST", f"/admin/keys/{shop.id}/rotate") == 403
        assert await admin.status("DELETE", f"/admin/keys/{shop.id}") == 204
        for missing in (shop.id, "key_0", "%00"):
            assert await admin.status("POST", f"/admin/keys/{missing}/rotate") == 404


async def test_what_was_begun_with_a_secret_ends_with_it_whichever_process_rotates(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        shop, other = await client_of(house, "shop"), await client_of(house, "shop")
        session = (await shop.say("hi"))["model"]
        path = f"/v1/sessions/{session}/events?until=never"
        async with shop.streaming(path) as begun, other.streaming(path) as kept:
            await anext(sse(begun))
            await anext(sse(kept))
            rotated = await keys.rotate(house.db, shop.id)  # as another process does
            assert rotated is not None
            async with Client(house, rotated[1]).streaming(path) as fresh:
                async with asyncio.timeout(10):
                    last = [event async for event in sse(begun)][-1]
                assert (last.event, last.json["error"]["code"]) == ("error", "invalid_api_key")
                left = {one.key_digest for one in house.app.authenticator.inflight.of(key=shop.id)}
                assert left == {keys.digest_of(rotated[1])}, "the new secret is served on"
                assert house.app.authenticator.inflight.of(key=other.id)
                await anext(sse(fresh))


async def test_two_keys_are_never_alike(db: Database) -> None:
    made = [await keys.create(db, name="x", owner="x", role="user") for _ in range(20)]
    assert len({secret for _, secret in made}) == len({key.id for key, _ in made}) == 20


BAD: list[tuple[dict[str, Any], str]] = [
    ({"owner": "shop"}, "name"),
    ({"name": "x"}, "owner"),
    ({**NEW, "name": ""}, "name"),
    ({**NEW, "name": "x" * 201}, "name"),
    ({**NEW, "name": "two\nlines"}, "name"),
    ({**NEW, "name": "\x1b[2J"}, "name"),
    ({**NEW, "name": 7}, "name"),
    ({**NEW, "owner": "a/b"}, "owner"),
    ({**NEW, "owner": ".."}, "owner"),
    ({**NEW, "owner": ""}, "owner"),
    ({**NEW, "owner": "x" * 129}, "owner"),
    ({**NEW, "role": "root"}, "role"),
    ({**NEW, "role": None}, "role"),
    ({**NEW, "key": "lh_mine"}, "key"),
    ({**NEW, "digest": "0" * 64}, "digest"),
    ({**NEW, "id": "key_1"}, "id"),
    ({**NEW, "rate_limit": 0}, "rate_limit"),
    ({**NEW, "rate_limit": "9"}, "rate_limit"),
    ({**NEW, "max_concurrent": -1}, "max_concurrent"),
    ({**NEW, "sessions_per_hour": 2**40}, "sessions_per_hour"),
]


async def test_a_key_that_is_not_well_described_is_not_made(serving: Serving) -> None:
    async with keyed(serving) as house:
        headers = admin_of(house).headers
        for body, param in BAD:
            found = await refused(house, body, "/admin/keys", headers)
            assert (found.status, found.param) == (400, param), body
        for raw in (b"", b"[]", b"{", b'{"name":"\\u0000","owner":"x"}'):
            assert (await refused(house, raw, "/admin/keys", headers)).status == 400
        status, error = await admin_of(house).refused("GET", "/admin/keys?owner=shop")
        assert (status, error["param"]) == (400, "owner")
        assert await house.db.value("SELECT count(*) FROM api_keys") == 0


async def test_keys_are_listed_in_pages_newest_first(serving: Serving) -> None:
    async with keyed(serving) as house:
        admin = admin_of(house)
        made = [(await client_of(house, f"owner{n}")).id for n in range(5)]
        await admin.status("DELETE", f"/admin/keys/{made[1]}")
        first = await admin.got("/admin/keys?limit=3")
        assert ([key["id"] for key in first["data"]], first["has_more"]) == (made[:1:-1], True)
        second = await admin.got(f"/admin/keys?limit=3&before={first['next']}")
        assert ([key["id"] for key in second["data"]], second["has_more"]) == (made[1::-1], False)
        assert [bool(key["revoked_at"]) for key in second["data"]] == [True, False], "what was revoked stays listed"


async def test_a_revoked_key_opens_nothing_from_then_on(serving: Serving) -> None:
    async with keyed(serving) as house:
        admin, ann, other = admin_of(house), await client_of(house, "ann"), await client_of(house, "ann")
        assert await ann.status("GET", "/v1/models") == 200
        assert await admin.status("DELETE", f"/admin/keys/{ann.id}") == 204
        assert await ann.status("GET", "/v1/models") == 401
        assert await other.status("GET", "/v1/models") == 200, "the owner's other key is another key"
        revoked = {key["id"]: key["revoked_at"] for key in (await admin.got("/admin/keys"))["data"]}
        assert await admin.status("DELETE", f"/admin/keys/{ann.id}") == 204
        again = {key["id"]: key["revoked_at"] for key in (await admin.got("/admin/keys"))["data"]}
        assert again == revoked, "once is enough"
        for unknown in ("key_0", "admin", "%00", "x" * 500):
            status, error = await admin.refused("DELETE", f"/admin/keys/{unknown}")
            assert (status, error["code"]) == (404, "key_not_found")
        assert await admin.status("GET", "/v1/models") == 200, "the key of the settings is not in the table"


async def test_an_admin_may_revoke_the_key_that_it_asks_with(serving: Serving) -> None:
    async with keyed(serving) as house:
        ann = await client_of(house, "ann", "admin")
        assert await ann.status("DELETE", f"/admin/keys/{ann.id}") == 204
        assert await ann.status("DELETE", f"/admin/keys/{ann.id}") == 401


async def test_the_first_key_shuts_the_door_for_good(serving: Serving, db: Database) -> None:
    async with serving() as one, serving() as other:
        nobody, stranger = Client(one), Client(other)
        assert await nobody.status("GET", "/admin/keys") == 200
        async with nobody.ask("POST", "/admin/keys", {"name": "me", "owner": "me", "role": "admin"}) as response:
            made = await response.json()
        me = Client(one, made["key"], made["id"])
        assert await nobody.status("GET", "/v1/models") == await stranger.status("GET", "/v1/models") == 401
        assert await me.status("GET", "/v1/models") == 200
        assert await me.status("DELETE", f"/admin/keys/{me.id}") == 204
        for client in (nobody, stranger, me):
            assert await client.status("GET", "/v1/models") == 401, "without any key left, nobody comes in"
    async with serving() as later:
        assert await Client(later).status("GET", "/v1/models") == 200, "at the next start it is open, and says so"


# What a key may use


async def test_a_key_has_so_many_requests_a_minute(serving: Serving) -> None:
    async with keyed(serving, rate_limit=1_000) as house:
        ann, bob = await client_of(house, "ann", rate_limit=3), await client_of(house, "ann")
        for left in ("2", "1", "0"):
            async with ann.ask("GET", "/v1/models") as response:
                assert response.status == 200
                assert response.headers["x-ratelimit-limit-requests"] == "3"
                assert response.headers["x-ratelimit-remaining-requests"] == left
        async with ann.ask("GET", "/v1/sessions") as response:
            told = await response.json()
            assert (response.status, told["error"]["code"]) == (429, "rate_limit_exceeded")
            assert 1 <= int(response.headers["retry-after"]) <= 20
            assert response.headers["x-ratelimit-remaining-requests"] == "0"
            assert response.headers["x-request-id"]
        async with ann.house.http.get("/v1/models", headers={"x-api-key": ann.key}) as response:
            assert response.status == 429, "however the key is sent"
        async with bob.ask("GET", "/v1/models") as response:
            assert (response.status, response.headers["x-ratelimit-limit-requests"]) == (200, "1000")


async def test_a_key_opens_so_many_sessions_an_hour(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        ann = await client_of(house, "ann", sessions_per_hour=2)
        first = (await ann.say("hi"))["model"]
        assert content(await ann.say("hi", chat_id="c")) == "Which city?"
        before = await remains(house.db)
        async with ann.ask("POST", "/v1/chat/completions", chat()) as response:
            assert response.status == 429
            assert 0 < int(response.headers["retry-after"]) <= 1_800
        assert await remains(house.db) == before, "nothing was recorded"
        assert content(await ann.say("Oslo", model=first)) == "Which city?", "what is open goes on"
        assert content(await ann.say("Oslo", chat_id="c")) == "Which city?"
        assert content(await admin_of(house).say("hi")) == "Which city?"


async def test_without_keys_nothing_is_counted(serving: Serving) -> None:
    async with serving(ask, rate_limit=1, max_concurrent=1, sessions_per_hour=1) as house:
        for _ in range(3):
            assert content(await house.say("hi")) == "Which city?"


def test_a_bucket_fills_evenly_and_not_over() -> None:
    now = 0.0
    bucket = Bucket(6, 60.0, lambda: now)
    assert [bucket.take() for _ in range(7)] == [0, 0, 0, 0, 0, 0, 10]
    now = 4.0
    assert bucket.take() == pytest.approx(6)
    now = 25.0
    assert (bucket.left, bucket.take(), bucket.take()) == (2, 0, 0)
    assert bucket.take() == pytest.approx(5)
    assert bucket.full_in == pytest.approx(55)
    now = 10_000.0
    assert (bucket.left, bucket.full_in) == (6, 0)


async def test_a_refused_request_takes_neither_a_place_nor_a_permit(db: Database) -> None:
    meter = Meter(db, "gateway", "key_1", KeyLimits(rate_limit=10, max_concurrent=1))
    await meter.enter()
    for _ in range(20):
        with pytest.raises(CallerError, match="which is its limit"):
            await meter.enter()
    meter.leave()
    for _ in range(9):
        await meter.enter()
        meter.leave()
    with pytest.raises(CallerError, match="10 requests a minute"):
        await meter.enter()


@pytest.mark.parametrize("limit", [1, 7, 45, 300])
async def test_gateways_together_never_grant_more_than_the_limit(db: Database, limit: int) -> None:
    limits, key = KeyLimits(rate_limit=10_000, max_concurrent=10_000, sessions_per_hour=limit), f"key_{limit}"
    meters = [Meter(db, f"gateway{n}", key, limits) for n in range(4)]
    began = time.monotonic()

    async def opened(meter: Meter) -> int:
        """How many sessions a gateway lets through until it refuses."""
        for number in range(limit + 100):
            refused = await asyncio.gather(meter.open_session(), return_exceptions=True)
            if isinstance(refused[0], CallerError):
                assert (refused[0].status, refused[0].code) == (429, "rate_limit_exceeded")
                return number
        raise AssertionError("it never refuses")

    granted = sum(await asyncio.gather(*map(opened, meters)))
    refilled = (time.monotonic() - began) * limit / 3600
    assert limit - len(meters) <= granted <= limit + refilled, "each may be refused while another has one left"
    # What a gateway has taken and does not use goes back: another one may use it.
    await db.run("UPDATE key_permits SET left_over = :size, filled_at = now()", size=float(limit))
    meters = [Meter(db, f"later{n}", key, limits) for n in range(2)]
    await meters[0].open_session()
    await meters[0].give_back(idle=0)
    assert await opened(meters[1]) >= limit - 1
    assert await opened(meters[0]) <= 1


async def test_permits_are_taken_in_blocks(db: Database) -> None:
    meter = Meter(db, "gateway", "key_1", KeyLimits(rate_limit=1_000, max_concurrent=1_000))
    written = set()
    for _ in range(500):
        await meter.enter()
        written.add(await db.value("SELECT xmin::text FROM key_permits"))
    assert len(written) <= 10


# The command line


async def test_keys_are_made_listed_and_revoked_on_the_command_line(serving: Serving, dsn: str) -> None:
    async with keyed(serving) as house:
        made = ("keys", "create", "--name", "the website", "--owner", "shop", "--rate-limit", "9")
        status, said = await launched_words(*made, database_url=dsn)
        assert status == 0, said
        told, secret = said.split("\n", 1)
        shop = Client(house, secret.strip(), told.split(":")[0])
        assert "user of shop, 'the website'" in told
        async with shop.ask("GET", "/v1/models") as response:
            assert (response.status, response.headers["x-ratelimit-limit-requests"]) == (200, "9")
        assert await shop.status("GET", "/admin/keys") == 403

        status, listed = await launched_words("keys", "list", database_url=dsn)
        assert (status, shop.id in listed, secret.strip() in listed) == (0, True, False)

        status, said = await launched_words("keys", "revoke", shop.id, database_url=dsn)
        assert (status, said.strip()) == (0, f"{shop.id} is revoked")
        assert await shop.status("GET", "/v1/models") == 401
        assert await Client(house, ADMIN).status("GET", "/v1/models") == 200


async def test_the_command_line_says_in_one_sentence_what_it_cannot_do(dsn: str) -> None:
    settings = Settings(database_url=SecretStr(dsn))
    for asked, why in (
        ({"owner": "a/b"}, "--owner: It should be"),
        ({"name": "\x1b[2J"}, "--name: It should be"),
        ({"templates": ["a b\n"]}, "--template: "),
    ):
        given: dict[str, Any] = {**NEW, **asked}
        with pytest.raises(SetupError, match=why):
            await commands.create_key(settings, **given)
    for field, why in (("name", "--without name: "), ("foo-bar", "--without foo-bar: there is no such field")):
        with pytest.raises(SetupError, match=why):
            await commands.change_key(settings, "key_0", without=[field])
    with pytest.raises(SetupError, match="there is no key 'key_0'"):
        await commands.revoke_key(settings, "key_0")
