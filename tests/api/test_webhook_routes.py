"""The routes of webhooks: who may do what, what is told to whom, and what is refused."""

import asyncio
from typing import Any

from attack_helpers import CHAT
from key_helpers import ADMIN, Client, admin_of, client_of
from standardwebhooks import Webhook

from delegating_server import answer, ask, last_result, playing, question, task_of
from longhouse.agents.strategies.protocol import Body
from longhouse.journal import events
from longhouse.models.scripted import Say, call, step_of
from longhouse.store import journals
from longhouse.store.automation import webhook_deliveries
from server_helpers import House, Serving
from webhook_receiver import Received, Receiver, receiving, types

QUICK = ("0.05",) * 20
HOOKS = "/v1/webhooks"
OUTCOMES = ("delivered", "retried", "failed")
SHARED = {"conversation_id": "one"}
"""A name that two owners give to conversations of theirs."""


async def sent(client: Client, method: str, path: str, body: Any = None) -> Any:
    """The answer to a request that succeeds."""
    async with client.ask(method, path, body) as response:
        assert response.status < 300, await response.text()
        return await response.json() if response.status != 204 else None


async def log_of(client: Client, hook: Any, query: str = "") -> list[Any]:
    return list((await client.got(f"{HOOKS}/{hook['id']}/deliveries{query}"))["data"])


async def logged(client: Client, hook: Any, status: str, count: int) -> list[Any]:
    """So many deliveries of this status, once they are there."""
    async with asyncio.timeout(20):
        while len(found := await log_of(client, hook, f"?status={status}")) < count:
            await asyncio.sleep(0.05)
    return found


async def shown(client: Client, hook: Any, status: str) -> Any:
    """The webhook, once it has this status."""
    async with asyncio.timeout(20):
        while (found := await client.got(f"{HOOKS}/{hook['id']}"))["status"] != status:
            await asyncio.sleep(0.05)
    return found


async def metrics(admin: Client) -> dict[str, float]:
    async with admin.ask("GET", "/metrics") as response:
        lines = [line for line in (await response.text()).splitlines() if line.startswith("longhouse_webhook")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def master(body: Body) -> Say:
    match task_of(body):
        case "fail":
            return answer("Не могу。", status="failed")
        case "sign":
            return call("signtool") if not step_of(body.messages) else last_result(body)
        case "ask below":
            return last_result(body) if step_of(body.messages) else ask("ann", "Find out the weather.")
    return answer("Готово。")


def ann(body: Body) -> Say:
    return question("Which city? 哪里？") if task_of(body) == "Find out the weather." else answer("Rain.")


ROLES = {"master": master, "ann": ann, "ben": lambda body: answer("Bitte.")}


def hooked(serving: Serving, **settings: Any) -> Any:
    egress = {"allow_egress": ("127.0.0.0/8",), "webhook_retry_delays": QUICK}
    return playing(serving, ROLES, admin_key=ADMIN, **egress, **settings)


async def test_who_is_told_of_what(serving: Serving) -> None:
    async with (
        hooked(serving) as house,
        receiving(Receiver()) as receiver,
        receiving(Receiver()) as other,
        receiving(Receiver()) as theirs,
    ):
        shop, bob = await client_of(house, "shop"), await client_of(house, "bob")
        limited = await client_of(house, "shop", templates=["ben"])
        hook = await sent(shop, "POST", HOOKS, {"url": receiver.url, "description": "Der Empfänger"})
        receiver.secret = hook["secret"]
        of_ben = await sent(limited, "POST", HOOKS, {"url": other.url, "events": ["session.rested", "session.rested"]})
        other.secret = of_ben["secret"]
        assert of_ben["events"] == ["session.rested"]
        await bob.say("done", model="master", metadata=SHARED)
        await told(house, shop, receiver, other)
        await written_for_those_who_may_hear(house, bob, theirs, hook, of_ben)
        await hidden_from_others(shop, (bob, limited), hook, of_ben)
        await signed_by_two_secrets(shop, hook, receiver)
        await narrowed(shop, limited, of_ben, other)
        await erased(house, shop, hook)


async def told(house: House, shop: Client, receiver: Receiver, other: Receiver) -> None:
    """Events of the owner's root sessions, also what sub-agents ask."""
    failed, signed, below = [(await shop.say(text, model="master"))["model"] for text in ("fail", "sign", "ask below")]
    done = (await shop.say("done", model="master", metadata=SHARED))["model"]
    ben = (await shop.say("hi", model="ben"))["model"]
    await receiver.first(8)
    assert receiver.of(done) == ["session.rested COMPLETED"]
    assert receiver.of(signed) == ["approval.needed", "session.rested WAITING_FOR_APPROVAL"]
    assert receiver.of(below) == ["question.opened", "session.rested WAITING_FOR_CLARIFICATION"]
    assert receiver.of(ben) == ["session.rested COMPLETED"]
    [trouble] = [one for one in receiver.got if one.type == "turn.failed"]
    assert receiver.of(failed) == ["turn.failed", "session.rested FAILED"]
    assert trouble.data["error"] == {"code": "agent_failed", "message": "Не могу。"}
    [approval] = [one for one in receiver.got if one.type == "approval.needed"]
    assert (approval.data["tool"], approval.data["kind"]) == ("signtool", "approval")
    assert approval.data["deadline"]
    await answered(house, shop, below, receiver)
    # A branch tells what happens in it, and not what it has inherited.
    head = len(await house.journal(done))
    branch = (await sent(shop, "POST", f"/v1/sessions/{done}/fork", {"after": head}))["session_id"]
    await shop.say("done", model=branch)
    await receiver.until(lambda one: bool(one.of(branch)))
    assert receiver.of(branch) == ["session.rested COMPLETED"]
    await other.first(1)
    assert types(other.got) == ["session.rested"], "a key that is limited to templates is told of those alone"
    assert other.got[0].data["agent"] == "ben"
    assert {one.data["agent"] for one in receiver.got} == {"master", "ben"}


async def written_for_those_who_may_hear(house: House, bob: Client, theirs: Receiver, hook: Any, of_ben: Any) -> None:
    """Of sessions of its owner, and of agents that its key may use: for another webhook nothing is even recorded."""
    own = await sent(bob, "POST", HOOKS, {"url": theirs.url})
    theirs.secret = own["secret"]
    later = (await bob.say("done", model="master", metadata=SHARED))["model"]
    await theirs.first(1)
    assert [one["session_id"] for one in await log_of(bob, own)] == [later], "what was before is not told"
    recorded = "SELECT d.webhook_id, s.owner, d.agent FROM webhook_deliveries d JOIN sessions s ON s.id = d.session_id"
    assert {tuple(row) for row in await house.db.rows(recorded)} == {
        (hook["id"], "shop", "master"),
        (hook["id"], "shop", "ben"),
        (of_ben["id"], "shop", "ben"),
        (own["id"], "bob", "master"),
    }


async def looked_at(house: House, session_id: str) -> None:
    """Has the collector look at a session once more, in which nothing has happened."""
    await house.db.run("INSERT INTO webhook_news (session_id) VALUES (:id)", id=session_id)
    async with asyncio.timeout(60):
        while await house.db.value("SELECT count(*) FROM webhook_news"):
            await asyncio.sleep(0.02)


async def named_by_its_moves(house: House, root: str, receiver: Receiver) -> None:
    """The rest of a session that waits for a sub-agent has the same id, whoever finds it and whatever is noted in it;
    where other events are in the same places, as after a restore, it has another."""
    rests = "SELECT count(*) FROM webhook_deliveries WHERE session_id = :id AND type = 'session.rested'"
    await journals.note(house.db, root, [events.Noted(about="interaction", subject="заметка")])
    await looked_at(house, root)
    assert await house.db.value(rests, id=root) == 1
    await house.db.run("UPDATE journal SET at = at + interval '1 second' WHERE session_id = :id", id=root)
    await looked_at(house, root)
    assert await house.db.value(rests, id=root) == 2
    await receiver.until(lambda one: len(one.of(root)) == 3)


async def answered(house: House, shop: Client, root: str, receiver: Receiver) -> None:
    """What a sub-agent asks is told of the root session, and answered there by the name that was told."""
    [asked] = [one for one in receiver.got if one.type == "question.opened"]
    assert (asked.data["text"], asked.data["asked_by"]["agent"]) == ("Which city? 哪里？", "ann")
    assert asked.data["asked_by"]["session_id"] != root == asked.data["session_id"]
    await named_by_its_moves(house, root, receiver)
    body = {"answer": "Oslo", "call_id": asked.data["name"]}
    await sent(shop, "POST", f"/v1/sessions/{root}/clarification", body)
    await receiver.until(lambda one: one.of(root)[-1:] == ["session.rested COMPLETED"])
    assert len(receiver.of(root)) == 4


async def hidden_from_others(shop: Client, others: tuple[Client, Client], hook: Any, of_ben: Any) -> None:
    bob, limited = others
    path, [entry, *_] = f"{HOOKS}/{hook['id']}", await log_of(shop, hook)
    assert "secret" not in await shop.got(path)
    assert {one["id"] for one in (await shop.got(HOOKS))["data"]} == {hook["id"], of_ben["id"]}
    assert [one["id"] for one in (await limited.got(HOOKS))["data"]] == [of_ben["id"]]
    [of_bob] = (await bob.got(HOOKS))["data"]
    assert of_bob["id"] not in (hook["id"], of_ben["id"])
    calls = [
        ("GET", path, None),
        ("PATCH", path, {"status": "disabled"}),
        ("POST", f"{path}/rotate", None),
        ("POST", f"{path}/test", None),
        ("GET", f"{path}/deliveries", None),
        ("POST", f"{path}/deliveries/{entry['id']}/retry", None),
        ("DELETE", path, None),
    ]
    for stranger in (bob, limited, admin_of(shop.house)):
        for method, where, body in calls:
            status, error = await stranger.refused(method, where, body)
            assert (status, error["code"]) == (404, "webhook_not_found"), (method, where)
    reader = await client_of(shop.house, "shop", read_only=True)
    for method, where, body in calls:
        if method != "GET":
            assert (await reader.refused(method, where, body))[1]["code"] == "read_only_key"
    assert (await reader.refused("POST", HOOKS, {"url": hook["url"]}))[1]["code"] == "read_only_key"
    assert (await reader.got(path))["status"] == "active"
    status, error = await limited.refused("POST", HOOKS, {"url": hook["url"], "agent": "master"})
    assert (status, error["code"], error["param"]) == (403, "template_not_allowed", "agent")
    assert (await log_of(shop, hook, "?limit=1"))[0]["id"] == entry["id"]


async def tried(client: Client, hook: Any, receiver: Receiver) -> Received:
    """A test event, once it has come."""
    entry = await sent(client, "POST", f"{HOOKS}/{hook['id']}/test")
    await receiver.until(lambda one: entry["id"] in {each.id for each in one.got})
    return next(one for one in receiver.got if one.id == entry["id"])


async def signed_by_two_secrets(shop: Client, hook: Any, receiver: Receiver) -> None:
    """While both hold, a receiver that knows either secret verifies what comes."""
    rotated = await sent(shop, "POST", f"{HOOKS}/{hook['id']}/rotate?overlap_seconds=3600")
    assert rotated["former_until"]
    both = await tried(shop, hook, receiver)
    assert both.type == "webhook.test"
    for secret in (hook["secret"], rotated["secret"]):
        assert Webhook(secret).verify(both.raw, both.headers)["data"] == {"webhook_id": hook["id"]}
    receiver.secret = rotated["secret"]
    assert " " in (await tried(shop, hook, receiver)).headers["webhook-signature"]
    again = await sent(shop, "POST", f"{HOOKS}/{hook['id']}/rotate")
    receiver.secret = again["secret"]
    assert " " not in (await tried(shop, hook, receiver)).headers["webhook-signature"]
    # What was delivered comes once more, under its id.
    await sent(shop, "POST", f"{HOOKS}/{hook['id']}/deliveries/{both.id}/retry")
    await receiver.until(lambda one: [each.id for each in one.got].count(both.id) == 2)


async def narrowed(shop: Client, limited: Client, of_ben: Any, other: Receiver) -> None:
    """What waits is not sent once the key may not use the agent any more; what comes after it is."""
    [entry] = await log_of(shop, of_ben)
    await sent(admin_of(shop.house), "PATCH", f"/admin/keys/{limited.id}", {"templates": ["master"]})
    await sent(shop, "POST", f"{HOOKS}/{of_ben['id']}/deliveries/{entry['id']}/retry")
    for _ in range(2):
        await tried(shop, of_ben, other)
    [waiting] = [one for one in await log_of(shop, of_ben) if one["id"] == entry["id"]]
    assert (waiting["status"], waiting["attempts"]) == ("pending", 0)


async def erased(house: House, shop: Client, hook: Any) -> None:
    """With a session its deliveries go; with an owner its webhooks."""
    entry = next(one for one in await log_of(shop, hook) if one["session_id"])
    await sent(shop, "DELETE", f"/v1/sessions/{entry['session_id']}")
    left = await log_of(shop, hook)
    assert left
    assert entry["session_id"] not in str(left)
    gone = await sent(admin_of(house), "DELETE", "/admin/owners/shop")
    assert gone["counts"]["webhooks"] == 2
    assert [row["owner"] for row in await house.db.rows("SELECT owner FROM webhooks")] == ["bob"]
    assert await house.db.value("SELECT count(*) FROM webhook_deliveries") == 1


async def test_what_becomes_of_a_receiver_that_does_not_take_it(serving: Serving) -> None:
    async with (
        hooked(serving, webhook_pause_days=0.000001, webhook_timeout=60) as house,
        receiving(Receiver()) as broken,
        receiving(Receiver()) as well,
    ):
        shop, admin = await client_of(house, "shop"), admin_of(house)
        slow, fine = [await sent(shop, "POST", HOOKS, {"url": one.url, "agent": "ben"}) for one in (broken, well)]
        broken.secret, well.secret = slow["secret"], fine["secret"]

        # One that does not answer holds no other up, be it another receiver or another session. No redirect is
        # followed.
        broken.headers, broken.answers = {"location": well.url}, [301, 0]
        ben = (await shop.say("hi", model="ben"))["model"]
        await shop.say("done", model="master")
        await broken.until(lambda one: bool(one.held))
        await well.first(1)
        [redirected] = await log_of(shop, slow)
        assert (redirected["status"], redirected["attempts"], redirected["last_status"]) == ("pending", 1, 301)
        assert redirected["last_error"] == "The receiver answered 301, a redirect, which is not followed"
        await logged(shop, fine, "delivered", 1)
        counted = await metrics(admin)
        assert {
            outcome: counted[f'longhouse_webhook_deliveries_total{{outcome="{outcome}"}}'] for outcome in OUTCOMES
        } == {"delivered": 1, "retried": 1, "failed": 0}
        assert counted["longhouse_webhook_deliveries_pending"] == 1
        assert counted["longhouse_webhook_oldest_pending_seconds"] > 0
        another = (await shop.say("hi", model="ben"))["model"]
        await logged(shop, slow, "delivered", 1)
        await logged(shop, fine, "delivered", 2)
        assert (broken.of(another), broken.of(ben)) == (["session.rested COMPLETED"], [])
        assert await webhook_deliveries.claim(house.db, slow["id"], "another worker", seconds=60) is None
        bare = slow["secret"].removeprefix("whsec_")
        broken.body, broken.answers = f"{slow['secret']} {bare} {'x' * 10_000}", [500] * 20
        broken.go_on.set()

        # It fails for longer than it may: paused, with the reason; what has waited is sent once it goes on.
        paused = await shown(shop, slow, "paused")
        assert paused["reason"].startswith("Nothing could be delivered since ")
        assert paused["failing_since"]
        [waiting] = await log_of(shop, slow, "?status=pending")
        said = f"The receiver answered {waiting['last_status']}: whsec_[hidden] [hidden] xx"
        assert waiting["last_error"].startswith(said)
        assert bare not in waiting["last_error"] + paused["reason"]
        assert len(waiting["last_error"]) < 500
        assert (await shop.refused("POST", f"{HOOKS}/{slow['id']}/test"))[1]["code"] == "webhook_not_active"
        retried = f"{HOOKS}/{slow['id']}/deliveries/{waiting['id']}/retry"
        assert (await shop.refused("POST", retried))[0] == 409
        broken.body, broken.headers, broken.answers = "", {"content-encoding": "br"}, []
        await house.db.run("UPDATE webhook_deliveries SET next_at = now() + interval '1 day' WHERE status = 'pending'")
        await sent(shop, "PATCH", f"{HOOKS}/{slow['id']}", {"status": "active"})
        await broken.first(2)
        await logged(shop, slow, "delivered", 2)  # the body of a success is not read, however it is packed
        broken.headers = {}
        assert broken.of(ben) == ["session.rested COMPLETED"]
        assert (await shown(shop, slow, "active"))["reason"] is None
        assert well.statuses == [200, 200], "a redirect is not followed"

        # 410: it wants no more.
        broken.answers = [410]
        await sent(shop, "POST", f"{HOOKS}/{slow['id']}/test")
        assert "410" in (await shown(shop, slow, "paused"))["reason"]

        # While it is disabled, nothing is recorded; a key that is revoked takes its webhooks along.
        await sent(shop, "PATCH", f"{HOOKS}/{slow['id']}", {"status": "disabled", "agent": None})
        before = await log_of(shop, slow)
        await shop.say("hi", model="ben")
        await well.first(3)
        assert await log_of(shop, slow) == before
        successor = await client_of(house, "shop")
        assert await admin.status("DELETE", f"/admin/keys/{shop.id}") == 204
        assert "revoked" in (await shown(successor, fine, "paused"))["reason"]
        await successor.say("hi", model="ben")
        adopted = await sent(successor, "PATCH", f"{HOOKS}/{fine['id']}", {"status": "active"})
        assert adopted["key_id"] == successor.id
        await successor.say("hi", model="ben")
        await well.until(lambda one: len(one.got) >= 4)
        assert await house.db.value("SELECT count(*) FROM journal WHERE body::text LIKE '%whsec_%'") == 0

        # The log is kept for a while.
        kept = await log_of(successor, fine)
        old = "UPDATE webhook_deliveries SET created_at = created_at - interval '31 days' WHERE id = :id"
        await house.db.run(old, id=kept[0]["id"])
        await webhook_deliveries.expire(house.db, days=30)
        assert await log_of(successor, fine) == kept[1:]


async def test_what_cannot_be_is_refused_and_nothing_is_half_done(serving: Serving) -> None:
    async with hooked(serving) as house:
        shop = await client_of(house, "shop")
        hook = await sent(shop, "POST", HOOKS, {"url": "https://example.com/hook", "events": ["turn.failed"]})
        path, kept = f"{HOOKS}/{hook['id']}", await shop.got(HOOKS)
        url = "https://example.com/hook"
        wrong: list[tuple[str, Any]] = [
            ("url", {}),
            ("url", {"url": 1}),
            ("url", {"url": "ftp://example.com/hook"}),
            ("url", {"url": "https://user:word@example.com/hook"}),
            ("url", {"url": "http://10.0.0.1/hook"}),
            ("url", {"url": "http://[::1]:80/hook"}),
            ("url", {"url": "http://169.254.169.254/latest"}),
            ("url", {"url": "http://localhost.localdomain:99999/"}),
            ("url", {"url": "https://example.com/" + "x" * 3_000}),
            ("events", {"url": url, "events": []}),
            ("events", {"url": url, "events": "turn.failed"}),
            ("events[0]", {"url": url, "events": ["turn.begun"]}),
            ("agent", {"url": url, "agent": "a b"}),
            ("description", {"url": url, "description": "two\nlines"}),
            ("secret", {"url": url, "secret": "whsec_AAAA"}),
            ("owner", {"url": url, "owner": "bob"}),
        ]
        for param, body in wrong:
            status, error = await shop.refused("POST", HOOKS, body)
            assert (status, error["param"]) == (400, param), (body, error)
            if "url" in body and body != {"url": url}:
                refused = await shop.refused("PATCH", path, {**body, "status": "disabled"})
                assert (refused[0], refused[1]["param"]) == (400, param), body
        for body, field in (({}, None), ({"status": "paused"}, "status"), ({"url": None}, "url"), ({"x": 1}, "x")):
            status, error = await shop.refused("PATCH", path, body)
            assert (status, error["param"]) == (400, field), body
        for query in ("overlap_seconds=-1", "overlap_seconds=x", "overlap=1"):
            status, error = await shop.refused("POST", f"{path}/rotate?{query}")
            assert (status, error["param"]) == (400, query.partition("=")[0])
        for query in ("status=lost", "limit=0", "before=x", "session=1"):
            status, error = await shop.refused("GET", f"{path}/deliveries?{query}")
            assert (status, error["param"]) == (400, query.partition("=")[0])
        assert (await shop.refused("POST", f"{path}/test", {"type": "x"}))[1]["param"] == "type"
        for unknown in ("msg_0", "%00"):
            status, error = await shop.refused("POST", f"{path}/deliveries/{unknown}/retry")
            assert (status, error["code"]) == (404, "delivery_not_found")
            assert (await shop.refused("GET", f"{HOOKS}/{unknown}"))[1]["code"] == "webhook_not_found"
        assert await shop.got(HOOKS) == kept
        async with shop.ask("POST", CHAT, {}) as response:
            assert response.status == 400

        for _ in range(49):
            await sent(shop, "POST", HOOKS, {"url": url})
        status, error = await shop.refused("POST", HOOKS, {"url": url})
        assert (status, error["code"]) == (409, "too_many_webhooks")
        assert await shop.status("DELETE", path) == 204
        assert (await shop.refused("DELETE", path))[0] == 404
